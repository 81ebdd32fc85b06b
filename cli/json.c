/* JSON results: numbers, the machine, the command, files that are written whole or not at all. */
#include "json.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"
#include "commit.h"

json_t *cli_json_real(double x) { return isfinite(x) ? json_real(x) : json_null(); }

json_t *cli_json_spread(const double *samples, size_t n)
{
    if (n == 0)
        return json_null();
    const vq_spread s = vq_spread_of(samples, n);
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, cli_json_real(samples[i]));
    return json_pack("{s:o, s:o, s:o, s:o}", "median", cli_json_real(s.median), "q1", cli_json_real(s.q1), "q3",
                     cli_json_real(s.q3), "samples", list);
}

json_t *cli_json_load(const vq_load *load)
{
    return json_pack("{s:b, s:o, s:o, s:o}", "quiet", (int)load->quiet, "others_cpus",
                     load->known ? cli_json_real(load->others) : json_null(), "steal_cpus",
                     load->known ? cli_json_real(load->steal) : json_null(), "waiting",
                     load->known ? cli_json_real(load->waiting) : json_null());
}

/* ---- the machine ---- */

/* The value of the first line of /proc/cpuinfo that begins with `field`; empty without one. */
static void cpu_field(const char *field, char *out, size_t room)
{
    char line[8192];
    const size_t n = strlen(field);
    out[0] = 0;
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(line, sizeof line, f)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, field, n) == 0 && colon && strspn(line + n, " \t") == (size_t)(colon - line) - n) {
            const char *value = colon + 1 + strspn(colon + 1, " ");
            snprintf(out, room, "%.*s", (int)strcspn(value, "\n"), value);
            break;
        }
    }
    if (f)
        fclose(f);
}

static bool cpu_has_all(const char *flags, const char *const *names)
{
    for (; *names; names++) {
        const size_t n = strlen(*names);
        const char *at = flags;
        while ((at = strstr(at, *names)) && !((at == flags || at[-1] == ' ') && (at[n] == ' ' || at[n] == 0)))
            at++;
        if (!at)
            return false;
    }
    return true;
}

static json_t *machine_json(void)
{
    static const char *const avx2[] = {"avx2", "fma", "f16c", "bmi2", NULL};
    static const char *const avx512[] = {"avx512f",     "avx512bw",   "avx512dq", "avx512vl",
                                         "avx512_vnni", "avx512vbmi", NULL};
    static char flags[8192];
    char name[256], family[32], model[32], stepping[32], cpu[512];
    const char *ceiling = getenv("VQ_CPU");
    double load[1] = {NAN};
    cpu_field("model name", name, sizeof name);
    cpu_field("cpu family", family, sizeof family);
    cpu_field("model", model, sizeof model);
    cpu_field("stepping", stepping, sizeof stepping);
    cpu_field("flags", flags, sizeof flags);
    if (family[0])
        snprintf(cpu, sizeof cpu, "%s (family %s model %s stepping %s)", name, family, model, stepping);
    else
        snprintf(cpu, sizeof cpu, "%s", name[0] ? name : "unknown");
    json_t *tiers = json_array();
    if (cpu_has_all(flags, avx2))
        json_array_append_new(tiers, json_string("avx2"));
    if (cpu_has_all(flags, avx512))
        json_array_append_new(tiers, json_string("avx512"));
    if (getloadavg(load, 1) != 1)
        load[0] = NAN;
    const double gib = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / 1073741824.0;
    return json_pack("{s:s, s:i, s:o, s:o, s:s, s:o}", "cpu", cpu, "cores", (int)vq_cores_allowed(), "memory_gib",
                     cli_json_real(round(10 * gib) / 10), "tiers", tiers, "tier_ceiling", ceiling ? ceiling : "none",
                     "load_before", cli_json_real(load[0]));
}

/* As a shell would take it. */
static char *command_text(int argc, char **argv)
{
    char *text = NULL;
    size_t n_bytes;
    FILE *f = open_memstream(&text, &n_bytes);
    if (!f)
        return NULL;
    fputs("veloxquant", f);
    for (int i = 0; i < argc; i++) {
        const bool plain = argv[i][0] && strspn(argv[i], "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                                         "0123456789_-./,:=+@%") == strlen(argv[i]);
        fputs(plain ? " " : " '", f);
        for (const char *c = argv[i]; *c; c++)
            fprintf(f, *c == '\'' ? "'\\''" : "%c", *c);
        fputs(plain ? "" : "'", f);
    }
    if (fclose(f) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

json_t *cli_json_head(const char *what, int argc, char **argv)
{
    char date[32];
    struct utsname system;
    const time_t now = time(NULL);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime(&now));
    char *command = command_text(argc, argv);
    char commit[] = CLI_COMMIT;
    const bool modified = strchr(commit, '-') != NULL;
    commit[strcspn(commit, "-")] = 0;
    json_t *head =
        json_pack("{s:i, s:s, s:s, s:s, s:b, s:s, s:s, s:o, s:{s:s, s:s, s:s}, s:[]}", "schema", 1, "what", what,
                  "date", date, "commit", commit, "modified", (int)modified, "build", CLI_BUILD, "command",
                  command ? command : "veloxquant", "machine", machine_json(), "versions", "veloxquant", vq_version(),
                  "compiler", __VERSION__, "kernel", uname(&system) == 0 ? system.release : "unknown", "rows");
    free(command);
    return head;
}

/* A whole file or none: written beside it and renamed.  Devices and pipes are written in place. */
static int write_file(const char *path, const char *text)
{
    struct stat st;
    char temp[4096 + 32];
    const bool direct = stat(path, &st) == 0 && !S_ISREG(st.st_mode);
    const int n = direct ? snprintf(temp, sizeof temp, "%s", path)
                         : snprintf(temp, sizeof temp, "%s.tmp-%ld", path, (long)getpid());
    if (n < 0 || (size_t)n >= sizeof temp)
        return cli_fail("%.60s...: the name has more than 4096 bytes", path);
    FILE *f = fopen(temp, "w");
    if (!f)
        return cli_fail("%s: cannot write: %s", path, strerror(errno));
    errno = 0;
    bool fine = fputs(text, f) >= 0 && fputc('\n', f) != EOF && fflush(f) == 0 && (direct || fsync(fileno(f)) == 0);
    int reason = errno;
    if (fclose(f) != 0 && fine) {
        fine = false;
        reason = errno;
    }
    if (fine && !direct && rename(temp, path) != 0) {
        fine = false;
        reason = errno;
    }
    if (fine)
        return CLI_FINE;
    if (!direct)
        unlink(temp);
    return cli_fail("%s: cannot write: %s", path, strerror(reason));
}

int cli_json_write(const char *path, json_t *object)
{
    char *text = object ? json_dumps(object, JSON_INDENT(1) | JSON_REAL_PRECISION(7)) : NULL;
    json_decref(object);
    if (!text)
        return cli_fail("the results could not be written as JSON");
    int status = CLI_FINE;
    if (strcmp(path, "-") == 0)
        puts(text);
    else
        status = write_file(path, text);
    free(text);
    return status;
}
