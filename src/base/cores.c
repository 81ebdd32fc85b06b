/* How many cores this process may use.
 *
 * A container often has a quota and not an affinity mask: with one thread for each core of the machine, the threads of
 * a quota of two would stand still for most of each period. */
#include "base/cores.h"

#include <errno.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "veloxquant/threads.h"

enum { MAX_PATH_BYTES = 4096 };

/* The first line of a small file. */
static bool read_line(const char *path, char *line, int n_bytes)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    const bool ok = fgets(line, n_bytes, f) != NULL;
    fclose(f);
    return ok;
}

static uint32_t cores_of(long long quota, long long period)
{
    if (quota <= 0 || period <= 0)
        return UINT32_MAX;
    const long long cores = quota / period + (quota % period != 0);
    return cores > UINT32_MAX ? UINT32_MAX : (uint32_t)cores;
}

/* cgroup v2: cpu.max holds "QUOTA PERIOD" or "max PERIOD". */
static uint32_t quota_v2(const char *folder)
{
    char path[MAX_PATH_BYTES + 32], line[128];
    long long quota, period;
    snprintf(path, sizeof path, "%s/cpu.max", folder);
    if (!read_line(path, line, sizeof line) || sscanf(line, "%lld %lld", &quota, &period) != 2)
        return UINT32_MAX;
    return cores_of(quota, period);
}

/* cgroup v1: two files; -1 is no quota. */
static uint32_t quota_v1(const char *folder)
{
    char path[MAX_PATH_BYTES + 32], line[128];
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
    if (!read_line(path, line, sizeof line))
        return UINT32_MAX;
    const long long quota = strtoll(line, NULL, 10);
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
    if (!read_line(path, line, sizeof line))
        return UINT32_MAX;
    return cores_of(quota, strtoll(line, NULL, 10));
}

/* The smallest quota of `mount` + each leading part of `group`, the mount itself included: a limit on a parent holds
 * for its children, and in a container the group may be named from a root that is not visible. */
static uint32_t quota_on_path(const char *mount, const char *group, uint32_t (*quota)(const char *folder))
{
    char folder[MAX_PATH_BYTES];
    const int n = snprintf(folder, sizeof folder, "%s%s", mount, group);
    if (n < 0 || (size_t)n >= sizeof folder)
        return UINT32_MAX;

    uint32_t least = UINT32_MAX;
    const size_t n_mount = strlen(mount);
    for (size_t end = (size_t)n; end >= n_mount; end--) {
        const bool border = end == (size_t)n || end == n_mount || folder[end] == '/';
        if (!border)
            continue;
        folder[end] = 0;
        const uint32_t q = quota(folder);
        if (q < least)
            least = q;
    }
    return least;
}

/* Whether a comma-separated list has "cpu" among its names. */
static bool has_cpu(const char *controllers)
{
    for (const char *p = controllers; *p;) {
        const size_t n = strcspn(p, ",");
        if (n == 3 && !memcmp(p, "cpu", 3))
            return true;
        p += n + (p[n] == ',');
    }
    return false;
}

uint32_t vq_cgroup_cores(const char *membership, const char *root)
{
    FILE *f = fopen(membership, "re");
    if (!f)
        return UINT32_MAX;

    uint32_t least = UINT32_MAX;
    char line[MAX_PATH_BYTES], mount[MAX_PATH_BYTES];
    while (fgets(line, sizeof line, f)) { /* ID:CONTROLLERS:GROUP; version 2 is 0::GROUP */
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *controllers++ = 0;
        *group++ = 0;
        if (!strcmp(group, "/"))
            group[0] = 0;

        const bool v2 = !*controllers;
        const char *const v2_mounts[] = {"", "/unified"}, *const v1_mounts[] = {"/cpu", "/cpu,cpuacct"};
        if (!v2 && !has_cpu(controllers))
            continue;
        for (unsigned i = 0; i < 2; i++) {
            snprintf(mount, sizeof mount, "%s%s", root, v2 ? v2_mounts[i] : v1_mounts[i]);
            const uint32_t q = quota_on_path(mount, group, v2 ? quota_v2 : quota_v1);
            if (q < least)
                least = q;
        }
    }
    fclose(f);
    return least;
}

static uint32_t cores_in_mask(void)
{
    /* The kernel refuses a mask that is smaller than its own (EINVAL): grow until it fits. */
    for (int n = 1024; n <= 1 << 20; n *= 2) {
        cpu_set_t *set = CPU_ALLOC(n);
        if (!set)
            break;
        const size_t n_bytes = CPU_ALLOC_SIZE(n);
        const int failed = sched_getaffinity(0, n_bytes, set);
        const int why = errno, cores = failed ? 0 : CPU_COUNT_S(n_bytes, set);
        CPU_FREE(set);
        if (!failed)
            return cores > 0 ? (uint32_t)cores : 1;
        if (why != EINVAL)
            break;
    }
    return 1;
}

uint32_t vq_cores_allowed(void)
{
    const uint32_t mask = cores_in_mask(), quota = vq_cgroup_cores("/proc/self/cgroup", "/sys/fs/cgroup");
    const uint32_t cores = quota < mask ? quota : mask;
    return cores ? cores : 1;
}
