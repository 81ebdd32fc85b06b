/* veloxquant eval sharing: what N processes that run one model at once cost in memory, and how long each takes to
 * start.
 *
 * Each process is this program again (--worker), so that nothing of the parent's memory is in it.  It opens the model,
 * says so, waits until all have, runs a prompt and draws tokens, says so, and waits again while the parent reads the
 * kernel's account of it (/proc/PID/smaps).  First one process runs alone, then all of them. */
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "eval.h"

struct args {
    cli_model_args model;
    uint32_t processes, n_prompt, n_new, quantize_bits;
    const char *load_cache, *json;
    bool worker;
};

#define AT(field) offsetof(struct args, field)
#define MODEL_AT(field) offsetof(struct args, model.field)

static const cli_option options[] = {
    {'m', "model", CLI_TEXT, MODEL_AT(model), "FILE", "the model, a reservoir or a GGUF file", 0, 0},
    {0, "processes", CLI_COUNT, AT(processes), "N", "processes at once", 1, 64},
    {0, "quantize", CLI_COUNT, AT(quantize_bits), "BITS",
     "every process quantises the model for itself first, as programs without a shared file do", 2, 4},
    {0, "load-cache", CLI_TEXT, AT(load_cache), "FILE", "every process starts from this saved prompt", 0, 0},
    {'p', "prompt", CLI_COUNT, AT(n_prompt), "N", "tokens of the prompt", 1, 65536},
    {'n', "predict", CLI_COUNT, AT(n_new), "N", "tokens that each process then draws", 1, 65536},
    {'c', "ctx-size", CLI_COUNT, MODEL_AT(n_ctx), "N", "tokens of context (default: what prompt and tokens need)", 2,
     16777216},
    {'t', "threads", CLI_COUNT, MODEL_AT(n_threads), "N", "threads of each process", 1, 1024},
    {0, "kv", CLI_TEXT, MODEL_AT(kv), "METHOD", "how keys and values are stored (default f16)", 0, 0},
    {0, "json", CLI_TEXT, AT(json), "FILE", "write every figure, with machine and command, as JSON", 0, 0},
    {0, "worker", CLI_FLAG, AT(worker), NULL, "one of the processes; for this program's own use", 0, 0},
};

static const char ending[] =
    "RSS counts every page that a process has, PSS a page that k processes have as 1/k: the sum of\n"
    "PSS is what they cost together. `model' is the part of it in the model file. Other programs that\n"
    "have the file open take a part of its PSS: measure a copy then.\n"
    "\n"
    "Examples:\n"
    "  veloxquant eval sharing -m model.vqr --processes 4\n"
    "  veloxquant eval sharing -m model-f16.gguf --processes 4 --quantize 4\n"
    "  veloxquant eval sharing -m model.vqr --load-cache long.kv -c 4096\n";

/* ---- one of the processes ---- */

static bool say_time(const char *what)
{
    printf("%s %.6f\n", what, cli_seconds());
    return fflush(stdout) == 0;
}

static bool wait_for_word(void)
{
    char word[16];
    return fgets(word, sizeof word, stdin) != NULL;
}

/* The whole model for this process alone: a file that nobody else can open. */
static int quantize_for_itself(const struct args *a, vq_pool *pool, vq_model **out)
{
    char path[128];
    vq_error err;
    vq_gguf *g;
    snprintf(path, sizeof path, "/dev/shm/veloxquant-sharing-%ld.vqr", (long)getpid());
    if (vq_gguf_open(&g, a->model.model, &err) != VQ_OK)
        return cli_fail_with(&err);
    vq_quantize_params p;
    vq_quantize_params_init(&p);
    p.bits = (float)a->quantize_bits;
    p.pool = pool;
    vq_status status = vq_quantize(g, path, &p, &err);
    vq_gguf_close(g);
    if (status == VQ_OK)
        status = vq_model_open(out, path, &err);
    unlink(path);
    return status == VQ_OK ? CLI_FINE : cli_fail_with(&err);
}

