/* config.json to the keys of GGUF.  What would change the computation and is not one of ours is refused by name. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "formats/hf.h"

/* ---- records ---- */

static void put(vq_key_records *r, const void *from, size_t n)
{
    if (n > r->room - r->n_bytes) {
        const size_t room = 2 * r->room + n + 4096;
        uint8_t *more = realloc(r->at, room);
        r->no_memory |= !more;
        if (!more)
            return;
        r->at = more;
        r->room = room;
    }
    if (n)
        memcpy(r->at + r->n_bytes, from, n);
    r->n_bytes += n;
}

static void put_str(vq_key_records *r, vq_str s)
{
    const uint64_t n = s.n_bytes;
    put(r, &n, sizeof n);
    put(r, s.at, s.n_bytes);
}

static void put_key(vq_key_records *r, const char *key, vq_gguf_kind kind)
{
    const uint32_t number = (uint32_t)kind;
    put_str(r, (vq_str){key, strlen(key)});
    put(r, &number, sizeof number);
    r->n++;
}

void vq_put_u32(vq_key_records *r, const char *key, uint32_t x)
{
    put_key(r, key, VQ_GGUF_U32);
    put(r, &x, sizeof x);
}

void vq_put_f32(vq_key_records *r, const char *key, float x)
{
    put_key(r, key, VQ_GGUF_F32);
    put(r, &x, sizeof x);
}

void vq_put_bool(vq_key_records *r, const char *key, bool x)
{
    const uint8_t byte = x;
    put_key(r, key, VQ_GGUF_BOOL);
    put(r, &byte, sizeof byte);
}

void vq_put_text(vq_key_records *r, const char *key, vq_str x)
{
    put_key(r, key, VQ_GGUF_STRING);
    put_str(r, x);
}

static void put_array_head(vq_key_records *r, const char *key, vq_gguf_kind kind, uint64_t n)
{
    const uint32_t number = (uint32_t)kind;
    put_key(r, key, VQ_GGUF_ARRAY);
    put(r, &number, sizeof number);
    put(r, &n, sizeof n);
}

void vq_put_array(vq_key_records *r, const char *key, vq_gguf_kind kind, uint64_t n, const void *values, size_t each)
{
    put_array_head(r, key, kind, n);
    put(r, values, n * each);
}

void vq_put_texts(vq_key_records *r, const char *key, uint64_t n, const vq_str *texts)
{
    put_array_head(r, key, VQ_GGUF_STRING, n);
    for (uint64_t i = 0; i < n; i++)
        put_str(r, texts[i]);
}

/* ---- config.json ---- */

typedef struct reader {
    const json_t *config;
    const char *family;
    vq_key_records *r;
} reader;

static const char *key_of(const reader *c, const char *name)
{
    static _Thread_local char key[96];
    snprintf(key, sizeof key, "%s.%s", c->family, name);
    return key;
}

/* A value that is there and not null. */
static const json_t *find(const json_t *object, const char *name)
{
    const json_t *v = json_object_get(object, name);
    return json_is_null(v) ? NULL : v;
}

static vq_status get_count(const json_t *object, const char *name, uint32_t fallback, uint32_t *out, vq_error *err)
{
    const json_t *v = find(object, name);
    *out = fallback;
    if (!v)
        return fallback ? VQ_OK : vq_fail(err, VQ_ERR_MISSING_KEY, "config.json: '%s' is missing", name);
    if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > INT32_MAX)
        return vq_fail(err, VQ_ERR_VALUE, "config.json: '%s' must be a whole number of at least 1", name);
    *out = (uint32_t)json_integer_value(v);
    return VQ_OK;
}

/* NAN as fallback: required. */
static vq_status get_real(const json_t *object, const char *name, double fallback, double *out, vq_error *err)
{
    const json_t *v = find(object, name);
    *out = fallback;
    if (!v)
        return isnan(fallback) ? vq_fail(err, VQ_ERR_MISSING_KEY, "config.json: '%s' is missing", name) : VQ_OK;
    if (!json_is_number(v))
        return vq_fail(err, VQ_ERR_VALUE, "config.json: '%s' must be a number", name);
    *out = json_number_value(v);
    return VQ_OK;
}

static const char *text_or(const json_t *object, const char *name, const char *fallback)
{
    const char *text = json_string_value(json_object_get(object, name));
    return text ? text : fallback;
}

