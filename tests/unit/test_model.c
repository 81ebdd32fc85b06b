/* Hyper-parameters and weights: RoPE scaling to published numbers, what is refused and how, windows of layers, hash. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "model/model.h"
#include "support/toy_open.h"

static void assert_near(double got, double want, double most)
{
    if (!(fabs(got - want) <= most))
        fail_msg("got %.12g, want %.12g within %g", got, want, most);
}

static toy_params toy(toy_family family)
{
    toy_params p;
    toy_params_init(&p, family);
    return p;
}

/* Head size 64, base 500000, factor 32, low 1, high 4, original context 8192: pairs 0 to 14 stay, 15 to 17 are blended,
 * 18 to 31 are divided by 32. */
static void llama3_rope_has_the_published_frequencies(void **state)
{
    (void)state;
    static const struct {
        int pair;
        double freq;
    } want[] = {{15, 1.29054793e-3}, {16, 4.29556797e-4}, {17, 9.7082878e-5}, {18, 1.94616382e-5}, {31, 9.41830673e-8}};
    toy_params p = toy(TOY_LLAMA);
    p.head_dim = 64;
    p.rope_base = 500000;
    for (int way = 0; way < 2; way++) {
        p.rope = way == 0 ? TOY_ROPE_LLAMA3_KEYS : TOY_ROPE_LLAMA3_TENSOR;
        vq_model *m = toy_open(&p);
        const double *freq = m->ropes[VQ_ROPE_GLOBAL].freq;
        for (int i = 0; i < 32; i++) {
            const double plain = pow(500000, -2.0 * i / 64);
            if (i < 15)
                assert_near(freq[i] / plain, 1, 1e-6);
            if (i >= 18)
                assert_near(freq[i] / plain, 1 / 32.0, 1e-6 / 32);
        }
        for (size_t i = 0; i < sizeof want / sizeof *want; i++)
            assert_near(freq[want[i].pair] / want[i].freq, 1, 1e-6);
        vq_model_close(m);
    }
}

static void linear_scaling_divides(void **state)
{
    (void)state;
    toy_params p = toy(TOY_GEMMA3);
    p.rope = TOY_ROPE_LINEAR;
    p.rope_base = 1000000;
    vq_model *m = toy_open(&p);
    for (int i = 0; i < 4; i++) { /* the global one only; local layers keep base 10000 */
        assert_near(m->ropes[VQ_ROPE_GLOBAL].freq[i] * 32 / pow(1e6, -2.0 * i / 8), 1, 1e-12);
        assert_near(m->ropes[VQ_ROPE_LOCAL].freq[i] / pow(1e4, -2.0 * i / 8), 1, 1e-12);
    }
    vq_model_close(m);
}

static void refuses(const toy_params *p, vq_status want, const char *named)
{
    vq_model *m;
    vq_error err = {0};
    const vq_status got = toy_open_bytes(&m, toy_model_make(p), &err);
    if (got != want || !strstr(err.text, named))
        fail_msg("%s: want %s naming \"%s\", got %s: %s", toy_family_name(p->family), vq_status_name(want), named,
                 vq_status_name(got), err.text);
    assert_null(m);
}

static void more_experts(gguf_writer *w) { gguf_add_u32(w, "llama.expert_count", 8); }
static void more_latent(gguf_writer *w) { gguf_add_u32(w, "llama.attention.kv_lora_rank", 512); }
static void more_yarn(gguf_writer *w) { gguf_add_str(w, "llama.rope.scaling.type", "yarn"); }
static void more_factor(gguf_writer *w) { gguf_add_f32(w, "llama.rope.scaling.factor", -2); }
static void more_factor_nan(gguf_writer *w) { gguf_add_f32(w, "llama.rope.scaling.factor", NAN); }
static void more_cap(gguf_writer *w) { gguf_add_f32(w, "gemma3.final_logit_softcapping", 30); }
static void more_window(gguf_writer *w) { gguf_add_u32(w, "qwen2.attention.sliding_window", 4096); }
static void more_pattern(gguf_writer *w)
{
    gguf_add_array(w, "gemma3.attention.sliding_window_pattern", VQ_GGUF_BOOL, 1, "");
}
static void more_tensor(gguf_writer *w)
{
    const float zeros[32] = {0};
    gguf_add_tensor(w, "blk.0.attn_output.bias", VQ_TYPE_F32, 1, (uint64_t[]){32}, zeros);
}

