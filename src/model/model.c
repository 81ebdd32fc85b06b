/* Opening and closing models. */
#include "model/model.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "formats/reservoir.h"

enum { N_SAMPLES = 8, SAMPLE_BYTES = 64 };

/* The order of tensors in the file does not matter: each is hashed alone, and the sum is taken.  A reservoir has sums
 * of all bytes: samples would only bring pages in. */
static uint64_t hash_of_tensor(const vq_gguf *g, uint64_t index)
{
    const vq_tensor *t = vq_gguf_tensor_at(g, index);
    XXH64_hash_t h = XXH3_64bits(t->name.at, t->name.n_bytes);
    const uint32_t type = (uint32_t)t->type;
    h = XXH3_64bits_withSeed(&type, sizeof type, h);
    h = XXH3_64bits_withSeed(t->dims, sizeof t->dims, h);
    if (g->reservoir)
        return XXH3_64bits_withSeed(&g->reservoir->sums[index], sizeof *g->reservoir->sums, h);
    const uint64_t n = t->n_bytes < SAMPLE_BYTES ? t->n_bytes : SAMPLE_BYTES;
    for (uint64_t i = 0; i < N_SAMPLES; i++)
        h = XXH3_64bits_withSeed((const char *)t->data + (t->n_bytes - n) / (N_SAMPLES - 1) * i, n, h);
    return h;
}

/* Whether the model computes with this tensor of its own file, or took a layer from elsewhere. */
static bool uses(const vq_model *m, const vq_gguf *g, vq_str name)
{
    const bool in_layer = name.n_bytes > 4 && memcmp(name.at, "blk.", 4) == 0;
    return m->grafted ? in_layer == (g == m->grafted->gguf) : true;
}

static uint64_t hash_of_tensors(const vq_model *m, const vq_gguf *g)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < vq_gguf_n_tensors(g); i++)
        if (uses(m, g, vq_gguf_tensor_at(g, i)->name))
            sum += hash_of_tensor(g, i);
    return sum;
}

static uint64_t hash_of_model(const vq_model *m)
{
    const vq_hparams *hp = &m->hp;
    const uint32_t counts[] = {hp->n_layers, hp->n_embd, hp->n_ff,  hp->n_heads, hp->n_kv_heads,
                               hp->d_k,      hp->d_v,    hp->n_rot, hp->window,  hp->n_vocab};
    const float numbers[] = {hp->norm_eps, hp->attn_scale, hp->embd_scale};
    XXH64_hash_t h = XXH3_64bits(m->family->name, strlen(m->family->name));
    h = XXH3_64bits_withSeed(counts, sizeof counts, h);
    h = XXH3_64bits_withSeed(numbers, sizeof numbers, h);
    h = XXH3_64bits_withSeed(m->windows, hp->n_layers * sizeof *m->windows, h);
    for (int rope = 0; rope < VQ_N_ROPES; rope++)
        if (m->ropes[rope].freq)
            h = XXH3_64bits_withSeed(m->ropes[rope].freq, hp->n_rot / 2 * sizeof(double), h);
    const uint64_t sum = hash_of_tensors(m, m->gguf) + (m->grafted ? hash_of_tensors(m, m->grafted->gguf) : 0);
    return XXH3_64bits_withSeed(&sum, sizeof sum, h);
}

static void layout(vq_arena *a, vq_model *m, double *freqs[VQ_N_ROPES], size_t name_bytes)
{
    m->layers = vq_arena_take(a, m->hp.n_layers, sizeof *m->layers);
    m->windows = vq_arena_take(a, m->hp.n_layers, sizeof *m->windows);
    m->kv_ropes = vq_arena_take(a, m->hp.n_layers, sizeof *m->kv_ropes);
    for (int rope = 0; rope < VQ_N_ROPES; rope++)
        freqs[rope] = vq_arena_take(a, m->hp.n_rot / 2, sizeof(double));
    m->name = vq_arena_take(a, name_bytes + 1, 1);
}

static void count_tensors(vq_model *m, const vq_gguf *g)
{
    for (uint64_t i = 0; i < vq_gguf_n_tensors(g); i++) {
        const vq_tensor *t = vq_gguf_tensor_at(g, i);
        if (!uses(m, g, t->name))
            continue;
        m->info.n_params += t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3];
        m->info.weight_bytes += t->n_bytes;
    }
}

