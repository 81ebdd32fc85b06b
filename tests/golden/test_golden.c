/* SmolLM2 and Gemma 3 on two texts: exact mode against the NumPy reference, int8 mode against exact mode.  Skipped
 * without the models (tools/fetch-models). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "golden/golden.h"
#include "support/files.h"

static const double MOST_DIFFERENCE = 1e-3, MOST_KL = 0.004;
enum { MOST_TOKENS = 256 };

static const struct {
    const char *file, *texts[2];
} cases[] = {
    {SMOLLM2, {"smollm2-alice29", "smollm2-lcet10"}},
    {GEMMA3, {"gemma3-alice29", "gemma3-lcet10"}},
};

/* The ids of a text: tests/golden/TEXT.ids. Returns how many. */
static uint32_t read_ids(const char *text, int32_t *ids)
{
    char name[128];
    snprintf(name, sizeof name, "tests/golden/%s.ids", text);
    FILE *f = fopen(source_path(name), "r");
    uint32_t n = 0;
    while (f && n < MOST_TOKENS && fscanf(f, "%d", &ids[n]) == 1)
        n++;
    if (f)
        fclose(f);
    return n;
}

/* Returns whether all is well.  The KL is that of all ids: over 64 tokens of SmolLM2 it varies by 10 % with the order
 * of additions in other steps. */
static bool check_text(const vq_model *model, const char *text, vq_pool *pool)
{
    golden g = golden_load(text);
    int32_t ids[MOST_TOKENS];
    const uint32_t n_vocab = vq_model_get_info(model)->n_vocab, n = read_ids(text, ids);
    if (n < g.n || memcmp(ids, g.ids, g.n * sizeof *ids) != 0) {
        printf("%s.ids and .golden don't belong together\n", text);
        return false;
    }
    float *exact = golden_logits(&(golden_run){.model = model, .exact = true, .cache = "f32", .pool = pool}, ids, n);
    float *int8 = golden_logits(&(golden_run){.model = model, .cache = "f32", .pool = pool}, ids, n);
    const double difference = golden_difference(&g, exact, n_vocab), kl = golden_mean_kl(exact, int8, n, n_vocab);
    printf("%-16s exact mode: largest difference %.3g (below %g); int8 mode: mean KL %.5f (below %g)\n", text,
           difference, MOST_DIFFERENCE, kl, MOST_KL);
    fflush(stdout);
    free(exact);
    free(int8);
    golden_free(&g);
    return difference < MOST_DIFFERENCE && kl >= 0 && kl < MOST_KL;
}

int main(void)
{
    bool good = true;
    int n_run = 0;
    vq_pool *pool;
    if (vq_pool_open(&pool, 0, NULL) != VQ_OK)
        return 1;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *path = model_path(cases[i].file);
        if (!path) {
            printf("SKIP %s is not there\n", cases[i].file);
            continue;
        }
        vq_model *model;
        vq_error err;
        if (vq_model_open(&model, path, &err) != VQ_OK) {
            printf("%s\n", err.text);
            return 1;
        }
        for (int t = 0; t < 2; t++, n_run++)
            good = check_text(model, cases[i].texts[t], pool) && good;
        vq_model_close(model);
    }
    vq_pool_close(pool);
    return !good ? 1 : n_run == 0 ? TEST_SKIPPED : 0;
}
