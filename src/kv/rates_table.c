/* What codecs lose at which bits, measured.  Written by tools/generate-rates from results/kv-quality.json,
 * results/rate-quality.json and results/kv-sides.json; not to be edited by hand. */
#include "kv/rates.h"

const vq_rate_curve vq_rate_curves[] = {
    {.method = "f16", .is_candidate = true, .n = 1},
    {
        .method = "int8",
        .is_candidate = false,
        .n = 1,
        .keys =
            {
                {0, 9.366e-05},
            },
        .values =
            {
                {0, 9.366e-05},
            },
    },
    {
        .method = "kivi",
        .is_candidate = true,
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
        .is_candidate = true,
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
        .method = "polarquant",
        .is_candidate = false,
        .n = 1,
        .keys =
            {
                {0, 0.03708},
            },
        .values =
            {
                {0, 0.03708},
            },
    },
    {
        .method = "rabitq",
        .is_candidate = false,
        .n = 3,
        .keys =
            {
                {2, 0.1892},
                {3, 0.03321},
                {4, 0.005374},
            },
        .values =
            {
                {2, 0.1892},
                {3, 0.03321},
                {4, 0.005374},
            },
    },
    {
        .method = "turboquant-mse",
        .is_candidate = false,
        .n = 5,
        .keys =
            {
                {1, 0.6083},
                {2, 0.1438},
                {3, 0.03182},
                {4, 0.005677},
                {8, 1.957e-05},
            },
        .values =
            {
                {1, 0.6083},
                {2, 0.1438},
                {3, 0.03182},
                {4, 0.005677},
                {8, 1.957e-05},
            },
    },
    {
        .method = "turboquant-prod",
        .is_candidate = false,
        .n = 3,
        .keys =
            {
                {2, 0.4249},
                {3, 0.1023},
                {4, 0.01531},
            },
        .values =
            {
                {2, 0.4249},
                {3, 0.1023},
                {4, 0.01531},
            },
    },
    {
        .method = "turboquant-rvq",
        .is_candidate = false,
        .n = 3,
        .keys =
            {
                {1, 0.1481},
                {2, 0.005787},
                {4, 1.957e-05},
            },
        .values =
            {
                {1, 0.1481},
                {2, 0.005787},
                {4, 1.957e-05},
            },
    },
    {
        .method = "velox",
        .is_candidate = true,
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