static int run_tokens(const struct args *a, vq_session *s)
{
    vq_error err;
    const uint32_t n_vocab = vq_model_get_info(vq_session_model(s))->n_vocab;
    int32_t *ids = malloc((a->n_prompt + 1) * sizeof *ids);
    if (!ids)
        return cli_fail("no memory for %u tokens", a->n_prompt);
    for (uint32_t i = 0; i < a->n_prompt; i++) /* any text does: what it costs does not depend on it */
        ids[i] = (int32_t)((17 + 31 * (uint64_t)i) % n_vocab);
    vq_status status = vq_session_eval(s, ids, a->n_prompt, NULL, 0, NULL, &err);
    for (uint32_t i = 0; status == VQ_OK && i < a->n_new; i++) {
        const float *logits = vq_session_logits(s);
        int32_t best = 0;
        for (uint32_t k = 1; k < n_vocab; k++)
            if (logits[k] > logits[best])
                best = (int32_t)k;
        if (i == 0 && !say_time("first"))
            break;
        status = vq_session_eval(s, &best, 1, NULL, 0, NULL, &err);
    }
    free(ids);
    return status == VQ_OK ? CLI_FINE : cli_fail_with(&err);
}

static int worker(const struct args *a, const cli_page *page)
{
    cli_engine e = {0};
    vq_error err;
    int status = CLI_FINE;
    if (a->quantize_bits) {
        if (vq_pool_open(&e.pool, a->model.n_threads, &err) != VQ_OK)
            return cli_fail_with(&err);
        status = quantize_for_itself(a, e.pool, &e.model);
    } else {
        status = cli_engine_open(&e, page, &a->model);
    }
    if (status == CLI_FINE)
        status = cli_session_open(&e.session, &e, page, &a->model, NULL);
    if (status == CLI_FINE && a->load_cache && vq_session_load(e.session, a->load_cache, &err) != VQ_OK)
        status = cli_fail_with(&err);
    if (status == CLI_FINE && (!say_time("ready") || !wait_for_word()))
        status = CLI_FAILED;
    if (status == CLI_FINE)
        status = run_tokens(a, e.session);
    if (status == CLI_FINE) {
        cli_cache cache;
        cli_cache_measure(e.session, &cache);
        printf("cache %" PRIu64 "\n", cache.used + cache.bytes.reserved);
        if (!say_time("done") || !wait_for_word())
            status = CLI_FAILED;
    }
    cli_engine_close(&e);
    return status;
}

/* ---- the parent ---- */

typedef struct account {
    uint64_t rss, pss, shared, private_clean, private_dirty, anonymous, model_rss, model_pss, cache;
} account;

typedef struct process {
    pid_t pid;
    FILE *to, *from;
    double start, ready, go, first, done;
    account mem;
} process;

static bool start_process(process *p, const struct args *a)
{
    int in[2], out[2];
    char numbers[6][24];
    *p = (process){0};
    if (pipe(in) != 0)
        return false;
    if (pipe(out) != 0) {
        close(in[0]);
        close(in[1]);
        return false;
    }
    const uint32_t values[] = {a->n_prompt, a->n_new, a->model.n_ctx, a->model.n_threads, a->quantize_bits};
    for (size_t i = 0; i < 5; i++)
        snprintf(numbers[i], sizeof numbers[i], "%u", values[i]);
    const char *words[24] = {"veloxquant", "eval", "sharing",  "--worker", "-m",       a->model.model, "-p",
                             numbers[0],   "-n",   numbers[1], "-c",       numbers[2], "-t",           numbers[3]};
    size_t n = 14;
    if (a->quantize_bits) {
        words[n++] = "--quantize";
        words[n++] = numbers[4];
    }
    if (a->load_cache) {
        words[n++] = "--load-cache";
        words[n++] = a->load_cache;
    }
    if (a->model.kv) {
        words[n++] = "--kv";
        words[n++] = a->model.kv;
    }
    fflush(NULL);
    p->start = cli_seconds();
    p->pid = fork();
    if (p->pid == 0) {
        dup2(in[0], STDIN_FILENO);
        dup2(out[1], STDOUT_FILENO);
        for (int fd = 3; fd < 1024; fd++)
            close(fd);
        execv("/proc/self/exe", (char **)(uintptr_t)words);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    p->to = fdopen(in[1], "w");
    p->from = fdopen(out[0], "r");
    return p->pid > 0 && p->to && p->from;
}

/* The lines of a process up to the one that begins with `last`; false when it ended before. */
static bool read_until(process *p, const char *last)
{
    char line[128], word[16];
    double x;
    while (fgets(line, sizeof line, p->from)) {
        if (sscanf(line, "%15s %lf", word, &x) != 2)
            continue;
        if (strcmp(word, "ready") == 0)
            p->ready = x;
        else if (strcmp(word, "first") == 0)
            p->first = x;
        else if (strcmp(word, "done") == 0)
            p->done = x;
        else if (strcmp(word, "cache") == 0)
            p->mem.cache = (uint64_t)x;
        if (strcmp(word, last) == 0)
            return true;
    }
    return false;
}

static bool tell(process *p) { return fputs("go\n", p->to) >= 0 && fflush(p->to) == 0; }

/* Sums of /proc/PID/smaps; the model's part is what lies in maps of a file of that name. */
static bool read_account(process *p, const char *model)
{
    char path[64], line[1024], resolved[4096];
    snprintf(path, sizeof path, "/proc/%ld/smaps", (long)p->pid);
    FILE *f = fopen(path, "r");
    if (!f)
        return false;
    if (!realpath(model, resolved))
        resolved[0] = 0;
    bool in_model = false;
    while (fgets(line, sizeof line, f)) {
        char key[64];
        unsigned long long kib;
        unsigned long from, to;
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2) {
            in_model = (resolved[0] && strstr(line, resolved)) || strstr(line, "veloxquant-sharing-");
            continue;
        }
        if (sscanf(line, "%63[^:]: %llu kB", key, &kib) != 2)
            continue;
        const uint64_t n = kib * 1024;
        account *m = &p->mem;
        if (strcmp(key, "Rss") == 0) {
            m->rss += n;
            m->model_rss += in_model ? n : 0;
        } else if (strcmp(key, "Pss") == 0) {
            m->pss += n;
            m->model_pss += in_model ? n : 0;
        } else if (strcmp(key, "Shared_Clean") == 0 || strcmp(key, "Shared_Dirty") == 0) {
            m->shared += n;
        } else if (strcmp(key, "Private_Clean") == 0) {
            m->private_clean += n;
        } else if (strcmp(key, "Private_Dirty") == 0) {
            m->private_dirty += n;
        } else if (strcmp(key, "Anonymous") == 0) {
            m->anonymous += n;
        }
    }
    fclose(f);
    return p->mem.rss > 0;
}

