/* Lines for chat.
 *
 * libedit retries a read that a signal interrupted, and a Ctrl-C between its check and the read would go unnoticed
 * until the next key: characters are therefore read here, and the signal is let in only while waiting for one. */
#include "chat_input.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#ifdef CLI_EDIT
#include <histedit.h>
#endif

#include "cli.h"

struct chat_input {
    bool terminal, joining;
    char *line; /* of getline */
    size_t line_room;
    char *text; /* joined lines */
    size_t n_text, text_room;
#ifdef CLI_EDIT
    EditLine *edit;
    History *history;
    HistEvent event;
#endif
};

#ifdef CLI_EDIT
static char *show_prompt(EditLine *edit)
{
    static char first[] = "> ", more[] = ". ";
    chat_input *in;
    el_get(edit, EL_CLIENTDATA, &in);
    return in->joining ? more : first;
}

/* True when a byte can be read, false on Ctrl-C or when the terminal is gone. */
static bool wait_for_byte(void)
{
    sigset_t interrupt, before;
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    sigprocmask(SIG_BLOCK, &interrupt, &before);
    int ready = 0;
    while (ready <= 0 && !cli_interrupted()) {
        ready = ppoll(&input, 1, NULL, &before);
        if (ready < 0 && errno != EINTR)
            break;
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    return ready > 0;
}

/* One character of the terminal, which sends it in bytes. */
static int read_character(EditLine *edit, wchar_t *out)
{
    (void)edit;
    mbstate_t state;
    memset(&state, 0, sizeof state);
    for (;;) {
        char byte;
        if (!wait_for_byte())
            return -1;
        const ssize_t n = read(STDIN_FILENO, &byte, 1);
        if (n <= 0)
            return (int)n;
        const size_t got = mbrtowc(out, &byte, 1, &state);
        if (got == (size_t)-2)
            continue;
        if (got == (size_t)-1) {
            memset(&state, 0, sizeof state);
            continue;
        }
        return 1;
    }
}

static void edit_open(chat_input *in)
{
    in->edit = el_init("veloxquant", stdin, isatty(STDOUT_FILENO) ? stdout : stderr, stderr);
    in->history = history_init();
    if (!in->edit || !in->history)
        return; /* plain lines do as well */
    history(in->history, &in->event, H_SETSIZE, 1000);
    history(in->history, &in->event, H_SETUNIQUE, 1);
    el_set(in->edit, EL_CLIENTDATA, in);
    el_set(in->edit, EL_PROMPT, show_prompt);
    el_set(in->edit, EL_EDITOR, "emacs");
    el_set(in->edit, EL_HIST, history, in->history);
    el_set(in->edit, EL_GETCFN, read_character);
    el_set(in->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_source(in->edit, NULL);
}
#endif

chat_input *chat_input_open(void)
{
    chat_input *in = calloc(1, sizeof *in);
    if (!in)
        return NULL;
    in->terminal = isatty(STDIN_FILENO) == 1;
#ifdef CLI_EDIT
    if (in->terminal)
        edit_open(in);
#endif
    return in;
}

void chat_input_close(chat_input *in)
{
    if (!in)
        return;
#ifdef CLI_EDIT
    if (in->history)
        history_end(in->history);
    if (in->edit)
        el_end(in->edit);
#endif
    free(in->line);
    free(in->text);
    free(in);
}

bool chat_input_is_terminal(const chat_input *in) { return in->terminal; }

static chat_line read_plain(chat_input *in, const char **line, size_t *n_bytes)
{
    if (in->terminal) {
        fputs(in->joining ? ". " : "> ", stdout);
        fflush(stdout);
    }
    errno = 0;
    cli_catch_interrupt(0); /* while waiting, Ctrl-C ends the program: all output has been written */
    const ssize_t n = getline(&in->line, &in->line_room, stdin);
    cli_catch_interrupt(1);
    if (n < 0) {
        if (feof(stdin))
            return CHAT_END;
        cli_say("standard input: %s", strerror(errno));
        return CHAT_FAILED;
    }
    *line = in->line;
    *n_bytes = (size_t)n;
    return CHAT_LINE;
}

static chat_line read_line(chat_input *in, const char **line, size_t *n_bytes)
{
#ifdef CLI_EDIT
    if (in->edit && in->history) {
        int n = 0;
        el_resize(in->edit); /* the window may have changed while an answer was printed */
        *line = el_gets(in->edit, &n);
        if (*line && n > 0) {
            *n_bytes = (size_t)n;
            return CHAT_LINE;
        }
        return cli_interrupted() ? CHAT_INTERRUPTED : CHAT_END;
    }
#endif
    return read_plain(in, line, n_bytes);
}

static bool append(chat_input *in, const char *bytes, size_t n_bytes)
{
    if (n_bytes + 1 > in->text_room - in->n_text) {
        const size_t room = 2 * (in->n_text + n_bytes) + 256;
        char *more = realloc(in->text, room);
        if (!more)
            return false;
        in->text = more;
        in->text_room = room;
    }
    memcpy(in->text + in->n_text, bytes, n_bytes);
    in->n_text += n_bytes;
    in->text[in->n_text] = 0;
    return true;
}

chat_line chat_input_next(chat_input *in, const char **text, size_t *n_bytes)
{
    in->n_text = 0;
    in->joining = false;
    for (;;) {
        const char *line;
        size_t n;
        const chat_line got = read_line(in, &line, &n);
        if (got == CHAT_END && in->joining)
            break;
        if (got != CHAT_LINE)
            return got;
        if (n > 0 && line[n - 1] == '\n')
            n--;
        if (n > 0 && line[n - 1] == '\r')
            n--;
        in->joining = n > 0 && line[n - 1] == '\\';
        if (!append(in, line, in->joining ? n - 1 : n) || (in->joining && !append(in, "\n", 1))) {
            cli_say("no memory for a line of %zu bytes", n);
            return CHAT_FAILED;
        }
        if (!in->joining)
            break;
    }
    in->joining = false;
#ifdef CLI_EDIT
    if (in->history && in->edit && in->n_text > 0)
        history(in->history, &in->event, H_ENTER, in->text);
#endif
    *text = in->text;
    *n_bytes = in->n_text;
    return CHAT_LINE;
}
