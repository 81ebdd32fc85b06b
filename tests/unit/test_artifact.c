/* Precomputed rotations and codebooks: the bits that drawing gives, caches that do not differ, what a file refuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "base/cpu.h"
#include "base/rng.h"
#include "formats/artifact.h"
#include "kv/artifacts.h"
#include "quant/lloyd_max.h"
#include "support/artifact.h"
#include "veloxquant/kv.h"

enum { ROOM = 1 << 19, N_LAYERS = 2, N_HEADS = 2, D = 64, N_ROWS = 200 };

static vq_kernels kernels;
static uint8_t bytes[ROOM];

static vq_artifact_info shape(uint32_t d, bool qr, uint64_t seed)
{
    return (vq_artifact_info){
        .d = d, .qr = qr, .seed = seed, .n_layers = N_LAYERS, .n_kv_heads = N_HEADS, .least_bits = 2, .most_bits = 5};
}

static void lay_out(vq_rotation *r, vq_arena *arena, uint32_t d, bool haar)
{
    *arena = (vq_arena){0};
    vq_rotation_layout(r, arena, d, haar);
    assert_int_equal(vq_arena_alloc(arena, NULL), VQ_OK);
    vq_rotation_layout(r, arena, d, haar);
}

static void files_hold_what_is_drawn(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 8, 9, 64, 80, 100};
    for (uint32_t qr = 0; qr < 2; qr++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            const uint32_t d = sizes[s];
            const uint64_t seed = 5;
            const vq_artifact_info info = shape(d, qr, seed);
            vq_artifact *a;
            vq_error err;
            if (vq_artifact_read(&a, "made", bytes, artifact_bytes(&info, bytes, ROOM), &err) != VQ_OK)
                fail_msg("%s", err.text);
            vq_rotation drawn, loaded;
            vq_arena of_drawn, of_loaded;
            lay_out(&drawn, &of_drawn, d, qr);
            lay_out(&loaded, &of_loaded, d, qr);
            for (uint32_t i = 0; i < 2 * N_LAYERS * N_HEADS; i++) {
                const uint32_t layer = i / 4, head = i / 2 % 2;
                const bool keys = i % 2 == 0;
                const uint64_t own = vq_hash64(seed, layer, head, keys, 0); /* as codecs without files draw */
                assert_int_equal(vq_rotation_draw(&drawn, &kernels.codes, own, NULL), VQ_OK);
                vq_artifact_load(a, layer, head, keys, &kernels.codes, &loaded);
                assert_memory_equal(drawn.signs, loaded.signs, (d + 7) / 8);
                assert_int_equal(!drawn.across, !vq_artifact_matrix(a, layer, head, keys));
                if (drawn.across)
                    assert_memory_equal(drawn.across, loaded.across, sizeof(float) * drawn.m * drawn.m);
                assert_ptr_equal(loaded.k, &kernels.codes);
            }
            for (uint32_t bits = 1; bits <= 8; bits++) {
                const double *levels = vq_artifact_codebook(a, bits);
                assert_int_equal(levels != NULL, bits >= 2 && bits <= 5);
                for (uint32_t code = 0; levels && code < 1u << bits; code++)
                    assert_true(levels[code] == vq_lloyd_max_level(bits, code));
            }
            vq_arena_free(&of_drawn);
            vq_arena_free(&of_loaded);
            vq_artifact_close(a);
        }
}

/* ---- caches ---- */

static vq_kv *open_cache(const char *folder, uint64_t seed, uint32_t n_layers)
{
    const vq_kv_params p = {.n_layers = n_layers,
                            .n_heads = N_HEADS,
                            .n_kv_heads = N_HEADS,
                            .d_k = D,
                            .d_v = D,
                            .n_ctx = N_ROWS,
                            .n_batch = N_ROWS,
                            .keys = "turboquant-mse:bits=3,haar=1",
                            .values = "turboquant-mse:bits=2,haar=1",
                            .sinks = 0,
                            .residual = 0,
                            .seed = seed,
                            .artifact_dir = folder};
    vq_kv *kv;
    vq_error err;
    if (vq_kv_open(&kv, &p, &err) != VQ_OK)
        fail_msg("%s", err.text);
    return kv;
}

