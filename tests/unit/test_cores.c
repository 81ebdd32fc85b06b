/* Cores that a control group leaves: made-up hierarchies in a temporary folder. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "../support/temporary.h"
#include "base/cores.h"
#include "veloxquant/threads.h"

static char root[TEMPORARY_PATH];

static void put(const char *path, const char *text)
{
    char full[256];
    snprintf(full, sizeof full, "%s/%s", root, path);
    for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')); p++) {
        *p = 0;
        mkdir(full, 0700);
        *p = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static uint32_t cores(const char *membership)
{
    char path[128];
    put("membership", membership);
    snprintf(path, sizeof path, "%s/membership", root);
    return vq_cgroup_cores(path, root);
}

static int make_root(void **state)
{
    (void)state;
    temporary_folder(root, "cores");
    return 0;
}

static int remove_root(void **state)
{
    (void)state;
    return remove_temporary_folder(root);
}

static void version_2(void **state)
{
    (void)state;
    assert_int_equal(cores("0::/\n"), UINT32_MAX);
    put("a/b/cpu.max", "max 100000\n");
    put("a/cpu.max", "150000 100000\n");
    assert_int_equal(cores("0::/a/b\n"), 2); /* the parent's limit, rounded up */
    put("a/b/cpu.max", "50000 100000\n");
    assert_int_equal(cores("0::/a/b\n"), 1);
    put("a/b/cpu.max", "800000 100000\n");
    assert_int_equal(cores("0::/a/b\n"), 2);    /* the smallest on the path */
    assert_int_equal(cores("0::/a/gone\n"), 2); /* a group that is not visible here */
    put("cpu.max", "100000 100000\n");
    assert_int_equal(cores("0::/\n"), 1); /* in a container the root is the group */
    put("cpu.max", "max 100000\n");
    assert_int_equal(cores("0::/aa\n"), UINT32_MAX); /* /a is not on the way to /aa */
    put("a/cpu.max", "nonsense\n");
    put("a/b/cpu.max", "-1 100000\n");
    assert_int_equal(cores("0::/a/b\n"), UINT32_MAX);
    put("a/b/cpu.max", "100000 0\n");
    assert_int_equal(cores("0::/a/b\n"), UINT32_MAX);
}

static void version_1(void **state)
{
    (void)state;
    put("cpu,cpuacct/x/cpu.cfs_quota_us", "300000\n");
    put("cpu,cpuacct/x/cpu.cfs_period_us", "100000\n");
    put("cpu,cpuacct/x/y/cpu.cfs_quota_us", "-1\n");
    put("cpu,cpuacct/x/y/cpu.cfs_period_us", "100000\n");
    assert_int_equal(cores("4:memory:/x\n3:cpu,cpuacct:/x/y\n"), 3);
    assert_int_equal(cores("4:memory:/x\n3:cpuacct:/x/y\n5:cpuset:/x\n"), UINT32_MAX); /* no cpu controller */
    put("cpu/cpu.cfs_quota_us", "250000\n");
    put("cpu/cpu.cfs_period_us", "50000\n");
    assert_int_equal(cores("3:cpu:/z\n"), 5);
    assert_int_equal(cores("garbage\n:\n3:cpu\n\n"), UINT32_MAX);
    assert_int_equal(vq_cgroup_cores("/nonexistent", root), UINT32_MAX);
}

static void follows_the_affinity_mask(void **state)
{
    (void)state;
    cpu_set_t all, one;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    const uint32_t before = vq_cores_allowed();
    assert_in_range(before, 1, (uint32_t)CPU_COUNT(&all));
    for (int i = 0; i < CPU_SETSIZE; i++) {
        if (CPU_ISSET(i, &all)) {
            CPU_ZERO(&one);
            CPU_SET(i, &one);
            break;
        }
    }
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(vq_cores_allowed(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    assert_int_equal(vq_cores_allowed(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(version_2, make_root, remove_root),
        cmocka_unit_test_setup_teardown(version_1, make_root, remove_root),
        cmocka_unit_test(follows_the_affinity_mask),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