static void end_process(process *p)
{
    if (p->to)
        fclose(p->to); /* what waits for a word ends */
    if (p->from)
        fclose(p->from);
    if (p->pid > 0) {
        kill(p->pid, SIGTERM);
        waitpid(p->pid, NULL, 0);
    }
}

/* n processes at once, from start to the account. */
static int run_together(process *all, size_t n, const struct args *a)
{
    int status = CLI_FINE;
    size_t started = 0;
    for (; status == CLI_FINE && started < n; started++)
        if (!start_process(&all[started], a))
            status = cli_fail("cannot start process %zu of %zu", started + 1, n);
    for (size_t i = 0; status == CLI_FINE && i < n; i++)
        if (!read_until(&all[i], "ready"))
            status = cli_fail("process %zu ended before it was ready", i + 1);
    for (size_t i = 0; status == CLI_FINE && i < n; i++) {
        all[i].go = cli_seconds();
        if (!tell(&all[i]))
            status = cli_fail("process %zu is gone", i + 1);
    }
    for (size_t i = 0; status == CLI_FINE && i < n; i++)
        if (!read_until(&all[i], "done"))
            status = cli_fail("process %zu ended before its last token", i + 1);
    for (size_t i = 0; status == CLI_FINE && i < n; i++)
        if (!read_account(&all[i], a->model.model))
            status = cli_fail("/proc has no account of process %zu", i + 1);
    for (size_t i = 0; status == CLI_FINE && i < n; i++)
        tell(&all[i]);
    for (size_t i = 0; i < started; i++)
        end_process(&all[i]);
    return status;
}

/* ---- what is said of it ---- */

static double mib(uint64_t n) { return (double)n / (1 << 20); }

typedef struct totals {
    uint64_t pss, anonymous;
    double ratio; /* what is no cache or scratch, against one process's */
} totals;

static totals add_up(const process *one, const process *all, size_t n)
{
    totals t = {0};
    for (size_t i = 0; i < n; i++) {
        t.pss += all[i].mem.pss;
        t.anonymous += all[i].mem.anonymous;
    }
    const double alone = (double)one->mem.pss - (double)one->mem.anonymous;
    t.ratio = alone > 0 ? ((double)t.pss - (double)t.anonymous) / alone : NAN;
    return t;
}