/* Rows in, decoded keys and values of every layer and head out. */
static void run(vq_kv *kv, uint32_t n_layers, float *out)
{
    static float k[N_ROWS * N_HEADS * D], v[N_ROWS * N_HEADS * D];
    vq_rng rng;
    vq_rng_seed(&rng, 1);
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) {
        k[i] = (float)vq_rng_normal(&rng);
        v[i] = (float)vq_rng_normal(&rng);
    }
    for (uint32_t layer = 0; layer < n_layers; layer++) {
        assert_int_equal(vq_kv_append(kv, layer, 0, k, v, N_ROWS, NULL), VQ_OK);
        for (uint32_t head = 0; head < N_HEADS; head++, out += 2 * N_ROWS * D)
            assert_int_equal(vq_kv_read(kv, layer, head, out, out + N_ROWS * D, NULL), N_ROWS);
    }
}

static void caches_are_the_same(void **state)
{
    (void)state;
    enum { MOST_LAYERS = 3, N = MOST_LAYERS * N_HEADS * 2 * N_ROWS * D };
    static float drawn[N], loaded[N];
    char folder[TEMPORARY_PATH];
    temporary_folder(folder, "caches");
    vq_artifact_info info = shape(D, true, 3);
    assert_int_equal(vq_precompute(&info, folder, NULL, NULL, NULL), VQ_OK);
    /* a file with as many layers, with fewer, and one of another seed */
    static const struct {
        uint64_t seed;
        uint32_t n_layers;
    } cases[] = {{3, N_LAYERS}, {3, MOST_LAYERS}, {4, N_LAYERS}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        vq_kv *without = open_cache(NULL, cases[c].seed, cases[c].n_layers);
        vq_kv *with = open_cache(folder, cases[c].seed, cases[c].n_layers), *fork;
        assert_int_equal(vq_kv_fork(with, &fork, NULL), VQ_OK);
        run(without, cases[c].n_layers, drawn);
        run(with, cases[c].n_layers, loaded);
        const size_t n = (size_t)cases[c].n_layers * N_HEADS * 2 * N_ROWS * D * sizeof *drawn;
        assert_memory_equal(drawn, loaded, n);
        memset(loaded, 0, n);
        run(fork, cases[c].n_layers, loaded);
        assert_memory_equal(drawn, loaded, n);
        vq_kv_close(fork);
        vq_kv_close(with);
        vq_kv_close(without);
    }
    assert_int_equal(remove_temporary_folder(folder), 0);
}

/* Files are read, not drawn beside: a file whose rotations are altered behind their first row, with the sum put right,
 * gives other rows. */
static void a_file_is_really_read(void **state)
{
    (void)state;
    enum { N = N_LAYERS * N_HEADS * 2 * N_ROWS * D };
    static float drawn[N], loaded[N];
    char folder[TEMPORARY_PATH], path[TEMPORARY_PATH + 64];
    temporary_folder(folder, "read");
    const vq_artifact_info info = shape(D, true, 0);
    const size_t n = artifact_bytes(&info, bytes, ROOM);
    vq_artifact_layout at;
    assert_int_equal(vq_artifact_lay_out(&at, &info, "it", NULL), VQ_OK);
    float *second = (float *)(void *)(bytes + at.rotations + VQ_ARTIFACT_SIGN_BYTES) + D;
    for (uint32_t j = 0; j < D; j++)
        second[j] *= 0.5F; /* changing its sign would leave decoded rows as they are */
    const uint64_t sum = XXH64(bytes + VQ_ARTIFACT_SUMMED_FROM, n - VQ_ARTIFACT_SUMMED_FROM, 0);
    memcpy(bytes + sizeof vq_artifact_magic, &sum, sizeof sum);
    assert_int_equal(vq_artifact_path(path, sizeof path, folder, &info, NULL), VQ_OK);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
    vq_kv *without = open_cache(NULL, 0, N_LAYERS), *with = open_cache(folder, 0, N_LAYERS);
    run(without, N_LAYERS, drawn);
    run(with, N_LAYERS, loaded);
    assert_memory_not_equal(drawn, loaded, N_ROWS * D * sizeof *drawn);
    vq_kv_close(with);
    vq_kv_close(without);
    assert_int_equal(remove_temporary_folder(folder), 0);
}

