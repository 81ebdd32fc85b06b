/* An automaton of Aho and Corasick (1975) over the reversed texts of all special tokens, run from the end of the text
 * to its beginning: at each position its state says which tokens begin there, the longest first.  So "leftmost,
 * longest" is found in linear time whatever the tokens are; trying them at each position is quadratic for runs such as
 * Gemma's 31 newlines. */
#include "tokenizer/special.h"

#include <stdlib.h>
#include <string.h>

#include "tokenizer/utf8.h"

typedef struct node {
    uint32_t fail;     /* longest proper suffix that is in the trie */
    uint32_t next_end; /* nearest state on the way of fail where a token ends; 0 for none */
    int32_t id;        /* of the token that ends here, or VQ_NO_TOKEN */
    int32_t user_id;   /* longest user-defined token that ends here or on the way of fail */
} node;

typedef struct edge {
    uint32_t from_plus_1, byte, to; /* from_plus_1 is 0 in an empty slot */
} edge;

struct vq_special {
    const vq_vocab *vocab;
    node *nodes;
    edge *edges; /* open addressing, at most half full */
    uint32_t n_nodes, edge_mask;
    uint32_t root[256]; /* transitions of the root, which most of a text stays in */
    bool has_user, has_control;
};

/* A text that is not well-formed UTF-8 is never looked for: it would leave halves of characters on either side. */
static bool is_sought(const vq_vocab *v, uint32_t id)
{
    const uint8_t type = v->type[id];
    const vq_str text = vq_vocab_text(v, (int32_t)id);
    return (type == VQ_TOKEN_CONTROL || type == VQ_TOKEN_UNKNOWN || type == VQ_TOKEN_USER) && text.n_bytes > 0 &&
           vq_utf8_valid_len(text.at, text.n_bytes) == text.n_bytes;
}

static uint32_t slot_of(const vq_special *s, uint32_t from, uint32_t byte)
{
    uint32_t i = (uint32_t)((((uint64_t)from << 8 | byte) * 0x9E3779B97F4A7C15u) >> 32) & s->edge_mask;
    while (s->edges[i].from_plus_1 && (s->edges[i].from_plus_1 != from + 1 || s->edges[i].byte != byte))
        i = (i + 1) & s->edge_mask;
    return i;
}

/* 0 when there is none: no edge leads to the root. */
static uint32_t child(const vq_special *s, uint32_t from, uint32_t byte)
{
    const edge *e = &s->edges[slot_of(s, from, byte)];
    return e->from_plus_1 ? e->to : 0;
}

static uint32_t step(const vq_special *s, uint32_t state, uint32_t byte)
{
    while (state) {
        const uint32_t to = child(s, state, byte);
        if (to)
            return to;
        state = s->nodes[state].fail;
    }
    return s->root[byte];
}

static void add_token(vq_special *s, int32_t id)
{
    const vq_str text = vq_vocab_text(s->vocab, id);
    uint32_t at = 0;
    for (size_t i = text.n_bytes; i-- > 0;) {
        const uint32_t byte = (uint8_t)text.at[i];
        const uint32_t slot = slot_of(s, at, byte);
        if (!s->edges[slot].from_plus_1) {
            s->nodes[s->n_nodes] = (node){.id = VQ_NO_TOKEN, .user_id = VQ_NO_TOKEN};
            s->edges[slot] = (edge){at + 1, byte, s->n_nodes++};
            if (at == 0)
                s->root[byte] = s->edges[slot].to;
        }
        at = s->edges[slot].to;
    }
    s->nodes[at].id = id;
    if (s->vocab->type[id] == VQ_TOKEN_USER) {
        s->nodes[at].user_id = id;
        s->has_user = true;
    } else {
        s->has_control = true;
    }
}

/* Nodes are numbered in order of insertion, parents before children, but not by depth: a list by depth comes first. */
static bool link_nodes(vq_special *s, uint32_t *parent, uint8_t *byte_in)
{
    for (uint32_t i = 0; i <= s->edge_mask; i++)
        if (s->edges[i].from_plus_1) {
            parent[s->edges[i].to] = s->edges[i].from_plus_1 - 1;
            byte_in[s->edges[i].to] = (uint8_t)s->edges[i].byte;
        }
    uint32_t *depth = calloc(2 * (size_t)s->n_nodes, sizeof *depth), *order = depth ? depth + s->n_nodes : NULL;
    if (!depth)
        return false;
    uint32_t deepest = 0;
    for (uint32_t i = 1; i < s->n_nodes; i++) {
        depth[i] = depth[parent[i]] + 1;
        if (depth[i] > deepest)
            deepest = depth[i];
    }
    uint32_t *begin = calloc((size_t)deepest + 2, sizeof *begin);
    if (begin) {
        for (uint32_t i = 0; i < s->n_nodes; i++)
            begin[depth[i] + 1]++;
        for (uint32_t d = 0; d <= deepest; d++)
            begin[d + 1] += begin[d];
        for (uint32_t i = 0; i < s->n_nodes; i++)
            order[begin[depth[i]]++] = i;
        for (uint32_t k = 1; k < s->n_nodes; k++) {
            node *at = &s->nodes[order[k]];
            const uint32_t up = parent[order[k]];
            at->fail = up == 0 ? 0 : step(s, s->nodes[up].fail, byte_in[order[k]]);
            const node *fail = &s->nodes[at->fail];
            at->next_end = fail->id != VQ_NO_TOKEN ? at->fail : fail->next_end;
            if (at->user_id == VQ_NO_TOKEN)
                at->user_id = fail->user_id;
        }
    }
    free(begin);
    free(depth);
    return begin != NULL;
}

