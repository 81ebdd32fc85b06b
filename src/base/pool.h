/* Running tasks on the pool. */
#ifndef VQ_BASE_POOL_H
#define VQ_BASE_POOL_H

#include "veloxquant/threads.h"

/* `index` is the task, `thread` in [0, vq_pool_n_threads) names the scratch that the task may use. */
typedef void (*vq_task)(void *arg, uint32_t index, uint32_t thread);

/* Runs fn for every index in [0, n_tasks), handed out in ascending order, and returns when all are done.  NULL pool:
 * on the caller's thread.  One caller at a time; not to be called from inside a task. */
void vq_pool_run(vq_pool *pool, uint32_t n_tasks, vq_task fn, void *arg);

#endif
