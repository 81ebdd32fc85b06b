/* What commands that write results as JSON share: numbers, where and by which command they were measured, whole files.
 */
#ifndef CLI_JSON_H
#define CLI_JSON_H

#include <jansson.h>

#include "veloxquant/measure.h"

json_t *cli_json_real(double x); /* null for what JSON cannot say: NaN and infinities */

/* The head of every file in results/ (results/README.md): schema, what, date, command, machine with its load now,
 * versions, and an empty list `rows`. */
json_t *cli_json_head(const char *what, int argc, char **argv);
/* {"median", "q1", "q3", "samples"}; null when n is 0 */
json_t *cli_json_spread(const double *samples, size_t n);
json_t *cli_json_load(const vq_load *load); /* what other programs did meanwhile */

/* Writes the object to a file, whole or not at all; "-" prints it.  Takes the reference; NULL, from a json_pack that
 * failed, is an error.  Returns CLI_FINE, or says what is wrong. */
int cli_json_write(const char *path, json_t *object);

#endif
