/* File maps and atomic writes. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

vq_status vq_file_map_open(vq_file_map *out, const char *path, vq_error *err)
{
    *out = (vq_file_map){0};
    /* O_NONBLOCK: opening a pipe must not wait for a writer. */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return vq_fail(err, VQ_ERR_IO, "%s: cannot open: %m", path);

    struct stat st;
    if (fstat(fd, &st)) {
        const vq_status status = vq_fail(err, VQ_ERR_IO, "%s: cannot stat: %m", path);
        close(fd);
        return status;
    }
    if (!S_ISREG(st.st_mode)) {
        close(fd);
        return vq_fail(err, VQ_ERR_IO, "%s: %s, not a regular file", path,
                       S_ISDIR(st.st_mode) ? "a directory" : "a device or pipe");
    }
    if (st.st_size > 0) {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED) {
            const vq_status status =
                vq_fail(err, VQ_ERR_IO, "%s: cannot map %lld bytes: %m", path, (long long)st.st_size);
            close(fd);
            return status;
        }
        *out = (vq_file_map){.bytes = p, .n_bytes = (size_t)st.st_size, .is_frozen = !(st.st_mode & 0222)};
    }
    out->fd_plus_1 = fd + 1;
    return VQ_OK;
}

vq_status vq_file_map_check(const vq_file_map *map, const char *path, vq_error *err)
{
    struct stat st;
    if (!map->fd_plus_1 || fstat(map->fd_plus_1 - 1, &st) || (uint64_t)st.st_size >= map->n_bytes)
        return VQ_OK;
    return vq_fail(err, VQ_ERR_TRUNCATED,
                   "%s: has %lld bytes now, had %zu when it was opened: it was cut while in use; replace such files by "
                   "renaming a new one into place",
                   path, (long long)st.st_size, map->n_bytes);
}

void vq_file_map_close(vq_file_map *map)
{
    if (!map)
        return;
    if (map->bytes)
        munmap((void *)(uintptr_t)map->bytes, map->n_bytes);
    if (map->fd_plus_1)
        close(map->fd_plus_1 - 1);
    *map = (vq_file_map){0};
}

enum { BUFFER_BYTES = 1 << 18 };

struct vq_file_writer {
    int fd;
    bool failed;        /* a write did not arrive: there must not be a file with a hole */
    bool direct;        /* the target is a device or pipe: written in place, there is nothing to rename */
    char *path;         /* the target, symbolic links resolved */
    char *temp;         /* what is written until commit */
    uint64_t n_written; /* held ones included */
    size_t n_held;
    unsigned char held[BUFFER_BYTES];
};

static void writer_free(vq_file_writer *w)
{
    free(w->path);
    free(w->temp);
    free(w);
}

/* The target of a write: the file behind a symbolic link, so that the link survives the rename. */
static char *resolve(const char *path)
{
    char *real = realpath(path, NULL);
    return real ? real : strdup(path);
}

vq_status vq_file_writer_open(vq_file_writer **out, const char *path, vq_error *err)
{
    *out = NULL;
    vq_file_writer *w = calloc(1, sizeof *w);
    if (!w)
        return vq_fail(err, VQ_ERR_NOMEM, "%s: no memory to write it", path);
    w->path = resolve(path);
    if (!w->path || asprintf(&w->temp, "%s.tmp-%ld", w->path, (long)getpid()) < 0) {
        w->temp = NULL;
        writer_free(w);
        return vq_fail(err, VQ_ERR_NOMEM, "%s: no memory to write it", path);
    }

    struct stat st;
    const bool exists = !stat(w->path, &st);
    w->direct = exists && !S_ISREG(st.st_mode);
    if (w->direct) {
        w->fd = open(w->path, O_WRONLY | O_CLOEXEC); /* a directory fails here */
    } else {
        unlink(w->temp); /* left by a killed process that had this process's number */
        w->fd = open(w->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (w->fd >= 0 && exists)
            (void)!fchmod(w->fd, st.st_mode & 0777); /* a file that only its owner may read stays so */
    }
    if (w->fd < 0) {
        const vq_status status = vq_fail(err, VQ_ERR_IO, "%s: cannot write: %m", path);
        writer_free(w);
        return status;
    }
    *out = w;
    return VQ_OK;
}

static vq_status write_all(vq_file_writer *w, const unsigned char *bytes, size_t n_bytes, vq_error *err)
{
    while (n_bytes) {
        const ssize_t n = write(w->fd, bytes, n_bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            w->failed = true;
            return vq_fail(err, VQ_ERR_IO, "%s: cannot write %zu bytes: %m", w->path, n_bytes);
        }
        bytes += n;
        n_bytes -= (size_t)n;
    }
    return VQ_OK;
}

static vq_status flush(vq_file_writer *w, vq_error *err)
{
    const size_t n = w->n_held;
    w->n_held = 0;
    return write_all(w, w->held, n, err);
}

vq_status vq_file_writer_write(vq_file_writer *w, const void *bytes, size_t n_bytes, vq_error *err)
{
    w->n_written += n_bytes;
    if (n_bytes > BUFFER_BYTES - w->n_held) {
        VQ_TRY(flush(w, err));
        if (n_bytes >= BUFFER_BYTES)
            return write_all(w, bytes, n_bytes, err);
    }
    if (n_bytes)
        memcpy(w->held + w->n_held, bytes, n_bytes);
    w->n_held += n_bytes;
    return VQ_OK;
}

vq_status vq_file_writer_patch(vq_file_writer *w, uint64_t at, const void *bytes, size_t n_bytes, vq_error *err)
{
    VQ_TRY(flush(w, err));
    for (size_t done = 0; done < n_bytes;) {
        const ssize_t n = pwrite(w->fd, (const char *)bytes + done, n_bytes - done, (off_t)(at + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            w->failed = true;
            return vq_fail(err, VQ_ERR_IO, "%s: cannot write %zu bytes at %llu: %m", w->path, n_bytes,
                           (unsigned long long)at);
        }
        done += (size_t)n;
    }
    return VQ_OK;
}

uint64_t vq_file_writer_offset(const vq_file_writer *w) { return w->n_written; }

/* The name itself must reach the disk too. Best effort: some file systems refuse to sync a folder. */
static void sync_folder(char *path)
{
    const int fd = open(dirname(path), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
}

vq_status vq_file_writer_commit(vq_file_writer *w, vq_error *err)
{
    vq_status status = w->failed ? vq_fail(err, VQ_ERR_IO, "%s: an earlier write failed", w->path) : flush(w, err);
    if (status == VQ_OK && !w->direct && fsync(w->fd))
        status = vq_fail(err, VQ_ERR_IO, "%s: cannot sync: %m", w->path);
    if (close(w->fd) && status == VQ_OK)
        status = vq_fail(err, VQ_ERR_IO, "%s: cannot close: %m", w->path);
    if (!w->direct) {
        if (status == VQ_OK && rename(w->temp, w->path))
            status = vq_fail(err, VQ_ERR_IO, "%s: cannot rename its finished copy into place: %m", w->path);
        if (status != VQ_OK)
            unlink(w->temp);
        else
            sync_folder(w->temp);
    }
    writer_free(w);
    return status;
}

void vq_file_writer_abort(vq_file_writer *w)
{
    if (!w)
        return;
    close(w->fd);
    if (!w->direct)
        unlink(w->temp);
    writer_free(w);
}

void vq_file_writer_freeze(vq_file_writer *w)
{
    struct stat st;
    if (!w->direct && !fstat(w->fd, &st))
        (void)!fchmod(w->fd, st.st_mode & 0777 & ~0222u); /* where that is refused, readers copy */
}
