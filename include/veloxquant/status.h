/* Status codes and error messages.
 *
 * Fallible functions return vq_status and take a last `vq_error *` that may be NULL.  On failure nothing has
 * changed, `*out` is NULL, and the message names the value and the limit.  The library never prints or exits. */
#ifndef VELOXQUANT_STATUS_H
#define VELOXQUANT_STATUS_H

/* What the shared library exports; everything else in it is hidden. */
#if defined(__GNUC__)
#define VQ_API __attribute__((visibility("default")))
#else
#define VQ_API
#endif

typedef enum vq_status {
    VQ_OK = 0,
    VQ_ERR_ARG,         /* a caller's argument is out of range */
    VQ_ERR_NOMEM,       /* memory ran out, or a product of sizes does not fit */
    VQ_ERR_IO,          /* the operating system refused to read or write */
    VQ_ERR_FULL,        /* the cache or the context has no room for that many tokens */
    VQ_ERR_UNSUPPORTED, /* valid, but not something this build does */
    VQ_ERR_MISMATCH,    /* a file belongs to other settings or another model */
    VQ_ERR_CANCELLED,   /* the caller's callback asked to stop */
    /* what can be wrong with a file */
    VQ_ERR_TRUNCATED,
    VQ_ERR_MAGIC,
    VQ_ERR_VERSION,
    VQ_ERR_LIMIT,
    VQ_ERR_KEY,
    VQ_ERR_TYPE,
    VQ_ERR_VALUE,
    VQ_ERR_SHAPE,
    VQ_ERR_BOUNDS,
    VQ_ERR_OVERLAP,
    VQ_ERR_OVERFLOW,
    VQ_ERR_DUPLICATE,
    VQ_ERR_ALIGN,
    VQ_ERR_SPLIT,
    VQ_ERR_NONFINITE,
    VQ_ERR_VOCAB,
    VQ_ERR_MISSING_KEY,
    VQ_ERR_MISSING_TENSOR,
    VQ_ERR_CHECKSUM,
    VQ_N_STATUS
} vq_status;

typedef struct vq_error {
    vq_status status;
    char text[512]; /* one line, NUL-terminated, no newline */
} vq_error;

/* A short constant name such as "truncated"; never NULL. */
VQ_API const char *vq_status_name(vq_status status);

/* "MAJOR.MINOR.PATCH". */
VQ_API const char *vq_version(void);

#endif
