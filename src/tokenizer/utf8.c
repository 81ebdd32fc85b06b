/* UTF-8: validation, replacement of ill-formed parts, and white space. */
#include "tokenizer/utf8.h"

#include <string.h>

static const char REPLACEMENT[3] = {(char)0xEF, (char)0xBF, (char)0xBD};

vq_utf8 vq_utf8_next(const char *bytes, size_t n, uint32_t *used, uint32_t *code)
{
    const uint8_t *b = (const uint8_t *)bytes;
    const uint8_t lead = b[0];
    *used = 1;
    *code = lead;
    if (lead < 0x80)
        return VQ_UTF8_CHAR;
    if (lead < 0xC2 || lead > 0xF4)
        return VQ_UTF8_BAD;
    const uint32_t len = vq_utf8_len(bytes[0]);
    /* Only the second byte has a range of its own: no overlong forms, no surrogates, nothing above U+10FFFF. */
    const uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    uint32_t c = lead & (0x7Fu >> len);
    for (uint32_t i = 1; i < len; i++) {
        *used = i;
        if (i == n)
            return VQ_UTF8_SHORT;
        if (b[i] < (i == 1 ? low : 0x80) || b[i] > (i == 1 ? high : 0xBF))
            return VQ_UTF8_BAD;
        c = c << 6 | (b[i] & 0x3F);
    }
    *used = len;
    *code = c;
    return VQ_UTF8_CHAR;
}

size_t vq_utf8_valid_len(const char *text, size_t n)
{
    size_t at = 0;
    while (at < n) {
        uint64_t eight;
        if (n - at >= 8 && (memcpy(&eight, text + at, 8), !(eight & 0x8080808080808080u))) {
            at += 8;
            continue;
        }
        uint32_t used, code;
        if (vq_utf8_next(text + at, n - at, &used, &code) != VQ_UTF8_CHAR)
            break;
        at += used;
    }
    return at;
}

size_t vq_utf8_clean_len(const char *text, size_t n)
{
    size_t at = 0, len = 0;
    for (;;) {
        const size_t good = vq_utf8_valid_len(text + at, n - at);
        at += good;
        len += good;
        if (at == n)
            return len;
        uint32_t used, code;
        vq_utf8_next(text + at, n - at, &used, &code);
        at += used;
        len += sizeof REPLACEMENT;
    }
}

size_t vq_utf8_clean(char *out, const char *text, size_t n)
{
    size_t at = 0, len = 0;
    for (;;) {
        const size_t good = vq_utf8_valid_len(text + at, n - at);
        if (good > 0)
            memcpy(out + len, text + at, good);
        at += good;
        len += good;
        if (at == n)
            return len;
        uint32_t used, code;
        vq_utf8_next(text + at, n - at, &used, &code);
        at += used;
        memcpy(out + len, REPLACEMENT, sizeof REPLACEMENT);
        len += sizeof REPLACEMENT;
    }
}

static bool is_space(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

void vq_utf8_strip(const char **text, size_t *n)
{
    uint32_t used, code;
    while (*n > 0 && vq_utf8_next(*text, *n, &used, &code) == VQ_UTF8_CHAR && is_space(code)) {
        *text += used;
        *n -= used;
    }
    while (*n > 0) {
        size_t back = 1;
        while (back < 4 && back < *n && ((*text)[*n - back] & 0xC0) == 0x80)
            back++;
        if (vq_utf8_next(*text + *n - back, back, &used, &code) != VQ_UTF8_CHAR || used != back || !is_space(code))
            return;
        *n -= back;
    }
}
