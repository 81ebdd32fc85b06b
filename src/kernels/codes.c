/* The packed codecs' kernels: arithmetic definitions.  Planes and tiles are in codes_tile.c. */
#include "kernels/codes.h"

#include <math.h>
#include <string.h>

#include "base/cpu.h"
#include "base/half.h"
#include "kernels/codes_inner.h"
#include "kernels/codes_sum.h"

void vq_codes_hadamard_c(float *x, uint32_t n)
{
    for (uint32_t h = 1; h < n; h *= 2)
        for (uint32_t i = 0; i < n; i += 2 * h)
            for (uint32_t j = i; j < i + h; j++) {
                const float a = x[j], b = x[j + h];
                x[j] = a + b;
                x[j + h] = a - b;
            }
    const float s = 1 / sqrtf((float)n);
    for (uint32_t i = 0; i < n; i++)
        x[i] *= s;
}

static void mix_blocks_c(float *out, const float *x, const float *by, uint32_t m, uint32_t n, bool turned)
{
    for (uint32_t i = 0; i < m; i++, out += n) {
        memset(out, 0, n * sizeof *out);
        for (uint32_t j = 0; j < m; j++) {
            const float c = turned ? by[(size_t)j * m + i] : by[(size_t)i * m + j];
            for (uint32_t t = 0; t < n; t++)
                out[t] += c * x[(size_t)j * n + t];
        }
    }
}

static void flip_c(float *x, const uint8_t *sign_bits, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (sign_bits[i / 8] >> (i % 8) & 1)
            x[i] = -x[i];
}

static float largest_c(const float *x, uint32_t n)
{
    float most = 0;
    for (uint32_t i = 0; i < n; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    return most;
}

static float sum_squares_c(const float *x, uint32_t n)
{
    float part[VQ_SUM_PARTS] = {0};
    for (uint32_t i = 0; i < n; i++)
        part[i % VQ_SUM_PARTS] += x[i] * x[i];
    return vq_sum_parts(part);
}

static float dot_c(const float *x, const float *y, uint32_t n)
{
    float part[VQ_SUM_PARTS] = {0};
    for (uint32_t i = 0; i < n; i++)
        part[i % VQ_SUM_PARTS] += x[i] * y[i];
    return vq_sum_parts(part);
}

void vq_codes_count_c(uint8_t *codes, const float *x, float inv, const float *bounds, uint32_t n_bounds, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const float u = x[i] * inv;
        uint32_t low = 0, high = n_bounds; /* bounds below low are exceeded, from high on not */
        while (low < high) {
            const uint32_t mid = (low + high) / 2;
            if (u > bounds[mid])
                low = mid + 1;
            else
                high = mid;
        }
        codes[i] = (uint8_t)low;
    }
}

static float count_fit_c(uint8_t *codes, float *squares, const float *x, float inv, const float *bounds,
                         const int32_t *v, uint32_t n_bounds, uint32_t n)
{
    float dot[VQ_SUM_PARTS] = {0}, square[VQ_SUM_PARTS] = {0};
    vq_codes_count_c(codes, x, inv, bounds, n_bounds, n);
    for (uint32_t i = 0; i < n; i++) {
        const float level = (float)v[codes[i]];
        dot[i % VQ_SUM_PARTS] += x[i] * level;
        square[i % VQ_SUM_PARTS] += level * level;
    }
    *squares = vq_sum_parts(square);
    return vq_sum_parts(dot);
}

static void fit_grid_c(float *cosines, const float *inv, uint32_t n_scales, const float *x, uint32_t bits, uint32_t n)
{
    const float most = (float)(1u << (bits - 1)), least = 1 - most;
    for (uint32_t s = 0; s < n_scales; s++) {
        float dot[VQ_SUM_PARTS] = {0}, square[VQ_SUM_PARTS] = {0};
        for (uint32_t i = 0; i < n; i++) {
            const float up = ceilf(x[i] * inv[s]), above = up > least ? up : least;
            const float level = 2 * (above < most ? above : most) - 1;
            dot[i % VQ_SUM_PARTS] += x[i] * level;
            square[i % VQ_SUM_PARTS] += level * level;
        }
        cosines[s] = vq_sum_parts(dot) / sqrtf(vq_sum_parts(square));
    }
}

static float level_of(const vq_codes_levels *l, float x)
{
    uint8_t code;
    if (l->bounds) {
        vq_codes_count_c(&code, &x, 1, l->bounds, l->n_bounds, 1);
        return (float)l->v[code] * l->step;
    }
    const float most = (float)((l->n_bounds + 1) / 2), least = 1 - most;
    const float up = ceilf(x), above = up > least ? up : least;
    return (2 * (above < most ? above : most) - 1) * l->step;
}

static void fit_levels_c(float (*parts)[2][16], const float *inv, uint32_t n_scales, const float *z, const float *y,
                         const float *scale, const vq_codes_levels *levels, uint32_t n)
{
    for (uint32_t s = 0; s < n_scales; s++)
        for (uint32_t i = 0; i < n; i++) {
            const float l = level_of(levels, z[i] * inv[s]) * scale[i];
            parts[s][0][i % 16] += y[i] * l;
            parts[s][1][i % 16] += l * l;
        }
}

