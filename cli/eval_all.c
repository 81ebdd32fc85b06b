/* veloxquant eval all: from a model to a report, in one command that can be interrupted and goes on.
 *
 * Each configuration is this program again, so that nothing of one is in the memory or the caches of another, and one
 * that fails takes nothing with it.  Its JSON goes to DIR/NAME.json once it is whole; DIR/all.json says which steps are
 * done, and by what: a key over the command, the program and its library, the model and the texts.  A step whose key is
 * the same and whose file is there is not run again. */
#include "eval_all.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define AT(field) offsetof(all_args, field)

static const cli_option options[] = {
    {'m', "model", CLI_TEXT, AT(model), "FILE", "the model, a GGUF file or a reservoir", 0, 0},
    {'f', "text", CLI_TEXTS, AT(texts), "FILE",
     "a text, UTF-8, that everything is measured on; may be given several times: then the last one is what the "
     "calibration is made of. Of a single one, that is the second half (default: texts/*.txt)",
     0, 0},
    {'o', "out", CLI_TEXT, AT(dir), "DIR", "where results and report go; made when it is not there", 0, 0},
    {0, "quick", CLI_FLAG, AT(quick), NULL, "few tokens, short contexts; what is done when nothing is said", 0, 0},
    {0, "full", CLI_FLAG, AT(full), NULL, "more of everything: narrower intervals, longer contexts, more methods", 0,
     0},
    {0, "kv", CLI_TEXTS, AT(kv), "METHOD",
     "a cache to measure; may be given several times (default: a set from 16 to 2 bits)", 0, 0},
    {'t', "threads", CLI_COUNT, AT(n_threads), "N", "threads (default: all cores that this process may use)", 1, 1024},
};

static const char intro[] =
    "Measures a model with several caches and draws the report: speed over length, quality against compression, "
    "memory, "
    "distortion of attention, generated texts, eviction, needles, what Q-Filters rest on, sharing. Each configuration "
    "runs in a process of its own, and one that fails is recorded and left behind.\n"
    "\n"
    "Results that are in the folder already are kept, unless the model, the texts, the program or the options have "
    "changed: so the command goes on where it was interrupted.";

static const char ending[] =
    "Examples:\n"
    "  veloxquant eval all -m model.gguf\n"
    "  veloxquant eval all -m model.gguf --text one.txt --text other.txt --full -o measured\n"
    "  veloxquant eval all -m model.gguf --kv f16 --kv kivi:bits=2 --kv velox:bits=2\n"
    "\n"
    "Statuses: 0, everything done; 1, something failed, which the last lines and DIR/all.json\n"
    "name; 130, interrupted. What each step printed is in DIR/logs.\n";

typedef enum outcome { PENDING, KEPT, DONE, FAILED } outcome;

typedef struct record {
    outcome outcome;
    uint64_t key;
    double seconds, cpu_seconds;
    char message[400];
} record;

struct job {
    const all_args *args;
    int argc;
    char **argv;
    all_subject subject;
    all_plan plan;
    record records[ALL_MOST_STEPS];
    char calibration[4096], halves[2][4096]; /* paths of our own */
    char *found[CLI_MOST_TEXTS];             /* texts that nobody named */
    vq_model_info info;
    uint64_t basis;               /* of the keys: program, model, texts */
    double start, spent, guessed; /* seconds of the steps that ran, and what they had been guessed */
};

/* ---- what makes a result stale ---- */

/* FNV-1a: nobody attacks this. */
static uint64_t mix(uint64_t hash, const void *bytes, size_t n)
{
    const unsigned char *at = bytes;
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ at[i]) * UINT64_C(1099511628211);
    return hash;
}

static uint64_t mix_file(uint64_t hash, const char *path)
{
    static unsigned char block[65536];
    FILE *f = fopen(path, "rb");
    size_t n;
    while (f && (n = fread(block, 1, sizeof block, f)) > 0)
        hash = mix(hash, block, n);
    if (f)
        fclose(f);
    return hash;
}

/* This program and the library that it runs with. */
static uint64_t mix_build(uint64_t hash)
{
    char line[4352];
    FILE *f = fopen("/proc/self/maps", "r");
    hash = mix_file(hash, "/proc/self/exe");
    bool seen = false;
    while (f && !seen && fgets(line, sizeof line, f)) {
        char *path = strchr(line, '/');
        seen = path && strstr(path, "libveloxquant.so");
        if (seen) {
            path[strcspn(path, "\n")] = 0;
            hash = mix_file(hash, path);
        }
    }
    if (f)
        fclose(f);
    return hash;
}

