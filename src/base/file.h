/* Files: read-only maps, and writes that leave a whole file or none. */
#ifndef VQ_BASE_FILE_H
#define VQ_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct vq_file_map {
    const uint8_t *bytes; /* NULL when the file is empty */
    size_t n_bytes;
    int fd_plus_1;  /* kept open for vq_file_map_check; 0: none */
    bool is_frozen; /* when it was opened, nobody had permission to write to the file */
} vq_file_map;

/* Maps a regular file read-only and shared.  Errors name the path. */
vq_status vq_file_map_open(vq_file_map *out, const char *path, vq_error *err);
void vq_file_map_close(vq_file_map *map); /* also zeroed or NULL */
/* VQ_ERR_TRUNCATED when the file is shorter now than when it was mapped: reading the lost part would raise SIGBUS.  One
 * system call.  What is cut off between this look and the read that follows is not seen. */
vq_status vq_file_map_check(const vq_file_map *map, const char *path, vq_error *err);

typedef struct vq_file_writer vq_file_writer;

/* Writes go to "PATH.tmp-PID"; commit flushes, syncs and renames, abort (or close without commit) removes it. */
vq_status vq_file_writer_open(vq_file_writer **out, const char *path, vq_error *err);
vq_status vq_file_writer_write(vq_file_writer *w, const void *bytes, size_t n_bytes, vq_error *err);
/* Writes over bytes that were written before, [at, at + n_bytes).  VQ_ERR_IO where the target is a pipe. */
vq_status vq_file_writer_patch(vq_file_writer *w, uint64_t at, const void *bytes, size_t n_bytes, vq_error *err);
uint64_t vq_file_writer_offset(const vq_file_writer *w);           /* bytes written so far */
vq_status vq_file_writer_commit(vq_file_writer *w, vq_error *err); /* frees w, also on failure */
void vq_file_writer_abort(vq_file_writer *w);
/* Nobody gets permission to write to the file, so that it can be mapped without fear. */
void vq_file_writer_freeze(vq_file_writer *w);

#endif