static void sum_parts_c(float *out, const float (*parts)[16], uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        float own[VQ_SUM_PARTS];
        memcpy(own, parts[i], sizeof own);
        out[i] = vq_sum_parts(own);
    }
}

static void project_c(float *y, const float *x, const int8_t *entries, const float *scale, uint32_t d, uint32_t width,
                      uint32_t n)
{
    for (uint32_t r = 0; r < n; r++, x += d, y += width) {
        memset(y, 0, width * sizeof *y);
        for (uint32_t i = 0; i < d; i++)
            for (uint32_t j = 0; j < width; j++)
                y[j] += x[i] * (float)entries[(size_t)i * width + j];
        for (uint32_t j = 0; j < width; j++)
            y[j] *= scale[j];
    }
}

static void subtract_c(float *x, const uint8_t *codes, const int32_t *v, float scale, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] -= (float)v[codes[i]] * scale;
}

/* Halves to even; the comparison first, since a conversion of what does not fit is undefined. */
static int32_t round_within(float x, float least, float most)
{
    return (int32_t)rintf(x < least ? least : x > most ? most : x);
}

static void dots_us_c(int32_t *out, size_t out_stride, const uint8_t *tile, size_t tile_stride, uint32_t n_lanes,
                      uint32_t n_quads, const int8_t *b, size_t b_stride, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        int32_t *o = out + i * out_stride;
        memset(o, 0, n_lanes * sizeof *o);
        for (uint32_t q = 0; q < n_quads; q++) {
            const uint8_t *t = tile + q * tile_stride;
            const int8_t *c = b + i * b_stride + (size_t)4 * q;
            for (uint32_t lane = 0; lane < n_lanes; lane++, t += 4)
                o[lane] += t[0] * c[0] + t[1] * c[1] + t[2] * c[2] + t[3] * c[3];
        }
    }
}

static void dots_su_c(int32_t *out, size_t out_stride, const int8_t *tile, size_t tile_stride, uint32_t n_lanes,
                      uint32_t n_quads, const uint8_t *b, size_t b_stride, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        int32_t *o = out + i * out_stride;
        memset(o, 0, n_lanes * sizeof *o);
        for (uint32_t q = 0; q < n_quads; q++) {
            const int8_t *t = tile + q * tile_stride;
            const uint8_t *c = b + i * b_stride + (size_t)4 * q;
            for (uint32_t lane = 0; lane < n_lanes; lane++, t += 4)
                o[lane] += t[0] * c[0] + t[1] * c[1] + t[2] * c[2] + t[3] * c[3];
        }
    }
}

static void nibbles_c(uint8_t *out, const uint8_t *packed, const uint8_t *table, uint32_t n_bytes)
{
    for (uint32_t i = 0; i < n_bytes; i++) {
        out[i] = table[packed[i] & 15];
        out[n_bytes + i] = table[packed[i] >> 4];
    }
}

static void scale_bytes_c(float *out, const uint8_t *bytes, float scale, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = (float)bytes[i] * scale;
}

static void centre_bytes_c(float *out, const uint8_t *bytes, int32_t times, int32_t minus, float scale, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = (float)(times * bytes[i] - minus) * scale;
}

static void times_byte_floats_c(float *x, const uint8_t *by, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] *= vq_byte_float(by[i]);
}

static int32_t dot_us_c(const uint8_t *u, const int8_t *q, uint32_t n)
{
    int32_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += u[i] * q[i];
    return sum;
}

static int32_t dot_wide_c(const uint8_t *u, const int8_t *high, const int8_t *low, uint32_t n)
{
    int32_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += u[i] * (128 * high[i] + low[i]);
    return sum;
}

static void scores_c(float *out, const int32_t *dots, int32_t centre, float scale, const float *norms, float base,
                     uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = (float)(2 * dots[i] - centre) * scale * norms[i] + base;
}

static void join_wide_c(float *out, const int32_t *dots, size_t stride, int64_t plus, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const int64_t high = 256 * (int64_t)dots[i] + dots[stride + i];
        const int64_t low = 256 * (int64_t)dots[2 * stride + i] + dots[3 * stride + i];
        out[i] = (float)(2 * (128 * high + low) + plus);
    }
}

static void add_scaled_c(float *acc, const int32_t *dots, int32_t sum, float scale, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        acc[i] += (float)(2 * dots[i] + sum) * scale;
}

/* Products, and the largest of them. */
static float products(float *p, const float *weights, const float *norms)
{
    float most = 0;
    for (uint32_t i = 0; i < VQ_CODES_ROWS; i++) {
        p[i] = weights[i] * norms[i];
        most = p[i] > most ? p[i] : most;
    }
    return most;
}

