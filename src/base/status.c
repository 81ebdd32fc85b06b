/* Status names and the text of errors.  Messages may carry bytes from a file (key names, paths): what is not printable
 * UTF-8 becomes '?', so that a message is always one line. */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const status_names[VQ_N_STATUS] = {
    [VQ_OK] = "ok",
    [VQ_ERR_ARG] = "argument",
    [VQ_ERR_NOMEM] = "memory",
    [VQ_ERR_IO] = "io",
    [VQ_ERR_FULL] = "full",
    [VQ_ERR_UNSUPPORTED] = "unsupported",
    [VQ_ERR_MISMATCH] = "mismatch",
    [VQ_ERR_CANCELLED] = "cancelled",
    [VQ_ERR_TRUNCATED] = "truncated",
    [VQ_ERR_MAGIC] = "magic",
    [VQ_ERR_VERSION] = "version",
    [VQ_ERR_LIMIT] = "limit",
    [VQ_ERR_KEY] = "key",
    [VQ_ERR_TYPE] = "type",
    [VQ_ERR_VALUE] = "value",
    [VQ_ERR_SHAPE] = "shape",
    [VQ_ERR_BOUNDS] = "bounds",
    [VQ_ERR_OVERLAP] = "overlap",
    [VQ_ERR_OVERFLOW] = "overflow",
    [VQ_ERR_DUPLICATE] = "duplicate",
    [VQ_ERR_ALIGN] = "alignment",
    [VQ_ERR_SPLIT] = "split",
    [VQ_ERR_NONFINITE] = "nonfinite",
    [VQ_ERR_VOCAB] = "vocabulary",
    [VQ_ERR_MISSING_KEY] = "missing key",
    [VQ_ERR_MISSING_TENSOR] = "missing tensor",
    [VQ_ERR_CHECKSUM] = "checksum",
};

const char *vq_status_name(vq_status status)
{
    const unsigned i = (unsigned)status;
    return i < VQ_N_STATUS && status_names[i] ? status_names[i] : "unknown status";
}

const char *vq_version(void) { return VQ_VERSION; }

/* Bytes of the well-formed UTF-8 character at p (Unicode 15, table 3-7) if it is printable, else 0.  Reading stops at
 * the first byte that does not fit, so never behind the NUL. */
static unsigned printable_length(const unsigned char *p)
{
    if (p[0] < 0x80)
        return p[0] >= 0x20 && p[0] != 0x7f;
    const unsigned n = p[0] >= 0xc2 && p[0] <= 0xdf   ? 2
                       : (p[0] & 0xf0) == 0xe0        ? 3
                       : p[0] >= 0xf0 && p[0] <= 0xf4 ? 4
                                                      : 0;
    const unsigned char low = p[0] == 0xc2   ? 0xa0
                              : p[0] == 0xe0 ? 0xa0
                              : p[0] == 0xf0 ? 0x90
                                             : 0x80; /* no C1 controls */
    const unsigned char high = p[0] == 0xed ? 0x9f : p[0] == 0xf4 ? 0x8f : 0xbf;
    for (unsigned i = 1; i < n; i++)
        if (p[i] < (i == 1 ? low : 0x80) || p[i] > (i == 1 ? high : 0xbf))
            return 0;
    return n;
}

static void keep_printable(char *text)
{
    for (unsigned char *p = (unsigned char *)text; *p;) {
        const unsigned n = printable_length(p);
        if (!n)
            *p = '?';
        p += n ? n : 1;
    }
}

vq_status vq_fail(vq_error *err, vq_status status, const char *format, ...)
{
    if (err) {
        va_list args;
        va_start(args, format);
        vsnprintf(err->text, sizeof err->text, format, args);
        va_end(args);
        keep_printable(err->text);
        err->status = status;
    }
    return status;
}

vq_status vq_fail_prefix(vq_error *err, vq_status status, const char *format, ...)
{
    if (!err)
        return status;

    /* A very long prefix must not push out the message, which says what is wrong. */
    char text[2 * sizeof err->text];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof err->text / 2, format, args);
    va_end(args);
    keep_printable(text);
    const size_t n = strlen(text);
    if (strncmp(err->text, text, n) || strncmp(err->text + n, ": ", 2)) { /* not there yet */
        snprintf(text + n, sizeof text - n, ": %s", err->text);
        text[sizeof err->text - 1] = 0;
        memcpy(err->text, text, strlen(text) + 1);
        keep_printable(err->text);
    }
    err->status = status;
    return status;
}
