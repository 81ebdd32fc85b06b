/* One row a tensor type. */
#include <assert.h>
#include <string.h>

#include "formats/blocks.h"
#include "veloxquant/gguf.h"

typedef struct type_row {
    const char *name;
    uint32_t block_len, block_bytes;
    vq_dequantize_fn
        dequantize; /* NULL: a type of the format that this library does not read; the name is for messages */
} type_row;

static const type_row types[VQ_N_TYPES] = {
    [VQ_TYPE_F32] = {"F32", 1, 4, vq_dequantize_f32},
    [VQ_TYPE_F16] = {"F16", 1, 2, vq_dequantize_f16},
    [VQ_TYPE_BF16] = {"BF16", 1, 2, vq_dequantize_bf16},
    [VQ_TYPE_Q4_0] = {"Q4_0", VQ_BLOCK, sizeof(vq_block_q4_0), vq_dequantize_q4_0},
    [VQ_TYPE_Q4_1] = {"Q4_1", VQ_BLOCK, sizeof(vq_block_q4_1), vq_dequantize_q4_1},
    [VQ_TYPE_Q5_0] = {"Q5_0", VQ_BLOCK, sizeof(vq_block_q5_0), vq_dequantize_q5_0},
    [VQ_TYPE_Q5_1] = {"Q5_1", VQ_BLOCK, sizeof(vq_block_q5_1), vq_dequantize_q5_1},
    [VQ_TYPE_Q8_0] = {"Q8_0", VQ_BLOCK, sizeof(vq_block_q8_0), vq_dequantize_q8_0},
    [VQ_TYPE_IQ4_NL] = {"IQ4_NL", VQ_BLOCK, sizeof(vq_block_iq4_nl), vq_dequantize_iq4_nl},
    [VQ_TYPE_Q2_K] = {"Q2_K", VQ_SUPER_BLOCK, sizeof(vq_block_q2_k), vq_dequantize_q2_k},
    [VQ_TYPE_Q3_K] = {"Q3_K", VQ_SUPER_BLOCK, sizeof(vq_block_q3_k), vq_dequantize_q3_k},
    [VQ_TYPE_Q4_K] = {"Q4_K", VQ_SUPER_BLOCK, sizeof(vq_block_q4_k), vq_dequantize_q4_k},
    [VQ_TYPE_Q5_K] = {"Q5_K", VQ_SUPER_BLOCK, sizeof(vq_block_q5_k), vq_dequantize_q5_k},
    [VQ_TYPE_Q6_K] = {"Q6_K", VQ_SUPER_BLOCK, sizeof(vq_block_q6_k), vq_dequantize_q6_k},
    [4] = {.name = "Q4_2, removed from the format"},
    [5] = {.name = "Q4_3, removed from the format"},
    [9] = {.name = "Q8_1"},
    [15] = {.name = "Q8_K"},
    [16] = {.name = "IQ2_XXS"},
    [17] = {.name = "IQ2_XS"},
    [18] = {.name = "IQ3_XXS"},
    [19] = {.name = "IQ1_S"},
    [21] = {.name = "IQ3_S"},
    [22] = {.name = "IQ2_S"},
    [23] = {.name = "IQ4_XS"},
    [24] = {.name = "I8"},
    [25] = {.name = "I16"},
    [26] = {.name = "I32"},
    [27] = {.name = "I64"},
    [28] = {.name = "F64"},
    [29] = {.name = "IQ1_M"},
    [31] = {.name = "Q4_0_4_4, removed from the format"},
    [32] = {.name = "Q4_0_4_8, removed from the format"},
    [33] = {.name = "Q4_0_8_8, removed from the format"},
    [34] = {.name = "TQ1_0"},
    [35] = {.name = "TQ2_0"},
    [36] = {.name = "IQ4_NL_4_4, removed from the format"},
    [37] = {.name = "IQ4_NL_4_8, removed from the format"},
    [38] = {.name = "IQ4_NL_8_8, removed from the format"},
    [39] = {.name = "MXFP4"},
    [VQ_TYPE_VQ2] = {.name = "VQ2"},
    [VQ_TYPE_VQ3] = {.name = "VQ3"},
    [VQ_TYPE_VQ4] = {.name = "VQ4"},
};

static const type_row *row(uint32_t type)
{
    static const type_row none = {.block_len = 1}; /* rows of no bytes, for numbers that are no type */
    return vq_type_known(type) ? &types[type] : &none;
}

uint32_t vq_type_packed_bits(vq_type type)
{
    return type >= VQ_TYPE_VQ2 && type <= VQ_TYPE_VQ4 ? (uint32_t)type - VQ_TYPE_VQ2 + 2 : 0;
}

vq_type vq_type_find(const char *name)
{
    for (uint32_t i = 0; i < VQ_N_TYPES; i++)
        if ((vq_type_known(i) || vq_type_packed_bits((vq_type)i)) && strcmp(types[i].name, name) == 0)
            return (vq_type)i;
    return VQ_N_TYPES;
}

const char *vq_type_name(vq_type type)
{
    const uint32_t i = type;
    return i < VQ_N_TYPES && types[i].name ? types[i].name : "?";
}

bool vq_type_known(uint32_t type) { return type < VQ_N_TYPES && types[type].dequantize; }

uint32_t vq_type_block_len(vq_type type) { return row(type)->block_len; }

uint32_t vq_type_block_bytes(vq_type type) { return row(type)->block_bytes; }

size_t vq_type_row_bytes(vq_type type, uint64_t n) { return n / row(type)->block_len * row(type)->block_bytes; }

void vq_type_dequantize(vq_type type, const void *src, float *out, uint64_t n)
{
    assert(vq_type_known(type) && n % row(type)->block_len == 0);
    if (vq_type_known(type))
        types[type].dequantize(src, out, n / types[type].block_len);
}