static uint64_t key_of(const struct job *j, const all_step *s)
{
    uint64_t hash = j->basis;
    for (size_t i = 0; i < s->n_words; i++)
        hash = mix(hash, s->words[i], strlen(s->words[i]) + 1);
    return hash;
}

static int make_basis(struct job *j)
{
    struct stat st;
    if (stat(j->args->model, &st) != 0)
        return cli_fail("%s: %s", j->args->model, strerror(errno));
    const int64_t model[] = {(int64_t)st.st_size, (int64_t)st.st_mtim.tv_sec, (int64_t)st.st_mtim.tv_nsec};
    j->basis = mix_build(UINT64_C(14695981039346656037));
    j->basis = mix(j->basis, model, sizeof model);
    for (size_t i = 0; i < j->subject.texts.n; i++)
        j->basis = mix_file(j->basis, j->subject.texts.at[i]);
    j->basis = mix_file(j->basis, j->subject.calibration_text);
    const char *ceiling = getenv("VQ_CPU");
    if (ceiling)
        j->basis = mix(j->basis, ceiling, strlen(ceiling));
    return CLI_FINE;
}

/* ---- texts ---- */
static bool write_bytes(const char *path, const char *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    bool fine = f && fwrite(bytes, 1, n, f) == n;
    if (f && fclose(f) != 0)
        fine = false;
    return fine;
}

/* One text serves for both: its first half is measured on, its second is what the calibration sees. */
static int halve(struct job *j, const char *path)
{
    char *bytes;
    size_t n;
    if (!cli_read_file(path, &bytes, &n))
        return CLI_FAILED;
    size_t cut = n / 2;
    while (cut < n && bytes[cut] != '\n')
        cut++;
    if (cut == n)
        for (cut = n / 2; cut < n && ((unsigned char)bytes[cut] & 0xc0) == 0x80;)
            cut++;
    snprintf(j->halves[0], sizeof j->halves[0], "%s/text.txt", j->args->dir);
    snprintf(j->halves[1], sizeof j->halves[1], "%s/text-calibration.txt", j->args->dir);
    const bool fine = write_bytes(j->halves[0], bytes, cut) && write_bytes(j->halves[1], bytes + cut, n - cut);
    free(bytes);
    if (!fine)
        return cli_fail("%s: cannot write the halves of %s: %s", j->args->dir, path, strerror(errno));
    j->subject.texts = (cli_texts){{j->halves[0]}, 1};
    j->subject.calibration_text = j->halves[1];
    return CLI_FINE;
}

static int find_texts(struct job *j, const cli_page *page)
{
    cli_texts texts = j->args->texts;
    if (texts.n == 0) {
        glob_t g;
        if (glob("texts/*.txt", 0, NULL, &g) == 0)
            for (size_t i = 0; i < g.gl_pathc && texts.n < CLI_MOST_TEXTS; i++)
                if ((j->found[texts.n] = strdup(g.gl_pathv[i])))
                    texts.at[texts.n] = j->found[texts.n], texts.n++;
        globfree(&g);
    }
    if (texts.n == 0)
        return cli_usage(page, "no text: --text FILE says which (plain prose, 100 KB or more); 'tools/fetch-models "
                               "texts' fetches three into texts/, where they are found");
    for (size_t i = 0; i < texts.n; i++)
        if (access(texts.at[i], R_OK) != 0)
            return cli_fail("%s: %s", texts.at[i], strerror(errno));
    if (texts.n == 1)
        return halve(j, texts.at[0]);
    j->subject.calibration_text = texts.at[--texts.n];
    j->subject.texts = texts;
    return CLI_FINE;
}

/* ---- records ---- */
static const char *outcome_name(outcome o)
{
    static const char *const names[] = {"pending", "kept", "done", "failed"};
    return names[o];
}

static void product_path(const struct job *j, const all_step *s, const char *suffix, char out[4608])
{
    if (s->is_json)
        snprintf(out, 4608, "%s/%s.json%s", j->args->dir, s->name, suffix);
    else
        snprintf(out, 4608, "%s%s", s->product, suffix);
}

