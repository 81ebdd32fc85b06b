#include "kv/option_text.h"

#include <ctype.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool vq_text_is(const char *at, size_t n, const char *word) { return strlen(word) == n && memcmp(at, word, n) == 0; }

void vq_text_list(char *list, const char *word)
{
    const size_t at = strlen(list);
    snprintf(list + at, VQ_LIST_BYTES - at, "%s%s", at ? " " : "", word);
}

bool vq_text_number(const char *at, size_t n, double *out)
{
    char text[48];
    if (n == 0 || n >= sizeof text)
        return false;
    for (size_t i = 0; i < n; i++)
        if (!isdigit((unsigned char)at[i]) && !strchr("+-.eE", at[i]))
            return false;
    memcpy(text, at, n);
    text[n] = '\0';
    char *point = strchr(text, '.');
    if (point)
        *point = localeconv()->decimal_point[0];
    char *end;
    *out = strtod(text, &end);
    return end == text + n && isfinite(*out);
}

vq_status vq_text_value(const char *owner, const vq_kv_option_info *info, const char *at, size_t n, double *out,
                        vq_error *err)
{
    double value;
    if (!vq_text_number(at, n, &value))
        return vq_fail(err, VQ_ERR_ARG, "%s: %s is '%.*s', which is no number", owner, info->name,
                       (int)(n < 64 ? n : 64), at);
    if (value < info->min || value > info->max || (!info->fraction && value != floor(value)))
        return vq_fail(err, VQ_ERR_ARG, "%s: %s is %g, which is no %s from %g to %g", owner, info->name, value,
                       info->fraction ? "number" : "whole number", info->min, info->max);
    *out = value;
    return VQ_OK;
}
