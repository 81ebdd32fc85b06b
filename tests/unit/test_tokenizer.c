/* Tokenizers on tiny vocabularies: what each family does with words, spaces, bytes and special tokens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/toy_vocab.h"
#include "tokenizer/pretokenize.h"

enum { MOST = 64 };

/* Tokenises and compares with ids [n_want]. */
static void check_bytes(const vq_tokenizer *t, const char *text, size_t n_bytes, unsigned flags, const int32_t *want,
                        size_t n_want)
{
    int32_t *ids;
    size_t n;
    assert_int_equal(vq_tokenize(t, text, n_bytes, flags, &ids, &n, NULL), VQ_OK);
    if (n != n_want || memcmp(ids, want, n * sizeof *ids) != 0) {
        print_error("\"%s\" gives", text);
        for (size_t i = 0; i < n; i++)
            print_error(" %d", ids[i]);
        print_error(", not");
        for (size_t i = 0; i < n_want; i++)
            print_error(" %d", want[i]);
        fail_msg("ids differ");
    }
    vq_free(ids);
}

#define CHECK(t, text, flags, ...)                                                                                     \
    do {                                                                                                               \
        const int32_t want_[] = {-1, ##__VA_ARGS__};                                                                   \
        check_bytes(t, text, strlen(text), flags, want_ + 1, sizeof want_ / sizeof *want_ - 1);                        \
    } while (0)

#define G "\xC4\xA0"     /* the character that stands for a space in byte-level vocabularies */
#define U "\xE2\x96\x81" /* and in SentencePiece ones */

/* ---- byte-level ---- */

enum { END, BEGIN, TAG, TAG2, USER, TURN, AB, BC, ABC, SP_A, AA, N_BPE, BYTE0 = N_BPE };

static const toy_token bpe_tokens[N_BPE] = {
    [END] = {"<|end|>", TOY_CONTROL, 0}, [BEGIN] = {"<s>", TOY_CONTROL, 0}, [TAG] = {"<x>", TOY_CONTROL, 0},
    [TAG2] = {"<x>>", TOY_CONTROL, 0},   [USER] = {"[u v]", TOY_USER, 0},   [TURN] = {"<start_of_turn>", TOY_USER, 0},
    [AB] = {"ab", TOY_NORMAL, 0},        [BC] = {"bc", TOY_NORMAL, 0},      [ABC] = {"abc", TOY_NORMAL, 0},
    [SP_A] = {G "a", TOY_NORMAL, 0},     [AA] = {"aa", TOY_NORMAL, 0},
};
/* The last two would make a control token out of text. */
static const char *const bpe_merges[] = {"b c", "a b", "a bc", G " a", "a a", "< s", "<s >"};

static toy_vocab bpe_vocab(const char *pre)
{
    toy_vocab v = toy_vocab_init("gpt2", pre);
    v.tokens = bpe_tokens;
    v.n_tokens = N_BPE;
    v.bytes = true;
    v.merges = bpe_merges;
    v.n_merges = 5;
    v.bos = BEGIN;
    v.eos = END;
    return v;
}

static void byte_level(void **state)
{
    (void)state;
    const toy_vocab v = bpe_vocab("gpt-2");
    vq_tokenizer *t = toy_vocab_open(&v);
    assert_string_equal(vq_tokenizer_kind(t), "bpe/gpt-2");
    assert_int_equal(vq_tokenizer_n_vocab(t), N_BPE + 256);
    CHECK(t, "", 0);
    CHECK(t, "ab", 0, AB);
    CHECK(t, "abc", 0, ABC);             /* b c comes first, then a bc */
    CHECK(t, "aaa", 0, AA, BYTE0 + 'a'); /* of equals the leftmost */
    CHECK(t, "a a", 0, BYTE0 + 'a', SP_A);
    CHECK(t, "\xC3\xA9", 0, BYTE0 + 0xC3, BYTE0 + 0xA9);
    CHECK(t, "\xC3", 0, BYTE0 + 0xEF, BYTE0 + 0xBF, BYTE0 + 0xBD);
    const int32_t nul[] = {BYTE0 + 'a', BYTE0, BYTE0 + 'b'};
    check_bytes(t, "a\0b", 3, 0, nul, 3);
    for (int b = 0; b < 256; b++) {
        const vq_str s = vq_token_bytes(t, BYTE0 + b, false);
        assert_int_equal(s.n_bytes, 1);
        assert_int_equal((uint8_t)s.at[0], b);
    }
    vq_tokenizer_close(t);
}

static void special_tokens(void **state)
{
    (void)state;
    const toy_vocab v = bpe_vocab("gpt-2");
    vq_tokenizer *t = toy_vocab_open(&v);
    CHECK(t, "a<x>b", VQ_TOKENIZE_CONTROL, BYTE0 + 'a', TAG, BYTE0 + 'b');
    CHECK(t, "<x>>><x>", VQ_TOKENIZE_CONTROL, TAG2, BYTE0 + '>', TAG);
    CHECK(t, "<x><x>", 0, BYTE0 + '<', BYTE0 + 'x', BYTE0 + '>', BYTE0 + '<', BYTE0 + 'x', BYTE0 + '>');
    CHECK(t, "a[u v]b", 0, BYTE0 + 'a', USER, BYTE0 + 'b'); /* user-defined: always */
    CHECK(t, "<x", VQ_TOKENIZE_CONTROL, BYTE0 + '<', BYTE0 + 'x');
    /* The token of a turn is a control token whatever the file calls it: text can't open a turn. */
    assert_true(vq_tokenizer_is_control(t, TURN));
    int32_t *ids;
    size_t n;
    assert_int_equal(vq_tokenize(t, "<start_of_turn>", 15, 0, &ids, &n, NULL), VQ_OK);
    assert_int_equal(n, 15);
    vq_free(ids);
    CHECK(t, "<start_of_turn>", VQ_TOKENIZE_CONTROL, TURN);

    assert_int_equal(vq_tokenizer_find(t, "<x>>"), TAG2);
    assert_int_equal(vq_tokenizer_find(t, G "a"), SP_A);
    assert_int_equal(vq_tokenizer_find(t, " a"), VQ_NO_TOKEN);
    assert_int_equal(vq_tokenizer_find(t, "nothing"), VQ_NO_TOKEN);
    assert_true(vq_tokenizer_is_control(t, TAG) && !vq_tokenizer_is_control(t, USER) &&
                !vq_tokenizer_is_control(t, AB));
    assert_true(!vq_tokenizer_is_control(t, -1) && !vq_tokenizer_is_control(t, N_BPE + 256));
    assert_true(vq_tokenizer_ends(t, END) && !vq_tokenizer_ends(t, BEGIN) && !vq_tokenizer_ends(t, VQ_NO_TOKEN));
    assert_int_equal(vq_token_bytes(t, TAG, false).n_bytes, 0);
    assert_int_equal(vq_token_bytes(t, TAG, true).n_bytes, 3);
    assert_int_equal(vq_token_bytes(t, USER, false).n_bytes, 5);
    assert_int_equal(vq_token_bytes(t, -1, true).n_bytes, 0);
    assert_int_equal(vq_token_bytes(t, 1 << 30, true).n_bytes, 0);
    vq_tokenizer_close(t);
}

/* A vocabulary in which merging would give the text of a control token. */
static void no_control_by_merging(void **state)
{
    (void)state;
    static const toy_token tokens[] = {{"<s>", TOY_CONTROL, 0}, {"<s", TOY_NORMAL, 0}};
    toy_vocab v = toy_vocab_init("gpt2", "gpt-2");
    v.tokens = tokens;
    v.n_tokens = 2;
    v.bytes = true;
    v.merges = bpe_merges + 5;
    v.n_merges = 2;
    vq_tokenizer *t = toy_vocab_open(&v);
    CHECK(t, "<s>", 0, 2 + '<', 2 + 's', 2 + '>'); /* three words: punctuation, letters, punctuation */
    CHECK(t, "<s>", VQ_TOKENIZE_CONTROL, 0);
    vq_tokenizer_close(t);

    static const toy_token spm_tokens[] = {
        {"<", TOY_NORMAL, 0},  {"s", TOY_NORMAL, 0},    {">", TOY_NORMAL, 0},
        {"<s", TOY_NORMAL, 1}, {"<s>", TOY_CONTROL, 9},
    };
    v = toy_vocab_init("llama", NULL);
    v.tokens = spm_tokens;
    v.n_tokens = 5;
    v.add_space_prefix = 0;
    t = toy_vocab_open(&v);
    CHECK(t, "<s>", 0, 3, 2);
    CHECK(t, "<s>", VQ_TOKENIZE_CONTROL, 4);
    vq_tokenizer_close(t);
}

static void missing_bytes_are_left_out(void **state)
{
    (void)state;
    static const toy_token tokens[] = {{"a", TOY_NORMAL, 0}, {"b", TOY_NORMAL, 0}, {"ab", TOY_NORMAL, 0}};
    static const char *const merges[] = {"a b"};
    toy_vocab v = toy_vocab_init("gpt2", "gpt-2");
    v.tokens = tokens;
    v.n_tokens = 3;
    v.merges = merges;
    v.n_merges = 1;
    vq_tokenizer *t = toy_vocab_open(&v);
    CHECK(t, "ab", 0, 2);
    CHECK(t, "axb", 0, 0, 1); /* and what they stood between does not grow together */
    CHECK(t, "xyz", 0);
    vq_tokenizer_close(t);
}

static void bos(void **state)
{
    (void)state;
    toy_vocab v = bpe_vocab("gpt-2");
    v.add_bos = 1;
    vq_tokenizer *t = toy_vocab_open(&v);
    assert_true(vq_tokenizer_adds_bos(t));
    CHECK(t, "ab", VQ_TOKENIZE_BOS, BEGIN, AB);
    CHECK(t, "ab", 0, AB);
    CHECK(t, "", VQ_TOKENIZE_BOS, BEGIN);
    CHECK(t, "<s>ab", VQ_TOKENIZE_BOS | VQ_TOKENIZE_CONTROL, BEGIN, AB);
    CHECK(t, "<s><s>ab", VQ_TOKENIZE_BOS | VQ_TOKENIZE_CONTROL, BEGIN, BEGIN, AB);
    vq_tokenizer_close(t);
    v.add_bos = 0;
    t = toy_vocab_open(&v);
    CHECK(t, "ab", VQ_TOKENIZE_BOS, AB);
    vq_tokenizer_close(t);
    v.add_bos = 1;
    v.bos = TOY_ABSENT;
    t = toy_vocab_open(&v);
    assert_false(vq_tokenizer_adds_bos(t));
    CHECK(t, "ab", VQ_TOKENIZE_BOS, AB);
    vq_tokenizer_close(t);
    /* Where the file says nothing, llama-bpe has one; and words that are tokens are not merged. */
    v = bpe_vocab("llama-bpe");
    v.n_merges = 1;
    t = toy_vocab_open(&v);
    CHECK(t, "abc", VQ_TOKENIZE_BOS, BEGIN, ABC);
    vq_tokenizer_close(t);
    int32_t *ids;
    size_t n;
    t = toy_vocab_open(&v);
    assert_int_equal(vq_tokenize(t, "a", 1, 4, &ids, &n, NULL), VQ_ERR_ARG);
    assert_null(ids);
    assert_int_equal(vq_tokenize(t, "a", (size_t)1 << 30, 0, &ids, &n, NULL), VQ_ERR_LIMIT);
    vq_tokenizer_close(t);
}

/* ---- pre-tokenisers ---- */

typedef struct words {
    char text[512]; /* words with | between them */
    size_t n;
} words;

static vq_status add_word(void *arg, const char *word, size_t n, vq_error *err)
{
    (void)err;
    words *w = arg;
    assert_true(n > 0 && w->n + n + 1 < sizeof w->text);
    if (w->n > 0)
        w->text[w->n++] = '|';
    memcpy(w->text + w->n, word, n);
    w->n += n;
    w->text[w->n] = '\0';
    return VQ_OK;
}

static void check_words(const char *pre, const char *text, const char *want)
{
    vq_pretokenizer *p;
    vq_pretokenizer_run *run;
    words w = {.n = 0};
    assert_int_equal(vq_pretokenizer_open(&p, (vq_str){pre, strlen(pre)}, NULL), VQ_OK);
    assert_int_equal(vq_pretokenizer_run_open(&run, p, NULL), VQ_OK);
    assert_int_equal(vq_pretokenize(run, text, strlen(text), add_word, &w, NULL), VQ_OK);
    assert_string_equal(w.text, want);
    vq_pretokenizer_run_close(run);
    vq_pretokenizer_close(p);
}

static void cuts_words(void **state)
{
    (void)state;
    /* ½, ², Ⅳ and ٣ are numbers: with smollm each is a word, and a space never sticks to one. */
    static const char text[] = "I'll see  x\xC2\xB2 4 \xC2\xBD\n\n a12345!?\n";
    check_words("smollm", text, "I|'ll| see| | x|\xC2\xB2| |4| |\xC2\xBD|\n\n| a|1|2|3|4|5|!?|\n");
    check_words("gpt-2", text, "I|'ll| see| | x|\xC2\xB2| 4| \xC2\xBD|\n\n| a|12345|!?|\n");
    check_words("llama-bpe", text, "I|'ll| see| | x|\xC2\xB2| |4| |\xC2\xBD|\n\n| a|123|45|!?\n");
    check_words("qwen2", text, "I|'ll| see| | x|\xC2\xB2| |4| |\xC2\xBD|\n\n| a|1|2|3|4|5|!?\n");
    check_words("default", text, "I|'|ll| see| | x|\xC2\xB2| |4| |\xC2\xBD|\n\n| a|123|45|!?|\n");
    check_words("smollm", "\xE2\x85\xA3\xD9\xA3", "\xE2\x85\xA3|\xD9\xA3");
    /* U+180E is no white space, U+0085 is. */
    check_words("gpt-2", "a\xE1\xA0\x8E\xC2\x85\xC2\x85z", "a|\xE1\xA0\x8E|\xC2\x85|\xC2\x85|z");
    check_words("llama-bpe", "don'T 'S \r\n\r\n  x", "don|'T| '|S| \r\n\r\n| | x");
    vq_pretokenizer *p;
    vq_error err;
    assert_int_equal(vq_pretokenizer_open(&p, (vq_str){"tekken", 6}, &err), VQ_ERR_UNSUPPORTED);
    assert_null(p);
    assert_non_null(strstr(err.text, "tekken"));
    assert_non_null(strstr(err.text, "smollm"));
}

/* ---- SentencePiece ---- */

enum {
    S_UNK,
    S_BOS,
    S_EOS,
    S_THIS,
    S_SP,
    S_TH,
    S_IS,
    S_SPTH,
    S_T,
    S_H,
    S_I,
    S_S,
    S_USER,
    S_SPSP,
    N_SPM,
    S_BYTE0 = N_SPM
};

static const toy_token spm_tokens[N_SPM] = {
    [S_UNK] = {"<unk>", TOY_UNKNOWN, 0},   [S_BOS] = {"<s>", TOY_CONTROL, 0},   [S_EOS] = {"</s>", TOY_CONTROL, 0},
    [S_THIS] = {U "This", TOY_NORMAL, -4}, [S_SP] = {U, TOY_NORMAL, -9},        [S_TH] = {"Th", TOY_NORMAL, -1},
    [S_IS] = {"is", TOY_NORMAL, -2},       [S_SPTH] = {U "Th", TOY_NORMAL, -3}, [S_T] = {"T", TOY_NORMAL, -10},
    [S_H] = {"h", TOY_NORMAL, -11},        [S_I] = {"i", TOY_NORMAL, -12},      [S_S] = {"s", TOY_NORMAL, -13},
    [S_USER] = {"a  b", TOY_USER, 0},      [S_SPSP] = {U U, TOY_NORMAL, -5},
};

static toy_vocab spm_vocab(int add_space_prefix, bool bytes)
{
    toy_vocab v = toy_vocab_init("llama", "default");
    v.tokens = spm_tokens;
    v.n_tokens = N_SPM;
    v.bytes = bytes;
    v.add_space_prefix = add_space_prefix;
    return v;
}

static void sentencepiece(void **state)
{
    (void)state;
    toy_vocab v = spm_vocab(TOY_ABSENT, true);
    vq_tokenizer *t = toy_vocab_open(&v);
    assert_string_equal(vq_tokenizer_kind(t), "spm");
    assert_int_equal(vq_tokenizer_bos(t), S_BOS);
    assert_int_equal(vq_tokenizer_eos(t), S_EOS);
    /* The first word has its space; a peer lost it. */
    CHECK(t, "This", VQ_TOKENIZE_BOS, S_BOS, S_THIS);
    CHECK(t, "This This", 0, S_THIS, S_THIS);
    CHECK(t, "", 0);
    CHECK(t, " This", 0, S_SP, S_THIS); /* two spaces of -5 come after all that makes the word, of -1 to -4 */
    /* After a control token too. */
    CHECK(t, "This</s>This", VQ_TOKENIZE_CONTROL, S_THIS, S_EOS, S_THIS);
    CHECK(t, "</s>", VQ_TOKENIZE_CONTROL, S_EOS);
    /* U+2581 of a text is a space. */
    CHECK(t, "This" U "This", 0, S_THIS, S_THIS);
    /* Bytes of what has no token. */
    CHECK(t, "s\xF0\x9F\xA6\x99", 0, S_SP, S_S, S_BYTE0 + 0xF0, S_BYTE0 + 0x9F, S_BYTE0 + 0xA6, S_BYTE0 + 0x99);
    CHECK(t, "<0x41>", 0, S_SP, S_BYTE0 + '<', S_BYTE0 + '0', S_BYTE0 + 'x', S_BYTE0 + '4', S_BYTE0 + '1',
          S_BYTE0 + '>');
    /* User-defined tokens come first, with the spaces that they have. */
    CHECK(t, "a  bThis", 0, S_USER, S_THIS);
    assert_int_equal(vq_tokenizer_find(t, U "This"), S_THIS);
    assert_int_equal(vq_tokenizer_find(t, " This"), VQ_NO_TOKEN);
    assert_int_equal(vq_tokenizer_find(t, "<0x41>"), S_BYTE0 + 'A');
    assert_int_equal(vq_tokenizer_find(t, "<unk>"), S_UNK);
    assert_memory_equal(vq_token_bytes(t, S_THIS, false).at, " This", 5);
    assert_memory_equal(vq_token_bytes(t, S_BYTE0 + 7, false).at, "\a", 1);
    vq_tokenizer_close(t);

    v = spm_vocab(0, false);
    t = toy_vocab_open(&v);
    CHECK(t, "This", 0, S_TH, S_IS);
    CHECK(t, "\xF0\x9F\xA6\x99s\xC3\xA9", 0, S_UNK, S_S, S_UNK);
    vq_tokenizer_close(t);
    vq_tokenizer_close(NULL);
}

/* A vocabulary without a token for the space: its three bytes. */
static void space_without_token(void **state)
{
    (void)state;
    static const toy_token tokens[] = {{"<unk>", TOY_UNKNOWN, 0}, {"x", TOY_NORMAL, 0}};
    toy_vocab v = toy_vocab_init("llama", NULL);
    v.tokens = tokens;
    v.n_tokens = 2;
    v.bytes = true;
    v.bos = 0;
    vq_tokenizer *t = toy_vocab_open(&v);
    CHECK(t, "x", 0, 2 + 0xE2, 2 + 0x96, 2 + 0x81, 1);
    vq_tokenizer_close(t);
}

/* Special tokens that are half a character: text is not cut within its characters. */
static void half_characters(void **state)
{
    (void)state;
    static const toy_token tokens[] = {{"\xC3", TOY_USER, 0}, {"x\xC3", TOY_CONTROL, 0}, {"\xA9", TOY_USER, 0}};
    for (int spm = 0; spm < 2; spm++) {
        toy_vocab v = toy_vocab_init(spm ? "llama" : "gpt2", "gpt-2");
        v.tokens = tokens;
        v.n_tokens = 3;
        v.bytes = true;
        v.add_space_prefix = 0;
        vq_tokenizer *t = toy_vocab_open(&v);
        CHECK(t, "x\xC3\xA9", VQ_TOKENIZE_CONTROL, 3 + 'x', 3 + 0xC3, 3 + 0xA9);
        vq_tokenizer_close(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(byte_level),
        cmocka_unit_test(special_tokens),
        cmocka_unit_test(no_control_by_merging),
        cmocka_unit_test(bos),
        cmocka_unit_test(missing_bytes_are_left_out),
        cmocka_unit_test(cuts_words),
        cmocka_unit_test(sentencepiece),
        cmocka_unit_test(space_without_token),
        cmocka_unit_test(half_characters),
    };
    return cmocka_run_group_tests_name("tokenizer", tests, NULL, NULL);
}
