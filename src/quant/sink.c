#include "quant/sink.h"

#include <math.h>
#include <string.h>

void vq_sink_layout(vq_sink *s, vq_arena *arena, uint32_t d, const vq_kv_rope *rope)
{
    *s = (vq_sink){.d = d, .n_pairs = rope ? rope->n_rot / 2 : 0, .halves = rope && rope->halves};
    s->freq = vq_arena_take(arena, s->n_pairs, sizeof *s->freq);
    s->key = vq_arena_take(arena, s->n_pairs ? d : 0, 1);
}

void vq_sink_fill(vq_sink *s, const vq_kv_rope *rope, const float *key)
{
    float most = 0;
    for (uint32_t j = 0; j < s->d; j++)
        most = fabsf(key[j]) > most ? fabsf(key[j]) : most;
    if (!(most > 0))
        s->n_pairs = 0;
    if (s->n_pairs == 0)
        return;
    s->scale = most / 127;
    for (uint32_t j = 0; j < s->d; j++)
        s->key[j] = (int8_t)rintf(key[j] / s->scale);
    for (uint32_t f = 0; f < s->n_pairs; f++)
        s->freq[f] = (float)remainder(rope->freq[f], 2 * M_PI);
}

size_t vq_sink_bytes(const vq_sink *s)
{
    return s->n_pairs ? s->n_pairs * sizeof *s->freq + s->d + sizeof s->scale : 0;
}

/* libm's differ between machines.  Taylor's, about the nearest multiple of a right angle: within 4e-6. */
static void turn_of(double angle, float *cosine, float *sine)
{
    const double quarter = rint(angle * M_2_PI);
    const float r = (float)(angle - quarter * M_PI_2), rr = r * r;
    const float s = r * (1 + rr * (-1.0F / 6 + rr * (1.0F / 120 - rr * (1.0F / 5040))));
    const float c = 1 + rr * (-0.5F + rr * (1.0F / 24 + rr * (-1.0F / 720 + rr * (1.0F / 40320))));
    const int turns = (int)(quarter - 4 * floor(0.25 * quarter));
    *cosine = turns == 0 ? c : turns == 1 ? -s : turns == 2 ? -c : s;
    *sine = turns == 0 ? s : turns == 1 ? c : turns == 2 ? -s : -c;
}

void vq_sink_at(const vq_sink *s, uint32_t pos, float *x)
{
    for (uint32_t j = 0; j < s->d; j++)
        x[j] = s->scale * (float)s->key[j];
    for (uint32_t f = 0; f < s->n_pairs; f++) {
        float *a = x + (s->halves ? f : 2 * f), *b = a + (s->halves ? s->n_pairs : 1), co, si;
        turn_of(pos * (double)s->freq[f], &co, &si);
        const float first = *a, second = *b;
        *a = first * co - second * si;
        *b = first * si + second * co;
    }
}

static float distance(const float *x, const float *y, uint32_t d)
{
    float sum = 0;
    for (uint32_t j = 0; j < d; j++)
        sum += (x[j] - y[j]) * (x[j] - y[j]);
    return sum;
}

uint32_t vq_sink_find(const vq_sink *s, const float *x, const float *others, const uint32_t *pos, uint32_t n)
{
    float key[VQ_SINK_MAX_D];
    uint32_t sinks = 0;
    for (uint32_t i = 0; i < n; i++, x += s->d, others += s->d) {
        vq_sink_at(s, pos[i], key);
        sinks |= (uint32_t)(distance(x, key, s->d) < distance(x, others, s->d)) << i;
    }
    return sinks;
}
