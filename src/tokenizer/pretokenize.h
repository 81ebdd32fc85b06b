/* Cutting text into words before merging, with the published regular expressions of each family. */
#ifndef VQ_TOKENIZER_PRETOKENIZE_H
#define VQ_TOKENIZER_PRETOKENIZE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "veloxquant/gguf.h"

typedef struct vq_pretokenizer vq_pretokenizer;         /* compiled; read-only once open */
typedef struct vq_pretokenizer_run vq_pretokenizer_run; /* what one thread needs to use it */

/* By the value of tokenizer.ggml.pre. VQ_ERR_UNSUPPORTED names the ones that are known. */
vq_status vq_pretokenizer_open(vq_pretokenizer **out, vq_str name, vq_error *err);
void vq_pretokenizer_close(vq_pretokenizer *p);
const char *vq_pretokenizer_name(const vq_pretokenizer *p);
/* A word that is a token as it stands is not merged (llama-bpe). */
bool vq_pretokenizer_whole_words(const vq_pretokenizer *p);
/* What the family does when the file doesn't say. */
bool vq_pretokenizer_adds_bos(const vq_pretokenizer *p);

typedef vq_status (*vq_word_fn)(void *arg, const char *word, size_t n_bytes, vq_error *err);

vq_status vq_pretokenizer_run_open(vq_pretokenizer_run **out, const vq_pretokenizer *p, vq_error *err);
void vq_pretokenizer_run_close(vq_pretokenizer_run *run);

/* Calls `word` for the words of well-formed text [n] in order; together they are the text.  An error of `word` ends it.
 */
vq_status vq_pretokenize(vq_pretokenizer_run *run, const char *text, size_t n, vq_word_fn word, void *arg,
                         vq_error *err);

#endif