static vq_status choose_family(reader *c, vq_hf_config *out, vq_error *err)
{
    static const struct {
        const char *type, *family, *act;
    } rows[] = {
        {"llama", "llama", "silu"},
        {"mistral", "llama", "silu"},
        {"qwen2", "qwen2", "silu"},
        {"qwen3", "qwen3", "silu"},
        {"gemma3_text", "gemma3", "gelu_pytorch_tanh"},
    };
    const char *type = text_or(c->config, "model_type", "");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strcmp(rows[i].type, type) != 0)
            continue;
        c->family = out->family = rows[i].family;
        const char *act = text_or(c->config, "hidden_activation", text_or(c->config, "hidden_act", rows[i].act));
        if (strcmp(act, rows[i].act) != 0)
            return vq_fail(err, VQ_ERR_UNSUPPORTED, "config.json: activation '%.40s', %s models have %s", act, type,
                           rows[i].act);
        return VQ_OK;
    }
    return vq_fail(err, VQ_ERR_UNSUPPORTED,
                   "config.json: model_type '%.60s' is not supported; these are: llama, mistral, qwen2, qwen3, "
                   "gemma3_text",
                   type);
}

static vq_status read_rope(const reader *c, vq_error *err)
{
    const bool gemma = strcmp(c->family, "gemma3") == 0;
    const json_t *nested = find(c->config, "rope_parameters"), *scaling = find(c->config, "rope_scaling");
    if (!nested)
        nested = c->config;
    else if (!scaling)
        scaling = nested;
    if (find(nested, "full_attention") || find(nested, "sliding_attention"))
        return vq_fail(err, VQ_ERR_UNSUPPORTED,
                       "config.json: rope_parameters for each kind of layer are not supported");
    double x;
    VQ_TRY(get_real(nested, "rope_theta", gemma ? 1e6 : 1e4, &x, err));
    vq_put_f32(c->r, key_of(c, "rope.freq_base"), (float)x);
    if (gemma) {
        VQ_TRY(get_real(c->config, "rope_local_base_freq", 1e4, &x, err));
        vq_put_f32(c->r, key_of(c, "rope.freq_base_swa"), (float)x);
    }
    if (!scaling)
        return VQ_OK;
    const char *type = text_or(scaling, "rope_type", text_or(scaling, "type", "default"));
    if (strcmp(type, "default") == 0)
        return VQ_OK;
    if (strcmp(type, "linear") != 0 && strcmp(type, "llama3") != 0)
        return vq_fail(err, VQ_ERR_UNSUPPORTED, "config.json: RoPE of type '%.40s' is not supported (linear, llama3)",
                       type);
    vq_put_text(c->r, key_of(c, "rope.scaling.type"), (vq_str){type, strlen(type)});
    VQ_TRY(get_real(scaling, "factor", NAN, &x, err));
    vq_put_f32(c->r, key_of(c, "rope.scaling.factor"), (float)x);
    if (strcmp(type, "linear") == 0)
        return VQ_OK;
    uint32_t n;
    VQ_TRY(get_real(scaling, "low_freq_factor", 1, &x, err));
    vq_put_f32(c->r, key_of(c, "rope.scaling.low_freq_factor"), (float)x);
    VQ_TRY(get_real(scaling, "high_freq_factor", 4, &x, err));
    vq_put_f32(c->r, key_of(c, "rope.scaling.high_freq_factor"), (float)x);
    VQ_TRY(get_count(scaling, "original_max_position_embeddings", 8192, &n, err));
    vq_put_u32(c->r, key_of(c, "rope.scaling.original_context_length"), n);
    return VQ_OK;
}

/* Which layers of Gemma 3 slide: a list of kinds, or a period. */
static vq_status read_layer_types(const reader *c, uint32_t n_layers, vq_error *err)
{
    const json_t *types = find(c->config, "layer_types");
    uint32_t period;
    if (!types) {
        VQ_TRY(get_count(c->config, "sliding_window_pattern", 6, &period, err));
        vq_put_u32(c->r, key_of(c, "attention.sliding_window_pattern"), period);
        return VQ_OK;
    }
    if (json_array_size(types) != n_layers)
        return vq_fail(err, VQ_ERR_VALUE, "config.json: 'layer_types' must be a list of %u", n_layers);
    uint8_t *slides = calloc(n_layers, 1);
    if (!slides)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for %u layers", n_layers);
    vq_status status = VQ_OK;
    for (uint32_t i = 0; status == VQ_OK && i < n_layers; i++) {
        const char *kind = json_string_value(json_array_get(types, i));
        slides[i] = kind && strcmp(kind, "sliding_attention") == 0;
        if (!slides[i] && (!kind || strcmp(kind, "full_attention") != 0))
            status =
                vq_fail(err, VQ_ERR_VALUE, "config.json: layer_types[%u] is no kind of attention that is known", i);
    }
    if (status == VQ_OK)
        vq_put_array(c->r, key_of(c, "attention.sliding_window_pattern"), VQ_GGUF_BOOL, n_layers, slides, 1);
    free(slides);
    return status;
}

