/* Keys that a codec holds as they were before RoPE: through a cache they give what keys after RoPE give. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "base/rng.h"
#include "engine/session.h"
#include "kv/kv_inner.h"
#include "model/model.h"
#include "model/observer.h"
#include "quant/atoms.h"
#include "support/toy_open.h"
#include "veloxquant/session.h"

extern const vq_codec vq_codec_f32;

enum { LAYERS = 3, HEADS = 4, KV_HEADS = 2, D = 32, N = 300 };

/* f32, told to hold keys as they were before RoPE; the core does what it has no hooks for. */
static vq_codec lossless;

static void make_lossless(void)
{
    lossless = vq_codec_f32;
    lossless.before_rope = true;
    lossless.score = NULL;
    lossless.prepare = NULL;
    lossless.query_bytes = NULL;
}

static void normal_rows(float *x, size_t n, uint64_t seed)
{
    vq_rng rng;
    vq_rng_seed(&rng, seed);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)vq_rng_normal(&rng);
}

static void use_lossless(vq_kv *kv, const vq_kv_rope *ropes)
{
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t h = 0; h < KV_HEADS; h++) {
            kv->layers[l].heads[h].k.codec = &lossless;
            kv->layers[l].heads[h].k.rope = &ropes[l];
        }
}

/* The same rows into both caches; what attention gives, and what is read, agrees to float roundings. */
static void run_both(vq_kv *a, vq_kv *b, uint32_t from, uint32_t to, uint32_t chunk)
{
    static float k[N * KV_HEADS * D], v[N * KV_HEADS * D], q[N * HEADS * D], out[2][N * HEADS * D];
    for (uint32_t at = from; at < to; at += chunk) {
        const uint32_t n = to - at < chunk ? to - at : chunk;
        for (uint32_t l = 0; l < LAYERS; l++) {
            normal_rows(k, (size_t)n * KV_HEADS * D, at * LAYERS + l + 1);
            normal_rows(v, (size_t)n * KV_HEADS * D, at * LAYERS + l + 10001);
            normal_rows(q, (size_t)n * HEADS * D, at * LAYERS + l + 20001);
            vq_kv *both[2] = {a, b};
            for (int i = 0; i < 2; i++) {
                assert_int_equal(vq_kv_append(both[i], l, 7 + at, k, v, n, NULL), VQ_OK);
                assert_int_equal(vq_kv_attend(both[i], l, q, n, out[i], NULL), VQ_OK);
            }
            for (uint32_t i = 0; i < n * HEADS * D; i++)
                if (!(fabsf(out[0][i] - out[1][i]) < 2e-5F))
                    fail_msg("rows from %u, layer %u, output %u: %g and %g", at, l, i, (double)out[0][i],
                             (double)out[1][i]);
        }
    }
}

static void read_both(const vq_kv *a, const vq_kv *b)
{
    static float k[2][N * D];
    static uint32_t pos[2][N];
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t h = 0; h < KV_HEADS; h++) {
            const uint32_t n = vq_kv_read(a, l, h, k[0], NULL, pos[0]);
            assert_int_equal(vq_kv_read(b, l, h, k[1], NULL, pos[1]), n);
            assert_memory_equal(pos[0], pos[1], n * sizeof pos[0][0]);
            for (uint32_t i = 0; i < n * D; i++)
                assert_true(fabsf(k[0][i] - k[1][i]) < 1e-5F);
        }
}

/* Two bases, both kinds of pairs, a part of the channels, a sliding window; chunks, truncation, eviction with merged
 * pages, save and load. */
