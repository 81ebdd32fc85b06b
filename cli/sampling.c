/* Options of sampling. */
#include "sampling.h"

#include <sys/random.h>

#define AT(field) offsetof(cli_sampling, field)

const cli_option cli_sampling_options[] = {
    {0, "temp", CLI_REAL, AT(temperature), "T", "temperature; 0 always takes the likeliest token", 0, 100},
    {0, "top-k", CLI_COUNT, AT(top_k), "K", "only the K likeliest tokens; 0: all", 0, 4294967295.0},
    {0, "top-p", CLI_REAL, AT(top_p), "P", "only the likeliest tokens that together have this probability; 1: all", 0,
     1},
    {0, "min-p", CLI_REAL, AT(min_p), "P", "only tokens with this share of the likeliest one's probability; 0: all", 0,
     1},
    {0, "repeat-penalty", CLI_REAL, AT(repeat_penalty), "X", "above 1 makes recent tokens less likely; 1: off", 0.01,
     100},
    {0, "repeat-last-n", CLI_COUNT, AT(repeat_last_n), "N", "tokens that the penalty looks back", 0, 1048576},
    {'s', "seed", CLI_WHOLE, AT(seed), "N", "of the draws (default: another one each time, printed at the end)", -1,
     9007199254740992.0},
};
const size_t cli_n_sampling_options = sizeof cli_sampling_options / sizeof cli_sampling_options[0];

void cli_sampling_init(cli_sampling *s)
{
    vq_sampler_params p;
    vq_sampler_params_init(&p);
    *s = (cli_sampling){.temperature = p.temperature,
                        .top_p = p.top_p,
                        .min_p = p.min_p,
                        .top_k = p.top_k,
                        .repeat_penalty = p.repeat_penalty,
                        .repeat_last_n = p.repeat_last_n,
                        .seed = -1};
}

void cli_sampling_params(const cli_sampling *s, vq_sampler_params *out)
{
    uint64_t seed = (uint64_t)s->seed;
    if (s->seed < 0) {
        uint32_t random = 1; /* 32 bits: short enough to type again */
        if (getrandom(&random, sizeof random, 0) != sizeof random)
            random = (uint32_t)(cli_seconds() * 1e6);
        seed = random;
    }
    *out = (vq_sampler_params){.temperature = s->temperature,
                               .top_k = s->top_k,
                               .top_p = s->top_p,
                               .min_p = s->min_p,
                               .repeat_penalty = s->repeat_penalty,
                               .repeat_last_n = s->repeat_last_n,
                               .seed = seed};
}
