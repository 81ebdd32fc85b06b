/* Mean and spread in one pass: Welford's update, and Chan's for merging two series.  Sums of squares would lose the
 * small differences of paired series. */
#include <math.h>

#include "veloxquant/eval.h"

void vq_moments_add(vq_moments *m, double x)
{
    m->n++;
    const double from = x - m->mean;
    m->mean += from / (double)m->n;
    m->m2 += from * (x - m->mean);
}

void vq_moments_merge(vq_moments *m, const vq_moments *more)
{
    if (more->n == 0)
        return;
    const double n = (double)m->n, k = (double)more->n, apart = more->mean - m->mean;
    m->mean += apart * k / (n + k);
    m->m2 += more->m2 + apart * apart * n * k / (n + k);
    m->n += more->n;
}

double vq_moments_error(const vq_moments *m)
{
    if (m->n < 2)
        return 0;
    const double n = (double)m->n;
    return sqrt(m->m2 / (n - 1) / n);
}
