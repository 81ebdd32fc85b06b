/* NumPy array files: what is read, what is written, what is refused and how it is said. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "../support/temporary.h"
#include "veloxquant/npy.h"

static size_t make(uint8_t *out, const char *header, const void *values, size_t n_bytes)
{
    const size_t n = strlen(header);
    memcpy(out, "\x93NUMPY\x01\x00", 8);
    out[8] = (uint8_t)n;
    out[9] = (uint8_t)(n >> 8);
    memcpy(out + 10, header, n);
    memcpy(out + 10 + n, values, n_bytes);
    return 10 + n + n_bytes;
}

static void writes_what_it_reads(void **state)
{
    (void)state;
    char path[TEMPORARY_PATH];
    temporary_file(path, "npy");
    const float x[] = {1, -2, 3.5F, 0, 65536, -0.25F};
    const uint64_t dims[] = {1, 3, 2};
    vq_error err;
    vq_npy npy;
    assert_int_equal(vq_npy_write(path, x, dims, 3, &err), VQ_OK);
    assert_int_equal(vq_npy_read(&npy, path, &err), VQ_OK);
    assert_int_equal(npy.n_dims, 3);
    assert_memory_equal(npy.dims, dims, sizeof dims);
    assert_memory_equal(npy.data, x, sizeof x);
    vq_npy_free(&npy);
    unlink(path);
    assert_int_equal(vq_npy_read(&npy, path, &err), VQ_ERR_IO);
    assert_non_null(strstr(err.text, path));
    assert_null(npy.data);
    assert_int_equal(vq_npy_write("/no-such-folder/x.npy", x, dims, 3, &err), VQ_ERR_IO);
    assert_non_null(strstr(err.text, "/no-such-folder/x.npy"));
}

static void reads_halves_and_doubles(void **state)
{
    (void)state;
    uint8_t bytes[256];
    const uint16_t half[] = {0x3c00, 0xc100}; /* 1, -2.5 */
    const double wide[] = {1, -2.5};
    vq_error err;
    for (int i = 0; i < 2; i++) {
        const size_t n =
            i ? make(bytes, "{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }", wide, sizeof wide)
              : make(bytes, "{'shape': (2,), 'fortran_order': False, 'descr': '<f2'}\n", half, sizeof half);
        vq_npy npy;
        assert_int_equal(vq_npy_read_memory(&npy, "x", bytes, n, &err), VQ_OK);
        assert_int_equal(npy.n_dims, 1);
        assert_int_equal(npy.dims[0], 2);
        assert_true(npy.data[0] == 1 && npy.data[1] == -2.5F);
        vq_npy_free(&npy);
    }
}

static void refuses(void **state)
{
    (void)state;
    static const float x[] = {1, 2};
    static const struct {
        const char *header;
        size_t n_bytes;
        vq_status status;
        const char *says;
    } cases[] = {
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }", 8, VQ_ERR_TRUNCATED, "needs 12"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", 8, VQ_ERR_BOUNDS, "needs 4"},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (2,), }", 8, VQ_ERR_TYPE, "<i4"},
        {"{'descr': '<f4', 'fortran_order': True, 'shape': (2,), }", 8, VQ_ERR_UNSUPPORTED, "fortran_order"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,2), }", 8, VQ_ERR_LIMIT, "4 dimensions"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (-2,), }", 8, VQ_ERR_SHAPE, "dimension 0"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, }", 8, VQ_ERR_SHAPE, "dimension 1"},
        {"{'descr': '<f4', 'shape': (2,), }", 8, VQ_ERR_MISSING_KEY, "fortran_order"},
        {"{'descr': '<f4', 'extra': 1}", 8, VQ_ERR_KEY, "unknown"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,)", 8, VQ_ERR_KEY, "does not end"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296, 4294967296), }", 8,
         VQ_ERR_OVERFLOW, "product"},
        {"[1]", 8, VQ_ERR_VALUE, "no dict"},
    };
    uint8_t bytes[256];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const size_t n = make(bytes, cases[i].header, x, cases[i].n_bytes);
        vq_npy npy;
        vq_error err;
        const vq_status status = vq_npy_read_memory(&npy, "keys.npy", bytes, n, &err);
        if (status != cases[i].status || !strstr(err.text, cases[i].says) || strncmp(err.text, "keys.npy: ", 10) != 0)
            fail_msg("%s: status %s, '%s'; wanted %s, '%s'", cases[i].header, vq_status_name(status), err.text,
                     vq_status_name(cases[i].status), cases[i].says);
        assert_null(npy.data);
    }
    const float nan[] = {1, __builtin_nanf("")};
    vq_npy npy;
    vq_error err;
    const size_t n = make(bytes, "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", nan, sizeof nan);
    assert_int_equal(vq_npy_read_memory(&npy, "x", bytes, n, &err), VQ_ERR_NONFINITE);
    bytes[6] = 4;
    assert_int_equal(vq_npy_read_memory(&npy, "x", bytes, n, &err), VQ_ERR_VERSION);
    bytes[0] = 'P';
    assert_int_equal(vq_npy_read_memory(&npy, "x", bytes, n, &err), VQ_ERR_MAGIC);
    assert_int_equal(vq_npy_read_memory(&npy, "x", NULL, 0, &err), VQ_ERR_MAGIC);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writes_what_it_reads),
        cmocka_unit_test(reads_halves_and_doubles),
        cmocka_unit_test(refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
