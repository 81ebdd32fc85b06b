/* Every block type against what the format says: blocks packed here from chosen scales and codes, by the position of
 * each bit; and arbitrary bytes against checksums of what the Python package `gguf` 0.19 makes of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/half.h"
#include "formats/blocks.h"
#include "veloxquant/gguf.h"

static void layout(void **state)
{
    (void)state;
    static const struct {
        vq_type type;
        const char *name;
        uint32_t block_len, block_bytes;
    } rows[] = {
        {VQ_TYPE_F32, "F32", 1, 4},       {VQ_TYPE_F16, "F16", 1, 2},       {VQ_TYPE_BF16, "BF16", 1, 2},
        {VQ_TYPE_Q4_0, "Q4_0", 32, 18},   {VQ_TYPE_Q4_1, "Q4_1", 32, 20},   {VQ_TYPE_Q5_0, "Q5_0", 32, 22},
        {VQ_TYPE_Q5_1, "Q5_1", 32, 24},   {VQ_TYPE_Q8_0, "Q8_0", 32, 34},   {VQ_TYPE_IQ4_NL, "IQ4_NL", 32, 18},
        {VQ_TYPE_Q2_K, "Q2_K", 256, 84},  {VQ_TYPE_Q3_K, "Q3_K", 256, 110}, {VQ_TYPE_Q4_K, "Q4_K", 256, 144},
        {VQ_TYPE_Q5_K, "Q5_K", 256, 176}, {VQ_TYPE_Q6_K, "Q6_K", 256, 210},
    };
    const unsigned n = sizeof rows / sizeof *rows;
    unsigned n_known = 0;
    for (unsigned i = 0; i < n; i++) {
        assert_string_equal(vq_type_name(rows[i].type), rows[i].name);
        assert_int_equal(vq_type_block_len(rows[i].type), rows[i].block_len);
        assert_int_equal(vq_type_block_bytes(rows[i].type), rows[i].block_bytes);
        assert_int_equal(vq_type_row_bytes(rows[i].type, 512), 512 / rows[i].block_len * rows[i].block_bytes);
    }
    for (uint32_t type = 0; type < 2000; type++)
        n_known += vq_type_known(type);
    assert_int_equal(n_known, n);
    assert_false(vq_type_known(4) || vq_type_known(5) || vq_type_known(VQ_N_TYPES) || vq_type_known(UINT32_MAX));
    assert_string_equal(vq_type_name((vq_type)999), "?");
    assert_int_equal(vq_type_row_bytes((vq_type)4, 512), 0);
    assert_int_equal(vq_type_row_bytes((vq_type)999, 512), 0);
    assert_string_equal(vq_type_name((vq_type)23), "IQ4_XS"); /* not read, but named in the message */
}

/* Sets `n` bits of a byte array from bit position `at` on; the arrays start as zeros. */
static void set_bits(uint8_t *bytes, unsigned at, unsigned n, unsigned value)
{
    for (unsigned i = 0; i < n; i++)
        bytes[(at + i) / 8] |= (uint8_t)((value >> i & 1) << (at + i) % 8);
}

static void check(vq_type type, const void *block, const float *want, uint64_t n)
{
    float got[512];
    vq_type_dequantize(type, block, got, n);
    for (uint64_t i = 0; i < n; i++)
        if (memcmp(&got[i], &want[i], sizeof *want))
            fail_msg("%s value %u is %a, want %a", vq_type_name(type), (unsigned)i, (double)got[i], (double)want[i]);
}

static const uint16_t half_one = 0x3c00, half_quarter = 0x3400, half_minus_three = 0xc200;

static void plain_types(void **state)
{
    (void)state;
    const float f32[3] = {1.5f, -0.0f, 3e38f};
    check(VQ_TYPE_F32, f32, f32, 3);
    check(VQ_TYPE_F16, (uint16_t[]){0x3c00, 0x8000, 0x0001, 0x7bff}, (float[]){1, -0.0f, 0x1p-24f, 65504}, 4);
    check(VQ_TYPE_BF16, (uint16_t[]){0x3f80, 0x8000, 0x0001, 0x7f7f}, (float[]){1, -0.0f, 0x1p-133f, 0x1.fep127f}, 4);
}

