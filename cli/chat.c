/* veloxquant chat: a conversation, whose cache is kept from turn to turn.
 *
 * The cache holds the first n_cached messages; the next turn renders only what follows.  An answer that was stopped
 * half-way is closed by the next turn's rendering like any other. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "chat_input.h"
#include "cli.h"
#include "sampling.h"

struct args {
    const char *system, *template;
    uint32_t n_predict;
    cli_texts stops;
};

#define AT(field) offsetof(struct args, field)

static const cli_option options[] = {
    {0, "system", CLI_TEXT, AT(system), "TEXT", "what the model is told before the conversation", 0, 0},
    {0, "template", CLI_TEXT, AT(template), "NAME",
     "the chat template: chatml, llama-2, llama-3, gemma, mistral ... (default: the one that the model file carries)",
     0, 0},
    {'n', "n-predict", CLI_COUNT_OR_ALL, AT(n_predict), "N",
     "tokens of an answer at most (default: until the model ends it or the context is full)", 1, 4294967294.0},
    {0, "stop", CLI_TEXTS, AT(stops), "TEXT", "end an answer just before this string; may be given several times", 0,
     0},
};

static const char intro[] =
    "Talks with an instruction-tuned model. Answers appear as they are generated; the cache is kept from turn to turn, "
    "so that only new text is evaluated.\n"
    "\n"
    "On a terminal, lines can be edited and called back (arrow keys, Ctrl-A, Ctrl-E, Ctrl-R). A backslash at the end "
    "of "
    "a line continues it on the next one. Ctrl-C stops an answer; at the prompt it leaves, as Ctrl-D does. When "
    "standard "
    "input is not a terminal, each line is a message.";

static const char commands[] = "  /reset         start anew, with the same system text\n"
                               "  /system TEXT   set the system text (nothing: none) and start anew\n"
                               "  /stats         tokens, speed and where the bytes of the cache are\n"
                               "  /help          these lines\n"
                               "  /quit          leave\n";

static const char ending[] = "Commands within a chat:\n"
                             "  /reset         start anew, with the same system text\n"
                             "  /system TEXT   set the system text (nothing: none) and start anew\n"
                             "  /stats         tokens, speed and where the bytes of the cache are\n"
                             "  /help          these lines\n"
                             "  /quit          leave\n"
                             "\n"
                             "Examples:\n"
                             "  veloxquant chat -m model.gguf\n"
                             "  veloxquant chat -m model.gguf --system \"You answer in one sentence.\" --temp 0\n"
                             "  veloxquant chat -m model.gguf -c 8192 --kv turboquant-mse:bits=3\n"
                             "  printf 'Hello\\nAnd in French?\\n' | veloxquant chat -m model.gguf\n"
                             "\n"
                             "Exit status: 0 fine, 1 failure, 2 wrong usage, 130 when Ctrl-C was pressed again\n"
                             "before an answer had stopped.\n";

struct message {
    vq_chat_role role;
    char *text;
    size_t n_bytes, room;
};

struct chat {
    const struct args *args;
    const cli_page *page;
    cli_engine engine;
    const vq_chat_template *template;
    vq_sampler *sampler;
    chat_input *input;
    char *system;             /* NULL: none */
    struct message *messages; /* [n], the system message among them */
    size_t n, room, n_cached;
    int32_t pending; /* drawn and shown, but not in the cache: a stopped answer's last token */
    vq_generate_result last;
    bool output_failed, no_memory;
    char last_byte;
};

/* ---- messages ---- */

static bool append(struct message *m, const char *bytes, size_t n_bytes)
{
    if (n_bytes + 1 > m->room - m->n_bytes) {
        const size_t room = 2 * (m->n_bytes + n_bytes) + 256;
        char *more = realloc(m->text, room);
        if (!more)
            return false;
        m->text = more;
        m->room = room;
    }
    memcpy(m->text + m->n_bytes, bytes, n_bytes);
    m->n_bytes += n_bytes;
    m->text[m->n_bytes] = 0;
    return true;
}