/* ---- refusals ---- */

static size_t n_whole;

static void refused(vq_status want, const char *needle, size_t n)
{
    vq_artifact *a;
    vq_error err;
    assert_int_equal(vq_artifact_read(&a, "the.vqa", bytes, n, &err), want);
    assert_null(a);
    if (!strstr(err.text, "the.vqa") || !strstr(err.text, needle))
        fail_msg("'%s' lacks '%s'", err.text, needle);
}

/* With `value` at an offset, the sum put right or not; the bytes are put back. */
static void altered(size_t at, uint8_t value, bool summed, vq_status want, const char *needle)
{
    uint8_t kept[VQ_ARTIFACT_SUMMED_FROM];
    const uint8_t before = bytes[at];
    memcpy(kept, bytes, sizeof kept);
    assert_int_not_equal(before, value);
    bytes[at] = value;
    if (summed) {
        const uint64_t sum = XXH64(bytes + VQ_ARTIFACT_SUMMED_FROM, n_whole - VQ_ARTIFACT_SUMMED_FROM, 0);
        memcpy(bytes + sizeof vq_artifact_magic, &sum, sizeof sum);
    }
    refused(want, needle, n_whole);
    bytes[at] = before;
    memcpy(bytes, kept, sizeof kept);
}

static void what_is_not_right_is_refused(void **state)
{
    (void)state;
    const vq_artifact_info info = shape(12, false, 0); /* blocks of 4, a 3 x 3 matrix */
    vq_artifact_layout at;
    n_whole = artifact_bytes(&info, bytes, ROOM);
    assert_int_equal(vq_artifact_lay_out(&at, &info, "it", NULL), VQ_OK);
    refused(VQ_ERR_MAGIC, "not a file of precomputed rotations", 0);
    refused(VQ_ERR_TRUNCATED, "ends after 40 bytes", 40);
    refused(VQ_ERR_TRUNCATED, "its shape makes", n_whole - 1);
    bytes[n_whole] = 0;
    refused(VQ_ERR_BOUNDS, "its shape makes", n_whole + 1);
    altered(7, '2', false, VQ_ERR_MAGIC, "not a file");
    altered(16, 2, true, VQ_ERR_VERSION, "version 2, this program reads version 1");
    altered(21, 9, true, VQ_ERR_LIMIT, "head size is 2316, allowed are 1 to 512");
    altered(24, 2, true, VQ_ERR_VALUE, "kind of rotation is 2");
    altered(28, 0, true, VQ_ERR_LIMIT, "n_layers is 0, allowed are 1 to 1024");
    altered(40, 9, true, VQ_ERR_LIMIT, "most bits is 9, allowed are 2 to 8");
    altered(44, 1, true, VQ_ERR_VALUE, "reserved");
    altered(48, 1, true, VQ_ERR_MISMATCH, "not what seed 1 gives");
    altered(VQ_ARTIFACT_HEADER_BYTES, 1, true, VQ_ERR_VALUE, "level 0 of the codebooks");
    altered(at.rotations - 1, 1, true, VQ_ERR_VALUE, "after the codebooks");
    altered(at.rotations + at.each, (uint8_t)~bytes[at.rotations + at.each], true, VQ_ERR_MISMATCH,
            "values of layer 0, head 0");
    altered(at.rotations + 2, 1, true, VQ_ERR_VALUE, "padding of the rotation of keys of layer 0, head 0");
    altered(at.rotations + VQ_ARTIFACT_SIGN_BYTES + 3, 0, true, VQ_ERR_MISMATCH, "not what seed 0 gives");
    altered(n_whole - 1, 1, true, VQ_ERR_VALUE, "padding of the rotation of values of layer 1, head 1");
    altered(n_whole - at.each, (uint8_t)~bytes[n_whole - at.each], false, VQ_ERR_CHECKSUM, "checksum");
    const uint8_t infinite[4] = {0, 0, 0x80, 0x7f};
    uint8_t *first = bytes + at.rotations + VQ_ARTIFACT_SIGN_BYTES;
    memcpy(first, infinite, 3);
    altered(at.rotations + VQ_ARTIFACT_SIGN_BYTES + 3, 0x7f, true, VQ_ERR_NONFINITE, "number 0 of the rotation");
}

