/* What codecs lose at which bits, measured.  Written by tools/generate-rates from results/kv-quality.json,
 * results/rate-quality.json and results/kv-sides.json; not to be edited by hand. */
#include "kv/rates.h"

const vq_rate_curve vq_rate_curves[] = {
    {.method = "f16", .is_candidate = true, .n = 1},
    {
        .method = "a2ats",
        .is_candidate = false,
        .n = 2,
        .keys =
            {
                {1, 0.3491},
                {2, 0.1111},
            },
        .values =
            {
                {1, 0.3491},
                {2, 0.02033},
            },
    },
    {
        .method = "commvq",
        .is_candidate = false,
        .n = 2,
        .keys =
            {
                {1, 0.4474},
                {2, 0.1852},
            },
        .values =
            {
                {1, 0.4474},
                {2, 0.03389},
            },
    },
    {
        .method = "int8",
        .is_candidate = true,
        .n = 1,
        .keys =
            {
                {0, 0.0002021},
            },
        .values =
            {
                {0, 0.0002021},
            },
    },
    {
        .method = "kivi",
        .is_candidate = true,
        .n = 5,
        .keys =
            {
                {1, 6.063},
                {2, 0.1603},
                {3, 0.01625},
                {4, 0.003117},
                {8, 1.076e-05},
            },
        .values =
            {
                {1, 6.063},
                {2, 0.02934},
                {3, 0.003295},
                {4, 0.0006955},
                {8, 2.4e-06},
            },
    },
    {
        .method = "kivi-sink",
        .is_candidate = false,
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
        .method = "optimal",
        .is_candidate = true,
        .n = 12,
        .keys =
            {
                {1.49, 0.05677},
                {1.75, 0.04569},
                {2, 0.0263},
                {2.22, 0.01485},
                {2.24, 0.01422},
                {2.5, 0.009716},
                {2.95, 0.005296},
                {2.97, 0.005172},
                {3.5, 0.002768},
                {3.95, 0.001628},
                {3.97, 0.001602},
                {4.5, 0.001122},
            },
        .values =
            {
                {1.49, 0.05677},
                {1.75, 0.04569},
                {2, 0.004813},
                {2.22, 0.00278},
                {2.24, 0.002669},
                {2.5, 0.001873},
                {2.95, 0.001068},
                {2.97, 0.001045},
                {3.5, 0.0005891},
                {3.95, 0.0003615},
                {3.97, 0.0003565},
                {4.5, 0.0002504},
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
                {2, 0.3295},
                {3, 0.05865},
                {4, 0.009469},
            },
        .values =
            {
                {2, 0.06029},
                {3, 0.01189},
                {4, 0.002113},
            },
    },
    {
        .method = "spectralquant",
        .is_candidate = false,
        .n = 3,
        .keys =
            {
                {2, 0.06861},
                {3, 0.01711},
                {4, 0.004625},
            },
        .values =
            {
                {2, 0.01255},
                {3, 0.003469},
                {4, 0.001032},
            },
    },
    {
        .method = "trellis",
        .is_candidate = true,
        .n = 4,
        .keys =
            {
                {1.5, 0.1024},
                {2, 0.02159},
                {3, 0.004917},
                {4, 0.001191},
            },
        .values =
            {
                {1.5, 0.1024},
                {2, 0.003951},
                {3, 0.0009968},
                {4, 0.0002657},
            },
    },
    {
        .method = "turboquant-mse",
        .is_candidate = true,
        .n = 5,
        .keys =
            {
                {1, 1.271},
                {2, 0.2619},
                {3, 0.05472},
                {4, 0.01019},
                {8, 3.2e-05},
            },
        .values =
            {
                {1, 1.271},
                {2, 0.04792},
                {3, 0.01109},
                {4, 0.002274},
                {8, 7.139e-06},
            },
    },
    {
        .method = "turboquant-prod",
        .is_candidate = false,
        .n = 3,
        .keys =
            {
                {2, 0.7315},
                {3, 0.1714},
                {4, 0.02655},
            },
        .values =
            {
                {2, 0.1339},
                {3, 0.03475},
                {4, 0.005923},
            },
    },
    {
        .method = "turboquant-rvq",
        .is_candidate = false,
        .n = 3,
        .keys =
            {
                {1, 0.3096},
                {2, 0.01035},
                {4, 3.201e-05},
            },
        .values =
            {
                {1, 0.3096},
                {2, 0.001894},
                {4, 7.141e-06},
            },
    },
    {
        .method = "vecinfer",
        .is_candidate = false,
        .n = 2,
        .keys =
            {
                {1, 0.3315},
                {2, 0.08193},
            },
        .values =
            {
                {1, 0.3315},
                {2, 0.01499},
            },
    },
    {
        .method = "velox",
        .is_candidate = true,
        .n = 5,
        .keys =
            {
                {1, 0.4131},
                {2, 0.04377},
                {3, 0.008824},
                {4, 0.002152},
                {8, 1.782e-05},
            },
        .values =
            {
                {1, 0.4131},
                {2, 0.008008},
                {3, 0.001789},
                {4, 0.0004802},
                {8, 3.976e-06},
            },
    },
};
const size_t vq_n_rate_curves = sizeof vq_rate_curves / sizeof vq_rate_curves[0];
