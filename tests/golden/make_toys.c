/* make_toys FOLDER: writes the toy models and their token ids for tests/golden/make-golden. */
#include <stdio.h>
#include <stdlib.h>

#include "base/rng.h"
#include "golden/toys.h"

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    toy toys[N_TOYS];
    toys_make(toys);
    for (int i = 0; i < N_TOYS; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s.gguf", argv[1], toys[i].name);
        gguf_buffer b = toy_model_make(&toys[i].params);
        if (!gguf_buffer_save(b, path))
            return 1;
        free(b.bytes);
        snprintf(path, sizeof path, "%s/%s.ids", argv[1], toys[i].name);
        FILE *f = fopen(path, "w");
        if (!f)
            return 1;
        vq_rng rng;
        vq_rng_seed(&rng, toys[i].params.seed);
        for (int t = 0; t < TOY_TOKENS; t++)
            fprintf(f, "%u\n", (unsigned)(vq_rng_next(&rng) % toys[i].params.n_vocab));
        if (fclose(f) != 0)
            return 1;
    }
    return 0;
}
