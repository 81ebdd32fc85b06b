/* Contexts with facts in them, and questions about the facts, as token ids: what `vq_eval_recall` runs. */
#ifndef VQ_EVAL_RECALL_TASK_H
#define VQ_EVAL_RECALL_TASK_H

#include "veloxquant/eval.h"

enum { VQ_RECALL_VALUES = 64 }; /* words that may be answers */

typedef struct vq_id_span {
    uint32_t at, n; /* in the ids of the task */
} vq_id_span;

typedef struct vq_recall_question {
    vq_id_span ask;    /* ends just before the answer */
    vq_id_span answer; /* the word's tokens */
    int32_t first;     /* the answer's first token */
} vq_recall_question;

typedef struct vq_recall_built {
    int32_t *ids; /* of all spans */
    size_t n_ids, room;
    vq_id_span context;            /* with the questions at its end where they are asked first */
    vq_recall_question *questions; /* [n_questions], in the order of asking */
    uint32_t n_questions, n_facts;
    int32_t firsts[VQ_RECALL_VALUES]; /* first tokens of every word that could be an answer, no two alike */
    uint32_t n_firsts;
} vq_recall_built;

/* The same parameters and vocabulary give the same ids.  VQ_ERR_ARG when the numbers don't fit each other or the prose,
 * VQ_ERR_UNSUPPORTED when too few words start with a token of their own. */
vq_status vq_recall_build(vq_recall_built *out, const vq_tokenizer *t, const vq_recall_params *p, vq_error *err);
void vq_recall_built_free(vq_recall_built *b);

#endif
