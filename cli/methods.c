/* veloxquant methods: the ways to store keys and values and to evict tokens, with what they take. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

struct args {
    uint32_t head_size;
    bool brief;
};

#define AT(field) offsetof(struct args, field)

/* Bits are those of the second half of N_TOKENS: whatever is held once, and a page that is not full, drops out. */
enum { N_TOKENS = 2048, PER_APPEND = 1024 };

static const cli_option options[] = {
    {0, "head-size", CLI_COUNT, AT(head_size), "D", "bits a value are measured for heads of this size", 1, 512},
    {0, "brief", CLI_FLAG, AT(brief), NULL, "one line a method", 0, 0},
};

static const char ending[] =
    "Bits a value count everything that belongs to packed tokens: codes, scales and norms.\n"
    "Exact tokens (first and newest) and tables come on top; 'generate --stats' shows all of it.\n"
    "\n"
    "Examples:\n"
    "  veloxquant methods --head-size 128\n"
    "  veloxquant methods kivi\n"
    "  veloxquant generate -m model.gguf -p \"...\" --kv turboquant-mse:bits=3\n"
    "  veloxquant generate -m model.gguf -p \"...\" --kv-keys int8 --kv-values turboquant-mse:bits=2\n";

/* Bits a packed value of keys and values together; 0 when the method is not for this head size. */
static double measure(const char *method, uint32_t head_size, vq_error *err)
{
    const vq_kv_params params = {
        .n_layers = 1,
        .n_heads = 1,
        .n_kv_heads = 1,
        .d_k = head_size,
        .d_v = head_size,
        .n_ctx = N_TOKENS,
        .n_batch = PER_APPEND,
        .keys = method,
        .values = method,
        .sinks = VQ_KV_DEFAULT,
        .residual = VQ_KV_DEFAULT,
    };
    vq_kv *kv;
    if (vq_kv_open(&kv, &params, err) != VQ_OK)
        return 0;
    double bits = 0;
    float *rows = malloc((size_t)PER_APPEND * head_size * sizeof *rows);
    bool fine = rows != NULL;
    for (size_t i = 0; fine && i < (size_t)PER_APPEND * head_size; i++)
        rows[i] = sinf((float)i); /* bits do not depend on what the rows hold */
    vq_kv_bytes half = {0}, whole = {0};
    fine = fine && vq_kv_append(kv, 0, 0, rows, rows, PER_APPEND, err) == VQ_OK;
    if (fine)
        vq_kv_measure(kv, &half);
    fine = fine && vq_kv_append(kv, 0, PER_APPEND, rows, rows, PER_APPEND, err) == VQ_OK;
    if (fine)
        vq_kv_measure(kv, &whole);
    if (fine && whole.n_values_packed > half.n_values_packed)
        bits = 8 * (double)(whole.codes + whole.scales - half.codes - half.scales) /
               (double)(whole.n_values_packed - half.n_values_packed);
    free(rows);
    vq_kv_close(kv);
    return bits;
}

static void print_bits(const vq_kv_codec_info *c, uint32_t head_size)
{
    const vq_kv_option_info *bits = NULL;
    for (size_t i = 0; i < c->n_options; i++)
        if (strcmp(c->options[i].name, "bits") == 0)
            bits = &c->options[i];
    vq_error err;
    const double standard = measure(c->name, head_size, &err);
    if (standard > 0)
        printf("  bits a value   %.3f", standard);
    else
        printf("  bits a value   not for heads of %u (%s)", head_size, err.text);
    if (bits && standard > 0) {
        fputs(";", stdout);
        for (double b = bits->min; b <= bits->max; b++) {
            char method[96];
            snprintf(method, sizeof method, "%s:bits=%g", c->name, b);
            const double got = measure(method, head_size, &err);
            if (got > 0)
                printf(" bits=%g: %.3f", b, got);
        }
    }
    putchar('\n');
}

