/* Options of sampling, shared by generate and chat. */
#ifndef CLI_SAMPLING_H
#define CLI_SAMPLING_H

#include "cli.h"

typedef struct cli_sampling {
    float temperature, top_p, min_p, repeat_penalty;
    uint32_t top_k, repeat_last_n;
    int64_t seed;
} cli_sampling;

extern const cli_option cli_sampling_options[];
extern const size_t cli_n_sampling_options;
void cli_sampling_init(cli_sampling *s);
/* Seed -1 is drawn here. */
void cli_sampling_params(const cli_sampling *s, vq_sampler_params *out);

#endif
