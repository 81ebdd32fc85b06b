/* veloxquant inspect: what is in a model file. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

struct args {
    const char *model, *metadata;
    bool json, no_tensors;
};

#define AT(field) offsetof(struct args, field)

static const cli_option options[] = {
    {'m', "model", CLI_TEXT, AT(model), "FILE", "the file; the word after 'inspect' does as well", 0, 0},
    {0, "metadata", CLI_TEXT, AT(metadata), "KEY", "print the value of this key alone, in full", 0, 0},
    {0, "no-tensors", CLI_FLAG, AT(no_tensors), NULL, "leave out the list of tensors", 0, 0},
    {0, "json", CLI_FLAG, AT(json), NULL, "the same as one JSON object; arrays of metadata in full", 0, 0},
};

static const char ending[] =
    "Examples:\n"
    "  veloxquant inspect model.gguf\n"
    "  veloxquant inspect model.gguf --metadata tokenizer.chat_template\n"
    "  veloxquant inspect model.gguf --json | jq '.tensors[] | select(.type == \"Q4_1\").name'\n";

enum { SHOWN_ELEMENTS = 6, SHOWN_BYTES = 60 };

/* ---- values ---- */

struct number {
    bool whole, is_signed, is_bool;
    uint64_t u;
    int64_t i;
    double f;
};

static struct number number_at(vq_gguf_kind kind, const void *raw, uint64_t index)
{
    const char *at = raw;
    struct number n = {.whole = true};
    switch (kind) {
    case VQ_GGUF_U8: n.u = *((const uint8_t *)at + index); break;
    case VQ_GGUF_BOOL:
        n.u = *((const uint8_t *)at + index);
        n.is_bool = true;
        break;
    case VQ_GGUF_I8:
        n.i = *((const int8_t *)at + index);
        n.is_signed = true;
        break;
    case VQ_GGUF_U16: {
        uint16_t x;
        memcpy(&x, at + 2 * index, 2);
        n.u = x;
        break;
    }
    case VQ_GGUF_I16: {
        int16_t x;
        memcpy(&x, at + 2 * index, 2);
        n.i = x;
        n.is_signed = true;
        break;
    }
    case VQ_GGUF_U32: {
        uint32_t x;
        memcpy(&x, at + 4 * index, 4);
        n.u = x;
        break;
    }
    case VQ_GGUF_I32: {
        int32_t x;
        memcpy(&x, at + 4 * index, 4);
        n.i = x;
        n.is_signed = true;
        break;
    }
    case VQ_GGUF_U64: memcpy(&n.u, at + 8 * index, 8); break;
    case VQ_GGUF_I64:
        memcpy(&n.i, at + 8 * index, 8);
        n.is_signed = true;
        break;
    case VQ_GGUF_F32: {
        float x;
        memcpy(&x, at + 4 * index, 4);
        n.f = (double)x;
        n.whole = false;
        break;
    }
    case VQ_GGUF_F64:
        memcpy(&n.f, at + 8 * index, 8);
        n.whole = false;
        break;
    default: break;
    }
    return n;
}

/* The fewest digits that mean the same number. */
static void print_real(double x, bool single)
{
    char text[40];
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        if (single ? strtof(text, NULL) == (float)x : strtod(text, NULL) == x)
            break;
    }
    fputs(text, stdout);
}

static void print_number(struct number n)
{
    if (n.is_bool)
        fputs(n.u ? "true" : "false", stdout);
    else if (!n.whole)
        print_real(n.f, n.f == (double)(float)n.f);
    else if (n.is_signed)
        printf("%" PRIi64, n.i);
    else
        printf("%" PRIu64, n.u);
}

/* Control characters would reach the terminal: they are escaped. most = 0: all of it. */
static void print_string(vq_str s, size_t most)
{
    size_t n = s.n_bytes;
    if (most && n > most)
        for (n = most; n > 0 && ((unsigned char)s.at[n] & 0xC0) == 0x80; n--) {
        }
    putchar('"');
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)s.at[i];
        if (c == '"' || c == '\\')
            printf("\\%c", c);
        else if (c == '\n')
            fputs("\\n", stdout);
        else if (c == '\t')
            fputs("\\t", stdout);
        else if (c < 0x20 || c == 0x7F)
            printf("\\x%02X", c);
        else
            putchar(c);
    }
    putchar('"');
    if (n < s.n_bytes)
        printf("... (%zu bytes)", s.n_bytes);
}

