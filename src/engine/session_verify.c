/* Sums of a saved prompt, without a session that it would fit: whether it is what was written. */
#include <string.h>
#include <xxhash.h>

#include "base/cursor.h"
#include "base/file.h"
#include "base/status.h"
#include "veloxquant/session.h"

static vq_status verify(const char *path, const vq_file_map *map, uint64_t *n_tokens, vq_error *err)
{
    vq_cursor c = vq_cursor_make(map->bytes, map->n_bytes);
    const uint8_t *magic = vq_cursor_take(&c, 8);
    if (!magic || memcmp(magic, "VQSESS01", 8) != 0)
        return vq_fail(err, VQ_ERR_MAGIC, "%s: not a saved prompt of this program (version 1)", path);
    const uint64_t n = vq_cursor_u64(&c), sum = vq_cursor_u64(&c);
    const uint8_t *ids = n <= map->n_bytes / 4 ? vq_cursor_take(&c, n * 4) : NULL;
    if (c.bad || !ids)
        return vq_fail(err, VQ_ERR_TRUNCATED, "%s: %llu token ids, the file ends before the last", path,
                       (unsigned long long)n);
    if (XXH64(ids, n * 4, n) != sum)
        return vq_fail(err, VQ_ERR_CHECKSUM, "%s: the token ids were altered", path);
    vq_cursor_take(&c, (64 - vq_cursor_offset(&c) % 64) % 64);
    const uint64_t n_cache = vq_cursor_left(&c);
    const uint8_t *cache = n_cache >= 16 ? vq_cursor_take(&c, n_cache - 8) : NULL;
    if (!cache || memcmp(cache, "VQ-CACHE", 8) != 0)
        return vq_fail(err, VQ_ERR_TRUNCATED, "%s: no saved cache after the token ids", path);
    if (XXH64(cache, n_cache - 8, 0) != vq_cursor_u64(&c))
        return vq_fail(err, VQ_ERR_CHECKSUM, "%s: the saved cache was altered or cut", path);
    *n_tokens = n;
    return VQ_OK;
}

vq_status vq_session_verify(const char *path, uint64_t *n_tokens, vq_error *err)
{
    vq_file_map map;
    *n_tokens = 0;
    VQ_TRY(vq_file_map_open(&map, path, err));
    const vq_status status = verify(path, &map, n_tokens, err);
    vq_file_map_close(&map);
    return status;
}