vq_status vq_special_open(vq_special **out, const vq_vocab *vocab, vq_error *err)
{
    *out = NULL;
    size_t n_bytes = 0;
    for (uint32_t i = 0; i < vocab->n; i++)
        if (is_sought(vocab, i))
            n_bytes += vq_vocab_text(vocab, (int32_t)i).n_bytes;
    size_t n_edges = 16; /* texts together stay below 4 GiB, so n_bytes does */
    while (n_edges < 2 * n_bytes)
        n_edges *= 2;
    vq_special *s = calloc(1, sizeof *s);
    uint32_t *parent = calloc(n_bytes + 1, sizeof *parent);
    uint8_t *byte_in = calloc(n_bytes + 1, 1);
    if (s && n_bytes < UINT32_MAX / 4) {
        s->nodes = calloc(n_bytes + 1, sizeof *s->nodes);
        s->edges = calloc(n_edges, sizeof *s->edges);
    }
    bool whole = s && parent && byte_in && s->nodes && s->edges;
    if (whole) {
        s->vocab = vocab;
        s->edge_mask = (uint32_t)(n_edges - 1);
        s->nodes[0] = (node){.id = VQ_NO_TOKEN, .user_id = VQ_NO_TOKEN};
        s->n_nodes = 1;
        for (uint32_t i = vocab->n; i-- > 0;) /* so that of equal texts the first token stays */
            if (is_sought(vocab, i))
                add_token(s, (int32_t)i);
        whole = link_nodes(s, parent, byte_in);
    }
    free(parent);
    free(byte_in);
    if (!whole) {
        vq_special_close(s);
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for %zu bytes of special tokens", n_bytes);
    }
    *out = s;
    return VQ_OK;
}

void vq_special_close(vq_special *s)
{
    if (!s)
        return;
    free(s->nodes);
    free(s->edges);
    free(s);
}

static vq_status add_match(vq_matches *m, size_t at, int32_t id, vq_error *err)
{
    if (m->n == m->room) {
        const size_t room = m->room ? 2 * m->room : 64;
        vq_match *grown = realloc(m->at, room * sizeof *grown);
        if (!grown)
            return vq_fail(err, VQ_ERR_NOMEM, "no memory for %zu special tokens in a text", room);
        m->at = grown;
        m->room = room;
    }
    m->at[m->n++] = (vq_match){at, id};
    return VQ_OK;
}

/* The longest token beginning at `at` that is user-defined or ends by `end`, the end of the span that `at` lies in. */
static int32_t longest(const vq_special *s, uint32_t state, size_t at, size_t end)
{
    for (; state; state = s->nodes[state].next_end) {
        const int32_t id = s->nodes[state].id;
        if (id != VQ_NO_TOKEN &&
            (s->vocab->type[id] == VQ_TOKEN_USER || vq_vocab_text(s->vocab, id).n_bytes <= end - at))
            return id;
    }
    return VQ_NO_TOKEN;
}

vq_status vq_special_find(const vq_special *s, const char *text, size_t n, const vq_span *spans, size_t n_spans,
                          vq_matches *out, vq_error *err)
{
    if (!s->has_user && (!s->has_control || n_spans == 0))
        return VQ_OK;
    uint32_t state = 0;
    for (size_t i = n; i-- > 0;) {
        state = step(s, state, (uint8_t)text[i]);
        if (state == 0)
            continue;
        while (n_spans > 0 && spans[n_spans - 1].start > i)
            n_spans--;
        const bool inside = n_spans > 0 && i < spans[n_spans - 1].end;
        const int32_t id = inside ? longest(s, state, i, spans[n_spans - 1].end) : s->nodes[state].user_id;
        if (id != VQ_NO_TOKEN)
            VQ_TRY(add_match(out, i, id, err));
    }
    return VQ_OK;
}
