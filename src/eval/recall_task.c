/* Facts of the form "the secret word of the brave doctor is tiger" hidden in prose, or as a list of "brave doctor:
 * tiger" that fills the context.
 *
 * The forms follow RULER (arXiv:2404.06654: multi-key and multi-query needles, key-value retrieval) at a size that
 * small models manage: words in place of numbers and uuids, so that an answer is one token or two and every other word
 * of the list is a distractor whose probability stands in the same row of logits. */
#include "eval/recall_task.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/status.h"

static const char *const adjectives[] = {
    "brave",  "quiet", "clever", "lazy",  "happy",  "proud",   "gentle",  "angry",  "young",  "old",    "tall",
    "short",  "rich",  "poor",   "wise",  "strong", "shy",     "kind",    "loud",   "polite", "busy",   "careful",
    "famous", "funny", "honest", "local", "modern", "nervous", "patient", "simple", "tired",  "strange"};
static const char *const people[] = {
    "doctor", "teacher", "farmer", "singer",  "writer", "painter", "soldier",  "lawyer", "driver",  "sailor", "king",
    "queen",  "prince",  "judge",  "student", "nurse",  "pilot",   "hunter",   "miner",  "banker",  "artist", "captain",
    "chief",  "priest",  "monk",   "player",  "poet",   "cook",    "merchant", "guard",  "builder", "dancer"};
static const char *const values[VQ_RECALL_VALUES] = {
    "tiger",    "horse",  "apple",  "river",  "stone",  "bread",  "silver", "garden",  "window",  "winter",  "orange",
    "bridge",   "castle", "forest", "island", "paper",  "music",  "school", "summer",  "table",   "train",   "water",
    "yellow",   "church", "dragon", "engine", "flower", "glass",  "hammer", "iron",    "jacket",  "kitchen", "lion",
    "mountain", "needle", "ocean",  "pencil", "rabbit", "salt",   "tower",  "village", "wheel",   "butter",  "candle",
    "desert",   "eagle",  "fire",   "gold",   "honey",  "ink",    "lamp",   "knife",   "leather", "mirror",  "night",
    "oil",      "palace", "road",   "ship",   "tree",   "valley", "wine",   "cotton",  "sugar"};
enum {
    N_ADJECTIVES = sizeof adjectives / sizeof adjectives[0],
    N_KEYS = N_ADJECTIVES * (sizeof people / sizeof people[0]),
    LEAST_VALUES = 8, /* fewer make being the likeliest of them too easy */
    MOST_ANSWER = 4,  /* tokens */
    LOOK_BACK = 96,   /* tokens in which a sentence's end is looked for */
    TEXT_BYTES = 256, /* of a fact or a question */
};

static const char prefix_of_answers[] = "The word is";

struct fact {
    uint32_t key;   /* adjective * people + person */
    uint32_t value; /* index into the usable values */
    double depth;   /* where it stands, 0 to 1 */
};

struct builder {
    vq_recall_built *out;
    const vq_tokenizer *tokenizer;
    const vq_recall_params *params;
    vq_rng rng;
    const char *words[VQ_RECALL_VALUES]; /* [n_firsts] those of the values that can be used */
    struct fact *facts;
    vq_error *err;
};

static vq_status reserve(struct builder *b, size_t n)
{
    vq_recall_built *out = b->out;
    if (out->n_ids + n <= out->room)
        return VQ_OK;
    const size_t room = 2 * (out->n_ids + n);
    int32_t *ids = realloc(out->ids, room * sizeof *ids);
    if (!ids)
        return vq_fail(b->err, VQ_ERR_NOMEM, "no memory for %zu tokens", room);
    out->ids = ids;
    out->room = room;
    return VQ_OK;
}

static vq_status add_ids(struct builder *b, const int32_t *ids, size_t n)
{
    VQ_TRY(reserve(b, n));
    memcpy(b->out->ids + b->out->n_ids, ids, n * sizeof *ids);
    b->out->n_ids += n;
    return VQ_OK;
}

