/* The search for the best paths of 32 rows, side by side: every step of the walk is the same for all rows, so that rows
 * are lanes and nothing is shuffled. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/cpu.h"
#include "kernels/trellis_inner.h"

enum {
    ROWS = VQ_TRELLIS_ROWS,
    STATES = VQ_TRELLIS_STATES,
    SETS = VQ_TRELLIS_SETS,
    AROUND = 4, /* groups before and after the cut that are searched for the state at the cut */
    FEW_GROUPS = 16,
    MANY_GROUPS = 32,
    GROUP_COSTS = 8 * SETS * ROWS,
    GROUP_BITS = 8 * STATES,
};

void vq_trellis_costs_c(uint16_t *cost, const float *x, const vq_trellis_table *t, uint32_t n)
{
    const uint32_t sets = t->sets, n_levels = vq_trellis_n_levels(t->bits);
    for (uint32_t j = 0; j < n; j++, x += ROWS, cost += (size_t)sets * ROWS) {
        float best[SETS][ROWS], least[ROWS];
        for (uint32_t i = 0; i < sets; i++)
            for (uint32_t r = 0; r < ROWS; r++)
                best[i][r] = INFINITY;
        for (uint32_t l = 0; l < n_levels; l++)
            for (uint32_t r = 0; r < ROWS; r++) {
                const float off = x[r] - t->level[l], squared = off * off;
                best[l % sets][r] = squared < best[l % sets][r] ? squared : best[l % sets][r];
            }
        memcpy(least, best[0], sizeof least);
        for (uint32_t i = 1; i < sets; i++)
            for (uint32_t r = 0; r < ROWS; r++)
                least[r] = best[i][r] < least[r] ? best[i][r] : least[r];
        for (uint32_t i = 0; i < sets; i++)
            for (uint32_t r = 0; r < ROWS; r++) {
                const float units = (best[i][r] - least[r]) * t->unit;
                const float within = units < VQ_TRELLIS_TOP_COST ? units : VQ_TRELLIS_TOP_COST;
                cost[(size_t)i * ROWS + r] = (uint16_t)(int32_t)within;
            }
    }
}

static void step_c(uint32_t *back, uint16_t *next, const uint16_t *metric, const uint16_t *cost,
                   const vq_trellis_table *t)
{
    for (uint32_t s = 0; s < STATES; s++) {
        const uint16_t *even = metric + (size_t)(2 * s % STATES) * ROWS, *odd = even + ROWS;
        const uint16_t *even_cost = cost + (size_t)t->set[2 * s] * ROWS,
                       *odd_cost = cost + (size_t)t->set[2 * s + 1] * ROWS;
        uint16_t sum[2][ROWS], lost[ROWS];
        for (uint32_t r = 0; r < ROWS; r++) {
            const uint32_t a = (uint32_t)even[r] + even_cost[r], b = (uint32_t)odd[r] + odd_cost[r];
            sum[0][r] = (uint16_t)(a < UINT16_MAX ? a : UINT16_MAX);
            sum[1][r] = (uint16_t)(b < UINT16_MAX ? b : UINT16_MAX);
        }
        for (uint32_t r = 0; r < ROWS; r++) {
            lost[r] = sum[1][r] < sum[0][r];
            next[(size_t)s * ROWS + r] = lost[r] ? sum[1][r] : sum[0][r];
        }
        back[s] = 0;
        for (uint32_t r = 0; r < ROWS; r++)
            back[s] |= (uint32_t)lost[r] << r;
    }
}

void vq_trellis_walk_c(uint32_t *back, uint16_t *metric, const uint16_t *cost, const vq_trellis_table *t, bool far)
{
    uint16_t other[STATES * ROWS], least[ROWS];
    (void)far;
    for (uint32_t p = 0; p < 8; p += 2) {
        step_c(back + (size_t)p * STATES, other, metric, cost + (size_t)p * t->sets * ROWS, t);
        step_c(back + (size_t)(p + 1) * STATES, metric, other, cost + (size_t)(p + 1) * t->sets * ROWS, t);
    }
    memcpy(least, metric, sizeof least);
    for (uint32_t i = 0; i < STATES * ROWS; i++)
        least[i % ROWS] = metric[i] < least[i % ROWS] ? metric[i] : least[i % ROWS];
    for (uint32_t i = 0; i < STATES * ROWS; i++)
        metric[i] = (uint16_t)(metric[i] - least[i % ROWS]);
}

