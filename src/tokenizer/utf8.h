/* UTF-8 as the Unicode standard defines it (15.0, table 3-7): what is well formed, and how far an ill-formed part
 * reaches that one U+FFFD replaces (its maximal subpart). */
#ifndef VQ_TOKENIZER_UTF8_H
#define VQ_TOKENIZER_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum vq_utf8 {
    VQ_UTF8_CHAR,  /* `used` bytes are one character */
    VQ_UTF8_BAD,   /* `used` bytes (at least 1) are a maximal ill-formed part */
    VQ_UTF8_SHORT, /* all n bytes are the beginning of a character; used = n (at most 3) */
} vq_utf8;

/* Looks at the front of bytes [n], n >= 1. */
vq_utf8 vq_utf8_next(const char *bytes, size_t n, uint32_t *used, uint32_t *code);

/* Length of the front of text [n] that is well formed. */
size_t vq_utf8_valid_len(const char *text, size_t n);

/* Bytes that vq_utf8_clean will write. */
size_t vq_utf8_clean_len(const char *text, size_t n);

/* Copies text [n], each maximal ill-formed part as one U+FFFD; returns how many bytes were written. */
size_t vq_utf8_clean(char *out, const char *text, size_t n);

/* Length of the character at the front of well-formed text. */
static inline uint32_t vq_utf8_len(char lead)
{
    const uint8_t b = (uint8_t)lead;
    return b < 0x80 ? 1 : b < 0xE0 ? 2 : b < 0xF0 ? 3 : 4;
}

/* text [n] without white space (as Python's str.strip has it) at either end; ill-formed bytes are no white space. */
void vq_utf8_strip(const char **text, size_t *n);

#endif
