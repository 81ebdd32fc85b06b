/* Rendering conversations.  Markup and messages go to the tokenizer as parts of one text, so that words cross from one
 * to the other as they do in the model's training data; but control tokens are looked for in the markup only. */
#include "veloxquant/chat.h"

#include <stdlib.h>
#include <string.h>

#include "tokenizer/chat_templates.h"
#include "tokenizer/inner.h"
#include "tokenizer/utf8.h"

typedef struct builder {
    const vq_chat_template *tmpl;
    const vq_tokenizer *t;
    vq_part *parts;
    size_t n, room;
} builder;

static vq_status add(builder *b, vq_part part, vq_error *err)
{
    if (!b->parts || b->n == b->room) {
        const size_t room = 2 * b->room + 32;
        vq_part *grown = realloc(b->parts, room * sizeof *grown);
        if (!grown)
            return vq_fail(err, VQ_ERR_NOMEM, "no memory for a conversation of %zu parts", room);
        b->parts = grown;
        b->room = room;
    }
    b->parts[b->n++] = part;
    return VQ_OK;
}

static vq_status add_bos(builder *b, vq_error *err)
{
    const int32_t bos = vq_tokenizer_bos(b->t);
    const vq_part *last = b->n > 0 ? &b->parts[b->n - 1] : NULL;
    if (!vq_tokenizer_adds_bos(b->t) || (last && last->kind == VQ_PART_TOKEN && last->id == bos))
        return VQ_OK;
    return add(b, (vq_part){.kind = VQ_PART_TOKEN, .id = bos}, err);
}

static vq_status add_eos(builder *b, vq_error *err)
{
    const int32_t eos = vq_tokenizer_eos(b->t);
    if (eos == VQ_NO_TOKEN)
        return vq_fail(err, VQ_ERR_UNSUPPORTED, "chat template %s needs an end-of-sequence token, the model has none",
                       b->tmpl->name);
    return add(b, (vq_part){.kind = VQ_PART_TOKEN, .id = eos}, err);
}

static vq_status add_markup(builder *b, const char *markup, vq_error *err)
{
    while (*markup) {
        const size_t n = strcspn(markup, VQ_CHAT_BOS VQ_CHAT_EOS);
        if (n > 0)
            VQ_TRY(add(b, (vq_part){.kind = VQ_PART_CONTROL, .text = markup, .n_bytes = n}, err));
        markup += n;
        if (*markup)
            VQ_TRY(*markup++ == VQ_CHAT_BOS[0] ? add_bos(b, err) : add_eos(b, err));
    }
    return VQ_OK;
}

/* A cut comes first: the ids before this place must not depend on whether it is rendered with them. */
static vq_status add_close(builder *b, vq_chat_role role, vq_error *err)
{
    VQ_TRY(add(b, (vq_part){.kind = VQ_PART_CUT}, err));
    return add_markup(b, b->tmpl->turns[role].after, err);
}

/* What follows the last </think>, without newlines before it. */
static void drop_thoughts(const char **text, size_t *n)
{
    static const char tag[] = "</think>";
    const char *found;
    bool any = false;
    while (*n > 0 && (found = memmem(*text, *n, tag, strlen(tag))) != NULL) {
        *n -= (size_t)(found - *text) + strlen(tag);
        *text = found + strlen(tag);
        any = true;
    }
    for (; any && *n > 0 && **text == '\n'; --*n)
        ++*text;
}

static vq_status add_message(builder *b, const vq_chat_message *m, bool joined, bool answered, vq_error *err)
{
    const vq_chat_turn *turn = &b->tmpl->turns[m->role];
    if (!joined)
        VQ_TRY(add_markup(b, turn->before, err));
    const char *text = m->text;
    size_t n = m->n_bytes;
    if (m->role == VQ_CHAT_ASSISTANT && b->tmpl->drops_thoughts && answered)
        drop_thoughts(&text, &n);
    if (turn->strip && !(joined && b->tmpl->joined_keeps_left)) {
        vq_utf8_strip(&text, &n);
    } else if (turn->strip) {
        const char *start = text; /* the right end only */
        size_t rest = n;
        vq_utf8_strip(&start, &rest);
        n = rest > 0 ? (size_t)(start - text) + rest : 0;
    }
    return n > 0 ? add(b, (vq_part){.kind = VQ_PART_TEXT, .text = text, .n_bytes = n}, err) : VQ_OK;
}

