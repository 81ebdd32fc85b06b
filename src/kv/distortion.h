/* What a codec loses on rows of a head, by a calibration: rows are drawn from its statistics, coded and decoded. */
#ifndef VQ_KV_DISTORTION_H
#define VQ_KV_DISTORTION_H

#include "kv/codec_generic.h"

typedef struct vq_distortion vq_distortion;

/* For rows of one length and side.  calibration NULL: normal rows, the same for every layer and head. */
vq_status vq_distortion_open(vq_distortion **out, const vq_calibration *calibration, uint32_t d, bool keys,
                             uint32_t group, vq_error *err);
void vq_distortion_close(vq_distortion *m);

/* Draws the rows of a head that the next measurements are about. */
void vq_distortion_choose(vq_distortion *m, uint32_t layer, uint32_t head);
/* Keys: mean square of the error of q.k over the head's queries, beyond what all keys share, which softmax does not
 * see. Values: mean square of the error, as a share of the values' own mean square. */
double vq_distortion_measure(vq_distortion *m, const vq_side *side);

#endif