static void four_bits(void **state)
{
    (void)state;
    static const int values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    vq_block_q4_0 q4_0 = {.d = half_quarter};
    vq_block_q4_1 q4_1 = {.d = half_quarter, .m = half_minus_three};
    vq_block_iq4_nl iq4 = {.d = half_minus_three};
    float want_0[32], want_1[32], want_nl[32];
    for (unsigned i = 0; i < 32; i++) {
        const unsigned code = (7 * i + 3) % 16, at = 8 * (i % 16) + 4 * (i / 16);
        set_bits(q4_0.qs, at, 4, code);
        set_bits(q4_1.qs, at, 4, code);
        set_bits(iq4.qs, at, 4, code);
        want_0[i] = 0.25f * ((int)code - 8);
        want_1[i] = 0.25f * code - 3;
        want_nl[i] = -3.f * values[code];
    }
    check(VQ_TYPE_Q4_0, &q4_0, want_0, 32);
    check(VQ_TYPE_Q4_1, &q4_1, want_1, 32);
    check(VQ_TYPE_IQ4_NL, &iq4, want_nl, 32);
    /* The bytes themselves: codes 3 and 10 + 7 * 16 (mod 16) of the first and seventeenth value share byte 0. */
    assert_int_equal(q4_0.qs[0], 0x33);
    assert_int_equal(q4_0.qs[1], 0xaa);
}

static void five_and_eight_bits(void **state)
{
    (void)state;
    vq_block_q5_0 q5_0 = {.d = half_quarter};
    vq_block_q5_1 q5_1 = {.d = half_quarter, .m = half_minus_three};
    vq_block_q8_0 q8_0[2] = {{.d = half_quarter}, {.d = half_minus_three}};
    float want_0[32], want_1[32], want_8[64];
    for (unsigned i = 0; i < 32; i++) {
        const unsigned code = (11 * i + 5) % 32, at = 8 * (i % 16) + 4 * (i / 16);
        set_bits(q5_0.qs, at, 4, code & 15);
        set_bits(q5_0.qh, i, 1, code >> 4);
        set_bits(q5_1.qs, at, 4, code & 15);
        set_bits(q5_1.qh, i, 1, code >> 4);
        want_0[i] = 0.25f * ((int)code - 16);
        want_1[i] = 0.25f * code - 3;
        const int wide = (int)(i * 37 % 256) - 128;
        q8_0[0].qs[i] = (int8_t)wide;
        q8_0[1].qs[i] = (int8_t) - (wide + 1);
        want_8[i] = 0.25f * wide;
        want_8[32 + i] = 3.f * (wide + 1);
        if (wide == -1)
            want_8[32 + i] = -0.0f; /* 0 times a negative scale */
    }
    check(VQ_TYPE_Q5_0, &q5_0, want_0, 32);
    check(VQ_TYPE_Q5_1, &q5_1, want_1, 32);
    check(VQ_TYPE_Q8_0, q8_0, want_8, 64);
}

/* Where a 2-bit code of value i lies in the 64 bytes of q2_k and q3_k. */
static unsigned two_bits_at(unsigned i) { return 8 * (32 * (i / 128) + i % 32) + 2 * (i % 128 / 32); }

static void q2_k(void **state)
{
    (void)state;
    vq_block_q2_k b = {.d = half_quarter, .m = half_one};
    float want[256];
    for (unsigned i = 0; i < 256; i++) {
        const unsigned scale = (5 * (i / 16) + 1) % 16, minimum = (3 * (i / 16) + 2) % 16, code = (i * i / 3 + i) % 4;
        b.scales[i / 16] = (uint8_t)(scale | minimum << 4);
        set_bits(b.qs, two_bits_at(i), 2, code);
        want[i] = 0.25f * scale * code - minimum;
    }
    check(VQ_TYPE_Q2_K, &b, want, 256);
}

