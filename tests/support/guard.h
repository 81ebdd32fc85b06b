/* Arrays between two pages that must not be touched: an over-read or over-write of one byte is a signal. */
#ifndef VQ_TESTS_GUARD_H
#define VQ_TESTS_GUARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { GUARD_PAGE = 4096 };

typedef struct guard {
    unsigned char *map;
    size_t n_bytes; /* usable, between the guard pages */
} guard;

static inline guard guard_open(size_t n_bytes)
{
    guard g = {.n_bytes = (n_bytes + GUARD_PAGE - 1) / GUARD_PAGE * GUARD_PAGE};
    g.map = mmap(NULL, g.n_bytes + 2 * GUARD_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (g.map == MAP_FAILED || mprotect(g.map, GUARD_PAGE, PROT_NONE) != 0 ||
        mprotect(g.map + GUARD_PAGE + g.n_bytes, GUARD_PAGE, PROT_NONE) != 0)
        abort();
    return g;
}

/* n_bytes that end where the upper guard page begins, or begin where the lower one ends. */
static inline void *guard_take(const guard *g, size_t n_bytes, bool at_end)
{
    return g->map + GUARD_PAGE + (at_end ? g->n_bytes - n_bytes : 0);
}

static inline void guard_close(guard *g) { munmap(g->map, g->n_bytes + 2 * GUARD_PAGE); }

#endif
