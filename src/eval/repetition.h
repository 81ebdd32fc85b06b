/* What evaluations ask of a text before and after they run. */
#ifndef VQ_EVAL_REPETITION_H
#define VQ_EVAL_REPETITION_H

#include "veloxquant/eval.h"

/* Of prose, and of code spelt in bytes, more than 90 % of all sequences of 32 tokens are distinct; of a paragraph
 * pasted three times, a third. */
enum { VQ_TEXT_GRAM = 32 };
#define VQ_TEXT_LEAST_DISTINCT 0.6
#define VQ_TEXT_LEAST_PERPLEXITY 2.0

vq_status vq_windows_check_text(const vq_windows *w, size_t n_windows, vq_error *err);
vq_status vq_windows_check_result(const vq_windows *w, const vq_moments *nll, vq_error *err);

#endif