/* The tokens of `text` as they follow `before`: vocabularies differ in what they do to the first word of a text. */
static vq_status tokens_after(struct builder *b, const char *before, const char *text, int32_t **ids, size_t *n)
{
    char both[2 * TEXT_BYTES];
    int32_t *all = NULL, *head = NULL;
    size_t n_all, n_head, same = 0;
    snprintf(both, sizeof both, "%s%s", before, text);
    *ids = NULL;
    VQ_TRY(vq_tokenize(b->tokenizer, both, strlen(both), 0, &all, &n_all, b->err));
    const vq_status status = vq_tokenize(b->tokenizer, before, strlen(before), 0, &head, &n_head, b->err);
    if (status != VQ_OK) {
        vq_free(all);
        return status;
    }
    while (same < n_all && same < n_head && all[same] == head[same])
        same++;
    memmove(all, all + same, (n_all - same) * sizeof *all);
    vq_free(head);
    *ids = all;
    *n = n_all - same;
    return VQ_OK;
}

static vq_status add_text(struct builder *b, const char *before, const char *text)
{
    int32_t *ids;
    size_t n;
    VQ_TRY(tokens_after(b, before, text, &ids, &n));
    const vq_status status = add_ids(b, ids, n);
    vq_free(ids);
    return status;
}

/* Which words start with a token that no other one starts with. */
static vq_status choose_values(struct builder *b)
{
    vq_recall_built *out = b->out;
    for (size_t i = 0; i < VQ_RECALL_VALUES; i++) {
        char word[32];
        int32_t *ids;
        size_t n;
        snprintf(word, sizeof word, " %s", values[i]);
        VQ_TRY(tokens_after(b, prefix_of_answers, word, &ids, &n));
        bool usable = n >= 1 && n <= MOST_ANSWER;
        for (size_t k = 0; k < out->n_firsts && usable; k++)
            usable = out->firsts[k] != ids[0];
        if (usable) {
            b->words[out->n_firsts] = values[i];
            out->firsts[out->n_firsts++] = ids[0];
        }
        vq_free(ids);
    }
    if (out->n_firsts < LEAST_VALUES)
        return vq_fail(b->err, VQ_ERR_UNSUPPORTED,
                       "only %u words start with a token of their own in this vocabulary, at least %d are needed",
                       out->n_firsts, LEAST_VALUES);
    return VQ_OK;
}

static uint32_t draw(vq_rng *rng, uint32_t below) { return (uint32_t)(vq_rng_next(rng) % below); }

/* n facts about different people; values differ too while there are enough. */
static vq_status draw_facts(struct builder *b, uint32_t n)
{
    uint32_t keys[N_KEYS], order[VQ_RECALL_VALUES];
    const uint32_t n_values = b->out->n_firsts;
    b->facts = malloc((n ? n : 1) * sizeof *b->facts);
    if (!b->facts)
        return vq_fail(b->err, VQ_ERR_NOMEM, "no memory for %u facts", n);
    for (uint32_t i = 0; i < N_KEYS; i++)
        keys[i] = i;
    for (uint32_t i = 0; i < n; i++) { /* a shuffle, as far as it is needed */
        const uint32_t k = i + draw(&b->rng, N_KEYS - i), key = keys[k];
        keys[k] = keys[i];
        keys[i] = key;
        if (i % n_values == 0)
            for (uint32_t v = 0; v < n_values; v++)
                order[v] = v;
        const uint32_t at = i % n_values, from = at + draw(&b->rng, n_values - at), value = order[from];
        order[from] = order[at];
        order[at] = value;
        const double depth = n == 1 ? (double)b->params->depth : (i + vq_rng_uniform(&b->rng)) / n;
        b->facts[i] = (struct fact){.key = key, .value = value, .depth = depth};
    }
    return VQ_OK;
}

static const char *person(const struct fact *f, char out[64])
{
    snprintf(out, 64, "%s %s", adjectives[f->key % N_ADJECTIVES], people[f->key / N_ADJECTIVES]);
    return out;
}

static bool ends_sentence(const vq_tokenizer *t, int32_t id)
{
    const vq_str s = vq_token_bytes(t, id, false);
    for (size_t i = 0; i < s.n_bytes; i++)
        if (s.at[i] == '\n')
            return true;
    return s.n_bytes > 0 && strchr(".!?", s.at[s.n_bytes - 1]) != NULL;
}

