/* How the library's own code raises and passes on errors. */
#ifndef VQ_BASE_STATUS_H
#define VQ_BASE_STATUS_H

#include "veloxquant/status.h"

/* Fills `err` (when not NULL) and returns `status`. */
vq_status vq_fail(vq_error *err, vq_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Puts "PREFIX: " before the message that `err` holds (a file name, a field) unless it starts with it already; returns
 * `status`. */
vq_status vq_fail_prefix(vq_error *err, vq_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define VQ_TRY(call)                                                                                                   \
    do {                                                                                                               \
        const vq_status vq_try_ = (call);                                                                              \
        if (vq_try_ != VQ_OK)                                                                                          \
            return vq_try_;                                                                                            \
    } while (0)

#endif
