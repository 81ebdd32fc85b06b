/* The toy models whose logits are checked against tests/golden/reference.py: one for each way in which families differ.
 */
#ifndef TESTS_GOLDEN_TOYS_H
#define TESTS_GOLDEN_TOYS_H

#include "support/toy_model.h"

typedef struct toy {
    const char *name; /* of its golden file */
    toy_params params;
} toy;

enum { N_TOYS = 8, TOY_TOKENS = 64 };

static inline void toys_make(toy toys[N_TOYS])
{
    static const struct {
        const char *name;
        toy_family family;
        toy_rope rope;
        uint32_t n_layers, head_dim, value_dim, window;
    } rows[N_TOYS] = {
        {"toy-llama", TOY_LLAMA, TOY_ROPE_PLAIN, 2, 8, 0, 0},
        {"toy-llama-linear", TOY_LLAMA, TOY_ROPE_LINEAR, 2, 16, 0, 0},
        {"toy-llama3-keys", TOY_LLAMA, TOY_ROPE_LLAMA3_KEYS, 2, 64, 0, 0},
        {"toy-llama3-tensor", TOY_LLAMA, TOY_ROPE_LLAMA3_TENSOR, 2, 64, 0, 0},
        {"toy-mistral", TOY_MISTRAL, TOY_ROPE_PLAIN, 3, 8, 0, 16},
        {"toy-qwen2", TOY_QWEN2, TOY_ROPE_PLAIN, 2, 8, 0, 0},
        {"toy-qwen3", TOY_QWEN3, TOY_ROPE_PLAIN, 2, 20, 0, 0},
        {"toy-gemma3", TOY_GEMMA3, TOY_ROPE_LINEAR, 8, 16, 12, 16}, /* layer 5 of 0..7 is global */
    };
    for (int i = 0; i < N_TOYS; i++) {
        toy_params *p = &toys[i].params;
        toys[i].name = rows[i].name;
        toy_params_init(p, rows[i].family);
        p->rope = rows[i].rope;
        p->n_layers = rows[i].n_layers;
        p->head_dim = rows[i].head_dim;
        p->value_dim = rows[i].value_dim;
        p->window = rows[i].window;
        p->rope_base = rows[i].family == TOY_GEMMA3 ? 1000000 : rows[i].head_dim == 64 ? 500000 : 10000;
        p->seed = 100 + (uint64_t)i;
    }
}

#endif
