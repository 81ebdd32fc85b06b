/* Every byte that a cache reports is a byte that was handed out, for every registered codec: the allocator's calls are
 * counted (the linker's --wrap puts the functions below in their place), and the system's own account of the mappings
 * is read.  A decode step allocates nothing but pages. */
#include <inttypes.h>
#include <malloc.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "kv/codec.h"
#include "kv_feed.h"
#include "support/temporary.h"

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t each);
void *__real_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t align, size_t n);
int __real_posix_memalign(void **p, size_t align, size_t n);
void __real_free(void *p);
void *__real_mmap64(void *start, size_t n, int protection, int flags, int file, off_t offset);
int __real_munmap(void *start, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t each);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);
int __wrap_posix_memalign(void **p, size_t align, size_t n);
void __wrap_free(void *p);
void *__wrap_mmap64(void *start, size_t n, int protection, int flags, int file, off_t offset);
int __wrap_munmap(void *start, size_t n);

enum { MOST_RESERVED = 32, PAGE = 4096 };

/* What is held now, and how often something was asked for.  Reserved addresses are not memory yet. */
static size_t heap_bytes, map_bytes, n_heap_calls, n_map_calls;
static struct {
    unsigned char *start;
    size_t n;
} reserved[MOST_RESERVED];

static void *taken(void *p)
{
    n_heap_calls++;
    heap_bytes += malloc_usable_size(p);
    return p;
}

void *__wrap_malloc(size_t n) { return taken(__real_malloc(n)); }

void *__wrap_calloc(size_t n, size_t each) { return taken(__real_calloc(n, each)); }

void *__wrap_realloc(void *p, size_t n)
{
    heap_bytes -= malloc_usable_size(p);
    return taken(__real_realloc(p, n));
}

void *__wrap_aligned_alloc(size_t align, size_t n) { return taken(__real_aligned_alloc(align, n)); }

int __wrap_posix_memalign(void **p, size_t align, size_t n)
{
    const int status = __real_posix_memalign(p, align, n);
    if (status == 0)
        taken(*p);
    return status;
}

void __wrap_free(void *p)
{
    heap_bytes -= malloc_usable_size(p);
    __real_free(p);
}

void *__wrap_mmap64(void *start, size_t n, int protection, int flags, int file, off_t offset)
{
    n_map_calls++;
    void *p = __real_mmap64(start, n, protection, flags, file, offset);
    if (!(flags & MAP_NORESERVE)) {
        map_bytes += n;
        return p;
    }
    for (size_t i = 0; i < MOST_RESERVED; i++)
        if (!reserved[i].start) {
            reserved[i].start = p;
            reserved[i].n = n;
            return p;
        }
    abort();
}

int __wrap_munmap(void *start, size_t n)
{
    size_t i = 0;
    while (i < MOST_RESERVED && reserved[i].start != start)
        i++;
    if (i < MOST_RESERVED)
        reserved[i].start = NULL;
    else
        map_bytes -= n;
    return __real_munmap(start, n);
}

static size_t resident_bytes(const void *start, size_t n)
{
    size_t n_pages = 0;
    static unsigned char in[1 << 16];
    assert_true(n <= PAGE * sizeof in);
    assert_int_equal(mincore((void *)(uintptr_t)start, n, in), 0);
    for (size_t i = 0; i < (n + PAGE - 1) / PAGE; i++)
        n_pages += in[i] & 1;
    return n_pages * PAGE;
}

/* Mapped, or reserved and there. */
static size_t held_bytes(void)
{
    size_t n = map_bytes;
    for (size_t i = 0; i < MOST_RESERVED; i++)
        if (reserved[i].start)
            n += resident_bytes(reserved[i].start, reserved[i].n);
    return n;
}

static uint64_t sum_of(const vq_kv_bytes *b)
{
    return b->codes + b->scales + b->exact + b->shared + b->table + b->reserved;
}

enum { LAYERS = 4, HEADS = 2, D = 64, N = 2500, CHUNK = 100 };

/* Mappings = all but what codecs took from the heap; that = `shared`, but for the heap's rounding and the codecs' own
 * structs (one that hands rows on has three). */
