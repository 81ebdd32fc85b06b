/* What the makers of corpora share. */
#ifndef TESTS_FUZZ_CORPUS_H
#define TESTS_FUZZ_CORPUS_H

#include <stdint.h>
#include <stdio.h>

/* A file of the corpus; 0 when it was written. */
static inline int put(const char *folder, const char *name, const uint8_t *bytes, size_t n)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    const int fine = f && fwrite(bytes, 1, n, f) == n;
    if (f)
        fclose(f);
    return fine ? 0 : 1;
}

#endif