/* ---- needles in prose ---- */
static vq_status add_prose(struct builder *b, const int32_t *prose, size_t n_prose, size_t n_bos)
{
    const vq_recall_params *p = b->params;
    int32_t *needles[VQ_RECALL_MOST_QUESTIONS] = {NULL};
    size_t n_needle[VQ_RECALL_MOST_QUESTIONS], n_all = 0, from = 0;
    vq_status status = VQ_OK;
    for (uint32_t i = 0; i < p->n_questions && status == VQ_OK; i++) {
        char text[TEXT_BYTES], who[64];
        const struct fact *f = &b->facts[i];
        snprintf(text, sizeof text, " The secret word of the %s is %s.", person(f, who), b->words[f->value]);
        status = tokens_after(b, "It was so.", text, &needles[i], &n_needle[i]);
        if (status == VQ_OK)
            n_all += n_needle[i];
    }
    if (status == VQ_OK && p->n_tokens < n_bos + n_all + 8 * p->n_questions)
        status = vq_fail(b->err, VQ_ERR_ARG, "%u needles of %zu tokens do not fit into a context of %u", p->n_questions,
                         n_all, p->n_tokens);
    const size_t n = status == VQ_OK ? p->n_tokens - n_bos - n_all : 0; /* tokens of prose */
    if (status == VQ_OK && n > n_prose)
        status = vq_fail(b->err, VQ_ERR_ARG, "the text has %zu tokens, a context of %u takes %zu of them", n_prose,
                         p->n_tokens, n);
    if (status == VQ_OK) {
        size_t start = draw(&b->rng, (uint32_t)(n_prose - n + 1));
        for (size_t back = 0; back < LOOK_BACK && start > 0 && !ends_sentence(b->tokenizer, prose[start - 1]); back++)
            start--;
        prose += start;
    }
    for (uint32_t i = 0; i < p->n_questions && status == VQ_OK; i++) {
        const double wanted = b->facts[i].depth * (double)n;
        size_t at = wanted > (double)n ? n : (size_t)wanted;
        at = at < from ? from : at;
        const size_t least = at > from + LOOK_BACK ? at - LOOK_BACK : from;
        size_t end = at;
        while (end > least && !ends_sentence(b->tokenizer, prose[end - 1]))
            end--;
        if (end > least || least == from)
            at = end;
        status = add_ids(b, prose + from, at - from);
        if (status == VQ_OK)
            status = add_ids(b, needles[i], n_needle[i]);
        from = at;
    }
    if (status == VQ_OK)
        status = add_ids(b, prose + from, n - from);
    for (uint32_t i = 0; i < p->n_questions; i++)
        vq_free(needles[i]);
    return status;
}

/* ---- a list of pairs ---- */

/* As many lines as fit; says how many in n_facts. */
static vq_status add_pairs(struct builder *b)
{
    VQ_TRY(add_text(b, "", "Everybody here has a secret word of their own:"));
    uint32_t i = 0;
    for (; i < N_KEYS; i++) {
        char text[TEXT_BYTES], who[64];
        const struct fact *f = &b->facts[i];
        const size_t before = b->out->n_ids;
        snprintf(text, sizeof text, "\n%s: %s", person(f, who), b->words[f->value]);
        VQ_TRY(add_text(b, "word:", text));
        if (b->out->n_ids > b->params->n_tokens) {
            b->out->n_ids = before;
            break;
        }
    }
    b->out->n_facts = i;
    if (i < b->params->n_questions)
        return vq_fail(b->err, VQ_ERR_ARG, "%u questions about a list, a context of %u tokens holds %u lines",
                       b->params->n_questions, b->params->n_tokens, i);
    return VQ_OK;
}

/* ---- questions ---- */

/* Which facts are asked for, in which order. */
static void draw_order(struct builder *b, uint32_t *order)
{
    uint32_t all[N_KEYS];
    for (uint32_t i = 0; i < b->out->n_facts; i++)
        all[i] = i;
    for (uint32_t i = 0; i < b->params->n_questions; i++) {
        const uint32_t k = i + draw(&b->rng, b->out->n_facts - i), fact = all[k];
        all[k] = all[i];
        all[i] = order[i] = fact;
    }
}

static vq_status announce(struct builder *b, const uint32_t *order)
{
    for (uint32_t i = 0; i < b->params->n_questions; i++) {
        char text[TEXT_BYTES], who[64];
        snprintf(text, sizeof text, "%sWhat is the secret word of the %s?", i == 0 ? "\n\nQuestions: " : " ",
                 person(&b->facts[order[i]], who));
        VQ_TRY(add_text(b, "It was so.", text));
    }
    return VQ_OK;
}

