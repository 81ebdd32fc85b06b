/* What codecs lose at which bits, measured.  Written by tools/generate-rates from results/kv-quality.json,
 * results/rate-quality.json and results/kv-sides.json; not to be edited by hand. */
#include "kv/rates.h"

const vq_rate_curve vq_rate_curves[] = {
    {.method = "f16", .is_candidate = true, .n = 1},
    {
        .method = "int8",
        .is_candidate = true,
        .n = 1,
        .keys =
            {
                {0, 0.0001873},
            },
        .values =
            {
                {0, 0.0001873},
            },
    },
    {
        .method = "kivi",
        .is_candidate = true,
        .n = 4,
        .keys =
            {
                {2, 0.1523},
                {3, 0.01563},
                {4, 0.002953},
                {8, 1.076e-05},
            },
        .values =
            {
                {2, 0.02786},
                {3, 0.003168},
                {4, 0.0006588},
                {8, 2.4e-06},
            },
    },
    {
        .method = "kivi-sink",
        .is_candidate = true,
        .n = 2,
        .keys =
            {
                {2, 0.0957},
                {4, 0.001865},
            },
        .values =
            {
                {2, 0.01751},
                {4, 0.0004161},
            },
    },
    {
        .method = "polarquant",
        .is_candidate = false,
        .n = 1,
        .keys =
            {
                {0, 0.07417},
            },
        .values =
            {
                {0, 0.07417},
            },
    },
    {
        .method = "rabitq",
        .is_candidate = false,
        .n = 3,
        .keys =
            {
                {2, 0.3199},
                {3, 0.05522},
                {4, 0.008788},
            },
        .values =
            {
                {2, 0.05854},
                {3, 0.01119},
                {4, 0.001961},
            },
    },
    {
        .method = "turboquant-mse",
        .is_candidate = true,
        .n = 5,
        .keys =
            {
                {1, 1.217},
                {2, 0.243},
                {3, 0.05291},
                {4, 0.009282},
                {8, 3.2e-05},
            },
        .values =
            {
                {1, 1.217},
                {2, 0.04447},
                {3, 0.01073},
                {4, 0.002071},
                {8, 7.139e-06},
            },
    },
    {
        .method = "turboquant-prod",
        .is_candidate = false,
        .n = 3,
        .keys =
            {
                {2, 0.7183},
                {3, 0.1702},
                {4, 0.02504},
            },
        .values =
            {
                {2, 0.1314},
                {3, 0.0345},
                {4, 0.005587},
            },
    },
    {
        .method = "turboquant-rvq",
        .is_candidate = false,
        .n = 3,
        .keys =
            {
                {1, 0.2963},
                {2, 0.009783},
                {4, 3.201e-05},
            },
        .values =
            {
                {1, 0.2963},
                {2, 0.00179},
                {4, 7.141e-06},
            },
    },
    {
        .method = "velox",
        .is_candidate = true,
        .n = 5,
        .keys =
            {
                {1, 0.4131},
                {2, 0.04129},
                {3, 0.008257},
                {4, 0.002006},
                {8, 1.782e-05},
            },
        .values =
            {
                {1, 0.4131},
                {2, 0.007556},
                {3, 0.001674},
                {4, 0.0004476},
                {8, 3.976e-06},
            },
    },
};
const size_t vq_n_rate_curves = sizeof vq_rate_curves / sizeof vq_rate_curves[0];
