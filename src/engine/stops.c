/* Stop strings: one Knuth-Morris-Pratt automaton a string, so that a byte costs the same however long they are.
 *
 * The state of an automaton is how many bytes of its string the text ends with; the largest state is what has to be
 * held back.  The first string to be complete ends the text, the longest one of those complete at the same byte: a rule
 * that doesn't depend on how the text was cut into tokens. */
#include "engine/stops.h"

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/checked.h"

struct stop {
    char *bytes;      /* [n_bytes] */
    size_t *fallback; /* [n_bytes]: after a mismatch with i + 1 bytes matched, go on with fallback[i] */
    size_t n_bytes, state;
};

struct vq_stops {
    struct stop *stops; /* [n] */
    size_t n, most_held;
    char *held; /* [most_held], the last n_held bytes of the text */
    size_t n_held;
    vq_arena arena;
};

/* Length of the UTF-8 character at `at`, 0 when it is none. */
static size_t utf8_length(const unsigned char *at, size_t n)
{
    if (n == 0)
        return 0;
    const unsigned char c = at[0];
    if (c < 0x80)
        return 1;
    const size_t length = c >= 0xC2 && c <= 0xDF ? 2 : (c & 0xF0) == 0xE0 ? 3 : c >= 0xF0 && c <= 0xF4 ? 4 : 0;
    if (length == 0 || length > n)
        return 0;
    for (size_t i = 1; i < length; i++)
        if ((at[i] & 0xC0) != 0x80)
            return 0;
    /* overlong forms, surrogates, above U+10FFFF */
    if ((c == 0xE0 && at[1] < 0xA0) || (c == 0xED && at[1] > 0x9F) || (c == 0xF0 && at[1] < 0x90) ||
        (c == 0xF4 && at[1] > 0x8F))
        return 0;
    return length;
}

static bool is_utf8(const char *text, size_t n)
{
    for (size_t i = 0; i < n;) {
        const size_t length = utf8_length((const unsigned char *)text + i, n - i);
        if (length == 0)
            return false;
        i += length;
    }
    return true;
}

static void layout(vq_stops *s, const char *const *strings)
{
    vq_arena *a = &s->arena;
    s->stops = vq_arena_take(a, s->n, sizeof *s->stops);
    s->held = vq_arena_take(a, s->most_held, 1);
    for (size_t i = 0; i < s->n; i++) {
        const size_t n_bytes = strlen(strings[i]);
        char *bytes = vq_arena_take(a, n_bytes, 1);
        size_t *fallback = vq_arena_take(a, n_bytes, sizeof *fallback);
        if (s->stops)
            s->stops[i] = (struct stop){.bytes = bytes, .fallback = fallback, .n_bytes = n_bytes};
    }
}

/* The state after one more byte: the longest start of the string that the text now ends with. */
static size_t advance(const struct stop *stop, size_t state, char c)
{
    while (state > 0 && stop->bytes[state] != c)
        state = stop->fallback[state - 1];
    return state + (stop->bytes[state] == c);
}

vq_status vq_stops_open(vq_stops **out, const char *const *strings, size_t n, vq_error *err)
{
    *out = NULL;
    size_t most_held = 0;
    for (size_t i = 0; i < n; i++) {
        const size_t n_bytes = strlen(strings[i]);
        if (n_bytes == 0)
            return vq_fail(err, VQ_ERR_ARG, "stop string %zu is empty", i + 1);
        if (!is_utf8(strings[i], n_bytes))
            return vq_fail(err, VQ_ERR_ARG, "stop string %zu (%zu bytes) is not UTF-8 and could never match", i + 1,
                           n_bytes);
        if (n_bytes - 1 > most_held)
            most_held = n_bytes - 1;
    }
    vq_stops *s = calloc(1, sizeof *s);
    if (!s)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for %zu stop strings", n);
    s->n = n;
    s->most_held = most_held;
    layout(s, strings);
    const vq_status status = vq_arena_alloc(&s->arena, err);
    if (status != VQ_OK) {
        vq_stops_close(s);
        return status;
    }
    layout(s, strings);
    for (size_t i = 0; i < n; i++) {
        struct stop *stop = &s->stops[i];
        memcpy(stop->bytes, strings[i], stop->n_bytes);
        for (size_t k = 1; k < stop->n_bytes; k++)
            stop->fallback[k] = advance(stop, stop->fallback[k - 1], stop->bytes[k]);
    }
    *out = s;
    return VQ_OK;
}

void vq_stops_close(vq_stops *s)
{
    if (!s)
        return;
    vq_arena_free(&s->arena);
    free(s);
}

size_t vq_stops_most_held(const vq_stops *s) { return s->most_held; }

bool vq_stops_push(vq_stops *s, const char *bytes, size_t n_bytes, char *out, size_t *n_out)
{
    const size_t before = s->n_held;
    if (before > 0)
        memcpy(out, s->held, before);
    if (n_bytes > 0)
        memcpy(out + before, bytes, n_bytes);
    size_t hold = before;
    for (size_t i = 0; i < n_bytes; i++) {
        size_t matched = 0;
        hold = 0;
        for (size_t k = 0; k < s->n; k++) {
            struct stop *stop = &s->stops[k];
            stop->state = advance(stop, stop->state, bytes[i]);
            if (stop->state == stop->n_bytes && stop->n_bytes > matched)
                matched = stop->n_bytes;
            else if (stop->state > hold)
                hold = stop->state;
        }
        if (matched > 0) {
            *n_out = before + i + 1 - matched;
            s->n_held = 0;
            return true;
        }
    }
    assert(hold <= s->most_held && hold <= before + n_bytes);
    *n_out = before + n_bytes - hold;
    if (hold > 0)
        memcpy(s->held, out + *n_out, hold);
    s->n_held = hold;
    return false;
}

size_t vq_stops_finish(vq_stops *s, char *out)
{
    const size_t n = s->n_held;
    if (n > 0)
        memcpy(out, s->held, n);
    s->n_held = 0;
    return n;
}
