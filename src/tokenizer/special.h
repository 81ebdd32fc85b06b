/* Finding tokens that stand in text as they are: user-defined ones everywhere, control tokens where that is asked for.
 */
#ifndef VQ_TOKENIZER_SPECIAL_H
#define VQ_TOKENIZER_SPECIAL_H

#include "tokenizer/vocab.h"

typedef struct vq_special vq_special; /* read-only once open */

/* The vocabulary must outlive it. */
vq_status vq_special_open(vq_special **out, const vq_vocab *vocab, vq_error *err);
void vq_special_close(vq_special *s);

/* A part of a text in which control tokens count. */
typedef struct vq_span {
    size_t start, end;
} vq_span;

typedef struct vq_match {
    size_t at;
    int32_t id;
} vq_match;

typedef struct vq_matches {
    vq_match *at; /* freed by the owner */
    size_t n, room;
} vq_matches;

/* For every position of text [n] where one begins, the longest token: a control token lies whole within one of the
 * spans [n_spans], which are in order and do not overlap.  Matches come in descending order of position and may
 * overlap: read from the back, each one that begins before the last one's end is to be skipped.  O(n + tokens found).
 */
vq_status vq_special_find(const vq_special *s, const char *text, size_t n, const vq_span *spans, size_t n_spans,
                          vq_matches *out, vq_error *err);

#endif
