/* Where tests find what lies in the source tree, and the real models, which don't. */
#ifndef TESTS_SUPPORT_FILES_H
#define TESTS_SUPPORT_FILES_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define SMOLLM2 "SmolLM2-135M-Instruct.Q4_1.gguf"
#define GEMMA3 "gemma-3-270m-q4_k_m.gguf"

enum { TEST_SKIPPED = 77 };

/* A path under the source root; points into static memory, until the next call. */
static inline const char *source_path(const char *name)
{
    static char path[4096];
    const char *root = getenv("VQ_SOURCE_ROOT");
    snprintf(path, sizeof path, "%s/%s", root ? root : ".", name);
    return path;
}

/* A real model in $VQ_MODELS or models/; NULL when it is not there. */
static inline const char *model_path(const char *name)
{
    static char path[4096];
    const char *folder = getenv("VQ_MODELS"), *root = getenv("VQ_SOURCE_ROOT");
    snprintf(path, sizeof path, "%s%s/%s", folder ? folder : root ? root : ".", folder ? "" : "/models", name);
    return access(path, R_OK) == 0 ? path : NULL;
}

#endif
