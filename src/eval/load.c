/* What else the machine does: CPU time of other processes, time stolen by the host, processes that wait. */
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "veloxquant/measure.h"

static double seconds_of(struct timeval t) { return (double)t.tv_sec + 1e-6 * (double)t.tv_usec; }

static double own_seconds(int who)
{
    struct rusage r;
    return getrusage(who, &r) == 0 ? seconds_of(r.ru_utime) + seconds_of(r.ru_stime) : 0;
}

void vq_load_take(vq_load_mark *mark)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    *mark = (vq_load_mark){
        .wall = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec,
        .own = own_seconds(RUSAGE_SELF) + own_seconds(RUSAGE_CHILDREN),
        .busy = -1,
        .runnable = -1,
    };
    FILE *f = fopen("/proc/stat", "r");
    if (!f)
        return;
    const double tick = 1.0 / (double)sysconf(_SC_CLK_TCK);
    char line[512];
    while (fgets(line, sizeof line, f)) {
        unsigned long long user, nice, system, idle, iowait, irq, softirq, steal;
        unsigned running;
        if (sscanf(line, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &system, &idle, &iowait, &irq,
                   &softirq, &steal) == 8) {
            mark->busy = (double)(user + nice + system + irq + softirq) * tick;
            mark->steal = (double)steal * tick;
        } else if (sscanf(line, "procs_running %u", &running) == 1) {
            mark->runnable = running > 1 ? running - 1 : 0;
        }
    }
    fclose(f);
}

vq_load vq_load_between(const vq_load_mark *marks, size_t n)
{
    vq_load load = {0};
    if (n < 2)
        return load;
    const vq_load_mark *first = &marks[0], *last = &marks[n - 1];
    const double wall = last->wall - first->wall;
    for (size_t i = 0; i < n; i++) {
        if (marks[i].busy < 0 || marks[i].runnable < 0)
            return load;
        load.waiting += marks[i].runnable / (double)n;
    }
    if (wall <= 0)
        return load;
    const double others = (last->busy - first->busy) - (last->own - first->own);
    load.others = others > 0 ? others / wall : 0;
    load.steal = (last->steal - first->steal) / wall;
    load.known = true;
    load.quiet = load.others <= VQ_QUIET_OTHERS && load.steal <= VQ_QUIET_STEAL && load.waiting <= VQ_QUIET_WAITING;
    return load;
}
