/* The text of a method, and the listing of the registered codecs. */
#include <string.h>

#include "kv/codec.h"
#include "kv/option_text.h"

const vq_codec *vq_codec_find(const char *name, size_t n)
{
    for (size_t i = 0; i < vq_n_codecs; i++)
        if (vq_text_is(name, n, vq_codecs[i]->name))
            return vq_codecs[i];
    return NULL;
}

static const vq_codec *find_codec(const char *name, size_t n, vq_error *err)
{
    const vq_codec *codec = vq_codec_find(name, n);
    if (codec)
        return codec;
    char list[VQ_LIST_BYTES] = "";
    for (size_t i = 0; i < vq_n_codecs; i++)
        vq_text_list(list, vq_codecs[i]->name);
    vq_fail(err, VQ_ERR_ARG, "no method is called '%.*s'; there are: %s", (int)(n < 64 ? n : 64), name, list);
    return NULL;
}

/* Which of a codec's options is called `name`, its value belonging into values; words it does not know join the list.
 */
static const vq_kv_option_info *option_of(const vq_codec *codec, double *values, const char *name, size_t n,
                                          double **value, char *list)
{
    for (size_t i = 0; i < codec->n_options; i++) {
        *value = &values[i];
        if (vq_text_is(name, n, codec->options[i].name))
            return &codec->options[i];
        vq_text_list(list, codec->options[i].name);
    }
    return NULL;
}

/* Where the value of option `name` goes; returns its range. */
static const vq_kv_option_info *find_option(vq_method *m, const char *name, size_t n, double **value, vq_error *err)
{
    char list[VQ_LIST_BYTES] = "";
    const vq_kv_option_info *info = option_of(m->codec, m->values, name, n, value, list);
    if (!info && m->inner) {
        vq_text_list(list, "inner");
        info = option_of(m->inner, m->inner_values, name, n, value, list);
    }
    if (info)
        return info;
    vq_text_list(list, "sinks residual calibration");
    vq_fail(err, VQ_ERR_ARG, "%s has no option '%.*s'; it has: %s", m->codec->name, (int)(n < 64 ? n : 64), name, list);
    return NULL;
}

static void set_defaults(const vq_codec *codec, double *values)
{
    for (size_t i = 0; i < codec->n_options; i++)
        values[i] = codec->options[i].value;
}

static vq_status parse_inner(vq_method *m, const char *name, size_t n, vq_error *err)
{
    const vq_codec *inner = find_codec(name, n, err);
    if (!inner)
        return vq_fail_prefix(err, VQ_ERR_ARG, "%s: inner", m->codec->name);
    if (inner->inner)
        return vq_fail(err, VQ_ERR_ARG, "%s: inner is %s, which hands rows on itself", m->codec->name, inner->name);
    m->inner = inner;
    set_defaults(inner, m->inner_values);
    return VQ_OK;
}

static const vq_kv_option_info common[2] = {
    {.name = "sinks", .help = "first rows held exactly", .min = 0, .max = VQ_MAX_SINKS},
    {.name = "residual", .help = "newest rows held exactly", .min = 0, .max = VQ_MAX_RESIDUAL},
};

static vq_status parse_option(vq_method *m, const char *at, size_t n, vq_error *err)
{
    const char *equals = memchr(at, '=', n);
    if (!equals)
        return vq_fail(err, VQ_ERR_ARG, "%s: '%.*s' is not of the form option=value", m->codec->name,
                       (int)(n < 64 ? n : 64), at);
    const size_t n_name = (size_t)(equals - at), n_value = n - n_name - 1;
    if (vq_text_is(at, n_name, "calibration")) {
        if (n_value == 0 || n_value >= sizeof m->calibration)
            return vq_fail(err, VQ_ERR_ARG, "%s: calibration is a path of %zu bytes, allowed are 1 to %zu",
                           m->codec->name, n_value, sizeof m->calibration - 1);
        memcpy(m->calibration, equals + 1, n_value);
        m->calibration[n_value] = '\0';
        return VQ_OK;
    }
    if (m->inner && vq_text_is(at, n_name, "inner"))
        return parse_inner(m, equals + 1, n_value, err);
    const vq_kv_option_info *info = NULL;
    double *to = NULL;
    for (size_t i = 0; i < 2; i++)
        if (vq_text_is(at, n_name, common[i].name))
            info = &common[i];
    if (!info && !(info = find_option(m, at, n_name, &to, err)))
        return VQ_ERR_ARG;

    double value;
    VQ_TRY(vq_text_value(m->codec->name, info, equals + 1, n_value, &value, err));
    if (info == &common[0])
        m->sinks = (uint32_t)value;
    else if (info == &common[1])
        m->residual = (uint32_t)value;
    else
        *to = value;
    return VQ_OK;
}

/* Whether an option of this name stands in text [first, at): the later one would win without a word. */
static bool was_given(const char *first, const char *at, size_t n_name)
{
    for (const char *p = first; p < at; p += strcspn(p, ",") + 1)
        if (strncmp(p, at, n_name) == 0 && p[n_name] == '=')
            return true;
    return false;
}

vq_status vq_method_parse(vq_method *out, const char *text, vq_error *err)
{
    const size_t n_name = strcspn(text, ":");
    vq_method m = {.codec = find_codec(text, n_name, err)};
    if (!m.codec)
        return VQ_ERR_ARG;
    m.sinks = m.codec->sinks;
    m.residual = m.codec->residual;
    set_defaults(m.codec, m.values);
    if (m.codec->inner)
        VQ_TRY(parse_inner(&m, m.codec->inner, strlen(m.codec->inner), err));

    const char *at = text + n_name;
    while (*at) {
        at++; /* ':' or ',' */
        const size_t n = strcspn(at, ","), n_option = strcspn(at, "=,");
        if (was_given(text + n_name + 1, at, n_option))
            return vq_fail(err, VQ_ERR_ARG, "%s: %.*s is given twice", m.codec->name,
                           (int)(n_option < 64 ? n_option : 64), at);
        VQ_TRY(parse_option(&m, at, n, err));
        at += n;
    }
    *out = m;
    return VQ_OK;
}

static double *find_bits(const vq_codec *codec, double *values, const vq_kv_option_info **info)
{
    for (size_t i = 0; i < codec->n_options; i++)
        if (strcmp(codec->options[i].name, "bits") == 0) {
            *info = &codec->options[i];
            return &values[i];
        }
    return NULL;
}

double *vq_method_bits(vq_method *m, const vq_kv_option_info **info)
{
    *info = NULL;
    double *bits = find_bits(m->codec, m->values, info);
    return bits || !m->inner ? bits : find_bits(m->inner, m->inner_values, info);
}

size_t vq_kv_n_codecs(void) { return vq_n_codecs; }

void vq_kv_codec_at(size_t index, vq_kv_codec_info *out)
{
    const vq_codec *c = vq_codecs[index];
    *out = (vq_kv_codec_info){.name = c->name,
                              .summary = c->summary,
                              .paper = c->paper,
                              .options = c->options,
                              .n_options = c->n_options,
                              .inner = c->inner};
}
