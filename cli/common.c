/* Messages, checked output, signals, files, progress. */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"

/* ---- messages ---- */

static void say(const char *format, va_list args)
{
    fflush(stdout);
    fputs("veloxquant: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
}

void cli_say(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(format, args);
    va_end(args);
}

int cli_fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(format, args);
    va_end(args);
    return CLI_FAILED;
}

int cli_fail_with(const vq_error *err) { return cli_fail("%s", err->text); }

int cli_usage(const cli_page *page, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(format, args);
    va_end(args);
    fprintf(stderr, "Try 'veloxquant %s --help'.\n", page->name);
    return CLI_USAGE;
}

bool cli_parse(const cli_page *page, int argc, char **argv, size_t *n_operands, int *status)
{
    char message[512];
    switch (cli_options_parse(page, argc, argv, n_operands, message, sizeof message)) {
    case CLI_PARSED: return true;
    case CLI_HELP:
        cli_options_help(page, stdout);
        *status = CLI_FINE;
        return false;
    case CLI_WRONG: break;
    }
    *status = cli_usage(page, "%s", message);
    return false;
}

/* ---- standard output ---- */

static int write_errno;
static volatile sig_atomic_t last_signal;

bool cli_write(const char *bytes, size_t n_bytes)
{
    errno = 0;
    if (fwrite(bytes, 1, n_bytes, stdout) == n_bytes && fflush(stdout) == 0)
        return true;
    write_errno = errno;
    return false;
}

int cli_finish_output(int status)
{
    errno = 0;
    const bool failed = ferror(stdout) != 0;
    if (status == CLI_INTERRUPTED && last_signal == SIGTERM)
        status = 128 + SIGTERM;
    if (fclose(stdout) != 0 && write_errno == 0)
        write_errno = errno;
    if (!failed && write_errno == 0)
        return status;
    fprintf(stderr, "veloxquant: standard output: %s\n", strerror(write_errno ? write_errno : EIO));
    return status == CLI_FINE ? CLI_FAILED : status;
}

/* ---- signals ---- */

static volatile sig_atomic_t n_interrupts;
static volatile sig_atomic_t most_interrupts;
static char bus_message[600] = "veloxquant: the model file changed while it was mapped\n";

static void on_bus(int signal_number)
{
    (void)signal_number;
    const ssize_t n = write(STDERR_FILENO, bus_message, strlen(bus_message));
    (void)n;
    _exit(CLI_FAILED);
}

static void on_interrupt(int signal_number)
{
    last_signal = signal_number;
    if (n_interrupts++ >= most_interrupts)
        _exit(128 + signal_number);
}

void cli_signals_init(void)
{
    struct sigaction action = {.sa_handler = on_bus, .sa_flags = (int)SA_RESETHAND};
    sigaction(SIGBUS, &action, NULL);
    /* a parent may have had it ignored: then `... | head` would end in an error message */
    action = (struct sigaction){.sa_handler = SIG_DFL};
    sigaction(SIGPIPE, &action, NULL);
}

void cli_signals_model(const char *path)
{
    snprintf(bus_message, sizeof bus_message, "veloxquant: %s: the model file changed while it was mapped\n", path);
}

void cli_catch_interrupt(int most)
{
    n_interrupts = 0;
    most_interrupts = most;
    const struct sigaction action = {.sa_handler = on_interrupt}; /* no SA_RESTART: reads return */
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL); /* temporary files are removed then too */
}

bool cli_interrupted(void) { return n_interrupts > 0; }
void cli_forget_interrupt(void) { n_interrupts = 0; }

/* ---- files and numbers ---- */

bool cli_same_file(const char *a, const char *b)
{
    struct stat s, t;
    return a && b && stat(a, &s) == 0 && stat(b, &t) == 0 && S_ISREG(s.st_mode) && s.st_dev == t.st_dev &&
           s.st_ino == t.st_ino;
}

bool cli_read_file(const char *path, char **bytes, size_t *n_bytes)
{
    const bool standard = strcmp(path, "-") == 0;
    const char *name = standard ? "standard input" : path;
    FILE *f = standard ? stdin : fopen(path, "rb");
    *bytes = NULL;
    *n_bytes = 0;
    if (!f) {
        cli_say("%s: %s", name, strerror(errno));
        return false;
    }
    size_t n = 0, room = 0;
    char *buffer = NULL;
    bool fine = true;
    for (;;) {
        if (n == room) {
            room = room ? room * 2 : 65536;
            char *more = realloc(buffer, room + 1);
            if (!more) {
                cli_say("%s: no memory for %zu bytes", name, room);
                fine = false;
                break;
            }
            buffer = more;
        }
        const size_t got = fread(buffer + n, 1, room - n, f);
        n += got;
        if (got == 0) {
            if (ferror(f)) {
                if (!cli_interrupted())
                    cli_say("%s: %s", name, strerror(errno));
                fine = false;
            }
            break;
        }
    }
    if (!standard)
        fclose(f);
    if (!fine) {
        free(buffer);
        return false;
    }
    buffer[n] = 0;
    *bytes = buffer;
    *n_bytes = n;
    return true;
}

const char *cli_bytes(uint64_t n_bytes, char out[16])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double x = (double)n_bytes;
    size_t unit = 0;
    while (x >= 1024 && unit + 1 < sizeof units / sizeof units[0]) {
        x /= 1024;
        unit++;
    }
    snprintf(out, 16, unit == 0 ? "%.0f %s" : x < 10 ? "%.2f %s" : "%.1f %s", x, units[unit]);
    return out;
}

double cli_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double cli_rate(size_t n, double seconds) { return seconds > 0 ? (double)n / seconds : 0; }

void cli_unescape(char *text)
{
    char *to = text;
    for (const char *at = text; *at; at++) {
        if (*at != '\\' || !at[1]) {
            *to++ = *at;
            continue;
        }
        at++;
        switch (*at) {
        case 'n': *to++ = '\n'; break;
        case 't': *to++ = '\t'; break;
        case 'r': *to++ = '\r'; break;
        case '\\': *to++ = '\\'; break;
        case '"': *to++ = '"'; break;
        default: *to++ = '\\'; *to++ = *at;
        }
    }
    *to = 0;
}

bool cli_stderr_is_terminal(void) { return isatty(STDERR_FILENO) == 1; }

/* ---- progress ---- */

void cli_progress_start(cli_progress *p, const char *what)
{
    const double now = cli_seconds();
    *p = (cli_progress){.what = what, .start = now, .last = now};
}

void cli_progress_step(cli_progress *p, uint64_t done, uint64_t all, const char *remark)
{
    const bool terminal = cli_stderr_is_terminal();
    const double now = cli_seconds(), every = terminal ? 0.25 : 10;
    if (now - p->last < every || done == 0)
        return;
    p->last = now;
    p->shown = true;
    const double spent = now - p->start, left = spent * (double)(all - done) / (double)done;
    fprintf(stderr, "%s%s: %llu of %llu, %.0f s left%s%s%s", terminal ? "\r" : "", p->what, (unsigned long long)done,
            (unsigned long long)all, left, remark[0] ? ", " : "", remark, terminal ? "\033[K" : "\n");
    fflush(stderr);
}

void cli_progress_end(cli_progress *p)
{
    if (p->shown && cli_stderr_is_terminal())
        fputs("\r\033[K", stderr);
    p->shown = false;
}
