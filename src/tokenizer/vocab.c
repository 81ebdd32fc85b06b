/* Reading a vocabulary from GGUF metadata, and looking texts up in it. */
#include "tokenizer/vocab.h"

#include <math.h>
#include <string.h>
#include <xxhash.h>

#include "base/checked.h"
#include "tokenizer/utf8.h"

typedef struct vq_vocab_slot {
    uint32_t tag;       /* high half of the hash, so that nearly every miss is settled without touching texts */
    uint32_t id_plus_1; /* 0: empty */
} vq_vocab_slot;

#define KEY_TOKENS "tokenizer.ggml.tokens"
#define KEY_TYPES "tokenizer.ggml.token_type"
#define KEY_SCORES "tokenizer.ggml.scores"

/* Of tokens that a chat template writes between messages, or that end a turn.  Some files give them as user-defined;
 * here they are control tokens everywhere, or the text of a message could forge them. */
static const char *const turn_tokens[] = {
    "<|im_start|>",      "<|im_end|>",        "<|endoftext|>",    "<start_of_turn>",
    "<end_of_turn>",     "<|begin_of_text|>", "<|end_of_text|>",  "<|start_header_id|>",
    "<|end_header_id|>", "<|eot_id|>",        "<|eom_id|>",       "<|user|>",
    "<|system|>",        "<|assistant|>",     "<|end|>",          "[INST]",
    "[/INST]",           "[SYSTEM_PROMPT]",   "[/SYSTEM_PROMPT]",
}; /* not </s>, which is a user-defined HTML tag in Gemma's vocabulary */

static bool is_turn_token(const char *text, size_t n)
{
    for (size_t i = 0; i < sizeof turn_tokens / sizeof *turn_tokens; i++)
        if (strlen(turn_tokens[i]) == n && memcmp(turn_tokens[i], text, n) == 0)
            return true;
    return false;
}

static bool is_plain(uint8_t type) { return type == VQ_TOKEN_NORMAL || type == VQ_TOKEN_UNUSED; }

/* ---- texts ---- */

/* GPT-2's table: bytes that print stand for themselves, the 68 others, in order, for U+0100 and up. */
static int byte_of_char(uint32_t code)
{
    if ((code >= 0x21 && code <= 0x7E) || (code >= 0xA1 && code <= 0xFF && code != 0xAD))
        return (int)code;
    if (code >= 0x100 && code <= 0x120)
        return (int)code - 0x100;
    if (code >= 0x121 && code <= 0x142)
        return (int)code - 0x121 + 0x7F;
    return code == 0x143 ? 0xAD : -1;
}

bool vq_vocab_decode(const char *piece, size_t n, char *out, size_t *n_out)
{
    size_t len = 0;
    for (size_t at = 0; at < n;) {
        uint32_t used, code;
        if (vq_utf8_next(piece + at, n - at, &used, &code) != VQ_UTF8_CHAR)
            return false;
        const int byte = byte_of_char(code);
        if (byte < 0)
            return false;
        out[len++] = (char)byte;
        at += used;
    }
    *n_out = len;
    return true;
}