static void q3_k(void **state)
{
    (void)state;
    vq_block_q3_k b = {.d = half_quarter};
    float want[256];
    for (unsigned g = 0; g < 16; g++) {
        const unsigned scale = (g * 19 + 40) % 64; /* none is 32: a scale of zero would make zeros of both signs */
        assert_int_not_equal(scale, 32);
        set_bits(b.scales, 8 * (g % 8) + 4 * (g / 8), 4, scale & 15);
        set_bits(b.scales, 8 * (8 + g % 4) + 2 * (g / 4), 2, scale >> 4);
        for (unsigned i = 16 * g; i < 16 * (g + 1); i++) {
            const unsigned code = (i * i / 5 + i) % 8;
            set_bits(b.qs, two_bits_at(i), 2, code & 3);
            set_bits(b.hmask, 8 * (i % 32) + i / 32, 1, code >> 2);
            want[i] = 0.25f * ((int)scale - 32) * ((int)code - 4);
        }
    }
    check(VQ_TYPE_Q3_K, &b, want, 256);
}

/* The 12 bytes of q4_k and q5_k: six bits each, those of groups 4 .. 7 in two places. */
static void pack_k4_scales(uint8_t *bytes, const unsigned *scale, const unsigned *minimum)
{
    for (unsigned g = 0; g < 4; g++) {
        set_bits(bytes, 8 * g, 6, scale[g]);
        set_bits(bytes, 8 * g + 6, 2, scale[g + 4] >> 4);
        set_bits(bytes, 8 * (g + 4), 6, minimum[g]);
        set_bits(bytes, 8 * (g + 4) + 6, 2, minimum[g + 4] >> 4);
        set_bits(bytes, 8 * (g + 8), 4, scale[g + 4] & 15);
        set_bits(bytes, 8 * (g + 8) + 4, 4, minimum[g + 4] & 15);
    }
}

static void q4_k_and_q5_k(void **state)
{
    (void)state;
    static const unsigned scale[8] = {1, 2, 63, 33, 17, 34, 51, 62}, minimum[8] = {4, 63, 6, 32, 18, 33, 50, 61};
    vq_block_q4_k b4 = {.d = half_quarter, .m = half_one};
    vq_block_q5_k b5 = {.d = half_quarter, .m = half_one};
    float want_4[256], want_5[256];
    pack_k4_scales(b4.scales, scale, minimum);
    pack_k4_scales(b5.scales, scale, minimum);
    for (unsigned i = 0; i < 256; i++) {
        const unsigned code = (i * i / 7 + i) % 32, g = i / 32, at = 8 * (32 * (i / 64) + i % 32) + 4 * (g % 2);
        set_bits(b4.qs, at, 4, code & 15);
        set_bits(b5.qs, at, 4, code & 15);
        set_bits(b5.qh, 8 * (i % 32) + g, 1, code >> 4);
        want_4[i] = 0.25f * scale[g] * (code & 15) - minimum[g];
        want_5[i] = 0.25f * scale[g] * code - minimum[g];
    }
    check(VQ_TYPE_Q4_K, &b4, want_4, 256);
    check(VQ_TYPE_Q5_K, &b5, want_5, 256);
}

static void q6_k(void **state)
{
    (void)state;
    vq_block_q6_k b = {.d = half_quarter};
    float want[256];
    for (unsigned i = 0; i < 256; i++) {
        const int scale = (int)(i / 16 * 17) - 128, code = (int)((i * i / 7 + 3 * i) % 64);
        const unsigned half = i / 128, quarter = i % 128 / 32, column = i % 32;
        b.scales[i / 16] = (int8_t)scale;
        set_bits(b.ql, 8 * (64 * half + 32 * (quarter % 2) + column) + 4 * (quarter / 2), 4, (unsigned)code & 15);
        set_bits(b.qh, 8 * (32 * half + column) + 2 * quarter, 2, (unsigned)code >> 4);
        want[i] = 0.25f * (float)scale * (float)(code - 32);
    }
    check(VQ_TYPE_Q6_K, &b, want, 256);
}

