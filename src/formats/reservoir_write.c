/* Writing reservoirs: blobs as they come, then the header, then the head over its place (reservoir.h draws the file).
 */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/status.h"
#include "formats/reservoir.h"

struct vq_reservoir_writer {
    vq_file_writer *file;
    json_t *header, *rotations, *tensors; /* the lists are borrowed from the header */
    XXH3_state_t *sum;
    vq_tensor tensor; /* begun; its name is copied */
    char *name;
    uint64_t at, n_added;
};

static vq_status no_memory(vq_error *err) { return vq_fail(err, VQ_ERR_NOMEM, "no memory for the header"); }

/* Takes value; false when it or the object is missing. */
static bool set(json_t *object, const char *key, json_t *value)
{
    return object && !json_object_set_new(object, key, value);
}

static bool set_sum(json_t *object, const char *key, uint64_t sum)
{
    char text[17];
    snprintf(text, sizeof text, "%016" PRIx64, sum);
    return set(object, key, json_string(text));
}

static bool set_range(json_t *object, uint64_t at, uint64_t n_bytes)
{
    return set(object, "offset", json_integer((json_int_t)at)) &&
           set(object, "bytes", json_integer((json_int_t)n_bytes));
}

static vq_status pad(vq_reservoir_writer *w, vq_error *err)
{
    static const uint8_t zeros[VQ_RESERVOIR_PAGE];
    const uint64_t over = vq_file_writer_offset(w->file) % VQ_RESERVOIR_PAGE;
    return over ? vq_file_writer_write(w->file, zeros, VQ_RESERVOIR_PAGE - over, err) : VQ_OK;
}

/* ---- the source ---- */

/* "Q4_1, F32" */
static void type_names(const vq_gguf *g, char *out, size_t n_bytes)
{
    bool seen[VQ_N_TYPES] = {false};
    out[0] = 0;
    for (uint64_t i = 0; i < vq_gguf_n_tensors(g); i++) {
        const vq_type type = vq_gguf_tensor_at(g, i)->type;
        const size_t used = strlen(out);
        if (!seen[type])
            snprintf(out + used, n_bytes - used, "%s%s", used ? ", " : "", vq_type_name(type));
        seen[type] = true;
    }
}

static json_t *describe(const vq_gguf *source)
{
    char types[256];
    type_names(source, types, sizeof types);
    const char *path = vq_gguf_path(source), *slash = strrchr(path, '/');
    json_t *about = json_object(), *file = json_string(slash ? slash + 1 : path);
    if (!file)
        file = json_string("(not UTF-8)");
    if (set(about, "file", file) && set(about, "types", json_string(types)))
        return about;
    json_decref(about);
    return NULL;
}

static vq_status write_metadata(vq_reservoir_writer *w, const vq_gguf *source, vq_error *err)
{
    const uint64_t n = vq_gguf_n_values(source);
    XXH3_64bits_reset(w->sum);
    XXH3_64bits_update(w->sum, &n, sizeof n);
    if (source->n_metadata_bytes)
        XXH3_64bits_update(w->sum, source->metadata, source->n_metadata_bytes);
    const uint64_t at = vq_file_writer_offset(w->file);
    VQ_TRY(vq_file_writer_write(w->file, &n, sizeof n, err));
    VQ_TRY(vq_file_writer_write(w->file, source->metadata, source->n_metadata_bytes, err));
    json_t *about = json_object();
    const bool fine =
        set_range(about, at, sizeof n + source->n_metadata_bytes) && set_sum(about, "sum", XXH3_64bits_digest(w->sum));
    if (!fine) {
        json_decref(about);
        return no_memory(err);
    }
    return set(w->header, "metadata", about) ? pad(w, err) : no_memory(err);
}

/* ---- opening and ending ---- */

static void writer_free(vq_reservoir_writer *w)
{
    json_decref(w->header);
    XXH3_freeState(w->sum);
    free(w->name);
    free(w);
}

void vq_reservoir_writer_abort(vq_reservoir_writer *w)
{
    if (!w)
        return;
    vq_file_writer_abort(w->file);
    writer_free(w);
}

static vq_status begin_file(vq_reservoir_writer *w, const vq_gguf *source, vq_error *err)
{
    static const uint8_t zeros[VQ_RESERVOIR_PAGE];
    w->header = json_object();
    w->rotations = json_array();
    w->tensors = json_array();
    w->sum = XXH3_createState();
    const bool made = set(w->header, "writer", json_sprintf("veloxquant %s", vq_version())) &&
                      set(w->header, "source", describe(source));
    const bool rotations = set(w->header, "rotations", w->rotations), tensors = set(w->header, "tensors", w->tensors);
    if (!made || !rotations || !tensors || !w->sum)
        return no_memory(err);
    VQ_TRY(vq_file_writer_write(w->file, zeros, sizeof zeros, err));
    return write_metadata(w, source, err);
}

vq_status vq_reservoir_writer_open(vq_reservoir_writer **out, const char *path, const vq_gguf *source, vq_error *err)
{
    *out = NULL;
    vq_reservoir_writer *w = calloc(1, sizeof *w);
    if (!w)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory to write %s", path);
    vq_status status = vq_file_writer_open(&w->file, path, err);
    if (status == VQ_OK)
        status = begin_file(w, source, err);
    if (status != VQ_OK) {
        vq_reservoir_writer_abort(w);
        return status;
    }
    *out = w;
    return VQ_OK;
}