static void print_process(const char *name, const process *p)
{
    const account *m = &p->mem;
    printf("%-9s %9.1f %9.1f %9.1f %9.1f %9.1f %9.1f %9.1f %9.3f %9.3f\n", name, mib(m->rss), mib(m->pss),
           mib(m->shared), mib(m->private_clean + m->private_dirty), mib(m->anonymous), mib(m->model_rss),
           mib(m->model_pss), p->ready - p->start, p->first - p->go);
}

static json_t *json_of(const process *p)
{
    const account *m = &p->mem;
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o}", "rss", (json_int_t)m->rss, "pss",
                     (json_int_t)m->pss, "shared", (json_int_t)m->shared, "private_clean", (json_int_t)m->private_clean,
                     "private_dirty", (json_int_t)m->private_dirty, "anonymous", (json_int_t)m->anonymous, "model_rss",
                     (json_int_t)m->model_rss, "model_pss", (json_int_t)m->model_pss, "cache", (json_int_t)m->cache,
                     "seconds_to_ready", cli_json_real(p->ready - p->start), "seconds_to_first_token",
                     cli_json_real(p->first - p->go), "seconds_in_all", cli_json_real(p->done - p->start));
}

static int write_results(const struct args *a, const process *one, const process *all, const totals *t, int argc,
                         char **argv)
{
    json_t *results = cli_json_head("memory and start of processes that run one model at once", argc, argv);
    json_t *list = json_array();
    for (size_t i = 0; i < a->processes; i++)
        json_array_append_new(list, json_of(&all[i]));
    json_t *row = json_pack("{s:s, s:i, s:s?, s:i, s:i, s:i, s:o, s:o, s:I, s:I, s:o}", "model",
                            eval_model_name(a->model.model), "quantized_in_each_process", (int)a->quantize_bits,
                            "loaded_cache", a->load_cache ? eval_model_name(a->load_cache) : NULL, "prompt_tokens",
                            (int)a->n_prompt, "new_tokens", (int)a->n_new, "threads_each", (int)a->model.n_threads,
                            "alone", json_of(one), "together", list, "pss_together", (json_int_t)t->pss,
                            "anonymous_together", (json_int_t)t->anonymous, "shared_ratio", cli_json_real(t->ratio));
    eval_add_row(results, row);
    return cli_json_write(a->json, results);
}

static int measure(const struct args *a, int argc, char **argv)
{
    process *all = calloc(a->processes + 1u, sizeof *all), *one = all;
    if (!all)
        return cli_fail("no memory for %u processes", a->processes);
    int status = run_together(one, 1, a);
    if (status == CLI_FINE)
        status = run_together(all + 1, a->processes, a);
    if (status == CLI_FINE) {
        const totals t = add_up(one, all + 1, a->processes);
        printf("%-9s %9s %9s %9s %9s %9s %9s %9s %9s %9s\n", "MiB", "RSS", "PSS", "shared", "private", "anonymous",
               "model RSS", "model PSS", "ready s", "first s");
        print_process("alone", one);
        for (uint32_t i = 1; i <= a->processes; i++) {
            char name[16];
            snprintf(name, sizeof name, "%u of %u", i, a->processes);
            print_process(name, &all[i]);
        }
        printf("together: PSS %.1f MiB, of which %.1f MiB are caches and scratch; the rest is %.2f times that of one "
               "process\n",
               mib(t.pss), mib(t.anonymous), t.ratio);
        if (a->json)
            status = write_results(a, one, all + 1, &t, argc, argv);
    }
    free(all);
    return status;
}

int eval_sharing(int argc, char **argv)
{
    struct args a = {.processes = 4, .n_prompt = 64, .n_new = 32};
    cli_model_args_init(&a.model);
    a.model.n_threads = 1;
    const cli_group groups[] = {{"Options", options, sizeof options / sizeof options[0], &a}};
    const cli_page page = {
        "eval sharing",
        "-m MODEL [options]",
        "Starts processes that run one model at once and reports of each, from the kernel's account: "
        "resident memory (RSS), its share of what several have (PSS), shared, private and anonymous "
        "bytes, the part that is the model file, the time from start to ready, and from the prompt "
        "to the first token. One process runs alone first.",
        groups,
        1,
        ending,
        0,
        0};
    size_t n_operands;
    int status;
    if (!cli_parse(&page, argc, argv, &n_operands, &status))
        return status;
    if (!a.model.model)
        return cli_usage(&page, "no model: -m FILE says which");
    if (!a.model.n_ctx)
        a.model.n_ctx = a.n_prompt + a.n_new + 8;
    return a.worker ? worker(&a, &page) : measure(&a, argc, argv);
}