static void agrees_with_another_reader(void **state)
{
    (void)state;
    /* Bytes from a linear congruential generator seeded by the type; the f16 fields at `half` are set to finite values.
     * The checksum is FNV-1a over the bytes of the f32 results. */
    static const struct {
        vq_type type;
        unsigned n_blocks;
        int half[2];
        unsigned n_values;
        uint64_t checksum;
        double first, last;
    } rows[] = {
        {VQ_TYPE_F16, 64, {-1, -1}, 64, 0xe1bce83cdda88df7, -0x1.028p-4, 0x1.248p-5},
        {VQ_TYPE_BF16, 64, {-1, -1}, 64, 0xe3260809cb71d16f, 0x1.58p-18, -0x1.aap-125},
        {VQ_TYPE_Q4_0, 3, {0, -1}, 96, 0xbaf98ed5bd9f3f8a, -0x1.332p-1, 0x1.a7p-1},
        {VQ_TYPE_Q4_1, 3, {0, 2}, 96, 0x6ff58aba5f32600b, 0x1.332p-2, 0x1.83cp+1},
        {VQ_TYPE_Q5_0, 3, {0, -1}, 96, 0x27d5d6304e4b9877, -0x1.4cb8p+0, 0x1.1ap+0},
        {VQ_TYPE_Q5_1, 3, {0, 2}, 96, 0x25de7f5ad99dfd99, 0x1.b318p+0, 0x1.a7p+1},
        {VQ_TYPE_Q8_0, 3, {0, -1}, 96, 0xe76e30f6eb05d6d4, 0x1.f314p+1, -0x1.dbep+3},
        {VQ_TYPE_Q2_K, 3, {80, 82}, 768, 0x6a5775af0024111d, 0x1.731cp+1, 0x1.83cp+3},
        {VQ_TYPE_Q3_K, 3, {108, -1}, 768, 0x73cc369af4315af9, 0x1.8cb4p+1, -0x1.83cp+3},
        {VQ_TYPE_Q4_K, 3, {0, 2}, 768, 0xa9ff1c6c8579b654, 0x1.1988p+4, 0x1.2eeep+6},
        {VQ_TYPE_Q5_K, 3, {0, 2}, 768, 0x104cdf1532f6978f, 0x1.ee478p+6, 0x1.1ap+1},
        {VQ_TYPE_Q6_K, 3, {208, -1}, 768, 0xf3c877cbc92ab8f8, -0x1.afe5p+3, -0x1.a7p+4},
        {VQ_TYPE_IQ4_NL, 3, {0, -1}, 96, 0x4b706e51c57f5240, -0x1.4cb8p+3, -0x1.ca4p+4},
    };
    for (unsigned r = 0; r < sizeof rows / sizeof *rows; r++) {
        _Alignas(8) uint8_t raw[1024];
        float out[1024];
        const uint32_t each = vq_type_block_bytes(rows[r].type);
        uint32_t x = (uint32_t)rows[r].type * 2654435761u + 12345;
        for (unsigned i = 0; i < rows[r].n_blocks * each; i++) {
            x = x * 1664525u + 1013904223u;
            raw[i] = (uint8_t)(x >> 24);
            if (vq_type_block_len(rows[r].type) == 1 && i % 2)
                raw[i] &= 0xbf; /* no NaN, no infinity */
        }
        for (unsigned b = 0; b < rows[r].n_blocks; b++) {
            for (unsigned k = 0; k < 2 && rows[r].half[k] >= 0; k++) {
                const uint16_t h = (uint16_t)(0x2e66 + 0x301 * b + 0x8000 * k);
                memcpy(raw + b * each + rows[r].half[k], &h, sizeof h);
            }
        }
        vq_type_dequantize(rows[r].type, raw, out, rows[r].n_values);

        uint64_t checksum = 0xcbf29ce484222325;
        const uint8_t *bytes = (const uint8_t *)out;
        for (size_t i = 0; i < rows[r].n_values * sizeof *out; i++)
            checksum = (checksum ^ bytes[i]) * 0x100000001b3;
        print_message("%s: %a .. %a\n", vq_type_name(rows[r].type), (double)out[0], (double)out[rows[r].n_values - 1]);
        assert_true((double)out[0] == rows[r].first && (double)out[rows[r].n_values - 1] == rows[r].last);
        assert_int_equal(checksum, rows[r].checksum);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layout),
        cmocka_unit_test(plain_types),
        cmocka_unit_test(four_bits),
        cmocka_unit_test(five_and_eight_bits),
        cmocka_unit_test(q2_k),
        cmocka_unit_test(q3_k),
        cmocka_unit_test(q4_k_and_q5_k),
        cmocka_unit_test(q6_k),
        cmocka_unit_test(agrees_with_another_reader),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
