/* veloxquant tokenize: text to token ids and back. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

struct args {
    const char *model, *prompt, *file, *decode;
    bool pieces, control, no_bos, count;
};

#define AT(field) offsetof(struct args, field)

static const cli_option options[] = {
    {'m', "model", CLI_TEXT, AT(model), "FILE", "the model whose vocabulary is used; its weights are not needed", 0, 0},
    {'p', "prompt", CLI_TEXT, AT(prompt), "TEXT", "the text (default: standard input, when piped)", 0, 0},
    {'f', "file", CLI_TEXT, AT(file), "FILE", "take the text from a file, byte by byte as it is", 0, 0},
    {0, "control", CLI_FLAG, AT(control), NULL,
     "names of control tokens in the text mean those tokens; with --decode, print them by name", 0, 0},
    {0, "no-bos", CLI_FLAG, AT(no_bos), NULL, "no beginning-of-sequence token, also where the model wants one", 0, 0},
    {0, "pieces", CLI_FLAG, AT(pieces), NULL, "a line for each token: its id and its text", 0, 0},
    {0, "count", CLI_FLAG, AT(count), NULL, "only how many tokens there are", 0, 0},
    {0, "decode", CLI_TEXT, AT(decode), "IDS", "the other way: ids, with spaces or commas between, to text", 0, 0},
};

static const char ending[] = "Examples:\n"
                             "  veloxquant tokenize -m model.gguf -p \"Hello world\"\n"
                             "  veloxquant tokenize -m model.gguf -p \"Hello world\" --pieces\n"
                             "  veloxquant tokenize -m model.gguf -p \"<|im_start|>user\" --control\n"
                             "  veloxquant tokenize -m model.gguf -f book.txt --count\n"
                             "  veloxquant tokenize -m model.gguf --decode \"19556 905\"\n";

/* The text of a piece with quotes and escapes, as in JSON; bytes that are half a character as \xNN. */
static void print_piece(int32_t id, vq_str piece)
{
    printf("%6d  \"", id);
    for (size_t i = 0; i < piece.n_bytes;) {
        const unsigned char c = (unsigned char)piece.at[i];
        const size_t want = c < 0x80 ? 1 : c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : c >= 0xC2 ? 2 : 0;
        size_t n = 1;
        while (want > 1 && n < want && i + n < piece.n_bytes && ((unsigned char)piece.at[i + n] & 0xC0) == 0x80)
            n++;
        if (c == '"' || c == '\\')
            printf("\\%c", c);
        else if (c == '\n')
            fputs("\\n", stdout);
        else if (c == '\t')
            fputs("\\t", stdout);
        else if (c < 0x20 || c == 0x7F || want == 0 || n != want)
            printf("\\x%02X", c);
        else {
            fwrite(piece.at + i, 1, n, stdout);
            i += n;
            continue;
        }
        i++;
    }
    fputs("\"\n", stdout);
}

static int decode(const cli_page *page, const vq_tokenizer *t, const char *text, bool control)
{
    vq_detokenizer d = {.n_held = 0};
    char out[3 * 256 + 12];
    const uint32_t n_vocab = vq_tokenizer_n_vocab(t);
    for (const char *at = text + strspn(text, " ,\n\t"); *at; at += strspn(at, " ,\n\t")) {
        char *end;
        errno = 0;
        const long long id = strtoll(at, &end, 10);
        if (end == at || (*end && !strchr(" ,\n\t", *end)))
            return cli_usage(page, "--decode: '%.20s' is not a token id", at);
        if (errno || id < 0 || id >= (long long)n_vocab)
            return cli_usage(page, "--decode: %.*s, must be 0 to %u", (int)(end - at), at, n_vocab - 1);
        const vq_str bytes = vq_token_bytes(t, (int32_t)id, control);
        for (size_t i = 0; i < bytes.n_bytes; i += 256) {
            const size_t n = bytes.n_bytes - i < 256 ? bytes.n_bytes - i : 256;
            fwrite(out, 1, vq_detokenizer_push(&d, bytes.at + i, n, out), stdout);
        }
        at = end;
    }
    fwrite(out, 1, vq_detokenizer_finish(&d, out), stdout);
    return CLI_FINE;
}

static int encode(const vq_tokenizer *t, const struct args *a, const char *text, size_t n_bytes)
{
    const unsigned flags = (a->control ? VQ_TOKENIZE_CONTROL : 0U) | (a->no_bos ? 0U : VQ_TOKENIZE_BOS);
    int32_t *ids;
    size_t n;
    vq_error err;
    if (vq_tokenize(t, text, n_bytes, flags, &ids, &n, &err) != VQ_OK)
        return cli_fail_with(&err);
    if (a->count) {
        printf("%zu\n", n);
    } else {
        for (size_t i = 0; i < n; i++) {
            if (a->pieces)
                print_piece(ids[i], vq_token_bytes(t, ids[i], true));
            else
                printf(i ? " %d" : "%d", ids[i]);
        }
        if (!a->pieces)
            putchar('\n');
    }
    vq_free(ids);
    return CLI_FINE;
}

static int with_tokenizer(const cli_page *page, const struct args *a, const vq_tokenizer *t)
{
    if (a->decode)
        return decode(page, t, a->decode, a->control);
    if (a->prompt)
        return encode(t, a, a->prompt, strlen(a->prompt));
    if (!a->file && isatty(STDIN_FILENO))
        return cli_usage(page, "no text: give -p TEXT or -f FILE, or pipe it in");
    char *text;
    size_t n_bytes;
    if (!cli_read_file(a->file ? a->file : "-", &text, &n_bytes))
        return CLI_FAILED;
    const int status = encode(t, a, text, n_bytes);
    free(text);
    return status;
}

int cli_tokenize(int argc, char **argv)
{
    struct args a = {0};
    const cli_group groups[] = {{"Options", options, sizeof options / sizeof options[0], &a}};
    const cli_page page = {"tokenize",
                           "-m MODEL [-p TEXT] [options]",
                           "Prints the token ids of a text. A beginning-of-sequence token comes first where the model "
                           "wants one. Text is UTF-8; invalid parts become U+FFFD.",
                           groups,
                           1,
                           ending,
                           0,
                           0};
    size_t n_operands;
    int status;
    if (!cli_parse(&page, argc, argv, &n_operands, &status))
        return status;
    if (!a.model)
        return cli_usage(&page, "no model: -m FILE says which");
    if ((a.prompt != NULL) + (a.file != NULL) + (a.decode != NULL) > 1)
        return cli_usage(&page, "-p, -f and --decode exclude each other");
    vq_gguf *gguf;
    vq_tokenizer *t;
    vq_error err;
    cli_signals_model(a.model);
    if (vq_gguf_open(&gguf, a.model, &err) != VQ_OK)
        return cli_fail_with(&err);
    const vq_status opened = vq_tokenizer_open(&t, gguf, &err);
    vq_gguf_close(gguf);
    if (opened != VQ_OK)
        return cli_fail_with(&err);
    status = with_tokenizer(&page, &a, t);
    vq_tokenizer_close(t);
    return status;
}
