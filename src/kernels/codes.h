/* Kernels of the packed codecs: rotation, encoding, tiles of unpacked codes, scores and weighted sums over them.
 *
 * All of them give the same bits on every tier: dot products are sums of integers, and the floating-point steps around
 * them are single multiplications and additions in a fixed order.
 *
 * Codes of a granule (32 rows) are stored in groups of 8 neighbouring dimensions, each of 32 * bits bytes.  The 256
 * codes of a group form four registers of 64 codes, in the order in which products over quads read them:
 *
 *     keys     register 2a + h, byte i:  row 16h + i/4,          dimension 4a + i%4      (products over dimensions)
 *     values   register s, byte i:       row 8s + 4(i/32) + i%4, dimension (i%32)/4      (products over rows)
 *
 * and are cut into planes, the lowest bits first:
 *
 *     nibbles  (bits & 4)   128 bytes    register s in byte 64(s/2) + i, bits 4(s%2) ..
 *     crumbs   (bits & 2)    64 bytes    register s in byte i, bits 2s ..
 *     bits     (bits & 1)    32 bytes    register s in byte i%32, bit s + 4(i/32)
 *     8 bits                256 bytes    register s in byte 64s + i
 *
 * A tile is a page's codes after a table look-up, in a shape that byte products read from start to end:
 *
 *     keys     [n_groups * 2 quads of dimensions][64 rows][4 dimensions] unsigned bytes
 *     values   [16 quads of rows][n_lanes dimensions][4 rows] signed bytes */
#ifndef VQ_KERNELS_CODES_H
#define VQ_KERNELS_CODES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
    VQ_CODES_ROWS = 64,    /* of a tile */
    VQ_CODES_GRANULE = 32, /* rows that are encoded together */
    VQ_CODES_GROUP = 8,    /* dimensions of a group */
    VQ_CODES_FUSED = 8,    /* most rows of b in one go without a tile */
};

/* Bytes of one group of one granule. */
static inline size_t vq_codes_group_bytes(uint32_t bits) { return (size_t)32 * bits; }

/* Dimensions that a tile of values has: d rounded up to whole vectors of lanes. */
static inline uint32_t vq_codes_lanes(uint32_t d) { return (d + 15) / 16 * 16; }

/* Floats above 0 in a byte, 5 bits of exponent and 3 of mantissa, from 2^-16 to 1.875 * 2^15. */
enum { VQ_BYTE_FLOAT_SHIFT = 20, VQ_BYTE_FLOAT_LEAST = (127 - 16) << 3 };

