/* Saved prompts: token ids and the cache that they made.
 *
 *     offset  bytes  what
 *          0      8  "VQSESS01"
 *          8      8  n_tokens
 *         16      8  xxh64 of the ids, seed n_tokens
 *         24    4 n  token ids, little-endian
 *     padded with zeros to a multiple of 64, then the bytes of vq_kv_write, which carry a checksum of their own
 *
 * Reading checks ids and checksum, then lets the cache check and take the rest; ids are set only when that succeeded.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/cursor.h"
#include "base/file.h"
#include "base/status.h"
#include "engine/session.h"
#include "kv/save.h"

static const char MAGIC[8] = "VQSESS01";
enum { HEADER_BYTES = 24, CACHE_ALIGN = 64 };

static size_t padding(size_t at) { return (CACHE_ALIGN - at % CACHE_ALIGN) % CACHE_ALIGN; }

static vq_status write_all(const vq_session *s, vq_file_writer *w, vq_error *err)
{
    static const unsigned char zeros[CACHE_ALIGN];
    const uint64_t n = vq_session_n_tokens(s);
    const size_t ids_bytes = (size_t)n * sizeof(int32_t);
    const uint64_t sum = XXH64(vq_session_ids(s), ids_bytes, n);
    VQ_TRY(vq_file_writer_write(w, MAGIC, sizeof MAGIC, err));
    VQ_TRY(vq_file_writer_write(w, &n, sizeof n, err));
    VQ_TRY(vq_file_writer_write(w, &sum, sizeof sum, err));
    VQ_TRY(vq_file_writer_write(w, vq_session_ids(s), ids_bytes, err));
    VQ_TRY(vq_file_writer_write(w, zeros, padding(HEADER_BYTES + ids_bytes), err));
    return vq_kv_write(vq_session_kv_of(s), w, err);
}

vq_status vq_session_save(const vq_session *s, const char *path, vq_error *err)
{
    vq_file_writer *w;
    VQ_TRY(vq_file_writer_open(&w, path, err));
    const vq_status status = write_all(s, w, err);
    if (status != VQ_OK) {
        vq_file_writer_abort(w);
        return status;
    }
    vq_file_writer_freeze(w);
    return vq_file_writer_commit(w, err);
}

static vq_status read_all(vq_session *s, const char *path, vq_file_map *map, vq_error *err)
{
    vq_cursor c = vq_cursor_make(map->bytes, map->n_bytes);
    const uint8_t *magic = vq_cursor_take(&c, sizeof MAGIC);
    if (!magic || memcmp(magic, MAGIC, sizeof MAGIC) != 0)
        return vq_fail(err, VQ_ERR_MAGIC, "%s: not a saved prompt of this program (version 1)", path);
    const uint64_t n = vq_cursor_u64(&c), sum = vq_cursor_u64(&c);
    if (!c.bad && n > vq_session_n_ctx(s))
        return vq_fail(err, VQ_ERR_FULL, "%s: holds %" PRIu64 " tokens, the context has room for %u", path, n,
                       vq_session_n_ctx(s));
    const uint8_t *bytes = c.bad ? NULL : vq_cursor_take(&c, n * sizeof(int32_t));
    const size_t n_zeros = padding((size_t)vq_cursor_offset(&c));
    const uint8_t *zeros = vq_cursor_take(&c, n_zeros);
    if (c.bad)
        return vq_fail(err, VQ_ERR_TRUNCATED, "%s: ends after %zu bytes, in the token ids", path, map->n_bytes);
    if (XXH64(bytes, (size_t)n * sizeof(int32_t), n) != sum)
        return vq_fail(err, VQ_ERR_CHECKSUM, "%s: the token ids do not match their checksum", path);
    for (size_t i = 0; i < n_zeros; i++)
        if (zeros[i] != 0)
            return vq_fail(err, VQ_ERR_VALUE, "%s: byte %zu after the token ids is %u, must be 0", path, i, zeros[i]);
    const uint32_t n_vocab = vq_model_get_info(vq_session_model(s))->n_vocab;
    const int32_t *ids = (const int32_t *)(const void *)bytes; /* 24 bytes into a map: aligned */
    for (uint64_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= n_vocab)
            return vq_fail(err, VQ_ERR_VALUE, "%s: token id %d, must be 0 to %u", path, ids[i], n_vocab - 1);
    const uint64_t left = vq_cursor_left(&c);
    VQ_TRY(vq_kv_restore(vq_session_kv(s), path, vq_cursor_take(&c, left), (size_t)left, map, err));
    vq_session_set_ids(s, ids, (uint32_t)n);
    return VQ_OK;
}

vq_status vq_session_load(vq_session *s, const char *path, vq_error *err)
{
    vq_file_map map;
    VQ_TRY(vq_file_map_open(&map, path, err));
    vq_status status = read_all(s, path, &map, err);
    /* a valid cache beside ids of another length: neither can be trusted */
    if (status == VQ_OK && vq_kv_n_rows(vq_session_kv(s), 0) != vq_session_n_tokens(s)) {
        status = vq_fail(err, VQ_ERR_MISMATCH, "%s: %u token ids beside %u cached tokens", path, vq_session_n_tokens(s),
                         vq_kv_n_rows(vq_session_kv(s), 0));
        vq_session_truncate(s, 0, NULL);
    }
    vq_file_map_close(&map);
    return status;
}