static float weigh_narrow_c(uint8_t *out, int32_t *sum, const float *weights, const float *norms)
{
    float p[VQ_CODES_ROWS], carry[16];
    const float most = products(p, weights, norms);
    *sum = 0;
    if (!(most >= VQ_CODES_SMALLEST)) {
        memset(out, 0, VQ_CODES_ROWS);
        return 0;
    }
    const float inv = 254 / most; /* and a carry of at most 1/2: no byte passes 255 */
    memcpy(carry, vq_codes_dither, sizeof carry);
    for (uint32_t i = 0; i < VQ_CODES_ROWS; i++) {
        const float x = p[i] * inv + carry[i % 16];
        const int32_t r = (int32_t)rintf(x);
        carry[i % 16] = x - (float)r;
        out[i] = (uint8_t)r;
        *sum += r;
    }
    return most / 254;
}

static float weigh_wide_c(uint8_t *out, int32_t *sum, const float *weights, const float *norms)
{
    float p[VQ_CODES_ROWS];
    const float most = products(p, weights, norms);
    *sum = 0;
    if (!(most >= VQ_CODES_SMALLEST)) {
        memset(out, 0, 2 * VQ_CODES_ROWS);
        return 0;
    }
    const float inv = 16383 / most;
    for (uint32_t i = 0; i < VQ_CODES_ROWS; i++) {
        const int32_t r = round_within(p[i] * inv, 0, 16383);
        out[i] = (uint8_t)(r >> 7);
        out[VQ_CODES_ROWS + i] = (uint8_t)(r & 127);
        *sum += r;
    }
    return most / 16383;
}

static void f16_to_f32_c(float *out, const uint16_t *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = vq_f32_from_f16(x[i]);
}

static void round_signed_c(int8_t *out, const float *x, float inv, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = (int8_t)round_within(x[i] * inv, -127, 127);
}

static void round_affine_c(uint8_t *out, const float *x, const float *zero, const float *inv, uint32_t most, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = (uint8_t)round_within((x[i] - zero[i]) * inv[i], 0, (float)most);
}

static float quantise_narrow_c(int8_t *out, int32_t *sum, const float *x, uint32_t n)
{
    const float most = largest_c(x, n);
    const float inv = most >= VQ_CODES_SMALLEST ? 127 / most : 0;
    *sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        const int32_t r = round_within(x[i] * inv, -127, 127);
        out[i] = (int8_t)r;
        *sum += r;
    }
    return inv > 0 ? most / 127 : 0;
}

static float quantise_wide_c(int8_t *out, size_t stride, int32_t *sum, const float *x, uint32_t n)
{
    const float most = largest_c(x, n);
    const float inv = most >= VQ_CODES_SMALLEST ? 8191 / most : 0;
    *sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        const int32_t r = round_within(x[i] * inv, -8191, 8191);
        const int32_t high = (r + 64) >> 7;
        out[i] = (int8_t)high;
        out[stride + i] = (int8_t)(r - 128 * high);
        *sum += r;
    }
    return inv > 0 ? most / 8191 : 0;
}

void vq_codes_kernels_init(vq_codes_kernels *k, uint32_t cpu)
{
    *k = (vq_codes_kernels){
        .hadamard = vq_codes_hadamard_c,
        .mix_blocks = mix_blocks_c,
        .flip = flip_c,
        .sum_squares = sum_squares_c,
        .dot = dot_c,
        .largest = largest_c,
        .count = vq_codes_count_c,
        .count_fit = count_fit_c,
        .fit_grid = fit_grid_c,
        .fit_levels = fit_levels_c,
        .sum_parts = sum_parts_c,
        .project = project_c,
        .subtract = subtract_c,
        .pack_keys = vq_codes_pack_keys_c,
        .pack_values = vq_codes_pack_values_c,
        .unpack_keys = vq_codes_unpack_keys_c,
        .unpack_values = vq_codes_unpack_values_c,
        .dots_us = dots_us_c,
        .dots_su = dots_su_c,
        .dots_keys = vq_codes_dots_keys_c,
        .dots_values = vq_codes_dots_values_c,
        .nibbles = nibbles_c,
        .scale_bytes = scale_bytes_c,
        .centre_bytes = centre_bytes_c,
        .times_byte_floats = times_byte_floats_c,
        .dot_us = dot_us_c,
        .dot_wide = dot_wide_c,
        .scores = scores_c,
        .join_wide = join_wide_c,
        .add_scaled = add_scaled_c,
        .weigh_narrow = weigh_narrow_c,
        .weigh_wide = weigh_wide_c,
        .f16_to_f32 = f16_to_f32_c,
        .round_signed = round_signed_c,
        .round_affine = round_affine_c,
        .quantise_narrow = quantise_narrow_c,
        .quantise_wide = quantise_wide_c,
    };
#if defined(__x86_64__)
    if (cpu & VQ_CPU_AVX2)
        vq_codes_kernels_init_avx2(k);
    if (cpu & VQ_CPU_AVX512)
        vq_codes_kernels_init_avx512(k);
#else
    (void)cpu;
#endif
}