/* Which of the levels of a set is nearest to x. */
static uint32_t nearest(const vq_trellis_table *t, uint32_t set, float x)
{
    float best = INFINITY;
    uint32_t other = 0;
    for (uint32_t l = 0; l < 1u << (t->bits - 1); l++) {
        const float off = x - t->level[t->sets * l + set], squared = off * off;
        const bool less = squared < best;
        best = less ? squared : best;
        other = less ? l : other;
    }
    return other;
}

void vq_trellis_trace_c(uint8_t *state, float *x, uint8_t *other, const uint32_t *back, const vq_trellis_table *t)
{
    memset(other, 0, (size_t)(t->bits - 1) * ROWS);
    for (uint32_t p = 8; p-- > 0;)
        for (uint32_t r = 0; r < ROWS; r++) {
            const uint32_t window = (uint32_t)state[r] << 1 | (back[p * STATES + state[r]] >> r & 1);
            const uint32_t set = t->set[window], which = nearest(t, set, x[p * ROWS + r]);
            for (uint32_t l = 0; l + 1 < t->bits; l++)
                other[l * ROWS + r] |= (uint8_t)((which >> l & 1) << p);
            x[p * ROWS + r] = t->level[t->sets * which + set];
            state[r] = (uint8_t)window;
        }
}

/* The rows of a search.  Registers of 64 bytes are read from it, and must not straddle lines of the cache. */
typedef struct search {
    _Alignas(64) uint16_t metric[STATES * ROWS];
    const vq_trellis_kernels *k;
    uint32_t n; /* groups that have bits */
    uint8_t bits[VQ_TRELLIS_MAX_GROUPS];
    float *x[VQ_TRELLIS_MAX_GROUPS]; /* [8][32] of each */
    uint32_t *back;                  /* [groups that there is room for][8][256] */
    uint8_t state[ROWS];
} search;

/* Costs are made again when they are needed again: that takes less than they do, and far less than the walk. */
static void walk(search *s, uint32_t group, uint32_t to, bool far)
{
    _Alignas(64) uint16_t cost[GROUP_COSTS];
    const vq_trellis_table *t = &s->k->tables[s->bits[group] - 1];
    s->k->costs(cost, s->x[group], t, 8);
    s->k->walk(s->back + (size_t)to * GROUP_BITS, s->metric, cost, t, far);
}

/* From the states after coordinate p of what was walked to `group` to those before it. */
static void step_back(search *s, uint32_t group, uint32_t p)
{
    const uint32_t *back = s->back + (size_t)group * GROUP_BITS + (size_t)p * STATES;
    for (uint32_t r = 0; r < ROWS; r++) {
        const uint32_t state = s->state[r];
        s->state[r] = (uint8_t)(2 * state + (back[state] >> r & 1));
    }
}

static void find_least(search *s)
{
    uint16_t least[ROWS];
    memcpy(least, s->metric, sizeof least);
    memset(s->state, 0, sizeof s->state);
    for (uint32_t i = 1; i < STATES; i++)
        for (uint32_t r = 0; r < ROWS; r++) {
            const uint16_t m = s->metric[(size_t)i * ROWS + r];
            const bool less = m < least[r];
            least[r] = less ? m : least[r];
            s->state[r] = less ? (uint8_t)i : s->state[r];
        }
}

/* The states between the last and the first group: those of the best paths through the groups on both sides. */
static void find_states_at_cut(search *s)
{
    memset(s->metric, 0, sizeof s->metric);
    for (uint32_t i = 0; i < 2 * AROUND; i++)
        walk(s, (i + (AROUND * s->n - AROUND)) % s->n, i >= AROUND ? i - AROUND : i, false);
    find_least(s);
    for (uint32_t i = AROUND; i-- > 0;)
        for (uint32_t p = 8; p-- > 0;)
            step_back(s, i, p);
}

/* Paths with the given state at both ends exist from 8 coordinates on, and others cannot be cheaper: those of 8
 * coordinates cost at most 8 TOP_COST, which is less than what the others start with.  From then on the best path
 * reaches every state within 8 coordinates, so that no metric exceeds this, and sums of eight more costs fit. */