static inline float vq_byte_float(uint8_t code)
{
    const uint32_t bits = ((uint32_t)code + VQ_BYTE_FLOAT_LEAST) << VQ_BYTE_FLOAT_SHIFT;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Levels v[code] * step, code being the number of bounds below a value.  Without bounds and v they are those of a
 * uniform grid: 2 ceil(value) - 1, held within +-n_bounds. */
typedef struct vq_codes_levels {
    const float *bounds; /* [n_bounds], ascending */
    const int32_t *v;    /* [n_bounds + 1] */
    float step;
    uint32_t n_bounds; /* 2^bits - 1; with bounds at most 15 */
} vq_codes_levels;

typedef struct vq_codes_kernels {
    /* In place: x = H x / sqrt(n), H the Sylvester-Hadamard matrix, n a power of two. */
    void (*hadamard)(float *x, uint32_t n);
    /* Blocks of n values, n a multiple of 8: out[i] = sum over j of by[i][j] x[j], j ascending, of x [m][n] and by
     * [m][m], which is read as [j][i] if `turned`; out is not x. */
    void (*mix_blocks)(float *out, const float *x, const float *by, uint32_t m, uint32_t n, bool turned);
    /* x[i] = -x[i] where bit i is set */
    void (*flip)(float *x, const uint8_t *sign_bits, uint32_t n);
    /* sum of squares, in 16 interleaved parts: part p takes p, p + 16, ..; then halves are added */
    float (*sum_squares)(const float *x, uint32_t n);
    /* sum of x[i] y[i], in the same order */
    float (*dot)(const float *x, const float *y, uint32_t n);
    /* largest |x[i]| that is a number, 0 for none */
    float (*largest)(const float *x, uint32_t n);
    /* codes[i] = number of bounds below x[i] * inv; n_bounds = 2^bits - 1, bounds ascend */
    void (*count)(uint8_t *codes, const float *x, float inv, const float *bounds, uint32_t n_bounds, uint32_t n);

    /* The same with the sums that a gain is made of: returns sum of x[i] l[i], and *squares = sum of l[i]^2, of the
     * levels l[i] = v[codes[i]], in the order of sum_squares. */
    float (*count_fit)(uint8_t *codes, float *squares, const float *x, float inv, const float *bounds, const int32_t *v,
                       uint32_t n_bounds, uint32_t n);
    /* How well the points of a uniform grid fit, at n_scales spacings: with l[i] = 2 ceil(x[i] inv[s]) - 1, held within
     * +-(2^bits - 1), cosines[s] = sum of x l / sqrt(sum of l l), both in the order of sum_squares. */
    void (*fit_grid)(float *cosines, const float *inv, uint32_t n_scales, const float *x, uint32_t bits, uint32_t n);
    /* How well levels fit y at n_scales spacings: with l[i] the level of z[i] inv[s] times scale[i], parts[s] += the
     * sums of y l and of l l, part p taking p, p + 16, .. of both. */
    void (*fit_levels)(float (*parts)[2][16], const float *inv, uint32_t n_scales, const float *z, const float *y,
                       const float *scale, const vq_codes_levels *levels, uint32_t n);
    /* out [n] = the sums of sixteen parts each, halves added as in sum_squares */
    void (*sum_parts)(float *out, const float (*parts)[16], uint32_t n);
    /* y [n][width] = rows x [n][d] times entries [d][width] times scale [width]; width is a multiple of 8.  Sums go
     * over d in ascending order. */
    void (*project)(float *y, const float *x, const int8_t *entries, const float *scale, uint32_t d, uint32_t width,
                    uint32_t n);
    /* x[i] -= v[codes[i]] * scale */
    void (*subtract)(float *x, const uint8_t *codes, const int32_t *v, float scale, uint32_t n);

    /* codes [32][row_stride] -> the n_groups groups of one granule */
    void (*pack_keys)(uint8_t *packed, const uint8_t *codes, size_t row_stride, uint32_t bits, uint32_t n_groups);
    void (*pack_values)(uint8_t *packed, const uint8_t *codes, size_t row_stride, uint32_t bits, uint32_t n_groups);
    /* n_granules (1 or 2) granules of n_groups groups, one after the other -> a tile; table [256], or NULL for 8-bit
     * codes that stay what they are.  What will be read next lies `ahead` bytes after what is read now, for tiers that
     * fetch it meanwhile; 0: not known. */
    void (*unpack_keys)(uint8_t *tile, const uint8_t *packed, uint32_t bits, const uint8_t *table, uint32_t n_groups,
                        uint32_t n_granules, ptrdiff_t ahead);
    /* n_lanes = vq_codes_lanes(8 * n_groups); lanes past the groups hold anything */
    void (*unpack_values)(int8_t *tile, const uint8_t *packed, uint32_t bits, const int8_t *table, uint32_t n_groups,
                          uint32_t n_granules, ptrdiff_t ahead);

    /* out[i][lane] = sum over quads and the 4 bytes of each: tile[quad][lane][..] * b[i][4 quad + ..], exactly.
     * n_lanes is a multiple of 16; quads of the tile are tile_stride bytes apart; b rows b_stride bytes; out rows
     * out_stride integers.  us: |b| <= 127 where tile <= 127, |b| <= 64 otherwise.  su: b <= 255 where
     * |tile| <= 64, b <= 127 otherwise.  (AVX2 adds two products in 16 bits.) */
    void (*dots_us)(int32_t *out, size_t out_stride, const uint8_t *tile, size_t tile_stride, uint32_t n_lanes,
                    uint32_t n_quads, const int8_t *b, size_t b_stride, uint32_t n);
    void (*dots_su)(int32_t *out, size_t out_stride, const int8_t *tile, size_t tile_stride, uint32_t n_lanes,
                    uint32_t n_quads, const uint8_t *b, size_t b_stride, uint32_t n);

    /* Both steps in one, for few rows (n <= VQ_CODES_FUSED): what dots_us and dots_su give on the tiles that
     * unpack_keys and unpack_values make of the same codes, with no tile in between.  b has 8 * n_groups bytes a row
     * for keys and 32
     * * n_granules for values.  Keys: out [n][64], 32 * n_granules lanes of each row.  Values: 8 * n_groups lanes. */
    void (*dots_keys)(int32_t *out, const uint8_t *packed, uint32_t bits, const uint8_t *table, uint32_t n_groups,
                      uint32_t n_granules, const int8_t *b, size_t b_stride, uint32_t n, ptrdiff_t ahead);
    void (*dots_values)(int32_t *out, size_t out_stride, const uint8_t *packed, uint32_t bits, const int8_t *table,
                        uint32_t n_groups, uint32_t n_granules, const uint8_t *b, size_t b_stride, uint32_t n,
                        ptrdiff_t ahead);

    /* out[i] = table[low nibble of byte i], out[n_bytes + i] = table[high nibble]; table [16] */
    void (*nibbles)(uint8_t *out, const uint8_t *packed, const uint8_t *table, uint32_t n_bytes);
    /* out[i] = bytes[i] * scale */
    void (*scale_bytes)(float *out, const uint8_t *bytes, float scale, uint32_t n);
    /* out[i] = (float)(times * bytes[i] - minus) * scale */
    void (*centre_bytes)(float *out, const uint8_t *bytes, int32_t times, int32_t minus, float scale, uint32_t n);
    /* x[i] *= vq_byte_float(by[i]) */
    void (*times_byte_floats)(float *x, const uint8_t *by, uint32_t n);
    /* sum of u[i] * q[i] over n values, a multiple of 8; |q| <= 127 where u <= 127 */
    int32_t (*dot_us)(const uint8_t *u, const int8_t *q, uint32_t n);
    /* sum of u[i] * (128 high[i] + low[i]), n a multiple of 8; |high|, |low| <= 64, u <= 127 */
    int32_t (*dot_wide)(const uint8_t *u, const int8_t *high, const int8_t *low, uint32_t n);

    /* out[i] = (float)(2 dots[i] - centre) * scale * norms[i] + base */
    void (*scores)(float *out, const int32_t *dots, int32_t centre, float scale, const float *norms, float base,
                   uint32_t n);
    /* Four sums of products of two-byte levels and 14-bit integers as one, exact in 64 bits and rounded once:
     * out[i] = (float)(2 (128 (256 hh[i] + hl[i]) + 256 lh[i] + ll[i]) + plus); hh, hl, lh, ll are `stride` apart */
    void (*join_wide)(float *out, const int32_t *dots, size_t stride, int64_t plus, uint32_t n);
    /* acc[i] += (float)(2 dots[i] + sum) * scale */
    void (*add_scaled)(float *acc, const int32_t *dots, int32_t sum, float scale, uint32_t n);
    /* Weights times norms as bytes: out [64], most 255 (narrow) or two times 7 bits (wide: out [2][64], high first).
     * *sum is the sum of what they stand for.  Returns the unit; 0 when all products vanish.  Narrow bytes carry the
     * rounding error on to the row 16 below, starting from a dither, so that many small weights keep their total. */
    float (*weigh_narrow)(uint8_t *out, int32_t *sum, const float *weights, const float *norms);
    float (*weigh_wide)(uint8_t *out, int32_t *sum, const float *weights, const float *norms);
    void (*f16_to_f32)(float *out, const uint16_t *x, uint32_t n);
    /* round(x * inv), within +-127 */
    void (*round_signed)(int8_t *out, const float *x, float inv, uint32_t n);
    /* round((x - zero) * inv), within 0..most, each value with its own zero and inv */
    void (*round_affine)(uint8_t *out, const float *x, const float *zero, const float *inv, uint32_t most, uint32_t n);
    /* x -> integers round(x / unit) and their sum; returns the unit, 0 when x vanishes.  Narrow: bytes, |.| <= 127.
     * Wide: 14 bits in two halves [2][stride], high first, 128 high + low, |high| <= 64, -64 <= low <= 63. */
    float (*quantise_narrow)(int8_t *out, int32_t *sum, const float *x, uint32_t n);
    float (*quantise_wide)(int8_t *out, size_t stride, int32_t *sum, const float *x, uint32_t n);
} vq_codes_kernels;

/* One row's codes from place to place: row i of dst becomes row j of src, both below 64 and each in two granules that
 * follow one another; the other rows of dst stay.  dst may be src. */
void vq_codes_copy_row(uint8_t *dst, uint32_t i, const uint8_t *src, uint32_t j, uint32_t bits, uint32_t n_groups,
                       bool keys);

void vq_codes_kernels_init(vq_codes_kernels *k, uint32_t cpu);

#endif
