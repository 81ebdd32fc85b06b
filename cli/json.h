/* What commands that write results as JSON share: numbers, where and by which command they were measured, whole files.
 */
#ifndef CLI_JSON_H
#define CLI_JSON_H

#include <jansson.h>

json_t *cli_json_real(double x); /* null for what JSON cannot say: NaN and infinities */
json_t *cli_json_machine(void);  /* CPU with the features that matter for kernels, cores, system, $VQ_CPU */
json_t *cli_json_command(int argc, char **argv);

/* Writes the object to a file, whole or not at all; "-" prints it.  Takes the reference; NULL, from a json_pack that
 * failed, is an error.  Returns CLI_FINE, or says what is wrong. */
int cli_json_write(const char *path, json_t *object);

#endif
