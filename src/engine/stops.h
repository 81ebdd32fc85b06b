/* Stop strings over a stream of text: bytes that could still become part of one are held back, so that the text ends
 * exactly before it, however the stream is cut. */
#ifndef VQ_ENGINE_STOPS_H
#define VQ_ENGINE_STOPS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

typedef struct vq_stops vq_stops;

/* Strings are copied.  VQ_ERR_ARG for an empty one and for one that is not UTF-8: text is, so it could never match. */
vq_status vq_stops_open(vq_stops **out, const char *const *strings, size_t n, vq_error *err);
void vq_stops_close(vq_stops *s);

/* Most bytes that are ever held back. */
size_t vq_stops_most_held(const vq_stops *s);

/* Takes the next bytes of the text; writes what can be passed on to out (n_bytes + vq_stops_most_held bytes of room).
 * True when a stop string is complete: the text has ended, and what follows in `bytes` is dropped. */
bool vq_stops_push(vq_stops *s, const char *bytes, size_t n_bytes, char *out, size_t *n_out);

/* What was held back when the text ends without a stop string: returns its length (at most vq_stops_most_held). */
size_t vq_stops_finish(vq_stops *s, char *out);

#endif
