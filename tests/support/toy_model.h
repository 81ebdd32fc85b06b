/* Whole toy models in memory: a valid GGUF file of a chosen family and shape with random weights. */
#ifndef TESTS_SUPPORT_TOY_MODEL_H
#define TESTS_SUPPORT_TOY_MODEL_H

#include "support/gguf_writer.h"

typedef enum toy_family {
    TOY_LLAMA,   /* architecture "llama", byte-level BPE (smollm) */
    TOY_MISTRAL, /* architecture "llama", SentencePiece-style vocabulary, BOS */
    TOY_QWEN2,   /* biases on q, k, v; byte-level BPE (qwen2) */
    TOY_QWEN3,   /* norms on q and k; byte-level BPE (qwen2) */
    TOY_GEMMA3,  /* norms on q and k and after attention and ffn, sliding windows; SentencePiece, BOS */
    N_TOY_FAMILIES
} toy_family;

/* How RoPE is stretched, with the numbers of Llama 3.2: factor 32, low 1, high 4, original context 8192. */
typedef enum toy_rope { TOY_ROPE_PLAIN, TOY_ROPE_LINEAR, TOY_ROPE_LLAMA3_KEYS, TOY_ROPE_LLAMA3_TENSOR } toy_rope;

typedef struct toy_params {
    toy_family family;
    uint32_t n_layers, n_embd, n_ff, n_heads, n_kv_heads, head_dim, n_ctx;
    uint32_t n_vocab;   /* at least TOY_MIN_VOCAB */
    uint32_t value_dim; /* of a head; 0: head_dim */
    uint32_t window;    /* attention.sliding_window; 0: no such key */
    float rope_base;
    toy_rope rope;
    bool tied;                    /* no output.weight */
    vq_type type;                 /* of the matrices: F32, F16, BF16 or Q8_0 (dimensions then multiples of 32) */
    uint64_t seed;                /* of the weights */
    const char *chat_template;    /* NULL: none */
    void (*more)(gguf_writer *w); /* NULL, or adds keys and tensors */
} toy_params;

/* Ids 0 <unk>, 1 <s>, 2 </s>, then one token a byte, some merged pieces, and unused ones up to n_vocab. */
enum { TOY_MIN_VOCAB = 288, TOY_UNK = 0, TOY_BOS = 1, TOY_EOS = 2, TOY_FIRST_BYTE = 3 };

/* 2 layers, n_embd 32, n_ff 48, 4 heads, 2 kv heads, head_dim 8, n_ctx 128, window 16, f32, tied for gemma3 and qwen3.
 */
void toy_params_init(toy_params *p, toy_family family);
gguf_buffer toy_model_make(const toy_params *p);

const char *toy_family_name(toy_family family); /* "llama", "mistral", ... for messages */

#endif