/* Steps that DIR/all.json has as done, with the same key and their file. */
static void take_records(struct job *j)
{
    char path[4608];
    snprintf(path, sizeof path, "%s/all.json", j->args->dir);
    json_t *results = json_load_file(path, 0, NULL), *row;
    size_t k;
    json_array_foreach(json_object_get(results, "rows"), k, row)
    {
        const char *name = json_string_value(json_object_get(row, "name"));
        const char *status = json_string_value(json_object_get(row, "status"));
        const char *key = json_string_value(json_object_get(row, "key"));
        for (size_t i = 0; name && status && key && i < j->plan.n; i++) {
            char product[4608];
            product_path(j, &j->plan.steps[i], "", product);
            if (strcmp(j->plan.steps[i].name, name) == 0 && strcmp(status, "failed") != 0 &&
                strcmp(status, "pending") != 0 && strtoull(key, NULL, 16) == j->records[i].key &&
                access(product, R_OK) == 0) {
                j->records[i].outcome = KEPT;
                j->records[i].seconds = json_number_value(json_object_get(row, "seconds"));
                j->records[i].cpu_seconds = json_number_value(json_object_get(row, "cpu_seconds"));
            }
        }
    }
    json_decref(results);
}

static char *command_of(const all_step *s)
{
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    for (size_t i = 0; f && i < s->n_words; i++)
        fprintf(f, "%s%s", i ? " " : "veloxquant ", s->words[i]);
    return f && fclose(f) == 0 ? text : NULL;
}

static int write_records(const struct job *j)
{
    char path[4608], key[24];
    size_t n_failed = 0, n_pending = 0;
    double seconds = 0;
    json_t *results =
        cli_json_head("all measurements of a model, each in a process of its own", j->argc + 1, j->argv - 1);
    if (!results)
        return cli_fail("no memory for the results");
    for (size_t i = 0; i < j->plan.n; i++) {
        const record *r = &j->records[i];
        char *command = command_of(&j->plan.steps[i]);
        snprintf(key, sizeof key, "%016" PRIx64, r->key);
        json_array_append_new(json_object_get(results, "rows"),
                              json_pack("{s:s, s:s, s:s, s:s, s:s, s:f, s:f, s:s, s:s}", "kind", "step", "name",
                                        j->plan.steps[i].name, "model", eval_model_name(j->args->model), "command",
                                        command ? command : "", "status", outcome_name(r->outcome), "seconds",
                                        r->seconds, "cpu_seconds", r->cpu_seconds, "message", r->message, "key", key));
        free(command);
        n_failed += r->outcome == FAILED;
        n_pending += r->outcome == PENDING;
        seconds += r->seconds;
    }
    json_object_update_new(results,
                           json_pack("{s:{s:s, s:s, s:I}, s:s, s:f, s:i, s:i}", "model", "file",
                                     eval_model_name(j->args->model), "family", j->info.family, "parameters",
                                     (json_int_t)j->info.n_params, "preset", j->args->full ? "full" : "quick",
                                     "seconds", seconds, "n_failed", (int)n_failed, "n_pending", (int)n_pending));
    snprintf(path, sizeof path, "%s/all.json", j->args->dir);
    return cli_json_write(path, results);
}

/* ---- running a step ---- */

/* In the child: this program again, with its words, everything it prints in a log.  In a process group of its own
 * Ctrl-C reaches it once, through us. */
static void become(const char *const *words, const char *log)
{
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    const int in = open("/dev/null", O_RDONLY), out = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0666);
    if (in >= 0 && out >= 0 && dup2(in, 0) >= 0 && dup2(out, 1) >= 0 && dup2(out, 2) >= 0)
        execv("/proc/self/exe", (char **)(uintptr_t)words);
    _exit(127);
}

/* Without a calibration, what does not need one runs nevertheless. */
static void words_of(const struct job *j, const all_step *s, const char *product, const char **words)
{
    const bool calibrated = access(j->calibration, R_OK) == 0;
    size_t n = 0;
    words[n++] = "veloxquant";
    for (size_t i = 0; i < s->n_words; i++) {
        if (!calibrated && strcmp(s->words[i], "--calibration") == 0)
            i++;
        else
            words[n++] = s->words[i];
    }
    if (s->is_json) {
        words[n++] = "--json";
        words[n++] = product;
    }
    words[n] = NULL;
}