static void check_bytes(const vq_kv *kv, const char *name, size_t heap_before, size_t held_before)
{
    vq_kv_bytes b;
    vq_kv_measure(kv, &b);
    const uint64_t held = held_bytes() - held_before, heap = heap_bytes - heap_before;
    if (sum_of(&b) - b.shared != held)
        fail_msg("%s: %" PRIu64 " bytes are reported besides shared ones, the system gave %" PRIu64, name,
                 sum_of(&b) - b.shared, held);
    const uint64_t slack = (uint64_t)2 * LAYERS * HEADS * 1024;
    if (heap < b.shared || heap > b.shared + slack)
        fail_msg("%s: %" PRIu64 " shared bytes are reported, codecs hold %" PRIu64, name, b.shared, heap);
    enum { MOST = 4096 };
    static const void *starts[MOST];
    static size_t n_bytes[MOST];
    const size_t n = vq_kv_mappings(kv, starts, n_bytes, MOST);
    uint64_t listed = 0;
    for (size_t i = 0; i < n; i++)
        listed += resident_bytes(starts[i], n_bytes[i]);
    assert_true(n <= MOST);
    assert_int_equal(listed, held);
}

/* Of what the cache lists.  Ranges that touch share an entry of /proc/self/smaps, so pages are counted one by one. */
static uint64_t resident_listed(const vq_kv *kv)
{
    enum { MOST = 4096 };
    static const void *starts[MOST];
    static size_t n_bytes[MOST];
    const size_t n = vq_kv_mappings(kv, starts, n_bytes, MOST);
    uint64_t resident = 0;
    for (size_t i = 0; i < n; i++)
        resident += resident_bytes(starts[i], n_bytes[i]);
    return resident;
}

static void what_is_reported_is_allocated(void **state)
{
    (void)state;
    feed f = feed_make(LAYERS, 2 * HEADS, HEADS, D, D, N, 31);
    vq_kv_close(feed_open(&f, (vq_kv_params){0})); /* makes the calibration, which is no part of a cache */
    for (size_t c = 0; c < vq_n_codecs; c++) {
        const char *name = vq_codecs[c]->name;
        const size_t heap = heap_bytes, map = map_bytes, held = held_bytes();
        const vq_kv_params p = {
            .sinks = VQ_KV_DEFAULT, .residual = VQ_KV_DEFAULT, .n_batch = CHUNK, .keys = name, .values = name};
        vq_kv *kv = feed_open(&f, p);
        check_bytes(kv, name, heap, held);
        vq_kv_bytes empty, small = {0}, b;
        vq_kv_measure(kv, &empty);
        assert_int_equal(empty.codes + empty.scales + empty.exact, 0);
        for (uint32_t at = 0; at < N; at += CHUNK) {
            feed_run(&f, kv, at, at + CHUNK, CHUNK);
            check_bytes(kv, name, heap, held);
            if (at == 3 * CHUNK) /* all scratch has been used */
                vq_kv_measure(kv, &small);
        }

        /* From 2,000 rows on the system's account of what is resident agrees within 2 %, and what is reserved has not
         * grown by more since the first rows. */
        vq_kv_measure(kv, &b);
        const double reported = (double)(sum_of(&b) - b.shared), resident = (double)resident_listed(kv);
        if (!(fabs(resident - reported) <= 0.02 * reported))
            fail_msg("%s: %.0f bytes are reported, %.0f resident", name, reported, resident);
        if ((double)b.reserved - (double)small.reserved > 0.02 * reported + (64 << 10))
            fail_msg("%s: %.0f bytes, reserved %" PRIu64 ", after the first rows %" PRIu64, name, reported, b.reserved,
                     small.reserved);

        assert_int_equal(vq_kv_truncate(kv, 1000, NULL), VQ_OK);
        check_bytes(kv, name, heap, held);
        feed_run(&f, kv, 1000, N, CHUNK); /* given-back pages are used again */
        check_bytes(kv, name, heap, held);
        vq_kv_clear(kv);
        check_bytes(kv, name, heap, held);
        vq_kv_measure(kv, &b);
        assert_int_equal(sum_of(&b), sum_of(&empty));
        vq_kv_close(kv);
        assert_int_equal(heap_bytes, heap);
        assert_int_equal(map_bytes, map);
        assert_int_equal(held_bytes(), held);
    }
    feed_free(&f);
}