static void print_options(const vq_kv_option_info *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const vq_kv_option_info *o = &list[i];
        printf("  %s %s=%g   %g to %g: %s\n", i ? "             " : "options      ", o->name, o->value, o->min, o->max,
               o->help);
    }
}

static void print_method(const vq_kv_codec_info *c, uint32_t head_size)
{
    printf("\n%s\n  %s\n", c->name, c->summary);
    if (c->paper && c->paper[0])
        printf("  paper          %s\n", c->paper);
    print_options(c->options, c->n_options);
    if (c->inner)
        printf("                 inner=%s   any other method, whose options follow it\n", c->inner);
    print_bits(c, head_size);
}

static void print_policy(const vq_kv_policy_info *p)
{
    printf("\n%s\n  %s\n", p->name, p->summary);
    if (p->paper && p->paper[0])
        printf("  paper          %s\n", p->paper);
    print_options(p->options, p->n_options);
    if (p->needs_calibration)
        puts("  needs          calibration=FILE or --calibration FILE ('veloxquant calibrate' makes it)");
}

/* Eviction policies of this name, or all of them; returns how many there were. */
static size_t list_policies(const char *wanted, bool brief)
{
    size_t n_shown = 0;
    for (size_t i = 0; i < vq_kv_n_policies(); i++) {
        vq_kv_policy_info p;
        vq_kv_policy_at(i, &p);
        if (wanted && strcmp(wanted, p.name) != 0)
            continue;
        if (n_shown++ == 0 && !brief) {
            puts("\nEviction policies, for --evict, are written in the same way. All of them take:");
            size_t n;
            const vq_kv_option_info *common = vq_kv_policy_common(&n);
            print_options(common, n);
        }
        if (brief)
            printf("%-18s %s\n", p.name, p.summary);
        else
            print_policy(&p);
    }
    return n_shown;
}

int cli_methods(int argc, char **argv)
{
    struct args a = {.head_size = 64};
    const cli_group groups[] = {{"Options", options, sizeof options / sizeof options[0], &a}};
    const cli_page page = {"methods",
                           "[NAME] [options]",
                           "Lists the methods that --kv, --kv-keys and --kv-values take, with their paper, their "
                           "options (default and range) and the bits a value they take, measured; then the policies "
                           "that --evict takes.",
                           groups,
                           1,
                           ending,
                           0,
                           1};
    size_t n_operands;
    int status;
    if (!cli_parse(&page, argc, argv, &n_operands, &status))
        return status;
    const char *wanted = n_operands ? argv[1] : NULL;
    const char *names[64];
    size_t n_names = 0, n_shown = 0;
    for (size_t i = 0; i < vq_kv_n_codecs(); i++) {
        vq_kv_codec_info c;
        vq_kv_codec_at(i, &c);
        if (n_names < sizeof names / sizeof names[0])
            names[n_names++] = c.name;
        if (wanted && strcmp(wanted, c.name) != 0)
            continue;
        n_shown++;
        if (a.brief) {
            printf("%-18s %s\n", c.name, c.summary);
        } else {
            if (n_shown == 1)
                puts("A method is written NAME or NAME:option=value,option=value.");
            print_method(&c, a.head_size);
        }
    }
    if (a.brief && !wanted)
        puts("\nEviction (--evict):");
    n_shown += list_policies(wanted, a.brief);
    if (n_shown > 0)
        return CLI_FINE;
    for (size_t i = 0; i < vq_kv_n_policies() && n_names < sizeof names / sizeof names[0]; i++) {
        vq_kv_policy_info p;
        vq_kv_policy_at(i, &p);
        names[n_names++] = p.name;
    }
    const char *near = cli_nearest(wanted ? wanted : "", names, n_names);
    return near ? cli_usage(&page, "unknown method '%s'; did you mean '%s'?", wanted, near)
                : cli_usage(&page, "unknown method '%s'", wanted ? wanted : "");
}