static void fill_info(vq_model *m)
{
    const vq_hparams *hp = &m->hp;
    vq_model_info *info = &m->info;
    *info = (vq_model_info){
        .family = m->family->name,
        .name = m->name,
        .n_layers = hp->n_layers,
        .n_embd = hp->n_embd,
        .n_ff = hp->n_ff,
        .n_heads = hp->n_heads,
        .n_kv_heads = hp->n_kv_heads,
        .head_dim = hp->d_k,
        .n_vocab = hp->n_vocab,
        .n_ctx_train = hp->n_ctx_train,
        .window = hp->window,
    };
    count_tensors(m, m->gguf);
    if (m->grafted)
        count_tensors(m, m->grafted->gguf);
}

void vq_model_describe(vq_model *m)
{
    fill_info(m);
    m->hash = hash_of_model(m);
}

static vq_status load(vq_model *m, vq_error *err)
{
    vq_str name = {"", 0};
    if (vq_gguf_find(m->gguf, "general.name"))
        VQ_TRY(vq_gguf_get_str(m->gguf, "general.name", &name, err));
    VQ_TRY(vq_hparams_read(m, err));

    double *freqs[VQ_N_ROPES];
    layout(&m->arena, m, freqs, name.n_bytes);
    VQ_TRY(vq_arena_alloc(&m->arena, err));
    layout(&m->arena, m, freqs, name.n_bytes);
    memcpy(m->name, name.at, name.n_bytes);

    VQ_TRY(m->family->configure(m, err));
    for (uint32_t i = 0; i < m->hp.n_layers; i++)
        m->windows[i] = m->layers[i].window;
    VQ_TRY(vq_ropes_make(m, freqs, err));
    for (uint32_t i = 0; i < m->hp.n_layers; i++)
        m->kv_ropes[i] = (vq_kv_rope){m->ropes[m->layers[i].rope].freq, m->hp.n_rot, m->hp.rope_halves};
    VQ_TRY(vq_tokenizer_open(&m->tokenizer, m->gguf, err));
    VQ_TRY(vq_rotations_open(m, err));
    VQ_TRY(vq_weights_bind(m, err));
    VQ_TRY(vq_weights_check_finite(m, err));
    vq_model_describe(m);
    return VQ_OK;
}

vq_status vq_model_open(vq_model **out, const char *path, vq_error *err)
{
    *out = NULL;
    vq_model *m = calloc(1, sizeof *m);
    if (!m)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for a model");
    vq_status status = vq_gguf_open(&m->gguf, path, err);
    if (status == VQ_OK && m->gguf->folder)
        status = vq_fail(err, VQ_ERR_UNSUPPORTED,
                         "%s: a folder of safetensors is not run as it is; 'veloxquant quantize' "
                         "makes a reservoir of it",
                         path);
    if (status == VQ_OK) {
        status = load(m, err);
        if (status != VQ_OK && err && strncmp(err->text, path, strlen(path)) != 0)
            vq_fail_prefix(err, status, "%s", path); /* messages of vq_gguf_get_... name the file themselves */
    }
    if (status != VQ_OK) {
        vq_model_close(m);
        return status;
    }
    *out = m;
    return VQ_OK;
}

void vq_model_close(vq_model *m)
{
    if (!m)
        return;
    vq_model_close(m->grafted);
    vq_rotations_close(m);
    vq_tokenizer_close(m->tokenizer);
    vq_gguf_close(m->gguf);
    vq_arena_free(&m->arena);
    free(m);
}

vq_status vq_model_check_whole(const vq_model *m, vq_error *err)
{
    VQ_TRY(vq_gguf_check_whole(m->gguf, err));
    return m->grafted ? vq_gguf_check_whole(m->grafted->gguf, err) : VQ_OK;
}

const vq_model_info *vq_model_get_info(const vq_model *m) { return &m->info; }

const vq_tokenizer *vq_model_tokenizer(const vq_model *m) { return m->tokenizer; }

const vq_gguf *vq_model_gguf(const vq_model *m) { return m->gguf; }

uint64_t vq_model_hash(const vq_model *m) { return m->hash; }