/* U+2581 to spaces; false when the piece has a space of its own, which no text could ever match. */
static bool unescape_spaces(const char *piece, size_t n, char *out, size_t *n_out)
{
    size_t len = 0;
    bool own = false;
    for (size_t at = 0; at < n;) {
        if (n - at >= 3 && memcmp(piece + at, "\xE2\x96\x81", 3) == 0) {
            out[len++] = ' ';
            at += 3;
        } else {
            own |= piece[at] == ' ';
            out[len++] = piece[at++];
        }
    }
    *n_out = len;
    return !own;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

/* "<0xXX>" */
static int byte_of_piece(const char *piece, size_t n)
{
    if (n != 6 || memcmp(piece, "<0x", 3) != 0 || piece[5] != '>')
        return -1;
    const int high = hex_digit(piece[3]), low = hex_digit(piece[4]);
    return high < 0 || low < 0 ? -1 : high << 4 | low;
}

/* ---- the hash table ---- */

static uint64_t hash_of(const char *bytes, size_t n, bool plain) { return XXH3_64bits_withSeed(bytes, n, plain); }

static int32_t find(const vq_vocab *v, const char *bytes, size_t n, bool plain)
{
    const uint64_t h = hash_of(bytes, n, plain);
    const uint32_t tag = (uint32_t)(h >> 32);
    for (uint32_t i = (uint32_t)h & v->slot_mask; v->slots[i].id_plus_1; i = (i + 1) & v->slot_mask) {
        if (v->slots[i].tag != tag)
            continue;
        const int32_t id = (int32_t)v->slots[i].id_plus_1 - 1;
        const vq_str text = vq_vocab_text(v, id);
        if (text.n_bytes == n && memcmp(text.at, bytes, n) == 0 && is_plain(v->type[id]) == plain)
            return id;
    }
    return VQ_NO_TOKEN;
}

/* Of tokens with the same text the first one counts. */
static void insert(vq_vocab *v, int32_t id)
{
    const vq_str text = vq_vocab_text(v, id);
    const bool plain = is_plain(v->type[id]);
    if (text.n_bytes == 0 || find(v, text.at, text.n_bytes, plain) != VQ_NO_TOKEN)
        return;
    const uint64_t h = hash_of(text.at, text.n_bytes, plain);
    uint32_t i = (uint32_t)h & v->slot_mask;
    while (v->slots[i].id_plus_1)
        i = (i + 1) & v->slot_mask;
    v->slots[i] = (vq_vocab_slot){(uint32_t)(h >> 32), (uint32_t)id + 1};
    if (plain && text.n_bytes > v->longest)
        v->longest = (uint32_t)text.n_bytes;
}

int32_t vq_vocab_find_plain(const vq_vocab *v, const char *bytes, size_t n)
{
    return n > v->longest ? VQ_NO_TOKEN : find(v, bytes, n, true);
}

int32_t vq_vocab_find_special(const vq_vocab *v, const char *bytes, size_t n) { return find(v, bytes, n, false); }

int32_t vq_vocab_find_piece(const vq_vocab *v, const char *piece, size_t n)
{
    const int32_t special = vq_vocab_find_special(v, piece, n);
    if (special != VQ_NO_TOKEN)
        return special;
    const int byte = v->spm ? byte_of_piece(piece, n) : -1;
    if (byte >= 0 && v->byte_id[byte] != VQ_NO_TOKEN && v->type[v->byte_id[byte]] == VQ_TOKEN_BYTE)
        return v->byte_id[byte];
    char text[1024];
    size_t len;
    if (n > sizeof text || !(v->spm ? unescape_spaces(piece, n, text, &len) : vq_vocab_decode(piece, n, text, &len)))
        return VQ_NO_TOKEN;
    return vq_vocab_find_plain(v, text, len);
}

/* ---- opening ---- */

static vq_status find_array(const vq_gguf_value **out, const vq_gguf *gguf, const char *key, bool needed, vq_error *err)
{
    *out = vq_gguf_find(gguf, key);
    if (!*out && needed)
        return vq_fail(err, VQ_ERR_MISSING_KEY, "%s: no key %s", vq_gguf_path(gguf), key);
    if (*out && (*out)->kind != VQ_GGUF_ARRAY)
        return vq_fail(err, VQ_ERR_TYPE, "%s: %s is not an array", vq_gguf_path(gguf), key);
    return VQ_OK;
}

/* An array that goes with the tokens, of their length. */
static vq_status find_parallel(const vq_gguf_value **out, const vq_gguf *gguf, const char *key, bool needed, uint32_t n,
                               vq_error *err)
{
    VQ_TRY(find_array(out, gguf, key, needed, err));
    if (*out && (*out)->n != n)
        return vq_fail(err, VQ_ERR_VOCAB, "%s: %s has %llu entries, %s has %u", vq_gguf_path(gguf), key,
                       (unsigned long long)(*out)->n, KEY_TOKENS, n);
    return VQ_OK;
}

static vq_status read_types(vq_vocab *v, const vq_gguf_value *types, vq_error *err)
{
    if (!types) {
        memset(v->type, VQ_TOKEN_NORMAL, v->n);
        return VQ_OK;
    }
    if (types->array_kind != VQ_GGUF_I32 && types->array_kind != VQ_GGUF_U32)
        return vq_fail(err, VQ_ERR_TYPE, "%s: %s is not an array of 32-bit integers", v->file, KEY_TYPES);
    for (uint32_t i = 0; i < v->n; i++) {
        uint32_t type;
        memcpy(&type, (const char *)types->raw + 4 * (size_t)i, 4);
        if (type > VQ_TOKEN_BYTE)
            return vq_fail(err, VQ_ERR_VOCAB, "%s: %s[%u] is %u, not 0 to %d", v->file, KEY_TYPES, i, type,
                           VQ_TOKEN_BYTE);
        v->type[i] = type == 0 ? VQ_TOKEN_NORMAL : (uint8_t)type; /* 0: undefined */
    }
    return VQ_OK;
}

/* Ascending keys for descending scores; equal scores have equal keys. */
static uint32_t key_of_score(float score)
{
    uint32_t bits;
    score += 0.0f; /* -0 is 0 */
    memcpy(&bits, &score, 4);
    return bits & 0x80000000u ? bits : 0x7FFFFFFFu - bits;
}

static vq_status read_scores(vq_vocab *v, const vq_gguf_value *scores, vq_error *err)
{
    if (scores->array_kind != VQ_GGUF_F32)
        return vq_fail(err, VQ_ERR_TYPE, "%s: %s is not an array of f32", v->file, KEY_SCORES);
    for (uint32_t i = 0; i < v->n; i++) {
        float score;
        memcpy(&score, (const char *)scores->raw + 4 * (size_t)i, 4);
        if (!isfinite(score))
            return vq_fail(err, VQ_ERR_NONFINITE, "%s: %s[%u] is not finite", v->file, KEY_SCORES, i);
        v->key[i] = key_of_score(score);
    }
    return VQ_OK;
}

/* Text and final type of one token. */
static void read_token(vq_vocab *v, uint32_t id, const vq_str *piece, char *out, size_t *n_out)
{
    if (v->type[id] == VQ_TOKEN_USER && is_turn_token(piece->at, piece->n_bytes))
        v->type[id] = VQ_TOKEN_CONTROL;
    if (v->type[id] == VQ_TOKEN_BYTE) {
        const int byte = byte_of_piece(piece->at, piece->n_bytes);
        if (byte >= 0) {
            *out = (char)byte;
            *n_out = 1;
            if (v->spm && v->byte_id[byte] == VQ_NO_TOKEN)
                v->byte_id[byte] = (int32_t)id;
            return;
        }
    } else if (is_plain(v->type[id])) {
        const bool matchable = v->spm ? unescape_spaces(piece->at, piece->n_bytes, out, n_out)
                                      : vq_vocab_decode(piece->at, piece->n_bytes, out, n_out);
        if (matchable)
            return;
        v->type[id] = VQ_TOKEN_BYTE; /* has a text, but neither merging nor matching ever gives it */
    }
    memcpy(out, piece->at, piece->n_bytes);
    *n_out = piece->n_bytes;
}

static void layout(vq_vocab *v, size_t n_text, uint32_t n_slots)
{
    v->text = vq_arena_take(&v->arena, n_text, 1);
    v->start = vq_arena_take(&v->arena, (size_t)v->n + 1, sizeof *v->start);
    v->type = vq_arena_take(&v->arena, v->n, 1);
    v->key = v->spm ? vq_arena_take(&v->arena, v->n, sizeof *v->key) : NULL;
    v->slots = vq_arena_take(&v->arena, n_slots, sizeof *v->slots);
    v->slot_mask = n_slots - 1;
}

/* A vocabulary that is shorter than the embedding would only show when a model runs off its end. */
static vq_status check_embedding(const vq_vocab *v, const vq_gguf *gguf, vq_error *err)
{
    const vq_tensor *embedding = vq_gguf_tensor(gguf, "token_embd.weight");
    if (embedding && embedding->n_dims == 2 && embedding->dims[1] != v->n)
        return vq_fail(err, VQ_ERR_VOCAB, "%s: %s has %u entries, token_embd.weight has %llu rows", v->file, KEY_TOKENS,
                       v->n, (unsigned long long)embedding->dims[1]);
    return VQ_OK;
}

static vq_status fill(vq_vocab *v, const vq_gguf_value *tokens, const vq_gguf_value *types, const vq_gguf_value *scores,
                      vq_error *err)
{
    VQ_TRY(read_types(v, types, err));
    if (v->spm)
        VQ_TRY(read_scores(v, scores, err));
    size_t at = 0;
    for (uint32_t i = 0; i < v->n; i++) {
        size_t len;
        read_token(v, i, &tokens->strings[i], v->text + at, &len);
        v->start[i] = (uint32_t)at;
        at += len;
    }
    v->start[v->n] = (uint32_t)at;
    for (uint32_t i = 0; i < v->n; i++)
        if (v->type[i] != VQ_TOKEN_BYTE)
            insert(v, (int32_t)i);
    for (int b = 0; b < 256; b++) {
        const char c = (char)b;
        if (v->byte_id[b] == VQ_NO_TOKEN && !v->spm)
            v->byte_id[b] = vq_vocab_find_plain(v, &c, 1);
    }
    return VQ_OK;
}

vq_status vq_vocab_open(vq_vocab *v, const vq_gguf *gguf, bool spm, vq_error *err)
{
    *v = (vq_vocab){.spm = spm, .file = vq_gguf_path(gguf)};
    for (int b = 0; b < 256; b++)
        v->byte_id[b] = VQ_NO_TOKEN;
    const vq_gguf_value *tokens, *types, *scores;
    VQ_TRY(find_array(&tokens, gguf, KEY_TOKENS, true, err));
    if (tokens->array_kind != VQ_GGUF_STRING)
        return vq_fail(err, VQ_ERR_TYPE, "%s: %s is not an array of strings", v->file, KEY_TOKENS);
    if (tokens->n == 0 || tokens->n > 1u << 28)
        return vq_fail(err, VQ_ERR_VOCAB, "%s: %s has %llu entries, not 1 to 2^28", v->file, KEY_TOKENS,
                       (unsigned long long)tokens->n);
    v->n = (uint32_t)tokens->n;
    VQ_TRY(check_embedding(v, gguf, err));
    VQ_TRY(find_parallel(&types, gguf, KEY_TYPES, false, v->n, err));
    VQ_TRY(find_parallel(&scores, gguf, KEY_SCORES, spm, v->n, err));

    size_t n_text = 1; /* no take is empty */
    for (uint32_t i = 0; i < v->n; i++)
        if (!vq_add_size(n_text, tokens->strings[i].n_bytes, &n_text) || n_text > UINT32_MAX)
            return vq_fail(err, VQ_ERR_VOCAB, "%s: texts of %s exceed 4 GiB", v->file, KEY_TOKENS);
    uint32_t n_slots = 16;
    while (n_slots < 2 * v->n)
        n_slots *= 2;
    layout(v, n_text, n_slots);
    VQ_TRY(vq_arena_alloc(&v->arena, err));
    layout(v, n_text, n_slots);
    const vq_status status = fill(v, tokens, types, scores, err);
    if (status != VQ_OK)
        vq_vocab_close(v);
    return status;
}

void vq_vocab_close(vq_vocab *v) { vq_arena_free(&v->arena); }
