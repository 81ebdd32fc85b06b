/* The angles of PolarQuant as cosines and sines; generated (polar_tables.c). */
#ifndef VQ_QUANT_POLAR_H
#define VQ_QUANT_POLAR_H

extern const float vq_polar_circle[16][2];       /* level 1: middles of sixteen sectors */
extern const float vq_polar_circle_edges[16][2]; /* where sector k begins */
extern const float vq_polar_quarter[3][4][2];    /* levels 2..4: angles between radii */
extern const float vq_polar_quarter_bounds[3][3][2];

#endif
