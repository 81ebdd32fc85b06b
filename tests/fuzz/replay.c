/* Feeds every file of a corpus to a fuzz target, without libFuzzer: part of every test run, with any compiler.
 *
 *     replay_NAME FOLDER...     fails when it finds no file */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static int visible(const struct dirent *entry) { return entry->d_name[0] != '.'; }

static int feed(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END)) {
        perror(path);
        return -1;
    }
    const long n = ftell(f);
    rewind(f);
    uint8_t *bytes = n >= 0 ? malloc((size_t)n + 1) : NULL;
    if (!bytes || fread(bytes, 1, (size_t)n, f) != (size_t)n) {
        perror(path);
        return -1;
    }
    fclose(f);

    /* A block of the exact size, so that sanitizers see a read behind its end. */
    uint8_t *exact = n ? realloc(bytes, (size_t)n) : bytes;
    LLVMFuzzerTestOneInput(exact ? exact : bytes, (size_t)n);
    free(exact ? exact : bytes);
    return 0;
}

int main(int argc, char **argv)
{
    unsigned n_fed = 0;
    for (int i = 1; i < argc; i++) {
        struct dirent **entries;
        const int n = scandir(argv[i], &entries, visible, alphasort);
        if (n < 0) {
            perror(argv[i]);
            return 1;
        }
        for (int k = 0; k < n; k++) {
            char path[4096];
            snprintf(path, sizeof path, "%s/%s", argv[i], entries[k]->d_name);
            fprintf(stderr, "%s\n", path); /* the last line names the input that crashed */
            if (feed(path))
                return 1;
            n_fed++;
            free(entries[k]);
        }
        free(entries);
    }
    printf("%u inputs\n", n_fed);
    return n_fed ? 0 : 1;
}
