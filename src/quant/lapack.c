#include "quant/lapack.h"

#include <cblas.h>
#include <lapacke.h>
#include <pthread.h>

/* The one variable that threads of a process share in this library: what it guards is OpenBLAS's own. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

int vq_lapack_eigen(double *matrix, double *values, uint32_t d)
{
    /* Row-major upper is column-major lower; the columns of LAPACK's result are our rows. */
    pthread_mutex_lock(&lock);
    const lapack_int info = LAPACKE_dsyevd(LAPACK_COL_MAJOR, 'V', 'L', (lapack_int)d, matrix, (lapack_int)d, values);
    pthread_mutex_unlock(&lock);
    return (int)info;
}

void vq_lapack_products(float *out, const float *x, uint32_t stride, uint32_t n, uint32_t d)
{
    pthread_mutex_lock(&lock);
    cblas_ssyrk(CblasRowMajor, CblasUpper, CblasTrans, (int)d, (int)n, 1, x, (int)stride, 0, out, (int)d);
    pthread_mutex_unlock(&lock);
}

int vq_lapack_cholesky(float *matrix, uint32_t n)
{
    /* Row-major lower is column-major upper: no copy. */
    pthread_mutex_lock(&lock);
    const lapack_int info = LAPACKE_spotrf(LAPACK_COL_MAJOR, 'U', (lapack_int)n, matrix, (lapack_int)n);
    pthread_mutex_unlock(&lock);
    return (int)info;
}