/* The last line that the program said in a log, without its name. */
static void last_message(const char *log, char *out, size_t room)
{
    char line[1024];
    FILE *f = fopen(log, "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, "veloxquant: ", 12) == 0 && strncmp(line + 12, "note: ", 6) != 0)
            snprintf(out, room, "%.*s", (int)strcspn(line + 12, "\n"), line + 12);
    if (f)
        fclose(f);
}

/* Seconds that pending steps will take, by the guesses and by how far off those were until now; step `running` has had
 * in_step of them. */
static double seconds_left(const struct job *j, size_t running, double in_step)
{
    /* the first seconds say little; from then on what was measured counts */
    const double believed = 20, scale = (believed + j->spent) / (believed + j->guessed);
    double left = 0;
    for (size_t i = 0; i < j->plan.n; i++) {
        const double guess = j->records[i].outcome == PENDING ? j->plan.steps[i].seconds * scale : 0;
        left += i != running ? guess : guess > in_step ? guess - in_step : 0;
    }
    return left;
}

static const char *duration(double seconds, char out[32])
{
    const unsigned whole = (unsigned)(seconds + 0.5);
    if (whole < 60)
        snprintf(out, 32, "%u s", whole);
    else if (whole < 3600)
        snprintf(out, 32, "%u min %02u s", whole / 60, whole % 60);
    else
        snprintf(out, 32, "%u h %02u min", whole / 3600, whole / 60 % 60);
    return out;
}

static void show(const struct job *j, size_t i, double seconds)
{
    char left[32];
    if (!cli_stderr_is_terminal())
        return;
    fprintf(stderr, "\r[%zu/%zu] %s: %.0f s; all done in about %s\033[K", i + 1, j->plan.n, j->plan.steps[i].name,
            seconds, duration(seconds_left(j, i, seconds), left));
    fflush(stderr);
}

/* Waits for the child; on Ctrl-C it is told once to stop. */
static int wait_for(struct job *j, size_t i, pid_t pid, double start)
{
    int status = 0;
    bool told = false;
    struct rusage usage = {0};
    for (unsigned turn = 0;; turn++) {
        const pid_t got = wait4(pid, &status, WNOHANG, &usage);
        if (got < 0 && errno != EINTR)
            status = SIGKILL; /* whatever became of it, it is not known to have ended well */
        if (got == pid || (got < 0 && errno != EINTR))
            break;
        if (cli_interrupted() && !told) {
            kill(pid, SIGINT);
            told = true;
        }
        if (turn % 10 == 0)
            show(j, i, cli_seconds() - start);
        usleep(25000);
    }
    if (cli_stderr_is_terminal())
        fputs("\r\033[K", stderr);
    j->records[i].cpu_seconds = (double)usage.ru_utime.tv_sec + 1e-6 * (double)usage.ru_utime.tv_usec +
                                (double)usage.ru_stime.tv_sec + 1e-6 * (double)usage.ru_stime.tv_usec;
    return status;
}

static int run_step(struct job *j, size_t i)
{
    const all_step *s = &j->plan.steps[i];
    record *r = &j->records[i];
    char product[4608], part[4608], log[4608];
    product_path(j, s, "", product);
    product_path(j, s, ".part", part);
    snprintf(log, sizeof log, "%s/logs/%s.log", j->args->dir, s->name);
    const char *words[ALL_MOST_WORDS + 4];
    words_of(j, s, part, words);
    const double start = cli_seconds();
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0)
        become(words, log);
    if (pid < 0)
        return cli_fail("cannot start a process: %s", strerror(errno));
    const int status = wait_for(j, i, pid, start);
    r->seconds = cli_seconds() - start;
    const bool fine = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (cli_interrupted() && !fine) {
        unlink(part);
        r->seconds = 0;
        return CLI_INTERRUPTED;
    }
    j->spent += r->seconds;
    j->guessed += s->seconds;
    if (fine && (!s->is_json || rename(part, product) == 0)) {
        char left[32];
        r->outcome = DONE;
        printf("[%zu/%zu] %-34s %7.1f s, about %s left\n", i + 1, j->plan.n, s->name, r->seconds,
               duration(seconds_left(j, SIZE_MAX, 0), left));
    } else {
        r->outcome = FAILED;
        if (fine)
            snprintf(r->message, sizeof r->message, "%.100s: %s", part, strerror(errno));
        else if (WIFSIGNALED(status))
            snprintf(r->message, sizeof r->message, "ended by signal %d", WTERMSIG(status));
        else
            last_message(log, r->message, sizeof r->message);
        unlink(part);
        printf("[%zu/%zu] %-34s failed: %s\n", i + 1, j->plan.n, s->name, r->message);
    }
    fflush(stdout);
    return CLI_FINE;
}

