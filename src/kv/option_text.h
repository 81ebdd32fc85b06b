/* What the texts of methods and of policies have in common: words, numbers, lists in messages. */
#ifndef VQ_KV_OPTION_TEXT_H
#define VQ_KV_OPTION_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "veloxquant/kv.h"

enum { VQ_LIST_BYTES = 400 };

bool vq_text_is(const char *at, size_t n, const char *word);
/* A plain decimal number, whatever the locale: digits, one point, a sign, an exponent. */
bool vq_text_number(const char *at, size_t n, double *out);
/* Adds a word to a list of VQ_LIST_BYTES, cutting where the room ends. */
void vq_text_list(char *list, const char *word);
/* The value [n] of an option, in its range; `owner` is named in messages. */
vq_status vq_text_value(const char *owner, const vq_kv_option_info *info, const char *at, size_t n, double *out,
                        vq_error *err);

#endif
