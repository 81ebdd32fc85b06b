/* Opening a folder: its files, and the names and forms of its tensors. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "formats/hf.h"
#include "formats/safetensors.h"

enum { MAX_FILES = 1024, NAME_BYTES = 65, MAX_TEXT_BYTES = 1 << 26 };

typedef struct vq_folder {
    vq_safetensors *files[MAX_FILES];
    uint32_t n_files;
    char (*names)[NAME_BYTES]; /* [tensors] */
    float **vectors;           /* [tensors] those that were made f32 */
    uint64_t n_tensors;
    uint32_t *halves; /* [tensors] */
    vq_key_records keys;
} vq_folder;

void vq_hf_free(vq_folder *f)
{
    if (!f)
        return;
    for (uint32_t i = 0; i < f->n_files; i++)
        vq_safetensors_close(f->files[i]);
    for (uint64_t i = 0; f->vectors && i < f->n_tensors; i++)
        free(f->vectors[i]);
    free(f->names);
    free(f->vectors);
    free(f->halves);
    free(f->keys.at);
    free(f);
}

vq_status vq_hf_check_whole(const vq_folder *f, vq_error *err)
{
    for (uint32_t i = 0; i < f->n_files; i++)
        VQ_TRY(vq_safetensors_check_whole(f->files[i], err));
    return VQ_OK;
}

/* ---- files ---- */

static vq_status load_json(json_t **out, const char *folder, const char *name, bool needed, vq_error *err)
{
    char path[4096];
    vq_file_map map;
    json_error_t fault;
    *out = NULL;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    const vq_status status = vq_file_map_open(&map, path, err);
    if (status != VQ_OK)
        return needed ? status : VQ_OK;
    *out = json_loadb((const char *)map.bytes, map.n_bytes, JSON_ALLOW_NUL, &fault);
    vq_file_map_close(&map);
    if (*out)
        return VQ_OK;
    return vq_fail(err, VQ_ERR_VALUE, "%s: not JSON: %s (line %d, column %d)", path, fault.text, fault.line,
                   fault.column);
}

static int is_part(const struct dirent *entry)
{
    const size_t n = strlen(entry->d_name);
    return n > 12 && entry->d_name[0] != '.' && strcmp(entry->d_name + n - 12, ".safetensors") == 0;
}

static vq_status open_parts(vq_folder *f, const char *folder, vq_error *err)
{
    struct dirent **entries;
    const int n = scandir(folder, &entries, is_part, alphasort);
    if (n < 0)
        return vq_fail(err, VQ_ERR_IO, "%s: cannot list it: %m", folder);
    vq_status status = VQ_OK;
    if (n == 0 || n > MAX_FILES)
        status = vq_fail(err, VQ_ERR_IO, "%s: %d safetensors files, must be 1 to %d", folder, n, MAX_FILES);
    for (int i = 0; i < n; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        if (status == VQ_OK)
            status = vq_safetensors_open(&f->files[f->n_files], path, err);
        if (status == VQ_OK)
            f->n_files++;
        free(entries[i]);
    }
    free(entries);
    return status;
}

/* ---- tensors ---- */

typedef struct rename_row {
    const char *theirs, *ours;
    const char *gemma; /* where it means something else there; NULL: the same */
} rename_row;

static const rename_row outer[] = {
    {"model.embed_tokens.weight", "token_embd.weight", NULL},
    {"model.norm.weight", "output_norm.weight", NULL},
    {"lm_head.weight", "output.weight", NULL},
};
static const rename_row inner[] = {
    {"self_attn.q_proj", "attn_q", NULL},
    {"self_attn.k_proj", "attn_k", NULL},
    {"self_attn.v_proj", "attn_v", NULL},
    {"self_attn.o_proj", "attn_output", NULL},
    {"self_attn.q_norm", "attn_q_norm", NULL},
    {"self_attn.k_norm", "attn_k_norm", NULL},
    {"mlp.gate_proj", "ffn_gate", NULL},
    {"mlp.up_proj", "ffn_up", NULL},
    {"mlp.down_proj", "ffn_down", NULL},
    {"input_layernorm", "attn_norm", NULL},
    {"post_attention_layernorm", "ffn_norm", "post_attention_norm"},
    {"pre_feedforward_layernorm", "ffn_norm", NULL},
    {"post_feedforward_layernorm", "post_ffw_norm", NULL},
};

