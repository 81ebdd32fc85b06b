/* Plans of caches on the command line: --kv plan:FILE, --kv auto, and what the commands `plan` and `recommend` share.
 */
#ifndef CLI_CACHE_PLAN_H
#define CLI_CACHE_PLAN_H

#include "cli.h"

/* "200M" and such (K, M, G, T: powers of 1024); false when it is none. */
bool cli_parse_bytes(const char *text, uint64_t *out);

/* What --kv-memory, --kv-bits and --kv-losses say; the losses stay *losses, which the caller closes.  Returns an exit
 * status, having said what is wrong. */
int cli_wish(vq_plan_wish *wish, vq_plan **losses, const cli_page *page, const cli_model_args *args);

/* The plan that --kv names (plan:FILE), or that `auto` chooses for the session, which it then explains on standard
 * error; *plan stays NULL for anything else.  `method` stands for --kv when it is not NULL. */
int cli_plan_open(vq_plan **plan, const cli_engine *e, const cli_page *page, const cli_model_args *args,
                  const vq_session_params *session, const char *method);

/* One line: methods and bits, what they take and are expected to lose. */
void cli_print_candidate(FILE *to, const vq_plan_candidate *c);
/* Bits of each layer, keys and values; heads of a layer with unlike ones by themselves. */
void cli_print_plan(FILE *to, const vq_plan *plan);
/* How a loss reads: "KL 0.0123". */
const char *cli_loss(double loss, char out[32]);

#endif
