/* Medians, quartiles and verdicts of repeated measurements. */
#include <stdlib.h>
#include <string.h>

#include "veloxquant/measure.h"

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(const double *sorted, size_t n, double q)
{
    const double at = q * (double)(n - 1);
    const size_t i = (size_t)at;
    return i + 1 < n ? sorted[i] + (at - (double)i) * (sorted[i + 1] - sorted[i]) : sorted[n - 1];
}

static vq_spread spread_of_sorted(const double *x, size_t n)
{
    return (vq_spread){x[0], quantile(x, n, 0.25), quantile(x, n, 0.5), quantile(x, n, 0.75), n};
}

vq_spread vq_spread_of(const double *samples, size_t n)
{
    double *sorted = n ? malloc(n * sizeof *sorted) : NULL;
    if (!sorted)
        return (vq_spread){0};
    memcpy(sorted, samples, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, by_value);
    const vq_spread s = spread_of_sorted(sorted, n);
    free(sorted);
    return s;
}

const char *vq_verdict_name(vq_verdict verdict)
{
    static const char *const names[] = {"not distinguishable", "faster", "slower"};
    return (unsigned)verdict < 3 ? names[verdict] : "unknown";
}

/* The median lies between the k-th and the (n+1-k)-th smallest of n samples unless fewer than k fall on one side, which
 * has probability 2 * P(Binomial(n, 1/2) < k).  The largest k that keeps this at or below 5 %; 0 where none does. */
static size_t order_of_interval(size_t n)
{
    double p = 1, below = 0; /* P(exactly k), P(fewer than k + 1) */
    for (size_t i = 0; i < n; i++)
        p /= 2;
    size_t k = 0;
    while (k < n / 2 && 2 * (below + p) <= 0.05) {
        below += p;
        p *= (double)(n - k) / (double)(k + 1);
        k++;
    }
    return k;
}

/* Spread and interval of a [i] / b [i]; the interval spans all samples where n is too small for 95 %. */
static vq_spread ratios(double *room, const double *a, const double *b, size_t n, double *low, double *high)
{
    for (size_t i = 0; i < n; i++)
        room[i] = b[i] > 0 ? a[i] / b[i] : 0;
    qsort(room, n, sizeof *room, by_value);
    const size_t k = order_of_interval(n), at = k ? k - 1 : 0;
    *low = room[at];
    *high = room[n - 1 - at];
    return spread_of_sorted(room, n);
}

vq_versus vq_versus_of(const double *base, const double *again, const double *variant, size_t n)
{
    vq_versus v = {0};
    double *room = n ? malloc(n * sizeof *room) : NULL;
    if (!room)
        return v;
    v.speed = ratios(room, base, variant, n, &v.low, &v.high);
    v.noise = ratios(room, base, again, n, &v.noise_low, &v.noise_high);
    free(room);
    if (order_of_interval(n) == 0)
        return v;
    if (v.low > v.noise_high && v.low > 1)
        v.verdict = VQ_FASTER;
    else if (v.high < v.noise_low && v.high < 1)
        v.verdict = VQ_SLOWER;
    return v;
}
