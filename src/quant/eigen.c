#include "quant/eigen.h"

#include <math.h>
#include <stddef.h>

#include "quant/lapack.h"

vq_status vq_eigen_symmetric(double *matrix, double *values, uint32_t d, vq_error *err)
{
    const int info = vq_lapack_eigen(matrix, values, d);
    if (info != 0)
        return vq_fail(err, info < 0 ? VQ_ERR_ARG : VQ_ERR_VALUE, "eigenvectors of a %u x %u matrix: dsyevd gives %d",
                       d, d, info);
    for (uint32_t i = 0; i < d / 2; i++) {
        const double swap = values[i];
        values[i] = values[d - 1 - i];
        values[d - 1 - i] = swap;
        for (uint32_t j = 0; j < d; j++) {
            double *a = &matrix[(size_t)i * d + j], *b = &matrix[(size_t)(d - 1 - i) * d + j];
            const double other = *a;
            *a = *b;
            *b = other;
        }
    }
    for (uint32_t i = 0; i < d; i++) {
        double *v = matrix + (size_t)i * d, most = 0;
        for (uint32_t j = 0; j < d; j++)
            if (fabs(v[j]) > fabs(most) * (1 + 1e-9))
                most = v[j];
        for (uint32_t j = 0; most < 0 && j < d; j++)
            v[j] = -v[j];
    }
    return VQ_OK;
}

void vq_add_products(double *sum, const float *x, uint32_t stride, uint32_t n, uint32_t d, float *scratch)
{
    vq_lapack_products(scratch, x, stride, n, d);
    for (uint32_t i = 0; i < d; i++)
        for (uint32_t j = i; j < d; j++)
            sum[(size_t)i * d + j] += (double)scratch[(size_t)i * d + j];
}