/* Pages that stay in the file of a saved cache are no memory that the cache took. */
static void what_lies_in_a_file_is_counted_apart(void **state)
{
    (void)state;
    feed f = feed_make(LAYERS, 2 * HEADS, HEADS, D, D, N, 35);
    const vq_kv_params p = {.sinks = 4, .residual = 32, .n_batch = CHUNK, .keys = "int8", .values = "int8"};
    char path[TEMPORARY_PATH];
    temporary_file(path, "memory");
    vq_kv *kv = feed_open(&f, p);
    feed_run(&f, kv, 0, N, CHUNK);
    assert_int_equal(vq_kv_save(kv, path, NULL), VQ_OK);
    vq_kv_close(kv);
    const size_t held = held_bytes();
    kv = feed_open(&f, p);
    assert_int_equal(vq_kv_load(kv, path, NULL), VQ_OK);
    const void *file;
    size_t file_bytes;
    assert_int_equal(vq_kv_files(kv, &file, &file_bytes, 1), 1);
    vq_kv_bytes b;
    vq_kv_measure(kv, &b);
    assert_int_equal(b.mapped, b.codes + b.scales);
    assert_int_equal(sum_of(&b) - b.shared - b.mapped, held_bytes() - held - file_bytes);
    assert_true(b.mapped < file_bytes);
    vq_kv_close(kv);
    assert_int_equal(held_bytes(), held);
    unlink(path);
    feed_free(&f);
}

static void windows_give_their_pages_back(void **state)
{
    (void)state;
    feed f = feed_make(LAYERS, 2 * HEADS, HEADS, D, D, N, 32);
    const uint32_t windows[LAYERS] = {128, 128, 128, 128};
    for (size_t c = 0; c < vq_n_codecs; c++) {
        const char *name = vq_codecs[c]->name;
        const vq_kv_params p = {.window = windows,
                                .sinks = VQ_KV_DEFAULT,
                                .residual = VQ_KV_DEFAULT,
                                .n_batch = CHUNK,
                                .keys = name,
                                .values = name};
        vq_kv *kv = feed_open(&f, p);
        const size_t held = held_bytes();
        size_t most = 0;
        vq_kv_bytes b;
        for (uint32_t at = 0; at < N; at += CHUNK) {
            feed_run(&f, kv, at, at + CHUNK, CHUNK);
            const size_t now = held_bytes() - held;
            vq_kv_measure(kv, &b);
            if (at < 1600) /* every way that a chunk can lie on pages */
                most = now > most ? now : most;
            else if (now > most)
                fail_msg("%s: %zu bytes after %u rows, %zu were enough before", name, now, at + CHUNK, most);
        }
        assert_true(b.n_rows <= (uint64_t)LAYERS * HEADS * (128 + CHUNK + 64));
        vq_kv_close(kv);
    }
    feed_free(&f);
}

static void decoding_allocates_nothing_but_pages(void **state)
{
    (void)state;
    feed f = feed_make(2, 2 * HEADS, HEADS, D, D, 600, 33);
    vq_pool *pools[2] = {NULL};
    assert_int_equal(vq_pool_open(&pools[1], 2, NULL), VQ_OK);
    for (size_t c = 0; c < vq_n_codecs; c++)
        for (int threads = 0; threads < 2; threads++) {
            const char *name = vq_codecs[c]->name;
            const vq_kv_params p = {.sinks = VQ_KV_DEFAULT,
                                    .residual = VQ_KV_DEFAULT,
                                    .keys = name,
                                    .values = name,
                                    .pool = pools[threads]};
            vq_kv *kv = feed_open(&f, p);
            feed_run(&f, kv, 0, 300, 300);
            const size_t n_heap = n_heap_calls, n_map = n_map_calls;
            feed_run(&f, kv, 300, 600, 1);
            if (n_heap_calls != n_heap)
                fail_msg("%s: 300 decode steps took %zu blocks from the heap", name, n_heap_calls - n_heap);
            assert_int_equal(n_map_calls, n_map); /* pages lie in what was reserved */
            vq_kv_close(kv);
        }
    vq_pool_close(pools[1]);
    feed_free(&f);
}