static vq_status add_question(struct builder *b, const struct fact *f, vq_recall_question *q)
{
    char text[TEXT_BYTES], word[32], who[64];
    const bool pairs = b->params->task == VQ_RECALL_PAIRS;
    person(f, who);
    if (pairs)
        snprintf(text, sizeof text, "\n%s:", who);
    else if (b->params->asked_first)
        snprintf(text, sizeof text, "\n\nAnswer: The secret word of the %s is", who);
    else
        snprintf(text, sizeof text,
                 "\n\nQuestion: What is the secret word of the %s?\nAnswer: The secret word of the %s is", who, who);
    q->ask.at = (uint32_t)b->out->n_ids;
    VQ_TRY(add_text(b, "It was so.", text));
    q->ask.n = (uint32_t)b->out->n_ids - q->ask.at;
    q->answer.at = (uint32_t)b->out->n_ids;
    snprintf(word, sizeof word, " %s", b->words[f->value]);
    VQ_TRY(add_text(b, prefix_of_answers, word));
    q->answer.n = (uint32_t)b->out->n_ids - q->answer.at;
    q->first = b->out->ids[q->answer.at];
    return VQ_OK;
}

static vq_status check(const vq_recall_params *p, vq_error *err)
{
    if (p->n_questions < 1 || p->n_questions > VQ_RECALL_MOST_QUESTIONS)
        return vq_fail(err, VQ_ERR_ARG, "%u questions a context, must be 1 to %d", p->n_questions,
                       VQ_RECALL_MOST_QUESTIONS);
    if (!(p->depth >= 0 && p->depth <= 1))
        return vq_fail(err, VQ_ERR_ARG, "a needle at depth %g, must be 0 to 1", (double)p->depth);
    if (p->n_tokens < 32 || p->n_tokens > 1u << 24)
        return vq_fail(err, VQ_ERR_ARG, "a context of %u tokens, must be 32 to %u", p->n_tokens, 1u << 24);
    return VQ_OK;
}

static vq_status build(struct builder *b)
{
    const vq_recall_params *p = b->params;
    const int32_t bos = vq_tokenizer_bos(b->tokenizer);
    const size_t n_bos = vq_tokenizer_adds_bos(b->tokenizer) && bos != VQ_NO_TOKEN ? 1 : 0;
    /* the text's own BOS is not prose */
    const size_t own = p->n_prose > 0 && n_bos && p->prose[0] == bos ? 1 : 0;
    uint32_t order[VQ_RECALL_MOST_QUESTIONS];
    VQ_TRY(choose_values(b));
    VQ_TRY(draw_facts(b, p->task == VQ_RECALL_PAIRS ? N_KEYS : p->n_questions));
    VQ_TRY(add_ids(b, &bos, n_bos));
    b->out->n_facts = p->n_questions;
    if (p->task == VQ_RECALL_PAIRS)
        VQ_TRY(add_pairs(b));
    else
        VQ_TRY(add_prose(b, p->prose + own, p->n_prose - own, n_bos));
    draw_order(b, order);
    if (p->asked_first)
        VQ_TRY(announce(b, order));
    b->out->context = (vq_id_span){0, (uint32_t)b->out->n_ids};
    b->out->n_questions = p->n_questions;
    b->out->questions = calloc(p->n_questions, sizeof *b->out->questions);
    if (!b->out->questions)
        return vq_fail(b->err, VQ_ERR_NOMEM, "no memory for %u questions", p->n_questions);
    for (uint32_t i = 0; i < p->n_questions; i++)
        VQ_TRY(add_question(b, &b->facts[order[i]], &b->out->questions[i]));
    return VQ_OK;
}

vq_status vq_recall_build(vq_recall_built *out, const vq_tokenizer *t, const vq_recall_params *p, vq_error *err)
{
    *out = (vq_recall_built){0};
    VQ_TRY(check(p, err));
    struct builder b = {.out = out, .tokenizer = t, .params = p, .err = err};
    vq_rng_seed(&b.rng, vq_hash64(p->seed, p->task, p->n_tokens, p->n_questions, 0));
    const vq_status status = build(&b);
    free(b.facts);
    if (status != VQ_OK)
        vq_recall_built_free(out);
    return status;
}

void vq_recall_built_free(vq_recall_built *b)
{
    free(b->ids);
    free(b->questions);
    *b = (vq_recall_built){0};
}