static void variants_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        toy_family family;
        void (*more)(gguf_writer *w);
        vq_status status;
        const char *named;
    } rows[] = {
        {TOY_LLAMA, more_experts, VQ_ERR_UNSUPPORTED, "expert_count is 8"},
        {TOY_LLAMA, more_latent, VQ_ERR_UNSUPPORTED, "multi-latent attention"},
        {TOY_LLAMA, more_yarn, VQ_ERR_UNSUPPORTED, "\"yarn\""},
        {TOY_LLAMA, more_factor, VQ_ERR_VALUE, "rope.scaling.factor is -2"},
        {TOY_LLAMA, more_factor_nan, VQ_ERR_VALUE, "rope.scaling.factor"},
        {TOY_LLAMA, more_tensor, VQ_ERR_UNSUPPORTED, "blk.0.attn_output.bias"},
        {TOY_GEMMA3, more_cap, VQ_ERR_UNSUPPORTED, "final_logit_softcapping is 30"},
        {TOY_QWEN2, more_window, VQ_ERR_UNSUPPORTED, "sliding_window is 4096"},
        {TOY_GEMMA3, more_pattern, VQ_ERR_VALUE, "sliding_window_pattern"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        toy_params p = toy(rows[i].family);
        p.more = rows[i].more;
        refuses(&p, rows[i].status, rows[i].named);
    }
    toy_params p = toy(TOY_GEMMA3);
    p.window = 0;
    refuses(&p, VQ_ERR_MISSING_KEY, "gemma3.attention.sliding_window");
    p = toy(TOY_LLAMA);
    p.head_dim = 514;
    refuses(&p, VQ_ERR_VALUE, "key_length is 514");
    p.head_dim = 7;
    refuses(&p, VQ_ERR_VALUE, "dimension_count is 7");
}

static void architectures_are_refused_by_name(void **state)
{
    (void)state;
    static const char *const names[][2] = {{"deepseek2", "\"deepseek2\" (multi-latent attention)"},
                                           {"mamba", "\"mamba\""},
                                           {"", "\"\""},
                                           {"llama4", "\"llama4\""}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        gguf_writer *w = gguf_writer_new(32);
        gguf_add_str(w, "general.architecture", names[i][0]);
        vq_model *m;
        vq_error err = {0};
        assert_int_equal(toy_open_bytes(&m, gguf_writer_finish(w), &err), VQ_ERR_UNSUPPORTED);
        if (!strstr(err.text, names[i][1]))
            fail_msg("%s", err.text);
        assert_null(m);
    }
}

/* Two bytes of a tensor become those of a NaN or an infinity. */
static void spoil(toy_family family, vq_type type, const char *tensor, size_t at, uint16_t bits)
{
    toy_params p = toy(family);
    p.n_ff = 64;
    p.head_dim = 16;
    p.type = type;
    gguf_buffer b = toy_model_make(&p);
    vq_gguf *g;
    assert_int_equal(vq_gguf_open_memory(&g, "toy", b.bytes, b.n_bytes, NULL), VQ_OK);
    const vq_tensor *t = vq_gguf_tensor(g, tensor);
    assert_non_null(t);
    assert_true(at + 2 <= t->n_bytes);
    memcpy(b.bytes + ((const uint8_t *)t->data - b.bytes) + at, &bits, 2);
    vq_gguf_close(g);
    vq_model *m;
    vq_error err = {0};
    const vq_status got = toy_open_bytes(&m, b, &err);
    if (got != VQ_ERR_NONFINITE || !strstr(err.text, tensor))
        fail_msg("%s of %s: %s: %s", tensor, toy_family_name(family), vq_status_name(got), err.text);
    assert_null(m);
}

