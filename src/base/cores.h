/* The part of vq_cores_allowed that reads control groups, with the places to read as arguments (tests). */
#ifndef VQ_BASE_CORES_H
#define VQ_BASE_CORES_H

#include <stdint.h>

/* The smallest CPU quota on the way from the root of the hierarchy to the group named in the file `membership` (the
 * form of /proc/self/cgroup), in whole cores, rounded up; UINT32_MAX without a quota.  `root` is where the hierarchies
 * are mounted (/sys/fs/cgroup). */
uint32_t vq_cgroup_cores(const char *membership, const char *root);

#endif