static void print_value(const vq_gguf_value *v, bool whole)
{
    if (v->kind == VQ_GGUF_STRING) {
        print_string(v->strings[0], whole ? 0 : SHOWN_BYTES);
        return;
    }
    if (v->kind != VQ_GGUF_ARRAY) {
        print_number(number_at(v->kind, v->raw, 0));
        return;
    }
    putchar('[');
    const uint64_t n = !whole && v->n > SHOWN_ELEMENTS ? SHOWN_ELEMENTS : v->n;
    for (uint64_t i = 0; i < n; i++) {
        if (i)
            fputs(", ", stdout);
        if (v->array_kind == VQ_GGUF_STRING)
            print_string(v->strings[i], whole ? 0 : 16);
        else
            print_number(number_at(v->array_kind, v->raw, i));
    }
    if (n < v->n)
        printf(", ... %" PRIu64 " in all", v->n);
    putchar(']');
}

/* ---- what the tensors add up to ---- */
struct totals {
    uint64_t n_values, n_bytes;
    uint64_t values_of[VQ_N_TYPES], bytes_of[VQ_N_TYPES];
    uint32_t tensors_of[VQ_N_TYPES];
};

static uint64_t n_values(const vq_tensor *t) { return t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3]; }

static struct totals add_up(const vq_gguf *g)
{
    struct totals sum = {0};
    for (uint64_t i = 0; i < vq_gguf_n_tensors(g); i++) {
        const vq_tensor *t = vq_gguf_tensor_at(g, i);
        sum.n_values += n_values(t);
        sum.n_bytes += t->n_bytes;
        sum.values_of[t->type] += n_values(t);
        sum.bytes_of[t->type] += t->n_bytes;
        sum.tensors_of[t->type]++;
    }
    return sum;
}

/* ---- text ---- */

static void shape_text(const vq_tensor *t, char *out, size_t n_bytes)
{
    size_t used = 0;
    out[0] = 0;
    for (uint32_t d = 0; d < t->n_dims && used < n_bytes; d++)
        used += (size_t)snprintf(out + used, n_bytes - used, d ? " x %" PRIu64 : "%" PRIu64, t->dims[d]);
}

static void print_model(const vq_model *m)
{
    const vq_model_info *i = vq_model_get_info(m);
    const vq_tokenizer *t = vq_model_tokenizer(m);
    const vq_chat_template *chat;
    vq_error err;
    printf("  family          %s\n", i->family);
    printf("  layers          %u\n", i->n_layers);
    printf("  width           %u, feed-forward %u\n", i->n_embd, i->n_ff);
    printf("  heads           %u queries, %u keys and values, of %u\n", i->n_heads, i->n_kv_heads, i->head_dim);
    printf("  vocabulary      %u, %s%s\n", i->n_vocab, vq_tokenizer_kind(t),
           vq_tokenizer_adds_bos(t) ? ", starts with BOS" : "");
    printf("  context         %u tokens", i->n_ctx_train);
    if (i->window)
        printf(", local layers see %u", i->window);
    printf("\n  f16 cache       %" PRIu64 " B a token\n", (uint64_t)i->n_layers * i->n_kv_heads * i->head_dim * 4);
    if (vq_chat_template_detect(&chat, vq_model_gguf(m), &err) == VQ_OK)
        printf("  chat template   %s\n", vq_chat_template_name(chat));
    else
        printf("  chat template   none (%s)\n", err.text);
}

static void print_tensors(const vq_gguf *g)
{
    char shape[96];
    printf("\ntensors (%" PRIu64 "):\n", vq_gguf_n_tensors(g));
    for (uint64_t i = 0; i < vq_gguf_n_tensors(g); i++) {
        const vq_tensor *t = vq_gguf_tensor_at(g, i);
        shape_text(t, shape, sizeof shape);
        printf("  %-32.*s %-7s %18s %14" PRIu64 " B\n", (int)t->name.n_bytes, t->name.at, vq_type_name(t->type), shape,
               t->n_bytes);
    }
}