static void a_cache_names_the_file(void **state)
{
    (void)state;
    char folder[TEMPORARY_PATH], path[TEMPORARY_PATH + 64], other[TEMPORARY_PATH + 64];
    temporary_folder(folder, "names");
    vq_artifact_info info = shape(D, true, 0), another = shape(D, true, 1);
    assert_int_equal(vq_precompute(&another, folder, NULL, NULL, NULL), VQ_OK);
    assert_int_equal(vq_artifact_path(other, sizeof other, folder, &another, NULL), VQ_OK);
    assert_int_equal(vq_artifact_path(path, sizeof path, folder, &info, NULL), VQ_OK);
    vq_kv_params p = {.n_layers = 1,
                      .n_heads = 1,
                      .n_kv_heads = 1,
                      .d_k = D,
                      .d_v = D,
                      .n_ctx = N_ROWS,
                      .n_batch = N_ROWS,
                      .keys = "turboquant-mse:haar=1",
                      .artifact_dir = folder};
    vq_kv *kv;
    vq_error err;
    assert_int_equal(rename(other, path), 0); /* a good file under another's name */
    assert_int_equal(vq_kv_open(&kv, &p, &err), VQ_ERR_MISMATCH);
    assert_null(kv);
    assert_non_null(strstr(err.text, path));
    assert_non_null(strstr(err.text, "seed 1"));
    assert_int_equal(truncate(path, 1000), 0);
    assert_int_equal(vq_kv_open(&kv, &p, &err), VQ_ERR_TRUNCATED);
    assert_non_null(strstr(err.text, path));
    p.keys = "turboquant-mse"; /* asks for no dense matrix, so nothing is read */
    assert_int_equal(vq_kv_open(&kv, &p, &err), VQ_OK);
    vq_kv_close(kv);
    assert_int_equal(remove_temporary_folder(folder), 0);
}

static bool stop_at_three(void *arg, size_t done, size_t all)
{
    size_t *n = arg;
    assert_int_equal(all, 8);
    assert_int_equal(done, *n);
    return ++*n < 4;
}

static void writing_stops_and_refuses(void **state)
{
    (void)state;
    char folder[TEMPORARY_PATH], path[TEMPORARY_PATH + 64];
    vq_error err;
    vq_artifact_info info = shape(D, true, 0);
    size_t n = 0;
    struct stat found;
    temporary_folder(folder, "stops");
    assert_int_equal(vq_precompute(&info, folder, stop_at_three, &n, &err), VQ_ERR_CANCELLED);
    assert_int_equal(vq_artifact_path(path, sizeof path, folder, &info, NULL), VQ_OK);
    assert_int_not_equal(stat(path, &found), 0);
    info.d = 513;
    assert_int_equal(vq_precompute(&info, folder, NULL, NULL, &err), VQ_ERR_LIMIT);
    assert_non_null(strstr(err.text, "head size is 513, allowed are 1 to 512"));
    info.d = D;
    assert_int_equal(vq_precompute(&info, "/no/such/folder", NULL, NULL, &err), VQ_ERR_IO);
    assert_int_equal(rmdir(folder), 0); /* nothing is left */
    assert_int_equal(vq_artifact_path(path, 8, folder, &info, &err), VQ_ERR_ARG);
}

int main(void)
{
    vq_kernels_init(&kernels, vq_cpu_detect());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_hold_what_is_drawn), cmocka_unit_test(caches_are_the_same),
        cmocka_unit_test(a_file_is_really_read),    cmocka_unit_test(what_is_not_right_is_refused),
        cmocka_unit_test(a_cache_names_the_file),   cmocka_unit_test(writing_stops_and_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