static void weights_that_are_not_finite_are_refused(void **state)
{
    (void)state;
    spoil(TOY_LLAMA, VQ_TYPE_F32, "blk.1.attn_norm.weight", 2, 0x7fc0);
    spoil(TOY_LLAMA, VQ_TYPE_F32, "output_norm.weight", 32 * 4 - 2, 0xff80);
    spoil(TOY_LLAMA, VQ_TYPE_F32, "token_embd.weight", 2, 0x7f80);
    spoil(TOY_QWEN2, VQ_TYPE_F32, "blk.0.attn_k.bias", 6, 0x7fff);
    spoil(TOY_LLAMA, VQ_TYPE_F16, "blk.0.ffn_down.weight", 64 * 32 * 2 - 2, 0x7c00);
    spoil(TOY_LLAMA, VQ_TYPE_BF16, "blk.0.ffn_up.weight", 100, 0x7f81);
    spoil(TOY_LLAMA, VQ_TYPE_Q8_0, "blk.1.attn_q.weight", 34 * 64 - 34, 0xfe00);
}

static void more_period(gguf_writer *w) { gguf_add_u32(w, "gemma3.attention.sliding_window_pattern", 3); }
static void more_list(gguf_writer *w)
{
    gguf_add_array(w, "gemma3.attention.sliding_window_pattern", VQ_GGUF_BOOL, 7, "\1\0\0\1\1\1\0");
}

static void gemma3_layers_slide_by_pattern(void **state)
{
    (void)state;
    static const struct {
        void (*more)(gguf_writer *w);
        const char *slides;
    } rows[] = {{NULL, "1111101"}, {more_period, "1101101"}, {more_list, "1001110"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        toy_params p = toy(TOY_GEMMA3);
        p.n_layers = 7;
        p.more = rows[i].more;
        vq_model *m = toy_open(&p);
        for (int layer = 0; layer < 7; layer++) {
            const bool slides = rows[i].slides[layer] == '1';
            assert_int_equal(m->windows[layer], slides ? p.window : 0);
            assert_int_equal(m->layers[layer].rope, slides ? VQ_ROPE_LOCAL : VQ_ROPE_GLOBAL);
        }
        vq_model_close(m);
    }
}

static void attention_scales(void **state)
{
    (void)state;
    toy_params p = toy(TOY_GEMMA3);
    p.head_dim = 16;
    vq_model *m = toy_open(&p);
    assert_float_equal(m->hp.attn_scale, 0.25f, 0);
    assert_float_equal(m->hp.embd_scale, sqrtf(32), 0);
    vq_model_close(m);
    p.n_layers = 62; /* the 27B model: 1 / sqrt(n_embd / n_heads) */
    m = toy_open(&p);
    assert_float_equal(m->hp.attn_scale, 1 / sqrtf(8), 0);
    vq_model_close(m);
}

static void info_and_hash(void **state)
{
    (void)state;
    toy_params p = toy(TOY_MISTRAL);
    p.window = 24;
    vq_model *m = toy_open(&p), *again = toy_open(&p);
    const vq_model_info *info = vq_model_get_info(m);
    assert_string_equal(info->family, "llama");
    assert_string_equal(info->name, "mistral");
    assert_int_equal(info->n_layers, 2);
    assert_int_equal(info->head_dim, 8);
    assert_int_equal(info->n_vocab, TOY_MIN_VOCAB);
    assert_int_equal(info->window, 24);
    /* embedding and head; a layer: two norms, q and o, k and v, three of the ffn; the last norm */
    const uint64_t n = 2 * 288 * 32 + 2 * (2 * 32 + 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48) + 32;
    assert_int_equal(info->n_params, n);
    assert_int_equal(info->weight_bytes, 4 * n);
    assert_true(vq_model_hash(m) == vq_model_hash(again));
    for (int change = 0; change < 4; change++) {
        toy_params other = p;
        other.seed += change == 0;
        other.window += change == 1;
        other.rope_base += change == 2 ? 1 : 0;
        other.type = change == 3 ? VQ_TYPE_F16 : other.type;
        vq_model *changed = toy_open(&other);
        assert_true(vq_model_hash(m) != vq_model_hash(changed));
        vq_model_close(changed);
    }
    vq_model_close(again);
    vq_model_close(m);
    vq_model_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama3_rope_has_the_published_frequencies),
        cmocka_unit_test(linear_scaling_divides),
        cmocka_unit_test(variants_are_refused_by_name),
        cmocka_unit_test(architectures_are_refused_by_name),
        cmocka_unit_test(weights_that_are_not_finite_are_refused),
        cmocka_unit_test(gemma3_layers_slide_by_pattern),
        cmocka_unit_test(attention_scales),
        cmocka_unit_test(info_and_hash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