static bool begins_with_system(const vq_chat_message *messages) { return messages[0].role == VQ_CHAT_SYSTEM; }

static vq_status add_all(builder *b, const vq_chat_message *messages, size_t n, size_t from, vq_error *err)
{
    size_t last_user = n;
    while (last_user > 0 && messages[last_user - 1].role != VQ_CHAT_USER)
        last_user--;
    if (from > 0) {
        VQ_TRY(add_close(b, messages[from - 1].role, err));
    } else {
        VQ_TRY(add_bos(b, err));
        if (b->tmpl->default_system && !begins_with_system(messages)) {
            const char *text = b->tmpl->default_system;
            const vq_chat_message system = {VQ_CHAT_SYSTEM, text, strlen(text)};
            VQ_TRY(add_message(b, &system, false, false, err));
            VQ_TRY(add_close(b, VQ_CHAT_SYSTEM, err));
        }
    }
    for (size_t i = from; i < n; i++) {
        const bool joined = i > 0 && b->tmpl->system_opens && messages[i - 1].role == VQ_CHAT_SYSTEM;
        VQ_TRY(add_message(b, &messages[i], joined, i + 1 < last_user, err));
        VQ_TRY(add_close(b, messages[i].role, err));
    }
    return add_markup(b, b->tmpl->generate, err);
}

static vq_status check_messages(const vq_chat_template *tmpl, const vq_chat_message *messages, size_t n, size_t from,
                                vq_error *err)
{
    if (n == 0 || from > n)
        return vq_fail(err, VQ_ERR_ARG, "%zu messages, of which %zu are in the cache", n, from);
    size_t in_turn = 0; /* messages after the system message */
    for (size_t i = 0; i < n; i++) {
        const unsigned role = (unsigned)messages[i].role;
        if (role >= VQ_CHAT_N_ROLES || (!messages[i].text && messages[i].n_bytes > 0))
            return vq_fail(err, VQ_ERR_ARG, "message %zu has role %u (0 to 2 are known) or no text", i, role);
        if (!tmpl->alternates || (i == 0 && role == VQ_CHAT_SYSTEM))
            continue;
        if (role != (in_turn % 2 == 0 ? VQ_CHAT_USER : VQ_CHAT_ASSISTANT))
            return vq_fail(err, VQ_ERR_ARG,
                           "message %zu: chat template %s takes at most one system message, the first, and "
                           "then user and assistant in turns",
                           i, tmpl->name);
        in_turn++;
    }
    return VQ_OK;
}

static vq_status check_vocabulary(const vq_chat_template *tmpl, const vq_tokenizer *t, vq_error *err)
{
    for (int i = 0; i < VQ_CHAT_MAX_NEEDS && tmpl->needs[i]; i++)
        if (vq_vocab_find_special(vq_tokenizer_vocab(t), tmpl->needs[i], strlen(tmpl->needs[i])) == VQ_NO_TOKEN)
            return vq_fail(err, VQ_ERR_UNSUPPORTED,
                           "chat template %s needs the control token %s, the vocabulary has none", tmpl->name,
                           tmpl->needs[i]);
    return VQ_OK;
}

vq_status vq_chat_render(const vq_chat_template *tmpl, const vq_tokenizer *t, const vq_chat_message *messages,
                         size_t n_messages, size_t from, int32_t **ids, size_t *n, vq_error *err)
{
    *ids = NULL;
    *n = 0;
    VQ_TRY(check_messages(tmpl, messages, n_messages, from, err));
    VQ_TRY(check_vocabulary(tmpl, t, err));
    builder b = {.tmpl = tmpl, .t = t};
    vq_ids list = {0};
    vq_status status = vq_ids_reserve(&list, 64, err);
    if (status == VQ_OK)
        status = add_all(&b, messages, n_messages, from, err);
    if (status == VQ_OK)
        status = vq_tokenize_parts(t, b.parts, b.n, true, &list, err);
    free(b.parts);
    if (status != VQ_OK) {
        free(list.at);
        return status;
    }
    *ids = list.at;
    *n = list.n;
    return VQ_OK;
}
