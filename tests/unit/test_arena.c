/* One block an object: measured and placed by the same code. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/arena.h"

typedef struct object {
    float *a;
    char *b;
    uint64_t *c;
    void *nothing;
} object;

static void layout(vq_arena *arena, object *o)
{
    o->a = vq_arena_take(arena, 7, sizeof *o->a);
    o->b = vq_arena_take(arena, 1, sizeof *o->b);
    o->nothing = vq_arena_take(arena, 0, 8);
    o->c = vq_arena_take(arena, 1000, sizeof *o->c);
}

static void measures_then_places(void **state)
{
    (void)state;
    vq_arena arena = {0};
    object o;
    layout(&arena, &o);
    assert_null(o.a);
    assert_null(o.c);
    assert_int_equal(arena.at, 64 + 64 + 0 + 8000);
    assert_int_equal(vq_arena_alloc(&arena, NULL), VQ_OK);
    assert_int_equal(arena.n_bytes, 8128);
    layout(&arena, &o);
    assert_int_equal(arena.at, arena.n_bytes);

    assert_int_equal((uintptr_t)o.a % VQ_ALIGN, 0);
    assert_ptr_equal(o.b, (char *)o.a + 64);
    assert_ptr_equal(o.c, o.b + 64);
    for (size_t i = 0; i < arena.n_bytes; i++)
        assert_int_equal(arena.base[i], 0);
    memset(o.a, 1, 7 * sizeof *o.a);
    memset(o.c, 1, 1000 * sizeof *o.c);

    vq_arena_free(&arena);
    assert_null(arena.base);
    vq_arena_free(&arena); /* zeroed: harmless */
    vq_arena_free(NULL);
}

static void check_overflow(size_t n1, size_t each1, size_t n2, size_t each2)
{
    vq_arena arena = {0};
    vq_error err;
    vq_arena_take(&arena, n1, each1);
    vq_arena_take(&arena, n2, each2);
    vq_arena_take(&arena, 1, 1); /* what comes later does not hide it */
    assert_int_equal(vq_arena_alloc(&arena, &err), VQ_ERR_NOMEM);
    assert_null(arena.base);
    vq_arena_free(&arena);
}

static void refuses_what_does_not_fit(void **state)
{
    (void)state;
    check_overflow(SIZE_MAX, 2, 0, 0);
    check_overflow((size_t)1 << 33, (size_t)1 << 31, 0, 0);      /* wraps to 0 */
    check_overflow(SIZE_MAX / 2, 1, SIZE_MAX / 2, 1);            /* the sum */
    check_overflow(SIZE_MAX, 1, 0, 0);                           /* the rounding up */
    check_overflow(SIZE_MAX - VQ_ALIGN - VQ_ALIGN / 2, 1, 0, 0); /* the room for alignment */
    check_overflow((size_t)1 << 62, 1, 0, 0);                    /* fits in size_t, not in memory */
}

static void may_be_empty(void **state)
{
    (void)state;
    vq_arena arena = {0};
    assert_int_equal(vq_arena_alloc(&arena, NULL), VQ_OK);
    assert_non_null(arena.base);
    vq_arena_free(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(measures_then_places),
        cmocka_unit_test(refuses_what_does_not_fit),
        cmocka_unit_test(may_be_empty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
