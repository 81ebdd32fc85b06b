/* A saved cache as part of another file: the session's container puts token ids beside it.  vq_kv_save and vq_kv_load
 * are these two over a file of their own. */
#ifndef VQ_KV_SAVE_H
#define VQ_KV_SAVE_H

#include "base/file.h"
#include "veloxquant/kv.h"

/* Appends the versioned, checksummed bytes of the cache to what `file` has written so far; does not commit. */
vq_status vq_kv_write(const vq_kv *kv, vq_file_writer *file, vq_error *err);

/* The n_bytes that vq_kv_write wrote, at a multiple of 64.  Everything is validated before the cache is touched; `name`
 * is the file in messages.  map: NULL, and rows are copied; or the map of a file that bytes lie in.  If the file is
 * frozen, pages stay where they are and *map becomes the cache's (and zeros). */
vq_status vq_kv_restore(vq_kv *kv, const char *name, const void *bytes, size_t n_bytes, vq_file_map *map,
                        vq_error *err);

#endif
