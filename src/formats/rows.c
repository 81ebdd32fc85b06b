#include "formats/rows.h"

#include "formats/gguf_object.h"

bool vq_gguf_rows_in_order(const vq_gguf *g, uint64_t index) { return !g->halves || !g->halves[index]; }

/* Where `halves` says so, each head holds the first of every RoPE pair in its upper half and the second in its lower
 * one (Hugging Face's llama); here pairs are neighbours: rows 0, d/2, 1, d/2 + 1, .. of each head of d. */
const void *vq_gguf_raw_row(const vq_gguf *g, uint64_t index, uint64_t row)
{
    const vq_tensor *t = &g->tensors[index];
    const uint32_t d = g->halves ? g->halves[index] : 0;
    if (d)
        row = row / d * d + row % d / 2 + row % 2 * (d / 2);
    return (const char *)t->data + row * vq_type_row_bytes(t->type, t->dims[0]);
}
