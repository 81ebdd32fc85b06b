#include "quant/turned.h"

#include <math.h>

/* Radians a position.  A pair that turns less moves by a quarter of this times 32 about the middle, at most, which
 * leaves less than a fiftieth of its energy to the rows. */
static const double LEAST_TURN = 0.015;

enum { QUERIES_AT_ONCE = 6 };

static uint32_t count_pairs(const vq_kv_rope *rope)
{
    uint32_t n = 0;
    while (rope && n < rope->n_rot / 2 && rope->freq[n] >= LEAST_TURN)
        n++;
    return n;
}

void vq_turned_layout(vq_turned *t, vq_arena *arena, uint32_t d, const vq_kv_rope *rope)
{
    *t = (vq_turned){.shape = {.d = d,
                               .n_pairs = count_pairs(rope),
                               .apart = rope && rope->halves ? rope->n_rot / 2 : 1,
                               .halves = rope && rope->halves}};
    t->half_step = vq_arena_take(arena, t->shape.n_pairs, sizeof *t->half_step);
}

void vq_turned_fill(vq_turned *t, const vq_kernels *k, const vq_kv_rope *rope)
{
    t->k = &k->turned;
    for (uint32_t f = 0; f < t->shape.n_pairs; f++)
        t->half_step[f] = (float)sin(0.5 * remainder(rope->freq[f], 2 * M_PI));
}

/* To the nearest integer, ties to even, as rintf, which is a call where vectors could be. */
static int8_t nearest(float x) { return (int8_t)((x + 0x1.8p23F) - 0x1.8p23F); }

void vq_turned_open(const vq_turned *t, vq_turned_steps *table)
{
    for (uint32_t f = 0; f < t->shape.n_pairs; f++) {
        float c[VQ_TURNED_HALF], s[VQ_TURNED_HALF];
        s[0] = t->half_step[f];
        c[0] = sqrtf(1 - s[0] * s[0]);
        float step_c = c[0] * c[0] - s[0] * s[0], step_s = 2 * c[0] * s[0];
        for (uint32_t n = 1; n < VQ_TURNED_HALF; n *= 2) { /* n of them, turned by n positions, are the next n */
            for (uint32_t m = 0; m < n; m++) {
                c[n + m] = c[m] * step_c - s[m] * step_s;
                s[n + m] = s[m] * step_c + c[m] * step_s;
            }
            const float twice = 2 * step_c * step_s;
            step_c = step_c * step_c - step_s * step_s;
            step_s = twice;
        }
        for (uint32_t m = 0; m < VQ_TURNED_HALF; m++) {
            table[f][0][m] = nearest(127 * c[m]);
            table[f][1][m] = nearest(127 * s[m]);
        }
    }
}

size_t vq_turned_bytes(const vq_turned *t) { return t->shape.n_pairs * sizeof *t->half_step; }

static uint32_t first_of(const vq_turned *t, uint32_t pair) { return t->shape.halves ? pair : 2 * pair; }

bool vq_turned_pair(const vq_turned *t, uint32_t j, uint32_t *other)
{
    const uint32_t pair = t->shape.halves ? j % t->shape.apart : j / 2;
    if (pair >= t->shape.n_pairs || (t->shape.halves && j >= 2 * t->shape.apart))
        return false;
    const uint32_t a = first_of(t, pair);
    *other = j == a ? a + t->shape.apart : a;
    return true;
}

/* The channels that do not turn: [from, to) of part 0 and 1. */
typedef struct range {
    uint32_t from, to;
} range;

static range still_part(const vq_turned *t, uint32_t part)
{
    if (!t->shape.halves)
        return part ? (range){t->shape.d, t->shape.d} : (range){2 * t->shape.n_pairs, t->shape.d};
    return part ? (range){t->shape.apart + t->shape.n_pairs, t->shape.d} : (range){t->shape.n_pairs, t->shape.apart};
}

typedef struct turn {
    float cosine, sine;
} turn;

/* Of row i of a granule. */
static turn turn_of(const vq_turned_steps *steps, uint32_t i)
{
    const bool after = i >= VQ_TURNED_HALF;
    const uint32_t m = after ? i - VQ_TURNED_HALF : VQ_TURNED_HALF - 1 - i;
    const float sine = (float)(*steps)[1][m] * (1.0F / 127);
    return (turn){(float)(*steps)[0][m] * (1.0F / 127), after ? sine : -sine};
}

void vq_turned_back(const vq_turned *t, const float *x, float *sum)
{
    vq_turned_steps table[VQ_TURNED_PAIRS];
    vq_turned_open(t, table);
    for (uint32_t i = 0; i < VQ_TURNED_ROWS; i++, x += t->shape.d) {
        for (uint32_t f = 0; f < t->shape.n_pairs; f++) {
            const uint32_t a = first_of(t, f), b = a + t->shape.apart;
            const turn r = turn_of(&table[f], i);
            sum[a] += r.cosine * x[a] + r.sine * x[b];
            sum[b] += r.cosine * x[b] - r.sine * x[a];
        }
        for (uint32_t part = 0; part < 2; part++)
            for (uint32_t j = still_part(t, part).from; j < still_part(t, part).to; j++)
                sum[j] += x[j];
    }
}

void vq_turned_add(const vq_turned *t, uint32_t first, uint32_t n_rows, float sign, const float *n, float *x)
{
    vq_turned_steps table[VQ_TURNED_PAIRS];
    vq_turned_open(t, table);
    for (uint32_t i = first; i < first + n_rows; i++, x += t->shape.d) {
        for (uint32_t f = 0; f < t->shape.n_pairs; f++) {
            const uint32_t a = first_of(t, f), b = a + t->shape.apart;
            const turn r = turn_of(&table[f], i);
            x[a] += sign * (r.cosine * n[a] - r.sine * n[b]);
            x[b] += sign * (r.sine * n[a] + r.cosine * n[b]);
        }
        for (uint32_t part = 0; part < 2; part++)
            for (uint32_t j = still_part(t, part).from; j < still_part(t, part).to; j++)
                x[j] += sign * n[j];
    }
}

void vq_turned_scores(const vq_turned *t, const vq_turned_steps *table, const float *n, uint32_t n_granules,
                      const float *q, size_t stride, uint32_t n_queries, float *out)
{
    float pairs[2 * QUERIES_AT_ONCE][VQ_TURNED_PAIRS], still[2 * QUERIES_AT_ONCE];
    for (uint32_t now; n_queries > 0; n_queries -= now, q += now * stride, out += (size_t)now * 2 * VQ_TURNED_ROWS) {
        now = n_queries < QUERIES_AT_ONCE ? n_queries : QUERIES_AT_ONCE;
        for (uint32_t i = 0; i < now; i++)
            for (uint32_t g = 0; g < n_granules; g++)
                still[i * n_granules + g] = t->k->products(pairs[i * n_granules + g], &t->shape, q + i * stride,
                                                           n + (size_t)g * VQ_TURNED_MAX_D);
        t->k->scores(out, (size_t)VQ_TURNED_ROWS * (3 - n_granules), &t->shape, pairs[0], still, now * n_granules,
                     table);
    }
}
