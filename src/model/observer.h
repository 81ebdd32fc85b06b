/* What a forward pass shows to whoever asks: rows of q, k and v, and the inputs of the weight matrices.  Statistics for
 * calibration and for quantising weights are collected from it.
 *
 * Callbacks run on the thread that runs the pass, once a layer and chunk, in the order in which rows are computed; what
 * they are given is valid during the call.  With an observer every layer computes every row, also where nobody asks for
 * its logits. */
#ifndef VQ_MODEL_OBSERVER_H
#define VQ_MODEL_OBSERVER_H

#include <stdint.h>

typedef enum vq_rows_kind {
    VQ_ROWS_Q_BEFORE_ROPE, /* [n][n_heads][d_k], norms and biases applied */
    VQ_ROWS_K_BEFORE_ROPE, /* [n][n_kv_heads][d_k] */
    VQ_ROWS_Q,             /* turned to their positions */
    VQ_ROWS_K,
    VQ_ROWS_V, /* [n][n_kv_heads][d_v] */
} vq_rows_kind;

typedef enum vq_input_kind {
    VQ_INPUT_QKV,     /* [n][n_embd]: of q, k and v */
    VQ_INPUT_O,       /* [n][n_heads d_v] */
    VQ_INPUT_GATE_UP, /* [n][n_embd]: of gate and up */
    VQ_INPUT_DOWN,    /* [n][n_ff] */
    VQ_INPUT_OUTPUT,  /* [n][n_embd]: of the output head, for the rows whose logits are computed; layer = n_layers */
} vq_input_kind;

typedef struct vq_observer {
    void *arg; /* of all callbacks, each of which may be NULL */
    /* Row i of x [n][n_heads][d] stands at position pos + i. */
    void (*rows)(void *arg, uint32_t layer, vq_rows_kind kind, const float *x, uint32_t n_heads, uint32_t d,
                 uint32_t pos, uint32_t n);
    void (*input)(void *arg, uint32_t layer, vq_input_kind kind, const float *x, uint32_t width, uint32_t n);
} vq_observer;

#endif
