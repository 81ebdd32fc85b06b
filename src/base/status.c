/* Status names and the text of errors.  Messages may carry bytes from a file (key names, paths): what is not printable
 * becomes '?', so that a message is always one line. */
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

const char *vq_version(void)
{
    return VQ_VERSION;
}

static void keep_printable(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            *text = '?';
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
    const size_t n = strlen(text);
    snprintf(text + n, sizeof text - n, ": %s", err->text);
    text[sizeof err->text - 1] = 0;
    memcpy(err->text, text, strlen(text) + 1);
    keep_printable(err->text);
    err->status = status;
    return status;
}
