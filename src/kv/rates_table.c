/* What codecs lose at which bits, measured.  Written by tools/generate-rates from results/kv-quality.json,
 * results/rate-quality.json and results/kv-sides.json; not to be edited by hand. */
#include "kv/rates.h"

const vq_rate_curve vq_rate_curves[] = {
    {.method = "f16", .n = 1},
    {
        .method = "kivi",
        .n = 4,
        .keys =
            {
                {2, 0.09006},
                {3, 0.009399},
                {4, 0.001806},
                {8, 6.578e-06},
            },
        .values =
            {
                {2, 0.09006},
                {3, 0.009399},
                {4, 0.001806},
                {8, 6.578e-06},
            },
    },
    {
        .method = "kivi-sink",
        .n = 2,
        .keys =
            {
                {2, 0.05661},
                {4, 0.001141},
            },
        .values =
            {
                {2, 0.05661},
                {4, 0.001141},
            },
    },
    {
        .method = "velox",
        .n = 5,
        .keys =
            {
                {1, 0.5259},
                {2, 0.05779},
                {3, 0.009187},
                {4, 0.00214},
                {8, 1.251e-05},
            },
        .values =
            {
                {1, 0.5259},
                {2, 0.05779},
                {3, 0.009187},
                {4, 0.00214},
                {8, 1.251e-05},
            },
    },
};
const size_t vq_n_rate_curves = sizeof vq_rate_curves / sizeof vq_rate_curves[0];
