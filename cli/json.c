/* JSON results: numbers, the machine, the command, files that are written whole or not at all. */
#include "json.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "cli.h"

json_t *cli_json_real(double x) { return isfinite(x) ? json_real(x) : json_null(); }

/* The first "model name" of /proc/cpuinfo, and of its flags those that matter for the kernels. */
static json_t *cpu_json(void)
{
    static const char *const known[] = {"avx2",     "fma",         "f16c",       "avx512f",          "avx512bw",
                                        "avx512vl", "avx512_vnni", "avx512vbmi", "avx512_vpopcntdq", "amx_int8",
                                        "asimd",    "asimddp"};
    char line[8192], name[128] = "unknown";
    json_t *flags = json_array();
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(line, sizeof line, f)) {
        const char *value = strchr(line, ':');
        if (!value)
            continue;
        if (strncmp(line, "model name", 10) == 0)
            snprintf(name, sizeof name, "%.*s", (int)strcspn(value + 2, "\n"), value + 2);
        if (strncmp(line, "flags", 5) != 0 && strncmp(line, "Features", 8) != 0)
            continue;
        char *save = NULL;
        for (char *word = strtok_r(line, " \t\n", &save); word; word = strtok_r(NULL, " \t\n", &save))
            for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
                if (strcmp(word, known[i]) == 0)
                    json_array_append_new(flags, json_string(word));
        break;
    }
    if (f)
        fclose(f);
    return json_pack("{s:s, s:o}", "name", name, "features", flags);
}

json_t *cli_json_machine(void)
{
    struct utsname system;
    const char *ceiling = getenv("VQ_CPU");
    if (uname(&system) != 0)
        return json_null();
    return json_pack("{s:o, s:i, s:i, s:s, s:s, s:s, s:o}", "cpu", cpu_json(), "cores_allowed", (int)vq_cores_allowed(),
                     "cores_online", (int)sysconf(_SC_NPROCESSORS_ONLN), "system", system.sysname, "release",
                     system.release, "architecture", system.machine, "VQ_CPU",
                     ceiling ? json_string(ceiling) : json_null());
}

json_t *cli_json_command(int argc, char **argv)
{
    json_t *words = json_array();
    json_array_append_new(words, json_string("veloxquant"));
    for (int i = 0; i < argc; i++)
        json_array_append_new(words, json_string(argv[i]));
    return words;
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