static struct message *add(struct chat *c, vq_chat_role role, const char *bytes, size_t n_bytes)
{
    if (c->n == c->room) {
        const size_t room = 2 * c->room + 16;
        struct message *more = realloc(c->messages, room * sizeof *more);
        if (!more)
            return NULL;
        c->messages = more;
        c->room = room;
    }
    struct message *m = &c->messages[c->n];
    *m = (struct message){.role = role};
    if (!append(m, bytes, n_bytes)) {
        free(m->text);
        return NULL;
    }
    c->n++;
    return m;
}

static void drop_last(struct chat *c) { free(c->messages[--c->n].text); }

/* The cache is emptied; messages stay and are rendered again. */
static void forget_cache(struct chat *c)
{
    vq_session_truncate(c->engine.session, 0, NULL);
    c->n_cached = 0;
    c->pending = VQ_NO_TOKEN;
}

static int reset(struct chat *c)
{
    while (c->n > 0)
        drop_last(c);
    forget_cache(c);
    if (c->system && !add(c, VQ_CHAT_SYSTEM, c->system, strlen(c->system)))
        return cli_fail("no memory for the conversation");
    return CLI_FINE;
}

/* ---- a turn ---- */

static bool on_prompt(void *arg, size_t done, size_t all)
{
    (void)arg;
    (void)done;
    (void)all;
    return !cli_interrupted();
}

static bool on_token(void *arg, int32_t id)
{
    (void)arg;
    (void)id;
    return !cli_interrupted();
}

static bool on_text(void *arg, const char *utf8, size_t n_bytes)
{
    struct chat *c = arg;
    c->output_failed = !cli_write(utf8, n_bytes);
    c->no_memory = !append(&c->messages[c->n - 1], utf8, n_bytes);
    c->last_byte = utf8[n_bytes - 1];
    return !c->output_failed && !c->no_memory && !cli_interrupted();
}

/* Ids of what is not in the cache yet: the token that a stopped answer ended with, then the new messages. */
static vq_status render(struct chat *c, int32_t **ids, size_t *n, vq_error *err)
{
    const vq_tokenizer *t = vq_model_tokenizer(c->engine.model);
    vq_chat_message *list = malloc(c->n * sizeof *list);
    int32_t *rendered = NULL;
    size_t n_rendered = 0;
    *ids = NULL;
    *n = 0;
    if (!list) {
        snprintf(err->text, sizeof err->text, "no memory for %zu messages", c->n);
        return VQ_ERR_NOMEM;
    }
    for (size_t i = 0; i < c->n; i++)
        list[i] = (vq_chat_message){c->messages[i].role, c->messages[i].text, c->messages[i].n_bytes};
    const vq_status status = vq_chat_render(c->template, t, list, c->n, c->n_cached, &rendered, &n_rendered, err);
    free(list);
    if (status != VQ_OK)
        return status;
    const size_t n_pending = c->pending != VQ_NO_TOKEN;
    *ids = malloc((n_rendered + n_pending) * sizeof **ids);
    if (*ids) {
        if (n_pending)
            (*ids)[0] = c->pending;
        memcpy(*ids + n_pending, rendered, n_rendered * sizeof **ids);
        *n = n_rendered + n_pending;
    }
    vq_free(rendered);
    if (*ids)
        return VQ_OK;
    snprintf(err->text, sizeof err->text, "no memory for %zu tokens", n_rendered + n_pending);
    return VQ_ERR_NOMEM;
}

/* An answer to ids [n]; its text is the last message. */
static int answer(struct chat *c, const int32_t *ids, size_t n)
{
    vq_error err;
    const uint32_t before = vq_session_n_tokens(c->engine.session);
    const vq_generate_params params = {
        .n_predict = c->args->n_predict,
        .stops = c->args->stops.at,
        .n_stops = c->args->stops.n,
        .prompt_progress = on_prompt,
        .token = on_token,
        .text = on_text,
        .arg = c,
    };
    c->last_byte = '\n';
    cli_forget_interrupt();
    const vq_status status = vq_generate(c->engine.session, c->sampler, ids, n, &params, &c->last, &err);
    if (c->last_byte != '\n' || c->last.n_new > 0)
        c->output_failed = !cli_write("\n", 1) || c->output_failed;
    if (status == VQ_ERR_ARG)
        return cli_usage(c->page, "%s", err.text);
    if (status != VQ_OK)
        return cli_fail_with(&err);
    if (c->output_failed)
        return CLI_FAILED;
    if (c->no_memory)
        return cli_fail("no memory for the answer");
    if (c->last.n_prompt == 0) { /* stopped while the question was being read: it was never asked */
        drop_last(c);
        drop_last(c);
        if (vq_session_truncate(c->engine.session, before, NULL) != VQ_OK)
            forget_cache(c);
        return CLI_FINE;
    }
    c->n_cached = c->n;
    c->pending = c->last.finish == VQ_FINISH_END ? VQ_NO_TOKEN : c->last.pending;
    if (c->last.finish == VQ_FINISH_CONTEXT)
        cli_say("the context of %u tokens is full: /reset starts anew, -c N makes it larger",
                vq_session_n_ctx(c->engine.session));
    return CLI_FINE;
}