/* Of n caches, some of them closed (NULL): their sums and their lists are what the system gave to all. */
static void check_family(vq_kv *const *kv, size_t n, const char *name, size_t held_before, uint64_t n_codes)
{
    enum { MOST = 4096 };
    static const void *starts[MOST];
    static size_t n_bytes[MOST];
    uint64_t sum = 0, codes = 0, listed = 0;
    for (size_t i = 0; i < n; i++) {
        if (!kv[i])
            continue;
        vq_kv_bytes b;
        vq_kv_measure(kv[i], &b);
        sum += sum_of(&b) - b.shared;
        codes += b.codes;
        const size_t n_listed = vq_kv_mappings(kv[i], starts, n_bytes, MOST);
        assert_true(n_listed <= MOST);
        for (size_t j = 0; j < n_listed; j++)
            listed += resident_bytes(starts[j], n_bytes[j]);
    }
    const uint64_t held = held_bytes() - held_before;
    if (sum != held || listed != held || codes != n_codes)
        fail_msg("%s: forks report %" PRIu64 " bytes and list %" PRIu64 ", the system gave %" PRIu64 "; %" PRIu64
                 " bytes of codes, wanted %" PRIu64,
                 name, sum, listed, held, codes, n_codes);
}

static void what_forks_share_counts_once(void **state)
{
    (void)state;
    feed f = feed_make(LAYERS, 2 * HEADS, HEADS, D, D, N, 33);
    for (size_t c = 0; c < vq_n_codecs; c++) {
        const char *name = vq_codecs[c]->name;
        if (vq_codecs[c]->calibrated)
            continue;
        const size_t heap = heap_bytes, held = held_bytes();
        const vq_kv_params p = {.sinks = 0, .residual = 0, .n_batch = CHUNK, .keys = name, .values = name};
        vq_kv *kv[3] = {feed_open(&f, p)};
        feed_run(&f, kv[0], 0, 1056, CHUNK); /* 16 pages, and half of one */
        vq_kv_bytes b;
        vq_kv_measure(kv[0], &b);
        const uint64_t each = b.codes / 17;
        assert_int_equal(b.codes, 17 * each);
        assert_int_equal(vq_kv_fork(kv[0], &kv[1], NULL), VQ_OK);
        check_family(kv, 2, name, held, 17 * each);
        feed_run(&f, kv[1], 1056, 1152, CHUNK); /* its own: the half page, filled, and one more */
        check_family(kv, 2, name, held, 19 * each);
        vq_kv_measure(kv[1], &b);
        assert_int_equal(b.n_values_packed, (uint64_t)LAYERS * HEADS * 2 * VQ_PAGE_ROWS * 2 * D);
        assert_int_equal(vq_kv_fork(kv[1], &kv[2], NULL), VQ_OK);
        check_family(kv, 3, name, held, 19 * each);
        assert_int_equal(vq_kv_truncate(kv[2], 512, NULL), VQ_OK);
        check_family(kv, 3, name, held, 19 * each);
        vq_kv_close(kv[0]);
        kv[0] = NULL;
        check_family(kv, 3, name, held, 18 * each); /* the half page was its alone */
        vq_kv_clear(kv[1]);
        check_family(kv, 3, name, held, 8 * each);
        vq_kv_close(kv[1]);
        kv[1] = NULL;
        check_family(kv, 3, name, held, 8 * each);
        vq_kv_close(kv[2]);
        assert_int_equal(held_bytes(), held);
        assert_int_equal(heap_bytes, heap);
    }
    feed_free(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_reported_is_allocated),        cmocka_unit_test(windows_give_their_pages_back),
        cmocka_unit_test(what_forks_share_counts_once),         cmocka_unit_test(what_lies_in_a_file_is_counted_apart),
        cmocka_unit_test(decoding_allocates_nothing_but_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