static vq_status read_window(const reader *c, const vq_hf_config *out, uint32_t n_embd, vq_error *err)
{
    const bool gemma = strcmp(c->family, "gemma3") == 0;
    uint32_t window;
    if (json_is_true(json_object_get(c->config, "use_sliding_window")))
        return vq_fail(err, VQ_ERR_UNSUPPORTED, "config.json: use_sliding_window is true, which is not supported here");
    if (strncmp(c->family, "qwen", 4) == 0 || !find(c->config, "sliding_window"))
        return gemma ? vq_fail(err, VQ_ERR_MISSING_KEY, "config.json: 'sliding_window' is missing") : VQ_OK;
    VQ_TRY(get_count(c->config, "sliding_window", 0, &window, err));
    vq_put_u32(c->r, key_of(c, "attention.sliding_window"), window);
    if (!gemma)
        return VQ_OK;
    double scalar;
    VQ_TRY(get_real(c->config, "query_pre_attn_scalar", out->head_dim, &scalar, err));
    const double ours = out->n_layers == 62 ? (double)n_embd / out->n_heads : out->head_dim; /* families/gemma3.c */
    if (scalar != ours)
        return vq_fail(err, VQ_ERR_UNSUPPORTED, "config.json: query_pre_attn_scalar is %g, only %g is supported here",
                       scalar, ours);
    return read_layer_types(c, out->n_layers, err);
}

static vq_status refuse_variants(const json_t *config, vq_error *err)
{
    static const char *const absent[] = {"attn_logit_softcapping", "final_logit_softcapping",
                                         "num_local_experts",      "num_experts",
                                         "quantization_config",    "use_bidirectional_attention"};
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++) {
        const json_t *v = find(config, absent[i]);
        if (v && !json_is_false(v))
            return vq_fail(err, VQ_ERR_UNSUPPORTED, "config.json: %s is not supported", absent[i]);
    }
    return VQ_OK;
}

static void put_ids(const reader *c)
{
    static const char *const names[][2] = {{"bos_token_id", "tokenizer.ggml.bos_token_id"},
                                           {"eos_token_id", "tokenizer.ggml.eos_token_id"}};
    for (size_t i = 0; i < 2; i++) {
        const json_t *v = find(c->config, names[i][0]);
        if (json_is_array(v)) /* of several ends the first; the others are known by their names */
            v = json_array_get(v, 0);
        if (json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) < INT32_MAX)
            vq_put_u32(c->r, names[i][1], (uint32_t)json_integer_value(v));
    }
}

vq_status vq_hf_read_config(vq_key_records *r, vq_hf_config *out, const json_t *config, vq_error *err)
{
    reader c = {config, NULL, r};
    uint32_t n_embd, n_ff, n_ctx;
    double eps;
    VQ_TRY(choose_family(&c, out, err));
    VQ_TRY(refuse_variants(config, err));
    VQ_TRY(get_count(config, "num_hidden_layers", 0, &out->n_layers, err));
    VQ_TRY(get_count(config, "max_position_embeddings", 0, &n_ctx, err));
    VQ_TRY(get_count(config, "hidden_size", 0, &n_embd, err));
    VQ_TRY(get_count(config, "intermediate_size", 0, &n_ff, err));
    VQ_TRY(get_count(config, "num_attention_heads", 0, &out->n_heads, err));
    VQ_TRY(get_count(config, "num_key_value_heads", out->n_heads, &out->n_kv_heads, err));
    const uint32_t d = n_embd / out->n_heads;
    VQ_TRY(get_count(config, "head_dim", d ? d : 1, &out->head_dim, err));
    VQ_TRY(get_real(config, "rms_norm_eps", NAN, &eps, err));
    out->norms_less_one = strcmp(c.family, "gemma3") == 0;
    out->permuted = strcmp(c.family, "llama") == 0;
    const json_t *tied = find(config, "tie_word_embeddings");
    out->tied = tied ? json_is_true(tied) : out->norms_less_one;

    vq_put_text(r, "general.architecture", (vq_str){c.family, strlen(c.family)});
    vq_put_u32(r, key_of(&c, "block_count"), out->n_layers);
    vq_put_u32(r, key_of(&c, "context_length"), n_ctx);
    vq_put_u32(r, key_of(&c, "embedding_length"), n_embd);
    vq_put_u32(r, key_of(&c, "feed_forward_length"), n_ff);
    vq_put_u32(r, key_of(&c, "attention.head_count"), out->n_heads);
    vq_put_u32(r, key_of(&c, "attention.head_count_kv"), out->n_kv_heads);
    vq_put_u32(r, key_of(&c, "attention.key_length"), out->head_dim);
    vq_put_u32(r, key_of(&c, "attention.value_length"), out->head_dim);
    vq_put_f32(r, key_of(&c, "attention.layer_norm_rms_epsilon"), (float)eps);
    put_ids(&c);
    VQ_TRY(read_rope(&c, err));
    return read_window(&c, out, n_embd, err);
}