static int turn(struct chat *c, const char *text, size_t n_bytes)
{
    vq_error err;
    int32_t *ids;
    size_t n;
    if (!add(c, VQ_CHAT_USER, text, n_bytes))
        return cli_fail("no memory for the conversation");
    if (render(c, &ids, &n, &err) != VQ_OK)
        return cli_fail_with(&err);
    const uint32_t held = vq_session_n_tokens(c->engine.session), n_ctx = vq_session_n_ctx(c->engine.session);
    int status = CLI_FINE;
    if (n > n_ctx - held) {
        drop_last(c);
        cli_say("that message would make the conversation %zu tokens long, the context has room for %u: /reset starts "
                "anew, -c N makes it larger",
                held + n, n_ctx);
        if (!chat_input_is_terminal(c->input))
            status = CLI_FAILED; /* a script should notice that a message went unanswered */
    } else if (!add(c, VQ_CHAT_ASSISTANT, "", 0)) {
        status = cli_fail("no memory for the conversation");
    } else {
        status = answer(c, ids, n);
    }
    free(ids);
    return status;
}

/* ---- commands ---- */

static void print_stats(const struct chat *c)
{
    cli_cache cache;
    char used[16], f16[16], rate[32] = "";
    const vq_generate_result *r = &c->last;
    cli_cache_measure(c->engine.session, &cache);
    if (r->n_new > 1) /* the first one comes with the question */
        snprintf(rate, sizeof rate, " at %.1f/s", cli_rate(r->n_new - 1, r->decode_seconds));
    fprintf(stderr, "last answer: %zu tokens read at %.1f/s, first token after %.3f s, %zu written%s\n", r->n_prompt,
            cli_rate(r->n_prompt, r->prompt_seconds), r->first_token_seconds, r->n_new, rate);
    fprintf(stderr, "conversation: %u of %u tokens; cache %s, %.2f bits a value; f16 would need %s\n",
            vq_session_n_tokens(c->engine.session), vq_session_n_ctx(c->engine.session), cli_bytes(cache.used, used),
            cache.bits, cli_bytes(cache.f16, f16));
    cli_cache_print(&cache);
}

static int set_system(struct chat *c, const char *text)
{
    text += strspn(text, " \t");
    char *copy = *text ? strdup(text) : NULL;
    if (*text && !copy)
        return cli_fail("no memory for the system text");
    free(c->system);
    c->system = copy;
    return reset(c);
}

static int command(struct chat *c, const char *line, bool *leave)
{
    static const char *const names[] = {"/reset", "/system", "/stats", "/help", "/quit", "/exit"};
    const size_t n = strcspn(line, " \t");
    char word[16];
    snprintf(word, sizeof word, "%.*s", (int)(n < sizeof word ? n : sizeof word - 1), line);
    if (strcmp(word, "/quit") == 0 || strcmp(word, "/exit") == 0) {
        *leave = true;
    } else if (strcmp(word, "/reset") == 0) {
        return reset(c);
    } else if (strcmp(word, "/system") == 0) {
        return set_system(c, line + n);
    } else if (strcmp(word, "/stats") == 0) {
        print_stats(c);
    } else if (strcmp(word, "/help") == 0) {
        fputs(commands, stderr);
    } else {
        const char *near = cli_nearest(word, names, sizeof names / sizeof names[0]);
        fprintf(stderr, near ? "no command %s; did you mean %s?\n" : "no command %s; /help lists them\n", word, near);
    }
    return CLI_FINE;
}