/* A calibration that was made anew makes what depends on it stale: nearly everything. */
static void forget_kept(struct job *j)
{
    for (size_t i = 1; i < j->plan.n; i++)
        j->records[i].outcome = PENDING;
}

static int run_steps(struct job *j)
{
    int status = CLI_FINE;
    for (size_t i = 0; i < j->plan.n && status == CLI_FINE; i++) {
        if (j->records[i].outcome == KEPT)
            continue;
        status = run_step(j, i);
        if (status == CLI_FINE && i == 0 && j->records[0].outcome == DONE)
            forget_kept(j);
        if (status == CLI_FINE && write_records(j) != CLI_FINE)
            status = CLI_FAILED;
        if (status == CLI_FINE && cli_interrupted())
            status = CLI_INTERRUPTED;
    }
    return status;
}

/* ---- the report ---- */
static int draw_report(struct job *j)
{
    all_plan *p = &j->plan;
    char out[4200];
    const char *words[ALL_MOST_STEPS + 8];
    char *paths[ALL_MOST_STEPS + 1] = {NULL};
    size_t n = 0, n_paths = 0;
    snprintf(out, sizeof out, "%s/report", j->args->dir);
    words[n++] = "veloxquant";
    words[n++] = "report";
    for (size_t i = 0; i <= p->n; i++) {
        char path[4608];
        if (i == p->n)
            snprintf(path, sizeof path, "%s/all.json", j->args->dir);
        else if (!p->steps[i].is_json || j->records[i].outcome == FAILED)
            continue;
        else
            product_path(j, &p->steps[i], "", path);
        paths[n_paths] = strdup(path);
        if (paths[n_paths])
            words[n++] = paths[n_paths++];
    }
    words[n++] = "-o";
    words[n++] = out;
    words[n] = NULL;
    char log[4608];
    snprintf(log, sizeof log, "%s/logs/report.log", j->args->dir);
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0)
        become(words, log);
    int status = -1;
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        if (cli_interrupted())
            kill(pid, SIGINT);
    for (size_t i = 0; i < n_paths; i++)
        free(paths[i]);
    if (pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return CLI_FINE;
    char message[400] = "";
    last_message(log, message, sizeof message);
    return cli_fail("report: %s", message[0] ? message : "failed");
}

/* ---- the whole ---- */
static int make_folder(const char *path)
{
    if (mkdir(path, 0777) != 0 && errno != EEXIST)
        return cli_fail("%s: cannot make the folder: %s", path, strerror(errno));
    return CLI_FINE;
}

static int prepare(struct job *j, const cli_page *page)
{
    char logs[4200];
    vq_model *model;
    vq_error err;
    cli_signals_model(j->args->model);
    if (vq_model_open(&model, j->args->model, &err) != VQ_OK)
        return cli_fail_with(&err);
    j->info = *vq_model_get_info(model);
    static char family[64];
    snprintf(family, sizeof family, "%s", j->info.family);
    j->info.family = family;
    j->info.name = NULL;
    vq_model_close(model);
    snprintf(logs, sizeof logs, "%s/logs", j->args->dir);
    int status = make_folder(j->args->dir);
    if (status == CLI_FINE)
        status = make_folder(logs);
    if (status == CLI_FINE)
        status = find_texts(j, page);
    if (status == CLI_FINE)
        status = make_basis(j);
    if (status != CLI_FINE)
        return status;
    snprintf(j->calibration, sizeof j->calibration, "%s/calibration.vqc", j->args->dir);
    j->subject.calibration = j->calibration;
    j->subject.is_large = j->info.n_params > 200000000;
    all_plan_make(&j->plan, &j->subject);
    if (j->plan.failed)
        return cli_fail("no memory for the plan, or more than %d steps", ALL_MOST_STEPS);
    const uint32_t cores = j->args->n_threads ? j->args->n_threads : vq_cores_allowed();
    const double scale = (double)j->info.n_params / 135e6 * 2 / cores;
    for (size_t i = 0; i < j->plan.n; i++) {
        j->plan.steps[i].seconds *= scale;
        j->records[i].key = key_of(j, &j->plan.steps[i]);
    }
    take_records(j);
    if (j->records[0].outcome != KEPT)
        forget_kept(j);
    return CLI_FINE;
}

