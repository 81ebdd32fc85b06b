/* Prompts cut from texts, and greedy texts that go on from them. */
#ifndef CLI_EVAL_PROMPTS_H
#define CLI_EVAL_PROMPTS_H

#include "eval.h"

/* Prompts of equal length, spread over the texts, each from the start of a paragraph on. */
typedef struct eval_prompts {
    int32_t *ids; /* [n][n_tokens] */
    uint32_t n, n_tokens;
} eval_prompts;

/* Says what is wrong when a text is too short.  What was cut until then is freed by eval_prompts_free. */
int eval_prompts_cut(eval_prompts *p, const eval_text *texts, size_t n_texts, const vq_model *model, uint32_t n,
                     uint32_t n_tokens);
void eval_prompts_free(eval_prompts *p);

/* A text that always goes on with the likeliest token. */
typedef struct eval_greedy {
    int32_t *ids; /* [n], an end token among them */
    size_t n;
    char *text;
    bool ended; /* by an end token */
} eval_greedy;

bool eval_greedy_open(eval_greedy *g, uint32_t most); /* room for so many tokens */
void eval_greedy_free(eval_greedy *g);
/* From an empty cache.  progress is called after each token; with false the text ends, and CLI_INTERRUPTED comes back.
 */
int eval_greedy_run(eval_greedy *g, vq_session *s, const int32_t *prompt, size_t n_prompt, uint32_t most,
                    bool (*progress)(void *arg), void *arg);

size_t eval_greedy_same_until(const eval_greedy *a, const eval_greedy *b); /* tokens before the first difference */
/* Share of places with the same token; places that only one text has count as different. */
double eval_greedy_same(const eval_greedy *a, const eval_greedy *b);

#endif
