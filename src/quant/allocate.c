#include "quant/allocate.h"

#include <stdbool.h>
#include <stdlib.h>

/* From one vertex of an item's hull to the next. */
typedef struct step {
    double gain; /* loss saved by cost */
    uint32_t item, from, to;
} step;

static int by_gain(const void *a, const void *b)
{
    const step *x = a, *y = b;
    if (x->gain != y->gain)
        return x->gain > y->gain ? -1 : 1;
    if (x->item != y->item)
        return x->item < y->item ? -1 : 1;
    return 0; /* gains of one item fall strictly: its steps cannot meet */
}

static uint32_t cheapest(const vq_choice *c, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (c[i].cost < c[best].cost || (c[i].cost == c[best].cost && c[i].loss < c[best].loss))
            best = i;
    return best;
}

/* The vertex of the hull after `from`: the steepest way down, the farthest of equally steep ones; `from` at the end. */
static uint32_t next_vertex(const vq_choice *c, uint32_t n, uint32_t from, double *gain)
{
    uint32_t best = from;
    *gain = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (c[i].cost <= c[from].cost || c[i].loss >= c[from].loss)
            continue;
        const double g = (c[from].loss - c[i].loss) / (double)(c[i].cost - c[from].cost);
        if (g > *gain || (g == *gain && c[i].cost > c[best].cost)) {
            *gain = g;
            best = i;
        }
    }
    return best;
}

static size_t find_steps(step *steps, const vq_choice *choices, size_t n_items, uint32_t n_choices)
{
    size_t n = 0;
    for (size_t i = 0; i < n_items; i++) {
        const vq_choice *c = choices + i * n_choices;
        for (uint32_t at = cheapest(c, n_choices), to;; at = to) {
            double gain;
            to = next_vertex(c, n_choices, at, &gain);
            if (to == at)
                break;
            steps[n++] = (step){.gain = gain, .item = (uint32_t)i, .from = at, .to = to};
        }
    }
    qsort(steps, n, sizeof *steps, by_gain);
    return n;
}

/* The single change that saves most within what is left; false when none does. */
static bool change_one(uint32_t *picked, const vq_choice *choices, size_t n_items, uint32_t n_choices, uint64_t *left)
{
    double most = 0;
    size_t item = 0;
    uint32_t to = 0;
    for (size_t i = 0; i < n_items; i++) {
        const vq_choice *c = choices + i * n_choices, *now = &c[picked[i]];
        for (uint32_t k = 0; k < n_choices; k++) {
            const double saved = now->loss - c[k].loss;
            if (saved > most && c[k].cost <= now->cost + *left) {
                most = saved;
                item = i;
                to = k;
            }
        }
    }
    if (most <= 0)
        return false;
    const vq_choice *c = choices + item * n_choices;
    *left = *left + c[picked[item]].cost - c[to].cost;
    picked[item] = to;
    return true;
}

uint64_t vq_allocate_least(uint32_t *picked, const vq_choice *choices, size_t n_items, uint32_t n_choices)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n_items; i++) {
        picked[i] = cheapest(choices + i * n_choices, n_choices);
        sum += choices[i * n_choices + picked[i]].cost;
    }
    return sum;
}

vq_status vq_allocate(uint32_t *picked, const vq_choice *choices, size_t n_items, uint32_t n_choices, uint64_t budget,
                      vq_error *err)
{
    const uint64_t least = vq_allocate_least(picked, choices, n_items, n_choices);
    if (least > budget)
        return vq_fail(err, VQ_ERR_FULL, "the budget is %llu, the least possible is %llu", (unsigned long long)budget,
                       (unsigned long long)least);
    step *steps = malloc(n_items * n_choices * sizeof *steps + 1);
    if (!steps)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory to share out bits over %zu items", n_items);
    uint64_t left = budget - least;
    const size_t n = find_steps(steps, choices, n_items, n_choices);
    for (size_t i = 0; i < n; i++) {
        const step *s = &steps[i];
        const vq_choice *c = choices + s->item * (size_t)n_choices;
        const uint64_t cost = c[s->to].cost - c[s->from].cost;
        if (picked[s->item] != s->from || cost > left) /* an item that could not take a step takes none after it */
            continue;
        picked[s->item] = s->to;
        left -= cost;
    }
    free(steps);
    while (change_one(picked, choices, n_items, n_choices, &left))
        ;
    return VQ_OK;
}
