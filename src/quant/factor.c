#include "quant/factor.h"

#include <float.h>
#include <math.h>
#include <string.h>

void vq_factor(double *h, uint32_t d, double ridge)
{
    double trace = 0;
    for (uint32_t i = 0; i < d; i++)
        trace += h[(size_t)i * d + i];
    const double more = ridge * trace / d + DBL_MIN;
    for (uint32_t i = 0; i < d; i++) {
        h[(size_t)i * d + i] += more;
        for (uint32_t j = 0; j < i; j++)
            h[(size_t)i * d + j] = h[(size_t)j * d + i];
    }
    for (uint32_t i = 0; i < d; i++)
        for (uint32_t j = 0; j <= i; j++) {
            double sum = h[(size_t)i * d + j];
            for (uint32_t k = 0; k < j; k++)
                sum -= h[(size_t)i * d + k] * h[(size_t)j * d + k];
            if (i == j)
                h[(size_t)i * d + i] = sqrt(sum > more ? sum : more);
            else
                h[(size_t)i * d + j] = sum / h[(size_t)j * d + j];
        }
    for (uint32_t i = 0; i < d; i++)
        memset(h + (size_t)i * d + i + 1, 0, (d - 1 - i) * sizeof *h);
}

void vq_factor_key(const float *l, uint32_t d, const float *x, float *out)
{
    memset(out, 0, d * sizeof *out);
    for (uint32_t i = 0; i < d; i++)
        for (uint32_t j = 0; j <= i; j++)
            out[j] += l[(size_t)i * d + j] * x[i];
}

void vq_factor_query(const float *l, uint32_t d, const float *x, float *out)
{
    for (uint32_t i = 0; i < d; i++) {
        float sum = x[i];
        for (uint32_t j = 0; j < i; j++)
            sum -= l[(size_t)i * d + j] * out[j];
        out[i] = sum / l[(size_t)i * d + i];
    }
}

void vq_factor_back(const float *l, uint32_t d, const float *x, float *out)
{
    memcpy(out, x, d * sizeof *out);
    for (uint32_t i = d; i-- > 0;) {
        out[i] /= l[(size_t)i * d + i];
        for (uint32_t j = 0; j < i; j++)
            out[j] -= l[(size_t)i * d + j] * out[i];
    }
}
