/* The streaming detokeniser: tokens carry bytes, readers want characters.  What is not yet a whole character is held,
 * at most three bytes. */
#include "veloxquant/tokenizer.h"

#include <string.h>

#include "tokenizer/utf8.h"

static size_t put_replacement(char *out)
{
    static const char replacement[3] = {(char)0xEF, (char)0xBF, (char)0xBD};
    memcpy(out, replacement, sizeof replacement);
    return sizeof replacement;
}

size_t vq_detokenizer_push(vq_detokenizer *d, const char *bytes, size_t n_bytes, char *out)
{
    size_t len = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        d->held[d->n_held++] = bytes[i];
        while (d->n_held > 0) {
            uint32_t used, code;
            const vq_utf8 what = vq_utf8_next(d->held, d->n_held, &used, &code);
            if (what == VQ_UTF8_SHORT)
                break;
            if (what == VQ_UTF8_CHAR) {
                memcpy(out + len, d->held, used);
                len += used;
            } else {
                len += put_replacement(out + len);
            }
            d->n_held -= used;
            memmove(d->held, d->held + used, d->n_held);
        }
    }
    return len;
}

size_t vq_detokenizer_finish(vq_detokenizer *d, char *out)
{
    if (d->n_held == 0)
        return 0;
    d->n_held = 0;
    return put_replacement(out);
}
