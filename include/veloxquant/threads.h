/* A pool of worker threads, shared by every object that computes.  All threads of the library live here. */
#ifndef VELOXQUANT_THREADS_H
#define VELOXQUANT_THREADS_H

#include <stdint.h>

#include "veloxquant/status.h"

typedef struct vq_pool vq_pool;

/* Stack that a thread which calls the library should have left, on any system; the pool's own have it. */
enum { VQ_STACK_BYTES = 1 << 20 };

/* Cores that this process may use: the affinity mask, further limited by the cgroup's CPU quota. At least 1. */
VQ_API uint32_t vq_cores_allowed(void);

/* Starts n_threads - 1 workers; the caller's thread is the remaining one.  0 means vq_cores_allowed(). */
VQ_API vq_status vq_pool_open(vq_pool **out, uint32_t n_threads, vq_error *err);
VQ_API void vq_pool_close(vq_pool *pool);               /* NULL is allowed */
VQ_API uint32_t vq_pool_n_threads(const vq_pool *pool); /* 1 for NULL */

#endif
