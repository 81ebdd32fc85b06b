/* Synthetic calibrations, for tests that need one of any shape. */
#ifndef TESTS_SUPPORT_CALIBRATION_H
#define TESTS_SUPPORT_CALIBRATION_H

#include "formats/calibration.h"
#include "veloxquant/kv.h"

/* Consistent statistics: zero means, moments B' diag(1/(1 + i)) B with a random reflection B, bases in order, and
 * the codebooks that info asks for, of random numbers.  Aborts when memory runs out. info->hash is ignored. */
vq_calibration *toy_calibration(const vq_calibration_info *info, uint64_t seed);

/* One for a cache's shape and hash, made once and kept to the end of the program. */
const vq_calibration *toy_calibration_of(const vq_kv_params *p);

#endif
