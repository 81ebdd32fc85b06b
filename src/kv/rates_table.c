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
                {1, 0.2615},
                {2, 0.1067},
            },
        .values =
            {
                {1, 0.08765},
                {2, 0.02474},
            },
    },
    {
        .method = "amc",
        .is_candidate = false,
        .n = 1,
        .keys =
            {
                {3, 0.02706},
            },
        .values =
            {
                {3, 0.006646},
            },
    },
    {
        .method = "commvq",
        .is_candidate = false,
        .n = 2,
        .keys =
            {
                {1, 0.3351},
                {2, 0.1778},
            },
        .values =
            {
                {1, 0.1123},
                {2, 0.04124},
            },
    },
    {
        .method = "int8",
        .is_candidate = true,
        .n = 1,
        .keys =
            {
                {0, 0.0002016},
            },
        .values =
            {
                {0, 0.0002016},
            },
    },
    {
        .method = "kivi",
        .is_candidate = true,
        .n = 5,
        .keys =
            {
                {1, 4.541},
                {2, 0.154},
                {3, 0.01569},
                {4, 0.003027},
                {8, 1.044e-05},
            },
        .values =
            {
                {1, 1.522},
                {2, 0.03571},
                {3, 0.003855},
                {4, 0.0007859},
                {8, 2.712e-06},
            },
    },
    {
        .method = "kivi-sink",
        .is_candidate = false,
        .n = 2,
        .keys =
            {
                {2, 0.0919},
                {4, 0.001811},
            },
        .values =
            {
                {2, 0.02131},
                {4, 0.0004702},
            },
    },
    {
        .method = "optimal",
        .is_candidate = true,
        .n = 12,
        .keys =
            {
                {1.49, 0.01839},
                {1.75, 0.01501},
                {2, 0.009118},
                {2.2, 0.005433},
                {2.24, 0.004968},
                {2.5, 0.004038},
                {2.95, 0.002086},
                {2.96, 0.002059},
                {3.5, 0.001279},
                {3.95, 0.0006987},
                {3.96, 0.0006903},
                {4.5, 0.0004207},
            },
        .values =
            {
                {1.49, 0.02027},
                {1.75, 0.01684},
                {2, 0.0104},
                {2.2, 0.006282},
                {2.24, 0.00576},
                {2.5, 0.004249},
                {2.95, 0.001841},
                {2.96, 0.001811},
                {3.5, 0.0009082},
                {3.95, 0.0004126},
                {3.96, 0.000406},
                {4.5, 0.0002433},
            },
    },
    {
        .method = "outlier:inner=turboquant-mse",
        .is_candidate = false,
        .n = 2,
        .keys =
            {
                {2, 0.1444},
                {3, 0.02139},
            },
        .values =
            {
                {2, 0.0335},
                {3, 0.005254},
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
        .n = 4,
        .keys =
            {
                {1, 2.21},
                {2, 0.3287},
                {3, 0.05489},
                {4, 0.009437},
            },
        .values =
            {
                {1, 0.7407},
                {2, 0.07624},
                {3, 0.01348},
                {4, 0.00245},
            },
    },
    {
        .method = "spectralquant",
        .is_candidate = false,
        .n = 3,
        .keys =
            {
                {2, 0.06588},
                {3, 0.01652},
                {4, 0.004491},
            },
        .values =
            {
                {2, 0.01528},
                {3, 0.004059},
                {4, 0.001166},
            },
    },
    {
        .method = "trellis",
        .is_candidate = false,
        .n = 4,
        .keys =
            {
                {1.5, 0.08661},
                {2, 0.02106},
                {3, 0.004873},
                {4, 0.0012},
            },
        .values =
            {
                {1.5, 0.01577},
                {2, 0.004486},
                {3, 0.001041},
                {4, 0.0002571},
            },
    },
    {
        .method = "turboquant-mse",
        .is_candidate = true,
        .n = 5,
        .keys =
            {
                {1, 0.9519},
                {2, 0.2515},
                {3, 0.05283},
                {4, 0.009895},
                {8, 3.107e-05},
            },
        .values =
            {
                {1, 0.3191},
                {2, 0.05833},
                {3, 0.01298},
                {4, 0.002569},
                {8, 8.067e-06},
            },
    },
    {
        .method = "turboquant-prod",
        .is_candidate = false,
        .n = 3,
        .keys =
            {
                {2, 0.7064},
                {3, 0.1611},
                {4, 0.02469},
            },
        .values =
            {
                {2, 0.1638},
                {3, 0.03957},
                {4, 0.006412},
            },
    },
    {
        .method = "turboquant-rvq",
        .is_candidate = false,
        .n = 3,
        .keys =
            {
                {1, 0.2313},
                {2, 0.009843},
                {4, 3.108e-05},
            },
        .values =
            {
                {1, 0.07752},
                {2, 0.002283},
                {4, 8.069e-06},
            },
    },
    {
        .method = "vecinfer",
        .is_candidate = false,
        .n = 2,
        .keys =
            {
                {1, 0.2483},
                {2, 0.07868},
            },
        .values =
            {
                {1, 0.08323},
                {2, 0.01825},
            },
    },
    {
        .method = "velox",
        .is_candidate = true,
        .n = 5,
        .keys =
            {
                {1, 0.3094},
                {2, 0.04203},
                {3, 0.00852},
                {4, 0.00209},
                {8, 1.731e-05},
            },
        .values =
            {
                {1, 0.1037},
                {2, 0.009747},
                {3, 0.002093},
                {4, 0.0005426},
                {8, 4.493e-06},
            },
    },
};
const size_t vq_n_rate_curves = sizeof vq_rate_curves / sizeof vq_rate_curves[0];
