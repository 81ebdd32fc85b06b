/* Malformed model files (gguf_bad/index.json): each ends in an error of a class that the index accepts, with a message
 * that names the file; quickly, and without taking memory that a small file cannot need. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include <cmocka.h>
#include <jansson.h>

#include "veloxquant/model.h"

enum { SPARE_BYTES = 64 << 20, SECONDS = 2 };

static const struct {
    const char *name;
    vq_status status;
} classes[] = {
    {"E_TRUNCATED", VQ_ERR_TRUNCATED},
    {"E_MAGIC", VQ_ERR_MAGIC},
    {"E_VERSION", VQ_ERR_VERSION},
    {"E_LIMIT", VQ_ERR_LIMIT},
    {"E_KEY", VQ_ERR_KEY},
    {"E_TYPE", VQ_ERR_TYPE},
    {"E_VALUE", VQ_ERR_VALUE},
    {"E_SHAPE", VQ_ERR_SHAPE},
    {"E_BOUNDS", VQ_ERR_BOUNDS},
    {"E_OVERLAP", VQ_ERR_OVERLAP},
    {"E_OVERFLOW", VQ_ERR_OVERFLOW},
    {"E_DUPLICATE", VQ_ERR_DUPLICATE},
    {"E_ALIGN", VQ_ERR_ALIGN},
    {"E_SPLIT", VQ_ERR_SPLIT},
    {"E_NONFINITE", VQ_ERR_NONFINITE},
    {"E_VOCAB", VQ_ERR_VOCAB},
    {"E_MISSING_KEY", VQ_ERR_MISSING_KEY},
};

/* Whether `status` is among "E_A|E_B"; a class that is not in the table is a fault of this test. */
static bool accepted(const char *expect, vq_status status)
{
    bool found = false;
    for (const char *p = expect; *p; p += *p == '|') {
        const size_t n = strcspn(p, "|");
        bool known = false;
        for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
            if (strlen(classes[i].name) == n && !memcmp(classes[i].name, p, n)) {
                known = true;
                found = found || classes[i].status == status;
            }
        }
        if (!known)
            fail_msg("unknown class in '%s'", expect);
        p += n;
    }
    return found;
}

static json_t *load_index(char *folder, size_t n_bytes)
{
    const char *root = getenv("VQ_SOURCE_ROOT");
    char path[4096];
    assert_non_null(root);
    snprintf(folder, n_bytes, "%s/tests/cases/gguf_bad", root);
    snprintf(path, sizeof path, "%s/index.json", folder);
    json_error_t error;
    json_t *index = json_load_file(path, 0, &error);
    if (!index)
        fail_msg("%s: %s", path, error.text);
    return index;
}

/* Sanitizers reserve terabytes of address space: under them this check does not exist. */
static void limit_memory(void)
{
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    unsigned long n_pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%lu", &n_pages), 1);
    fclose(f);
    const rlim_t bytes = n_pages * 4096 + SPARE_BYTES;
    assert_int_equal(setrlimit(RLIMIT_AS, &(struct rlimit){bytes, RLIM_INFINITY}), 0);
#endif
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void every_file_is_refused(void **state)
{
    (void)state;
    char folder[2048], path[4096];
    json_t *index = load_index(folder, sizeof folder), *entry;
    size_t i;
    unsigned n_wrong = 0;
    assert_true(json_array_size(index) >= 54);
    limit_memory();

    json_array_foreach(index, i, entry)
    {
        const char *file = json_string_value(json_object_get(entry, "file"));
        const char *expect = json_string_value(json_object_get(entry, "expect"));
        const char *fault = json_string_value(json_object_get(entry, "fault"));
        snprintf(path, sizeof path, "%s/%s", folder, file);

        vq_error err = {0};
        vq_model *model = (vq_model *)&err;
        const double start = seconds();
        const vq_status status = vq_model_open(&model, path, &err);
        const double took = seconds() - start;
        const bool named = !strncmp(err.text, path, strlen(path)) && !strncmp(err.text + strlen(path), ": ", 2) &&
                           !strstr(err.text + 1, path);
        const bool right = accepted(expect, status) && err.status == status && !model && named && took < SECONDS;
        print_message("%s %-28s %-14s %s\n", right ? "ok " : "BAD", file, vq_status_name(status),
                      strlen(err.text) > strlen(path) ? err.text + strlen(path) : err.text);
        if (!right) {
            print_message("    %s: wanted %s, took %.3f s\n", fault, expect, took);
            n_wrong++;
        }
        if (status == VQ_OK)
            vq_model_close(model);
    }
    json_decref(index);
    assert_int_equal(n_wrong, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_file_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