vq_status vq_reservoir_writer_commit(vq_reservoir_writer *w, vq_error *err)
{
    char *text = json_dumps(w->header, JSON_COMPACT);
    vq_reservoir_head head = {.magic = VQ_RESERVOIR_MAGIC, .version = VQ_RESERVOIR_VERSION, .page = VQ_RESERVOIR_PAGE};
    vq_status status = text ? VQ_OK : no_memory(err);
    if (status == VQ_OK) {
        head.header_at = vq_file_writer_offset(w->file);
        head.n_header_bytes = strlen(text);
        head.header_sum = XXH3_64bits(text, head.n_header_bytes);
        head.n_bytes = head.header_at + head.n_header_bytes;
        head.sum = XXH3_64bits(&head, offsetof(vq_reservoir_head, sum));
        status = vq_file_writer_write(w->file, text, head.n_header_bytes, err);
    }
    if (status == VQ_OK)
        status = vq_file_writer_patch(w->file, 0, &head, sizeof head, err);
    free(text);
    if (status != VQ_OK) {
        vq_reservoir_writer_abort(w);
        return status;
    }
    status = vq_file_writer_commit(w->file, err);
    writer_free(w);
    return status;
}

uint64_t vq_reservoir_writer_offset(const vq_reservoir_writer *w) { return vq_file_writer_offset(w->file); }

/* ---- blobs ---- */

static bool describe_rotation(const vq_reservoir_writer *w, const vq_stored_rotation *r, json_t *about)
{
    const uint64_t n_bytes = vq_stored_rotation_bytes(r);
    const bool fine = set(about, "width", json_integer(r->width)) &&
                      set(about, "kind", json_string(r->haar ? "qr" : "hadamard")) &&
                      set(about, "seed", json_integer((json_int_t)r->seed)) && set_sum(about, "hash", r->hash);
    if (!fine || !r->matrix)
        return fine;
    return set_range(about, vq_file_writer_offset(w->file), n_bytes) &&
           set_sum(about, "sum", XXH3_64bits(r->matrix, n_bytes));
}

vq_status vq_reservoir_writer_rotation(vq_reservoir_writer *w, const vq_stored_rotation *rotation, vq_error *err)
{
    json_t *about = json_object();
    if (!describe_rotation(w, rotation, about)) {
        json_decref(about);
        return no_memory(err);
    }
    if (json_array_append_new(w->rotations, about))
        return no_memory(err);
    if (!rotation->matrix)
        return VQ_OK;
    VQ_TRY(vq_file_writer_write(w->file, rotation->matrix, vq_stored_rotation_bytes(rotation), err));
    return pad(w, err);
}

vq_status vq_reservoir_writer_begin(vq_reservoir_writer *w, const vq_tensor *like, vq_error *err)
{
    assert(!w->name);
    w->name = malloc(like->name.n_bytes + 1);
    if (!w->name)
        return no_memory(err);
    memcpy(w->name, like->name.at, like->name.n_bytes);
    w->tensor = *like;
    w->tensor.name.at = w->name;
    w->n_added = 0;
    w->at = vq_file_writer_offset(w->file);
    XXH3_64bits_reset(w->sum);
    return VQ_OK;
}

vq_status vq_reservoir_writer_add(vq_reservoir_writer *w, const void *bytes, size_t n_bytes, vq_error *err)
{
    w->n_added += n_bytes;
    XXH3_64bits_update(w->sum, bytes, n_bytes);
    return vq_file_writer_write(w->file, bytes, n_bytes, err);
}

vq_status vq_reservoir_writer_end(vq_reservoir_writer *w, double error, vq_error *err)
{
    const vq_tensor *t = &w->tensor;
    assert(w->n_added == t->n_bytes);
    json_t *about = json_object(), *dims = json_array(), *name = json_stringn(t->name.at, t->name.n_bytes);
    bool fine = dims != NULL;
    for (uint32_t i = 0; fine && i < t->n_dims; i++)
        fine = !json_array_append_new(dims, json_integer((json_int_t)t->dims[i]));
    if (!name || memchr(t->name.at, 0, t->name.n_bytes)) {
        json_decref(about);
        json_decref(dims);
        json_decref(name);
        return vq_fail(err, VQ_ERR_KEY, "tensor %u has a name that is not UTF-8 text, which a reservoir cannot hold",
                       (unsigned)json_array_size(w->tensors));
    }
    fine &= set(about, "name", name);
    fine &= set(about, "type", json_string(vq_type_name(t->type)));
    fine &= set(about, "dims", dims);
    fine = fine && set_range(about, w->at, t->n_bytes) && set_sum(about, "sum", XXH3_64bits_digest(w->sum));
    if (fine && !isnan(error))
        fine = set(about, "error", json_real(error));
    free(w->name);
    w->name = NULL;
    if (!fine) {
        json_decref(about);
        return no_memory(err);
    }
    if (json_array_append_new(w->tensors, about))
        return no_memory(err);
    return pad(w, err);
}