static void print_totals(const vq_gguf *g)
{
    const struct totals sum = add_up(g);
    char bytes[16];
    puts("\ntypes:");
    for (size_t type = 0; type < VQ_N_TYPES; type++) {
        if (sum.tensors_of[type] == 0)
            continue;
        printf("  %-7s %5u tensors %14" PRIu64 " values %12s  %.3f bits a weight\n", vq_type_name((vq_type)type),
               sum.tensors_of[type], sum.values_of[type], cli_bytes(sum.bytes_of[type], bytes),
               8 * (double)sum.bytes_of[type] / (double)sum.values_of[type]);
    }
    printf("  %-7s %5" PRIu64 " tensors %14" PRIu64 " values %12s", "all", vq_gguf_n_tensors(g), sum.n_values,
           cli_bytes(sum.n_bytes, bytes));
    if (sum.n_values > 0)
        printf("  %.3f bits a weight", 8 * (double)sum.n_bytes / (double)sum.n_values);
    putchar('\n');
}

static void print_all(const vq_gguf *g, const vq_model *model, const vq_error *model_error, bool tensors)
{
    char bytes[16];
    printf("%s: %s version %u, %s\n", vq_gguf_path(g),
           vq_gguf_is_reservoir(g) ? "reservoir"
           : vq_gguf_version(g)    ? "GGUF"
                                   : "folder of safetensors",
           vq_gguf_version(g), cli_bytes(vq_gguf_file_bytes(g), bytes));
    puts("\nmodel:");
    if (model)
        print_model(model);
    else
        printf("  this program cannot run it: %s\n", model_error->text);
    printf("\nmetadata (%" PRIu64 "):\n", vq_gguf_n_values(g));
    for (uint64_t i = 0; i < vq_gguf_n_values(g); i++) {
        const vq_gguf_value *v = vq_gguf_value_at(g, i);
        printf("  %-44.*s ", (int)v->key.n_bytes, v->key.at);
        print_value(v, false);
        putchar('\n');
    }
    if (tensors)
        print_tensors(g);
    print_totals(g);
}

/* ---- JSON ---- */

/* Strings of a model file need not be UTF-8; JSON has to be. */
static json_t *json_text(vq_str s)
{
    json_t *text = json_stringn(s.at, s.n_bytes);
    if (text)
        return text;
    vq_detokenizer d = {.n_held = 0};
    char *out = malloc(s.n_bytes * 3 + 32);
    if (!out)
        return NULL;
    size_t n = vq_detokenizer_push(&d, s.at, s.n_bytes, out);
    n += vq_detokenizer_finish(&d, out + n);
    text = json_stringn(out, n);
    free(out);
    return text;
}

static json_t *json_of_number(struct number n)
{
    if (n.is_bool)
        return json_boolean(n.u != 0);
    if (!n.whole)
        return isfinite(n.f) ? json_real(n.f) : json_null();
    if (n.is_signed)
        return json_integer(n.i);
    return n.u <= INT64_MAX ? json_integer((json_int_t)n.u) : json_real((double)n.u);
}

static json_t *json_of_value(const vq_gguf_value *v)
{
    if (v->kind == VQ_GGUF_STRING)
        return json_text(v->strings[0]);
    if (v->kind != VQ_GGUF_ARRAY)
        return json_of_number(number_at(v->kind, v->raw, 0));
    json_t *array = json_array();
    for (uint64_t i = 0; i < v->n; i++)
        json_array_append_new(array, v->array_kind == VQ_GGUF_STRING
                                         ? json_text(v->strings[i])
                                         : json_of_number(number_at(v->array_kind, v->raw, i)));
    return array;
}

static json_t *json_of_model(const vq_model *m)
{
    const vq_model_info *i = vq_model_get_info(m);
    return json_pack("{s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:I, s:I, s:s}", "family", i->family,
                     "name", i->name, "layers", (int)i->n_layers, "width", (int)i->n_embd, "feed_forward", (int)i->n_ff,
                     "heads", (int)i->n_heads, "kv_heads", (int)i->n_kv_heads, "head_size", (int)i->head_dim,
                     "vocabulary", (int)i->n_vocab, "context", (int)i->n_ctx_train, "window", (int)i->window,
                     "parameters", (json_int_t)i->n_params, "weight_bytes", (json_int_t)i->weight_bytes, "tokenizer",
                     vq_tokenizer_kind(vq_model_tokenizer(m)));
}