static void say_how_to_go_on(const struct job *j, size_t n_done)
{
    json_t *head = cli_json_head("", j->argc + 1, j->argv - 1); /* knows the command as a shell would take it */
    const char *command = json_string_value(json_object_get(head, "command"));
    fprintf(stderr, "stopped after %zu of %zu steps; the same command goes on:\n  %s\n", n_done, j->plan.n,
            command ? command : "");
    json_decref(head);
}

static int run_all(struct job *j, const cli_page *page)
{
    char text[32];
    int status = prepare(j, page);
    if (status != CLI_FINE)
        return status;
    size_t n_kept = 0, n_failed = 0, n_done = 0;
    double seconds = 0;
    for (size_t i = 0; i < j->plan.n; i++)
        n_kept += j->records[i].outcome == KEPT;
    printf("%s: %zu steps, %zu of them done before; about %s\n", eval_model_name(j->args->model), j->plan.n, n_kept,
           duration(seconds_left(j, SIZE_MAX, 0), text));
    fflush(stdout);
    j->start = cli_seconds();
    status = run_steps(j);
    for (size_t i = 0; i < j->plan.n; i++) {
        n_failed += j->records[i].outcome == FAILED;
        n_done += j->records[i].outcome == DONE;
        seconds += j->records[i].seconds;
    }
    if (write_records(j) != CLI_FINE && status == CLI_FINE)
        status = CLI_FAILED;
    if (status == CLI_INTERRUPTED)
        say_how_to_go_on(j, n_done + n_kept);
    if (status != CLI_FINE)
        return status;
    status = draw_report(j);
    printf("%zu done now in %s, %zu before, %zu failed; all of it takes %s\n", n_done,
           duration(cli_seconds() - j->start, text), n_kept, n_failed, duration(seconds, (char[32]){0}));
    for (size_t i = 0; i < j->plan.n; i++)
        if (j->records[i].outcome == FAILED)
            cli_say("%s: %s (%s/logs/%s.log)", j->plan.steps[i].name, j->records[i].message, j->args->dir,
                    j->plan.steps[i].name);
    if (status == CLI_FINE)
        printf("%s/report/index.html\n", j->args->dir);
    return n_failed > 0 ? CLI_FAILED : status;
}

int eval_all(int argc, char **argv)
{
    all_args a = {.dir = "evaluation"};
    const cli_group groups[] = {{"Options", options, sizeof options / sizeof options[0], &a}};
    const cli_page page = {"eval all", "-m MODEL [--quick|--full] [-o DIR]", intro, groups, 1, ending, 0, 0};
    size_t n_operands;
    int status;
    if (!cli_parse(&page, argc, argv, &n_operands, &status))
        return status;
    if (!a.model)
        return cli_usage(&page, "no model: -m FILE says which");
    if (a.quick && a.full)
        return cli_usage(&page, "both --quick and --full");
    if (strlen(a.dir) > 4000)
        return cli_usage(&page, "--out: the name has more than 4000 bytes");
    for (size_t i = 0; i < a.kv.n; i++)
        for (size_t k = 0; k < i; k++)
            if (strcmp(a.kv.at[i], a.kv.at[k]) == 0)
                return cli_usage(&page, "--kv %s: given twice", a.kv.at[i]);
    cli_catch_interrupt(1);
    struct job *j = calloc(1, sizeof *j);
    if (!j)
        return cli_fail("no memory");
    j->args = &a;
    j->argc = argc;
    j->argv = argv;
    j->subject.args = &a;
    status = run_all(j, &page);
    all_plan_free(&j->plan);
    for (size_t i = 0; i < CLI_MOST_TEXTS; i++)
        free(j->found[i]);
    free(j);
    return status;
}
