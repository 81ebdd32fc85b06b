/* The text of a policy, and the listing of the registered ones. */
#include <string.h>

#include "kv/option_text.h"
#include "kv/policies/policy.h"

enum { BUDGET, SINKS, RECENT, EVERY, PROMPT, N_COMMON };
enum { MOST_ROWS = 1 << 28 };

static const vq_kv_option_info common[N_COMMON] = {
    {.name = "budget",
     .help = "rows that a kv head keeps, sinks and recent ones included; with % a share of the rows so far",
     .value = 50,
     .min = 1,
     .max = MOST_ROWS},
    {.name = "sinks", .help = "first rows that stay (at most an eighth of the budget)", .value = 4, .max = MOST_ROWS},
    {.name = "recent", .help = "newest rows that stay (if not given, as the policy says)", .max = MOST_ROWS},
    {.name = "every", .help = "rows between evictions when generating", .value = 32, .min = 1, .max = MOST_ROWS},
    {.name = "prompt", .help = "rows between evictions in a prompt; 0: only at its end", .max = MOST_ROWS},
};

const vq_kv_option_info *vq_kv_policy_common(size_t *n)
{
    *n = N_COMMON;
    return common;
}

static const vq_policy *find_policy(const char *name, size_t n, vq_error *err)
{
    char list[VQ_LIST_BYTES] = "";
    for (size_t i = 0; i < vq_n_policies; i++) {
        if (vq_text_is(name, n, vq_policies[i]->name))
            return vq_policies[i];
        vq_text_list(list, vq_policies[i]->name);
    }
    vq_fail(err, VQ_ERR_ARG, "no policy is called '%.*s'; there are: %s", (int)(n < 64 ? n : 64), name, list);
    return NULL;
}

static vq_status no_such_option(const vq_policy *p, const char *name, size_t n, vq_error *err)
{
    char list[VQ_LIST_BYTES] = "";
    for (size_t i = 0; i < p->n_options; i++)
        vq_text_list(list, p->options[i].name);
    for (size_t i = 0; i < N_COMMON; i++)
        vq_text_list(list, common[i].name);
    if (p->needs_calibration)
        vq_text_list(list, "calibration");
    return vq_fail(err, VQ_ERR_ARG, "%s has no option '%.*s'; it has: %s", p->name, (int)(n < 64 ? n : 64), name, list);
}

static vq_status set_common(vq_policy_choice *c, int index, const char *value, size_t n, vq_error *err)
{
    vq_kv_option_info info = common[index];
    if (index == BUDGET) {
        c->is_percent = n > 0 && value[n - 1] == '%';
        n -= c->is_percent;
        if (c->is_percent) {
            info.fraction = true;
            info.min = 0;
            info.max = 100;
        }
        VQ_TRY(vq_text_value(c->policy->name, &info, value, n, &c->budget, err));
        if (c->budget == 0)
            return vq_fail(err, VQ_ERR_ARG, "%s: budget is 0%%, must be above 0%%", c->policy->name);
        return VQ_OK;
    }
    double x;
    VQ_TRY(vq_text_value(c->policy->name, &info, value, n, &x, err));
    uint32_t *const fields[N_COMMON] = {NULL, &c->sinks, &c->recent, &c->every, &c->prompt};
    *fields[index] = (uint32_t)x;
    return VQ_OK;
}

static vq_status set_option(vq_policy_choice *c, const char *at, size_t n, vq_error *err)
{
    const vq_policy *p = c->policy;
    const char *equals = memchr(at, '=', n);
    if (!equals)
        return vq_fail(err, VQ_ERR_ARG, "%s: '%.*s' is not of the form option=value", p->name, (int)(n < 64 ? n : 64),
                       at);
    const size_t n_name = (size_t)(equals - at), n_value = n - n_name - 1;
    for (int i = 0; i < N_COMMON; i++)
        if (vq_text_is(at, n_name, common[i].name))
            return set_common(c, i, equals + 1, n_value, err);
    for (size_t i = 0; i < p->n_options; i++)
        if (vq_text_is(at, n_name, p->options[i].name))
            return vq_text_value(p->name, &p->options[i], equals + 1, n_value, &c->values[i], err);
    if (!p->needs_calibration || !vq_text_is(at, n_name, "calibration"))
        return no_such_option(p, at, n_name, err);
    if (n_value >= sizeof c->calibration)
        return vq_fail(err, VQ_ERR_ARG, "%s: the path of the calibration has %zu bytes, at most %zu", p->name, n_value,
                       sizeof c->calibration - 1);
    memcpy(c->calibration, equals + 1, n_value);
    c->calibration[n_value] = '\0';
    return VQ_OK;
}

/* What was asked for has to fit together.  A share is of rows that are not known yet: there the budget wins. */
static vq_status check(const vq_policy_choice *c, vq_error *err)
{
    const char *name = c->policy->name;
    if (c->is_percent)
        return VQ_OK;
    const double sinks = c->sinks == VQ_KV_DEFAULT ? 0 : c->sinks, recent = c->recent == VQ_KV_DEFAULT ? 0 : c->recent;
    if (sinks > c->budget)
        return vq_fail(err, VQ_ERR_ARG, "%s: sinks is %g, more than the budget %g", name, sinks, c->budget);
    if (recent > c->budget)
        return vq_fail(err, VQ_ERR_ARG, "%s: recent is %g, more than the budget %g", name, recent, c->budget);
    if (sinks + recent > c->budget)
        return vq_fail(err, VQ_ERR_ARG, "%s: sinks and recent are %g and %g, together more than the budget %g", name,
                       sinks, recent, c->budget);
    return VQ_OK;
}

vq_status vq_policy_parse(vq_policy_choice *out, const char *text, vq_error *err)
{
    const size_t n_name = strcspn(text, ":");
    vq_policy_choice c = {.policy = find_policy(text, n_name, err),
                          .is_percent = true,
                          .budget = common[BUDGET].value,
                          .sinks = VQ_KV_DEFAULT,
                          .recent = VQ_KV_DEFAULT,
                          .every = (uint32_t)common[EVERY].value,
                          .prompt = (uint32_t)common[PROMPT].value};
    if (!c.policy)
        return VQ_ERR_ARG;
    for (size_t i = 0; i < c.policy->n_options; i++)
        c.values[i] = c.policy->options[i].value;
    const char *at = text + n_name;
    while (*at) {
        at++; /* ':' or ',' */
        const size_t n = strcspn(at, ",");
        VQ_TRY(set_option(&c, at, n, err));
        at += n;
    }
    VQ_TRY(check(&c, err));
    *out = c;
    return VQ_OK;
}

size_t vq_kv_n_policies(void) { return vq_n_policies; }

void vq_kv_policy_at(size_t index, vq_kv_policy_info *out)
{
    const vq_policy *p = vq_policies[index];
    *out = (vq_kv_policy_info){.name = p->name,
                               .summary = p->summary,
                               .paper = p->paper,
                               .options = p->options,
                               .n_options = p->n_options,
                               .needs_calibration = p->needs_calibration};
}
