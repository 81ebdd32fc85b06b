#include "quant/turned.h"

#include <math.h>
#include <string.h>

/* Radians a position.  A pair that turns less moves by a quarter of this times 32 about the middle, at most, which
 * leaves less than a fiftieth of its energy to the rows. */
static const double LEAST_TURN = 0.015;

enum { QUERIES_AT_ONCE = 12, MOST_D = 512, OUT_STRIDE = 64 };

static uint32_t count_pairs(const vq_kv_rope *rope)
{
    uint32_t n = 0;
    while (rope && n < rope->n_rot / 2 && rope->freq[n] >= LEAST_TURN)
        n++;
    return n;
}

void vq_turned_layout(vq_turned *t, vq_arena *arena, uint32_t d, const vq_kv_rope *rope)
{
    *t = (vq_turned){.d = d,
                     .n_pairs = count_pairs(rope),
                     .apart = rope && rope->halves ? rope->n_rot / 2 : 1,
                     .halves = rope && rope->halves};
    t->table = vq_arena_take(arena, t->n_pairs, sizeof *t->table);
}

void vq_turned_fill(vq_turned *t, const vq_kernels *k, const vq_kv_rope *rope)
{
    t->k = &k->attention;
    for (uint32_t f = 0; f < t->n_pairs; f++)
        for (uint32_t m = 0; m < VQ_TURNED_HALF; m++) {
            const double angle = rope->freq[f] * (m + 0.5);
            t->table[f][0][m] = (int8_t)rint(127 * cos(angle));
            t->table[f][1][m] = (int8_t)rint(127 * sin(angle));
        }
}

size_t vq_turned_bytes(const vq_turned *t) { return t->n_pairs * sizeof *t->table; }

static uint32_t first_of(const vq_turned *t, uint32_t pair) { return t->halves ? pair : 2 * pair; }

bool vq_turned_pair(const vq_turned *t, uint32_t j, uint32_t *other)
{
    const uint32_t pair = t->halves ? j % t->apart : j / 2;
    if (pair >= t->n_pairs || (t->halves && j >= 2 * t->apart))
        return false;
    const uint32_t a = first_of(t, pair);
    *other = j == a ? a + t->apart : a;
    return true;
}

/* The channels that do not turn: [from, to) of part 0 and 1. */
typedef struct range {
    uint32_t from, to;
} range;

static range still_part(const vq_turned *t, uint32_t part)
{
    if (!t->halves)
        return part ? (range){t->d, t->d} : (range){2 * t->n_pairs, t->d};
    return part ? (range){t->apart + t->n_pairs, t->d} : (range){t->n_pairs, t->apart};
}

typedef struct turn {
    float cosine, sine;
} turn;

static turn turn_of(const vq_turned *t, uint32_t pair, uint32_t i)
{
    const bool after = i >= VQ_TURNED_HALF;
    const uint32_t m = after ? i - VQ_TURNED_HALF : VQ_TURNED_HALF - 1 - i;
    const float sine = (float)t->table[pair][1][m] * (1.0F / 127);
    return (turn){(float)t->table[pair][0][m] * (1.0F / 127), after ? sine : -sine};
}

void vq_turned_back(const vq_turned *t, uint32_t i, const float *x, float *sum)
{
    for (uint32_t f = 0; f < t->n_pairs; f++) {
        const uint32_t a = first_of(t, f), b = a + t->apart;
        const turn r = turn_of(t, f, i);
        sum[a] += r.cosine * x[a] + r.sine * x[b];
        sum[b] += r.cosine * x[b] - r.sine * x[a];
    }
    for (uint32_t part = 0; part < 2; part++)
        for (uint32_t j = still_part(t, part).from; j < still_part(t, part).to; j++)
            sum[j] += x[j];
}

void vq_turned_add(const vq_turned *t, uint32_t i, float sign, const float *n, float *x)
{
    for (uint32_t f = 0; f < t->n_pairs; f++) {
        const uint32_t a = first_of(t, f), b = a + t->apart;
        const turn r = turn_of(t, f, i);
        x[a] += sign * (r.cosine * n[a] - r.sine * n[b]);
        x[b] += sign * (r.sine * n[a] + r.cosine * n[b]);
    }
    for (uint32_t part = 0; part < 2; part++)
        for (uint32_t j = still_part(t, part).from; j < still_part(t, part).to; j++)
            x[j] += sign * n[j];
}

/* The table as columns of floats: cosine and sine of each pair, 32 rows of a page. */
static void open_table(const vq_turned *t, float *columns)
{
    for (uint32_t f = 0; f < t->n_pairs; f++) {
        float *cosine = columns + (size_t)2 * f * OUT_STRIDE, *sine = cosine + OUT_STRIDE;
        for (uint32_t m = 0; m < VQ_TURNED_HALF; m++) {
            cosine[VQ_TURNED_HALF + m] = (float)t->table[f][0][m] * (1.0F / 127);
            sine[VQ_TURNED_HALF + m] = (float)t->table[f][1][m] * (1.0F / 127);
        }
        for (uint32_t m = 0; m < VQ_TURNED_HALF; m++) {
            cosine[m] = cosine[VQ_TURNED_ROWS - 1 - m];
            sine[m] = -sine[VQ_TURNED_ROWS - 1 - m];
        }
    }
}

/* q . R(i) n = still + sum over pairs of cosine (q_a n_a + q_b n_b) + sine (q_b n_a - q_a n_b) */
void vq_turned_scores(const vq_turned *t, const float *n, const float *q, size_t stride, uint32_t n_queries, float *out,
                      size_t out_stride)
{
    float columns[MOST_D * OUT_STRIDE], pairs[QUERIES_AT_ONCE * MOST_D], still[QUERIES_AT_ONCE];
    float sums[QUERIES_AT_ONCE * OUT_STRIDE], rest[MOST_D];
    const uint32_t each = 2 * t->n_pairs;
    open_table(t, columns);
    memcpy(rest, n, t->d * sizeof *rest);
    for (uint32_t f = 0; f < t->n_pairs; f++)
        rest[first_of(t, f)] = rest[first_of(t, f) + t->apart] = 0;
    for (uint32_t at = 0; at < n_queries; at += QUERIES_AT_ONCE) {
        const uint32_t now = n_queries - at < QUERIES_AT_ONCE ? n_queries - at : QUERIES_AT_ONCE;
        memset(sums, 0, sizeof sums);
        for (uint32_t i = 0; i < now; i++) {
            const float *x = q + (at + i) * stride;
            for (uint32_t f = 0; f < t->n_pairs; f++) {
                const uint32_t a = first_of(t, f), b = a + t->apart;
                pairs[i * each + 2 * f] = x[a] * n[a] + x[b] * n[b];
                pairs[i * each + 2 * f + 1] = x[b] * n[a] - x[a] * n[b];
            }
            float part[8] = {0};
            uint32_t j = 0;
            for (; j + 8 <= t->d; j += 8)
                for (uint32_t p = 0; p < 8; p++)
                    part[p] += x[j + p] * rest[j + p];
            for (; j < t->d; j++)
                part[0] += x[j] * rest[j];
            still[i] = ((part[0] + part[4]) + (part[2] + part[6])) + ((part[1] + part[5]) + (part[3] + part[7]));
        }
        if (each)
            t->k->score_cols_f32(pairs, each, now, columns, VQ_TURNED_ROWS, each, sums, NULL);
        for (uint32_t i = 0; i < now; i++)
            for (uint32_t r = 0; r < VQ_TURNED_ROWS; r++)
                out[(at + i) * out_stride + r] += still[i] + sums[(size_t)i * OUT_STRIDE + r];
    }
}
