/* Files and folders that a test makes and removes, in $TMPDIR or where the system keeps such things. */
#ifndef TESTS_SUPPORT_TEMPORARY_H
#define TESTS_SUPPORT_TEMPORARY_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { TEMPORARY_PATH = 64 };

static inline void temporary_template(char path[TEMPORARY_PATH], const char *name)
{
    const char *folder = getenv("TMPDIR");
    const int n = snprintf(path, TEMPORARY_PATH, "%s/vq-%s-XXXXXX", folder ? folder : P_tmpdir, name);
    if (n < 0 || n >= TEMPORARY_PATH) {
        fprintf(stderr, "$TMPDIR: a path in it must be shorter than %d bytes\n", TEMPORARY_PATH);
        abort();
    }
}

/* An empty file. */
static inline void temporary_file(char path[TEMPORARY_PATH], const char *name)
{
    temporary_template(path, name);
    const int fd = mkstemp(path);
    if (fd < 0 || close(fd) != 0) {
        perror(path);
        abort();
    }
}

static inline void temporary_folder(char path[TEMPORARY_PATH], const char *name)
{
    temporary_template(path, name);
    if (!mkdtemp(path)) {
        perror(path);
        abort();
    }
}

/* With what is in it; 0 when that worked. */
static inline int remove_temporary_folder(const char *path)
{
    char command[TEMPORARY_PATH + 16];
    snprintf(command, sizeof command, "rm -r '%s'", path);
    return system(command);
}

#endif