/* ---- the conversation ---- */

static int talk(struct chat *c)
{
    int status = CLI_FINE, worst = CLI_FINE;
    bool leave = false;
    if (chat_input_is_terminal(c->input)) {
        const vq_model_info *info = vq_model_get_info(c->engine.model);
        fprintf(stderr, "%s; template %s; context %u tokens\n/help lists commands, Ctrl-D leaves\n",
                info->name[0] ? info->name : info->family, vq_chat_template_name(c->template),
                vq_session_n_ctx(c->engine.session));
    }
    while (!leave) {
        const char *line;
        size_t n_bytes;
        cli_forget_interrupt();
        const chat_line got = chat_input_next(c->input, &line, &n_bytes);
        if (got != CHAT_LINE) {
            if (chat_input_is_terminal(c->input))
                cli_write("\n", 1);
            return got == CHAT_FAILED                                             ? CLI_FAILED
                   : got == CHAT_INTERRUPTED && !chat_input_is_terminal(c->input) ? CLI_INTERRUPTED
                                                                                  : worst;
        }
        if (strspn(line, " \t\r\n") == n_bytes)
            continue;
        status = line[0] == '/' ? command(c, line, &leave) : turn(c, line, n_bytes);
        if (status == CLI_USAGE || c->output_failed)
            return status;
        if (status != CLI_FINE)
            worst = status;
        if (!chat_input_is_terminal(c->input) && cli_interrupted())
            return CLI_INTERRUPTED;
    }
    return worst;
}

static int find_template(struct chat *c)
{
    vq_error err;
    if (c->args->template) {
        if (vq_chat_template_named(&c->template, c->args->template, &err) != VQ_OK)
            return cli_usage(c->page, "--template: %s", err.text);
        return CLI_FINE;
    }
    if (vq_chat_template_detect(&c->template, vq_model_gguf(c->engine.model), &err) != VQ_OK)
        return cli_fail("%s (--template NAME chooses one; for models without one there is 'veloxquant generate')",
                        err.text);
    return CLI_FINE;
}

int cli_chat(int argc, char **argv)
{
    struct args a = {.n_predict = UINT32_MAX};
    cli_model_args model;
    cli_sampling sampling;
    cli_model_args_init(&model);
    cli_sampling_init(&sampling);
    const cli_group groups[] = {
        {"Model", cli_model_options, cli_n_model_options, &model},
        {"Conversation", options, sizeof options / sizeof options[0], &a},
        {"Sampling", cli_sampling_options, cli_n_sampling_options, &sampling},
        {"Cache", cli_cache_options, cli_n_cache_options, &model},
    };
    const cli_page page = {"chat", "-m MODEL [options]", intro, groups, sizeof groups / sizeof groups[0], ending, 0, 0};
    size_t n_operands;
    int status;
    if (!cli_parse(&page, argc, argv, &n_operands, &status))
        return status;
    struct chat c = {.args = &a, .page = &page, .pending = VQ_NO_TOKEN};
    vq_error err;
    cli_catch_interrupt(1);
    status = cli_engine_open(&c.engine, &page, &model);
    if (status == CLI_FINE)
        status = find_template(&c);
    if (status == CLI_FINE)
        status = cli_session_open(&c.engine.session, &c.engine, &page, &model, NULL);
    if (status == CLI_FINE) {
        vq_sampler_params params;
        cli_sampling_params(&sampling, &params);
        if (vq_sampler_open(&c.sampler, &params, vq_model_get_info(c.engine.model)->n_vocab, &err) != VQ_OK)
            status = cli_usage(&page, "%s", err.text);
    }
    if (status == CLI_FINE)
        status = set_system(&c, a.system ? a.system : "");
    if (status == CLI_FINE) {
        c.input = chat_input_open();
        status = c.input ? talk(&c) : cli_fail("no memory for the input");
    }
    chat_input_close(c.input);
    while (c.n > 0)
        drop_last(&c);
    free(c.messages);
    free(c.system);
    vq_sampler_close(c.sampler);
    cli_engine_close(&c.engine);
    return status;
}
