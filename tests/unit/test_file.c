/* Maps, and writes that leave a whole file or none. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "../support/temporary.h"
#include "base/file.h"

static char folder[TEMPORARY_PATH], path[128], temp[160];

static int make_folder(void **state)
{
    (void)state;
    temporary_folder(folder, "file");
    snprintf(path, sizeof path, "%s/out", folder);
    snprintf(temp, sizeof temp, "%s.tmp-%ld", path, (long)getpid());
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    return remove_temporary_folder(folder);
}

static void put(const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void check_content(const void *want, size_t n)
{
    vq_file_map map;
    assert_int_equal(vq_file_map_open(&map, path, NULL), VQ_OK);
    assert_int_equal(map.n_bytes, n);
    assert_memory_equal(map.bytes, want, n);
    vq_file_map_close(&map);
}

static void check_gone(const char *name)
{
    assert_int_equal(access(name, F_OK), -1);
    assert_int_equal(errno, ENOENT);
}

static void check_map_error(const char *name, const char *word)
{
    vq_file_map map = {.bytes = (const uint8_t *)"", .n_bytes = 1};
    vq_error err;
    assert_int_equal(vq_file_map_open(&map, name, &err), VQ_ERR_IO);
    assert_null(map.bytes);
    assert_non_null(strstr(err.text, name));
    assert_non_null(strstr(err.text, word));
}

static void maps(void **state)
{
    (void)state;
    put("hello");
    check_content("hello", 5);
    put("");
    vq_file_map map;
    assert_int_equal(vq_file_map_open(&map, path, NULL), VQ_OK);
    assert_null(map.bytes);
    assert_int_equal(map.n_bytes, 0);
    vq_file_map_close(&map);
    vq_file_map_close(&map);
    vq_file_map_close(NULL);

    unlink(path);
    check_map_error(path, "No such file");
    check_map_error(folder, "directory");
    check_map_error("/dev/null", "not a regular file");
    assert_int_equal(mkfifo(path, 0600), 0);
    check_map_error(path, "not a regular file"); /* and does not wait for a writer */
}

static void commit_replaces(void **state)
{
    (void)state;
    /* Small and large writes, over and at the size of the buffer. */
    static const size_t sizes[] = {1, 0, 100, (1 << 18) - 101, 1, 1 << 18, 3, 600000, 17};
    static uint8_t all[2000000];
    for (size_t i = 0; i < sizeof all; i++)
        all[i] = (uint8_t)(i * 2654435761u >> 13);

    put("old");
    assert_int_equal(chmod(path, 0640), 0);
    vq_file_writer *w;
    assert_int_equal(vq_file_writer_open(&w, path, NULL), VQ_OK);
    size_t n = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; n += sizes[i++])
        assert_int_equal(vq_file_writer_write(w, all + n, sizes[i], NULL), VQ_OK);
    check_content("old", 3); /* until commit */
    assert_int_equal(access(temp, F_OK), 0);
    assert_int_equal(vq_file_writer_commit(w, NULL), VQ_OK);
    check_content(all, n);
    check_gone(temp);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0640); /* not opened up */
}

static void abort_leaves_nothing(void **state)
{
    (void)state;
    vq_file_writer *w;
    assert_int_equal(vq_file_writer_open(&w, path, NULL), VQ_OK);
    assert_int_equal(vq_file_writer_write(w, "abc", 3, NULL), VQ_OK);
    vq_file_writer_abort(w);
    check_gone(path);
    check_gone(temp);

    put("old");
    assert_int_equal(vq_file_writer_open(&w, path, NULL), VQ_OK);
    vq_file_writer_abort(w);
    check_content("old", 3);
    vq_file_writer_abort(NULL);
}

static void stale_temporary_file_is_replaced(void **state)
{
    (void)state;
    FILE *f = fopen(temp, "w");
    fputs("left by a killed process", f);
    fclose(f);
    vq_file_writer *w;
    assert_int_equal(vq_file_writer_open(&w, path, NULL), VQ_OK);
    assert_int_equal(vq_file_writer_write(w, "new", 3, NULL), VQ_OK);
    assert_int_equal(vq_file_writer_commit(w, NULL), VQ_OK);
    check_content("new", 3);
}