static void start_at_states(search *s)
{
    memset(s->metric, 0xff, sizeof s->metric);
    for (uint32_t r = 0; r < ROWS; r++)
        s->metric[(size_t)s->state[r] * ROWS + r] = 0;
}
_Static_assert(16 * VQ_TRELLIS_TOP_COST < UINT16_MAX, "see start_at_states");

/* One group's codes, rows row_bytes apart, and what they stand for in the place of x.  What paths lost was walked to
 * `from`. */
static void take_group(search *s, uint32_t g, uint32_t from, uint8_t *codes, size_t row_bytes)
{
    const vq_trellis_table *t = &s->k->tables[s->bits[g] - 1];
    uint8_t other[VQ_TRELLIS_MAX_BITS - 1][ROWS];
    for (uint32_t r = 0; r < ROWS; r++)
        codes[r * row_bytes] = s->state[r]; /* the 8 newest bits, which are those of the group */
    s->k->trace(s->state, s->x[g], other[0], s->back + (size_t)from * GROUP_BITS, t);
    for (uint32_t l = 1; l < t->bits; l++)
        for (uint32_t r = 0; r < ROWS; r++)
            codes[r * row_bytes + l] = other[l - 1][r];
}

/* Groups [first, first + n) from the last on; codes begin with those of the first one. */
static void take_groups(search *s, uint32_t first, uint32_t n, uint8_t *codes, size_t row_bytes)
{
    codes += vq_trellis_row_bytes(s->bits + first, n);
    for (uint32_t i = n; i-- > 0;) {
        codes -= s->bits[first + i];
        take_group(s, first + i, i, codes, row_bytes);
    }
}

/* What paths lost is kept of so many groups as there is room for.  Of longer rows the first ones, which are needed
 * last, are walked once more. */
static void search_groups(search *s, uint32_t room, uint8_t *codes, size_t row_bytes)
{
    const uint32_t again = s->n > room ? s->n - room : 0;
    uint8_t cut[ROWS], middle[ROWS];
    assert(again <= room);
    find_states_at_cut(s);
    memcpy(cut, s->state, sizeof cut);
    start_at_states(s);
    for (uint32_t g = 0; g < s->n; g++)
        walk(s, g, g < again ? g : g - again, g == 0);
    memcpy(s->state, cut, sizeof cut);
    take_groups(s, again, s->n - again, codes + vq_trellis_row_bytes(s->bits, again), row_bytes);
    if (!again)
        return;
    memcpy(middle, s->state, sizeof middle);
    memcpy(s->state, cut, sizeof cut);
    start_at_states(s);
    for (uint32_t g = 0; g < again; g++)
        walk(s, g, g, g == 0);
    memcpy(s->state, middle, sizeof middle);
    take_groups(s, 0, again, codes, row_bytes);
}

/* 128 or 256 KiB of the 1024 of stack that callers have (VQ_STACK_BYTES); whole rows would take 512, and what hands
 * rows on to a codec of trellis codes already has as much in its frames. */
static __attribute__((noinline)) void search_few(search *s, uint8_t *codes, size_t row_bytes)
{
    uint32_t back[FEW_GROUPS * GROUP_BITS];
    s->back = back;
    search_groups(s, FEW_GROUPS, codes, row_bytes);
}

static __attribute__((noinline)) void search_many(search *s, uint8_t *codes, size_t row_bytes)
{
    uint32_t back[MANY_GROUPS * GROUP_BITS];
    s->back = back;
    search_groups(s, MANY_GROUPS, codes, row_bytes);
}
_Static_assert(VQ_TRELLIS_MAX_GROUPS <= 2 * MANY_GROUPS, "see search_groups");

void vq_trellis_search(const vq_trellis_kernels *k, uint8_t *codes, float *x, const uint8_t *bits, uint32_t n_groups)
{
    search s;
    assert(n_groups <= VQ_TRELLIS_MAX_GROUPS);
    s.k = k;
    s.n = 0;
    for (uint32_t g = 0; g < n_groups; g++, x += (size_t)8 * ROWS)
        if (bits[g]) {
            s.x[s.n] = x;
            s.bits[s.n++] = bits[g];
        } else {
            memset(x, 0, (size_t)8 * ROWS * sizeof *x);
        }
    if (s.n)
        (s.n <= FEW_GROUPS ? search_few : search_many)(&s, codes, vq_trellis_row_bytes(bits, n_groups));
}