/* Our name, "" for one that is left out; false for one that is not known. */
static bool rename_tensor(const vq_hf_config *c, const char *theirs, char *out)
{
    out[0] = 0;
    if (strstr(theirs, "rotary_emb.inv_freq") || (c->tied && strcmp(theirs, "lm_head.weight") == 0))
        return true;
    for (size_t i = 0; i < sizeof outer / sizeof *outer; i++) {
        if (strcmp(outer[i].theirs, theirs) == 0) {
            snprintf(out, NAME_BYTES, "%s", outer[i].ours);
            return true;
        }
    }
    unsigned layer;
    int used = 0;
    if (sscanf(theirs, "model.layers.%4u.%n", &layer, &used) != 1 || !used || layer >= c->n_layers)
        return false;
    const char *rest = theirs + used, *end = strrchr(rest, '.');
    if (!end || (strcmp(end, ".weight") != 0 && strcmp(end, ".bias") != 0))
        return false;
    for (size_t i = 0; i < sizeof inner / sizeof *inner; i++) {
        const size_t n = strlen(inner[i].theirs);
        if ((size_t)(end - rest) != n || memcmp(inner[i].theirs, rest, n) != 0)
            continue;
        const char *ours = c->norms_less_one && inner[i].gemma ? inner[i].gemma : inner[i].ours;
        snprintf(out, NAME_BYTES, "blk.%u.%s%s", layer, ours, end);
        return true;
    }
    return false;
}

/* Vectors are f32 in our models, and Gemma's norms hold what is added to 1. */
static vq_status make_vector(vq_folder *f, uint64_t index, const vq_hf_config *c, vq_tensor *t, vq_error *err)
{
    float *x = malloc(t->dims[0] * sizeof *x);
    f->vectors[index] = x;
    if (!x)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for %llu values", (unsigned long long)t->dims[0]);
    vq_type_dequantize(t->type, t->data, x, t->dims[0]);
    for (uint64_t i = 0; c->norms_less_one && i < t->dims[0]; i++)
        x[i] += 1;
    t->type = VQ_TYPE_F32;
    t->data = x;
    t->n_bytes = t->dims[0] * sizeof *x;
    return VQ_OK;
}

static vq_status add_tensor(vq_gguf *g, const vq_safetensors *file, uint64_t at, const vq_hf_config *c, vq_error *err)
{
    vq_folder *f = g->folder;
    const vq_tensor *from = vq_safetensors_at(file, at);
    const uint64_t index = g->n_tensors;
    char *name = f->names[index];
    if (!rename_tensor(c, from->name.at, name))
        return vq_fail(err, VQ_ERR_UNSUPPORTED, "tensor %.120s is not one that %s models with %u layers have",
                       from->name.at, c->family, c->n_layers);
    if (!name[0])
        return VQ_OK;
    if (from->type == VQ_N_TYPES)
        return vq_fail(err, VQ_ERR_TYPE, "tensor %.120s is %s, must be F32, F16 or BF16", from->name.at,
                       vq_safetensors_dtype(file, at));
    vq_tensor *t = &g->tensors[index];
    *t = *from;
    t->name = (vq_str){name, strlen(name)};
    if (t->n_dims == 1)
        VQ_TRY(make_vector(f, index, c, t, err));
    else if (c->permuted && (strstr(name, ".attn_q.weight") || strstr(name, ".attn_k.weight")))
        f->halves[index] = c->head_dim;
    if (f->halves[index] && (t->dims[1] % c->head_dim || c->head_dim % 2))
        return vq_fail(err, VQ_ERR_SHAPE, "tensor %.120s has %llu rows, no multiple of the %u of a head", from->name.at,
                       (unsigned long long)t->dims[1], c->head_dim);
    g->names[index] = (gguf_name){t->name, index};
    g->n_tensors++;
    return VQ_OK;
}