static void links_survive(void **state)
{
    (void)state;
    char link[160];
    snprintf(link, sizeof link, "%s/link", folder);
    put("old");
    assert_int_equal(symlink("out", link), 0);
    vq_file_writer *w;
    assert_int_equal(vq_file_writer_open(&w, link, NULL), VQ_OK);
    assert_int_equal(vq_file_writer_write(w, "new", 3, NULL), VQ_OK);
    assert_int_equal(vq_file_writer_commit(w, NULL), VQ_OK);
    check_content("new", 3);
    struct stat st;
    assert_int_equal(lstat(link, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
}

/* A full disk: /dev/full accepts an open and refuses every write. */
static void full_disk_is_an_error(void **state)
{
    (void)state;
    vq_file_writer *w;
    vq_error err;
    assert_int_equal(vq_file_writer_open(&w, "/dev/full", NULL), VQ_OK);
    assert_int_equal(vq_file_writer_write(w, "abc", 3, NULL), VQ_OK); /* held */
    assert_int_equal(vq_file_writer_commit(w, &err), VQ_ERR_IO);
    assert_non_null(strstr(err.text, "/dev/full"));
    assert_non_null(strstr(err.text, "No space left"));
    struct stat st;
    assert_int_equal(stat("/dev/full", &st), 0);
    assert_true(S_ISCHR(st.st_mode)); /* and it is still a device */

    static uint8_t large[1 << 20];
    assert_int_equal(vq_file_writer_open(&w, "/dev/full", NULL), VQ_OK);
    assert_int_equal(vq_file_writer_write(w, large, sizeof large, &err), VQ_ERR_IO);
    vq_file_writer_abort(w);
}

/* Half of the file arrives, then no more: the old file stays and no temporary one. */
static void size_limit_leaves_the_old_file(void **state)
{
    (void)state;
    static uint8_t large[1 << 20];
    struct rlimit before, limit;
    vq_file_writer *w;
    vq_error err;
    put("old");
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = (struct rlimit){.rlim_cur = 1 << 19, .rlim_max = before.rlim_max};
    assert_int_equal(vq_file_writer_open(&w, path, NULL), VQ_OK);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_equal(vq_file_writer_write(w, large, 1000, NULL), VQ_OK);
    assert_int_equal(vq_file_writer_write(w, large, sizeof large, &err), VQ_ERR_IO);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_non_null(strstr(err.text, path));
    /* A caller that goes on to commit all the same must not get a file with a hole. */
    assert_int_equal(vq_file_writer_commit(w, &err), VQ_ERR_IO);
    check_content("old", 3);
    check_gone(temp);
}

static void check_open_error(const char *name, const char *word)
{
    vq_file_writer *w = (vq_file_writer *)folder;
    vq_error err;
    assert_int_equal(vq_file_writer_open(&w, name, &err), VQ_ERR_IO);
    assert_null(w);
    assert_non_null(strstr(err.text, name));
    assert_non_null(strstr(err.text, word));
}

static void unwritable_places(void **state)
{
    (void)state;
    char name[200];
    snprintf(name, sizeof name, "%s/no/such", folder);
    check_open_error(name, "No such file");
    check_open_error(folder, "directory");
    if (geteuid()) { /* root may write anywhere */
        chmod(folder, 0500);
        check_open_error(path, "Permission denied");
        chmod(folder, 0700);
    } else {
        check_open_error("/proc/vq-out", "");
    }
}

/* The target turns into a folder while it is written: rename fails. */
static void failed_rename_is_an_error(void **state)
{
    (void)state;
    vq_file_writer *w;
    vq_error err;
    assert_int_equal(vq_file_writer_open(&w, path, NULL), VQ_OK);
    assert_int_equal(vq_file_writer_write(w, "abc", 3, NULL), VQ_OK);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(vq_file_writer_commit(w, &err), VQ_ERR_IO);
    assert_non_null(strstr(err.text, path));
    check_gone(temp);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(maps),
        TEST(commit_replaces),
        TEST(abort_leaves_nothing),
        TEST(stale_temporary_file_is_replaced),
        TEST(links_survive),
        TEST(full_disk_is_an_error),
        TEST(size_limit_leaves_the_old_file),
        TEST(unwritable_places),
        TEST(failed_rename_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
