/* Generation: evaluate the prompt, then draw, show, evaluate, one token at a time.
 *
 * A token is shown before it is evaluated, so that text appears as early as it can; the one drawn last is therefore not
 * in the cache when generation ends (`pending`). */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/status.h"
#include "engine/session.h"
#include "engine/stops.h"

/* Bytes of a token that are decoded at once, and the room that their text may take. */
enum { PIECE_BYTES = 256, TEXT_BYTES = 3 * PIECE_BYTES + 12 };

struct writer {
    const vq_generate_params *params;
    const vq_tokenizer *tokenizer;
    vq_detokenizer detokenizer;
    vq_stops *stops;
    char *out; /* [vq_stops_most_held + TEXT_BYTES] */
    bool stopped, cancelled;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void pass_on(struct writer *w, size_t n_bytes)
{
    if (n_bytes > 0 && w->params->text && !w->params->text(w->params->arg, w->out, n_bytes))
        w->cancelled = true;
}

static void write_text(struct writer *w, const char *text, size_t n_bytes)
{
    size_t n_out;
    w->stopped = vq_stops_push(w->stops, text, n_bytes, w->out, &n_out);
    pass_on(w, n_out);
}

static void write_token(struct writer *w, int32_t id)
{
    const vq_str bytes = vq_token_bytes(w->tokenizer, id, w->params->show_control);
    for (size_t at = 0; at < bytes.n_bytes && !w->stopped; at += PIECE_BYTES) {
        const size_t n = bytes.n_bytes - at < PIECE_BYTES ? bytes.n_bytes - at : PIECE_BYTES;
        char text[TEXT_BYTES];
        write_text(w, text, vq_detokenizer_push(&w->detokenizer, bytes.at + at, n, text));
    }
}

/* An unfinished character may complete a stop string too, as U+FFFD. */
static void write_rest(struct writer *w)
{
    if (w->stopped)
        return;
    char text[TEXT_BYTES];
    write_text(w, text, vq_detokenizer_finish(&w->detokenizer, text));
    if (!w->stopped)
        pass_on(w, vq_stops_finish(w->stops, w->out));
}

struct draw {
    vq_sampler *sampler;
    const vq_tokenizer *tokenizer;
    float *logits; /* [n_vocab] copy in which end tokens cannot win; NULL when they may */
    int32_t *ends; /* [n_ends] */
    size_t n_ends, n_vocab;
};

static vq_status open_draw(struct draw *d, bool ignore_end, vq_error *err)
{
    if (!ignore_end)
        return VQ_OK;
    d->logits = malloc(d->n_vocab * sizeof *d->logits);
    d->ends = malloc(d->n_vocab * sizeof *d->ends);
    if (!d->logits || !d->ends)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for %zu logits", d->n_vocab);
    for (size_t i = 0; i < d->n_vocab; i++)
        if (vq_tokenizer_ends(d->tokenizer, (int32_t)i))
            d->ends[d->n_ends++] = (int32_t)i;
    return VQ_OK;
}

static int32_t draw_token(struct draw *d, const float *logits)
{
    if (d->logits) {
        memcpy(d->logits, logits, d->n_vocab * sizeof *logits);
        for (size_t i = 0; i < d->n_ends; i++)
            d->logits[d->ends[i]] = -__builtin_inff();
        logits = d->logits;
    }
    const int32_t id = vq_sampler_next(d->sampler, logits);
    vq_sampler_accept(d->sampler, id);
    return id;
}

static vq_status decode(vq_session *s, struct draw *d, struct writer *w, double start, vq_generate_result *result,
                        vq_error *err)
{
    const vq_generate_params *params = w->params;
    for (;;) {
        if (result->n_new == params->n_predict && params->n_predict != UINT32_MAX) {
            result->finish = VQ_FINISH_LENGTH;
            return VQ_OK;
        }
        if (result->pending != VQ_NO_TOKEN) {
            if (vq_session_n_tokens(s) == vq_session_n_ctx(s)) {
                result->finish = VQ_FINISH_CONTEXT;
                return VQ_OK;
            }
            VQ_TRY(vq_session_run(s, &result->pending, 1, &(vq_run){.decodes = true}, err));
        }
        const int32_t id = draw_token(d, vq_session_logits(s));
        result->pending = id;
        if (result->n_new++ == 0)
            result->first_token_seconds = now() - start;
        const bool go_on = !params->token || params->token(params->arg, id);
        const bool end = vq_tokenizer_ends(w->tokenizer, id) && !params->ignore_end;
        if (!end || params->show_control)
            write_token(w, id);
        if (end || w->stopped || w->cancelled || !go_on) {
            result->finish = end ? VQ_FINISH_END : w->stopped ? VQ_FINISH_STOP : VQ_FINISH_CANCELLED;
            return VQ_OK;
        }
    }
}

static vq_status generate(vq_session *s, struct draw *d, struct writer *w, const int32_t *ids, size_t n,
                          vq_generate_result *result, vq_error *err)
{
    const vq_generate_params *params = w->params;
    const double start = now();
    const vq_status status =
        vq_session_run(s, ids, n, &(vq_run){.progress = params->prompt_progress, .arg = params->arg}, err);
    result->prompt_seconds = now() - start;
    if (status == VQ_ERR_CANCELLED) {
        result->finish = VQ_FINISH_CANCELLED;
        return VQ_OK;
    }
    if (status != VQ_OK)
        return status;
    result->n_prompt = n;
    for (size_t i = 0; i < n; i++)
        vq_sampler_accept(d->sampler, ids[i]);
    const double prompt_end = now();
    VQ_TRY(decode(s, d, w, start, result, err));
    write_rest(w);
    if (w->stopped && result->finish == VQ_FINISH_LENGTH)
        result->finish = VQ_FINISH_STOP;
    result->decode_seconds = now() - prompt_end;
    return VQ_OK;
}

vq_status vq_generate(vq_session *s, vq_sampler *sampler, const int32_t *ids, size_t n,
                      const vq_generate_params *params, vq_generate_result *result, vq_error *err)
{
    *result = (vq_generate_result){.finish = VQ_FINISH_CANCELLED, .pending = VQ_NO_TOKEN};
    if (n == 0 && !vq_session_logits(s) && params->n_predict > 0)
        return vq_fail(err, VQ_ERR_ARG, "no tokens to go on from: the prompt is empty and nothing has been evaluated");
    const vq_model *model = vq_session_model(s);
    struct draw d = {
        .sampler = sampler, .tokenizer = vq_model_tokenizer(model), .n_vocab = vq_model_get_info(model)->n_vocab};
    struct writer w = {.params = params, .tokenizer = d.tokenizer};
    vq_status status = vq_stops_open(&w.stops, params->stops, params->n_stops, err);
    if (status == VQ_OK)
        status = open_draw(&d, params->ignore_end, err);
    if (status == VQ_OK) {
        w.out = malloc(vq_stops_most_held(w.stops) + TEXT_BYTES);
        if (!w.out)
            status = vq_fail(err, VQ_ERR_NOMEM, "no memory for generated text");
    }
    if (status == VQ_OK)
        status = generate(s, &d, &w, ids, n, result, err);
    vq_stops_close(w.stops);
    free(w.out);
    free(d.logits);
    free(d.ends);
    return status;
}