static void caches_agree(void **state)
{
    (void)state;
    double wide[D / 2], narrow[D / 2];
    for (uint32_t i = 0; i < D / 2; i++) {
        wide[i] = pow(1e6, -2.0 * i / D);
        narrow[i] = pow(1e4, -2.0 * i / D);
    }
    const vq_kv_rope ropes[LAYERS] = {{wide, D, true}, {narrow, D, false}, {narrow, D / 2, true}};
    static const uint32_t windows[LAYERS] = {0, 100, 0};
    static const char *evict[] = {NULL, "streaming:budget=90", "knorm:budget=50%", "snapkv:budget=100"};
    for (size_t e = 0; e < sizeof evict / sizeof *evict; e++) {
        const vq_kv_params p = {.n_layers = LAYERS,
                                .n_heads = HEADS,
                                .n_kv_heads = KV_HEADS,
                                .d_k = D,
                                .d_v = D,
                                .n_ctx = N,
                                .n_batch = N,
                                .window = windows,
                                .keys = "f32",
                                .values = "f32",
                                .sinks = 5,
                                .residual = 33,
                                .exact = VQ_KV_EXACT_F32,
                                .evict = evict[e],
                                .ropes = ropes};
        vq_kv *a, *b;
        assert_int_equal(vq_kv_open(&a, &p, NULL), VQ_OK);
        assert_int_equal(vq_kv_open(&b, &p, NULL), VQ_OK);
        use_lossless(b, ropes);
        run_both(a, b, 0, 150, 41);
        if (evict[e]) {
            assert_int_equal(vq_kv_compact(a, VQ_KV_PROMPT_END, NULL), VQ_OK);
            assert_int_equal(vq_kv_compact(b, VQ_KV_PROMPT_END, NULL), VQ_OK);
        }
        run_both(a, b, 150, 160, 1);
        if (!evict[e]) { /* a cut within a granule: its rows are decoded, held exactly and coded again */
            assert_int_equal(vq_kv_truncate(a, 121, NULL), VQ_OK);
            assert_int_equal(vq_kv_truncate(b, 121, NULL), VQ_OK);
        }
        run_both(a, b, evict[e] ? 160 : 121, 260, 13);
        read_both(a, b);
        vq_kv_close(a);
        vq_kv_close(b);
    }
}

typedef struct seen {
    const vq_model *model;
    float before[64 * 64];
    uint32_t n_checked;
} seen;

/* Keys after RoPE that are turned back are the keys before it. */
static void on_rows(void *arg, uint32_t layer, vq_rows_kind kind, const float *x, uint32_t n_heads, uint32_t d,
                    uint32_t pos, uint32_t n)
{
    seen *s = arg;
    if (kind == VQ_ROWS_K_BEFORE_ROPE)
        memcpy(s->before, x, (size_t)n * n_heads * d * sizeof *x);
    if (kind != VQ_ROWS_K)
        return;
    vq_kernels kernels;
    vq_kernels_init(&kernels, 0);
    float row[64], page[64 * 64], back[64];
    vq_codec_state *state;
    const vq_codec_env env = {.d = d, .keys = true, .kernels = &kernels};
    assert_int_equal(lossless.create(&state, &env, NULL), VQ_OK);
    const vq_side side = {
        .codec = &lossless, .state = state, .kernels = &kernels, .d = d, .rope = &s->model->kv_ropes[layer]};
    for (uint32_t i = 0; i < n * n_heads; i++) {
        const uint32_t at = pos + i / n_heads;
        memcpy(row, x + (size_t)i * d, d * sizeof *row);
        vq_side_encode(&side, page, 0, 1, row, &at);
        lossless.decode(state, page, 0, 1, back);
        for (uint32_t j = 0; j < d; j++)
            if (!(fabsf(back[j] - s->before[(size_t)i * d + j]) < 1e-5F))
                fail_msg("layer %u, position %u, value %u: %g, was %g", layer, at, j, (double)back[j],
                         (double)s->before[(size_t)i * d + j]);
        vq_side_decode(&side, page, 0, 1, back, &at);
        for (uint32_t j = 0; j < d; j++)
            assert_true(fabsf(back[j] - x[(size_t)i * d + j]) < 1e-5F);
        s->n_checked++;
    }
    lossless.destroy(state);
}