static vq_status add_tensors(vq_gguf *g, const vq_hf_config *c, vq_error *err)
{
    vq_folder *f = g->folder;
    uint64_t n = 1;
    for (uint32_t i = 0; i < f->n_files; i++)
        n += vq_safetensors_count(f->files[i]);
    g->tensors = calloc(n, sizeof *g->tensors);
    g->names = calloc(n, sizeof *g->names);
    f->names = calloc(n, sizeof *f->names);
    f->vectors = calloc(n, sizeof *f->vectors);
    f->halves = calloc(n, sizeof *f->halves);
    g->halves = f->halves;
    f->n_tensors = n;
    if (!g->tensors || !g->names || !f->names || !f->vectors || !f->halves)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for %llu tensors", (unsigned long long)n);
    for (uint32_t i = 0; i < f->n_files; i++)
        for (uint64_t k = 0; k < vq_safetensors_count(f->files[i]); k++)
            VQ_TRY(add_tensor(g, f->files[i], k, c, err));
    VQ_TRY(vq_gguf_sort_names(g->names, g->n_tensors, "tensor", err));
    if (!c->tied && !vq_gguf_tensor(g, "output.weight"))
        return vq_fail(err, VQ_ERR_MISSING_TENSOR,
                       "tensor lm_head.weight is missing, and tie_word_embeddings is false");
    return VQ_OK;
}

/* ---- keys ---- */

static vq_status read_keys(vq_gguf *g, const json_t *tokenizer, const json_t *settings, vq_str template_text,
                           vq_error *err)
{
    vq_folder *f = g->folder;
    const vq_tensor *embedding = vq_gguf_tensor(g, "token_embd.weight");
    if (!embedding || embedding->n_dims != 2 || embedding->dims[1] > INT32_MAX)
        return vq_fail(err, VQ_ERR_MISSING_TENSOR, "tensor model.embed_tokens.weight is missing or no matrix");
    VQ_TRY(vq_hf_read_tokenizer(&f->keys, tokenizer, settings, template_text, (uint32_t)embedding->dims[1], err));
    if (f->keys.no_memory)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for the vocabulary");
    vq_cursor c = vq_cursor_make(f->keys.at, f->keys.n_bytes);
    return vq_gguf_parse_values(g, &c, f->keys.n, err);
}

static vq_status read_folder(vq_gguf *g, const char *path, json_t *files[3], vq_error *err)
{
    vq_hf_config config = {0};
    vq_folder *f = g->folder;
    VQ_TRY(load_json(&files[0], path, "config.json", true, err));
    VQ_TRY(load_json(&files[1], path, "tokenizer.json", true, err));
    VQ_TRY(load_json(&files[2], path, "tokenizer_config.json", false, err));
    VQ_TRY(vq_hf_read_config(&f->keys, &config, files[0], err));
    const char *slash = strrchr(path, '/'), *name = slash && slash[1] ? slash + 1 : path;
    vq_put_text(&f->keys, "general.name", (vq_str){name, strlen(name)});
    VQ_TRY(open_parts(f, path, err));
    VQ_TRY(add_tensors(g, &config, err));
    char text_path[4096];
    vq_file_map map = {0};
    snprintf(text_path, sizeof text_path, "%s/chat_template.jinja", path);
    (void)vq_file_map_open(&map, text_path, NULL); /* most have none */
    const vq_str text = {(const char *)map.bytes, map.n_bytes < MAX_TEXT_BYTES ? map.n_bytes : 0};
    const vq_status status = read_keys(g, files[1], files[2], text, err);
    vq_file_map_close(&map);
    return status;
}

vq_status vq_hf_open(vq_gguf **out, const char *path, vq_error *err)
{
    json_t *files[3] = {NULL};
    *out = NULL;
    vq_gguf *g = calloc(1, sizeof *g);
    if (!g)
        return vq_fail(err, VQ_ERR_NOMEM, "%s: no memory to open it", path);
    g->path = strdup(path);
    g->folder = calloc(1, sizeof *g->folder);
    g->alignment = 1;
    vq_status status = g->path && g->folder ? read_folder(g, path, files, err)
                                            : vq_fail(err, VQ_ERR_NOMEM, "%s: no memory to open it", path);
    for (int i = 0; i < 3; i++)
        json_decref(files[i]);
    if (status != VQ_OK) {
        vq_fail_prefix(err, status, "%s", path);
        vq_gguf_close(g);
        return status;
    }
    *out = g;
    return VQ_OK;
}
