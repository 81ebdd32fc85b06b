/* The exponential of the softmax and of the gates, by one recipe on every tier.
 *
 *     n = round(x log2 e),  r = x - n ln 2  in [-0.3467, 0.3467],  exp(x) = 2^n p(r)
 *
 * p has degree 5 and p(0) = 1 exactly, so that the largest row of a softmax gets exactly 1.  Error, in units of 2^-24
 * and relative to exp(x): the polynomial with these rounded coefficients 1.57; its last addition 1 or, for results just
 * below a power of two, sqrt(2); earlier roundings, damped by |r|, 0.8; the reduction 0.2 and, where ln 2 is one
 * constant used in a fused multiply-add, |n| |ln 2 - float(ln 2)| = |x| / 21.  Together: (4 + |x| / 20) 2^-24.
 *
 * Valid for x <= 88.  Below VQ_EXP_LOWEST the result is 0 and never a denormal (absolute error < 1.2e-38), -inf
 * included. */
#ifndef VQ_KERNELS_VEC_EXP_H
#define VQ_KERNELS_VEC_EXP_H

#define VQ_EXP_LOWEST (-87.33f) /* just above ln FLT_MIN */
#define VQ_EXP_LOG2E 0x1.715476p+0f
#define VQ_EXP_LN2 0x1.62e430p-1f
#define VQ_EXP_LN2_HIGH 0x1.63p-1f /* 9 bits: n times it is exact */
#define VQ_EXP_LN2_LOW (-0x1.bd0106p-13f)
#define VQ_EXP_ROUND 0x1.8p+23f /* adding it leaves the nearest integer in the low bits, ties to even */
#define VQ_EXP_C1 0x1.fffff6p-1f
#define VQ_EXP_C2 0x1.fffdc4p-2f
#define VQ_EXP_C3 0x1.555a6ep-3f
#define VQ_EXP_C4 0x1.573ad0p-5f
#define VQ_EXP_C5 0x1.0fa7d8p-7f

/* GELU in its tanh form is x times the logistic function of x (A + B x^2): A = 2 sqrt(2 / pi), B = 0.044715 A. */
#define VQ_GELU_A 0x1.988454p+0f
#define VQ_GELU_B 0x1.2444f2p-4f

#endif