static void models_keys_turn_back(void **state)
{
    (void)state;
    static const toy_family families[] = {TOY_LLAMA, TOY_GEMMA3, TOY_QWEN2, TOY_QWEN3};
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        toy_params t;
        toy_params_init(&t, families[f]);
        vq_model *m = toy_open(&t);
        assert_true(m->hp.d_k <= 64 && m->hp.n_kv_heads * m->hp.d_k <= 64);
        seen *s = calloc(1, sizeof *s);
        s->model = m;
        vq_session_params p;
        vq_session *session;
        vq_session_params_init(&p);
        p.n_ctx = p.n_batch = 60;
        p.exact = true;
        assert_int_equal(vq_session_open(&session, m, &p, NULL), VQ_OK);
        const vq_observer observer = {.arg = s, .rows = on_rows};
        vq_session_observe(session, &observer);
        int32_t ids[60];
        for (int i = 0; i < 60; i++)
            ids[i] = TOY_FIRST_BYTE + i * 37 % 211;
        assert_int_equal(vq_session_eval(session, ids, 60, NULL, 0, NULL, NULL), VQ_OK);
        assert_int_equal(s->n_checked, 60 * m->hp.n_layers * m->hp.n_kv_heads);
        vq_session_close(session);
        vq_model_close(m);
        free(s);
    }
}

/* Atoms whose pairs are turned code the turned rows: the 2x2 blocks of the codebook commute with RoPE. */
static void atoms_commute(void **state)
{
    (void)state;
    enum { SUBS = 4, W = SUBS * VQ_ATOM_VALUES };
    static float x[512 * W], z[SUBS * 8 * 8], turned[SUBS * 8 * 8], got[32 * W], want[32 * W];
    static uint8_t codes[SUBS * 2 * 32];
    vq_kernels kernels;
    vq_kernels_init(&kernels, 0);
    normal_rows(x, 512 * W, 5);
    for (uint32_t bits = 1; bits <= 2; bits++) {
        assert_int_equal(vq_atoms_train(z, &kernels.nearest, SUBS, bits, x, 512, NULL), VQ_OK);
        const vq_atoms a = {.n_sub = SUBS, .bits = bits, .z = z, .k = &kernels.nearest};
        const vq_atoms b = {.n_sub = SUBS, .bits = bits, .z = turned};
        vq_atoms_encode(&a, codes, x);
        vq_atoms_decode(&a, codes, 0, 32, want);
        double error = 0, all = 0;
        for (uint32_t i = 0; i < 32 * W; i++) {
            error += ((double)x[i] - (double)want[i]) * ((double)x[i] - (double)want[i]);
            all += (double)x[i] * (double)x[i];
        }
        printf("%u bits: error %.4f\n", bits, error / all);
        assert_true(error / all < (bits == 1 ? 0.40 : 0.13)); /* of single values: 0.363 and 0.117 */
        for (uint32_t s = 0; s < SUBS; s++)
            for (uint32_t n = 0; n < 4 * bits; n++)
                for (uint32_t p = 0; p < 4; p++) {
                    const size_t at = ((size_t)s * 4 * bits + n) * 8 + 2 * p;
                    const float c = cosf((float)(s * 4 + p)), d = sinf((float)(s * 4 + p));
                    turned[at] = c * z[at] - d * z[at + 1];
                    turned[at + 1] = d * z[at] + c * z[at + 1];
                }
        vq_atoms_decode(&b, codes, 0, 32, got);
        for (uint32_t i = 0; i < 32; i++)
            for (uint32_t p = 0; p < W / 2; p++) {
                const float *y = want + (size_t)i * W + 2 * p, c = cosf((float)p), d = sinf((float)p);
                assert_true(fabsf(got[i * W + 2 * p] - (c * y[0] - d * y[1])) < 1e-5F);
                assert_true(fabsf(got[i * W + 2 * p + 1] - (d * y[0] + c * y[1])) < 1e-5F);
            }
    }
}

int main(void)
{
    make_lossless();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(caches_agree),
        cmocka_unit_test(models_keys_turn_back),
        cmocka_unit_test(atoms_commute),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