static int print_json(const vq_gguf *g, const vq_model *model, const vq_error *model_error, bool tensors)
{
    const struct totals sum = add_up(g);
    json_t *all = json_object();
    json_object_set_new(all, "file", json_string(vq_gguf_path(g)));
    json_object_set_new(all, vq_gguf_is_reservoir(g) ? "reservoir_version" : "gguf_version",
                        json_integer(vq_gguf_version(g)));
    json_object_set_new(all, "file_bytes", json_integer((json_int_t)vq_gguf_file_bytes(g)));
    json_object_set_new(all, "model", model ? json_of_model(model) : json_null());
    if (!model)
        json_object_set_new(all, "model_error", json_string(model_error->text));
    json_t *metadata = json_object();
    for (uint64_t i = 0; i < vq_gguf_n_values(g); i++) {
        const vq_gguf_value *v = vq_gguf_value_at(g, i);
        char key[512];
        snprintf(key, sizeof key, "%.*s", (int)v->key.n_bytes, v->key.at);
        json_object_set_new(metadata, key, json_of_value(v));
    }
    json_object_set_new(all, "metadata", metadata);
    json_t *list = json_array();
    for (uint64_t i = 0; tensors && i < vq_gguf_n_tensors(g); i++) {
        const vq_tensor *t = vq_gguf_tensor_at(g, i);
        json_t *shape = json_array();
        for (uint32_t d = 0; d < t->n_dims; d++)
            json_array_append_new(shape, json_integer((json_int_t)t->dims[d]));
        json_array_append_new(list, json_pack("{s:o, s:s, s:o, s:I}", "name", json_text(t->name), "type",
                                              vq_type_name(t->type), "shape", shape, "bytes", (json_int_t)t->n_bytes));
    }
    json_object_set_new(all, "tensors", list);
    json_object_set_new(all, "weights", json_integer((json_int_t)sum.n_values));
    json_object_set_new(all, "weight_bytes", json_integer((json_int_t)sum.n_bytes));
    json_object_set_new(all, "bits_per_weight",
                        sum.n_values ? json_real(8 * (double)sum.n_bytes / (double)sum.n_values) : json_null());
    char *text = json_dumps(all, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    json_decref(all);
    if (!text)
        return cli_fail("no memory for the JSON text");
    puts(text);
    free(text);
    return CLI_FINE;
}

int cli_inspect(int argc, char **argv)
{
    struct args a = {0};
    const cli_group groups[] = {{"Options", options, sizeof options / sizeof options[0], &a}};
    const cli_page page = {
        "inspect",
        "MODEL [options]",
        "Prints what is in a model file, GGUF or reservoir: the model, its metadata (long arrays and strings "
        "shortened), its tensors with types, shapes (the first number varies fastest) and bytes, "
        "and the bits a weight takes. The file is checked as for running; what cannot be run is "
        "shown all the same, with the reason.",
        groups,
        1,
        ending,
        0,
        1};
    size_t n_operands;
    int status;
    if (!cli_parse(&page, argc, argv, &n_operands, &status))
        return status;
    if (n_operands == 1)
        a.model = argv[1];
    if (!a.model)
        return cli_usage(&page, "no model file named");
    vq_error err;
    vq_gguf *gguf;
    vq_model *model;
    cli_signals_model(a.model);
    if (vq_gguf_open(&gguf, a.model, &err) != VQ_OK)
        return cli_fail_with(&err);
    if (a.metadata) {
        const vq_gguf_value *v = vq_gguf_find(gguf, a.metadata);
        if (!v) {
            cli_say("%s: no key '%s'", a.model, a.metadata);
        } else if (v->kind == VQ_GGUF_STRING) {
            fwrite(v->strings[0].at, 1, v->strings[0].n_bytes, stdout);
            putchar('\n');
        } else {
            print_value(v, true);
            putchar('\n');
        }
        status = v ? CLI_FINE : CLI_FAILED;
    } else {
        vq_model_open(&model, a.model, &err);
        if (a.json)
            status = print_json(gguf, model, &err, !a.no_tensors);
        else {
            print_all(gguf, model, &err, !a.no_tensors);
            status = CLI_FINE;
        }
        vq_model_close(model);
    }
    vq_gguf_close(gguf);
    return status;
}
