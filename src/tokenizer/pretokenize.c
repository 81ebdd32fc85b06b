/* Pre-tokenisation with PCRE2.
 *
 * A family is a list of expressions; each one cuts the pieces that the one before left, matches and what lies between
 * them alike (what tokenizers' "isolated" splits do).  \s stands for the white space of Unicode, written out: PCRE2's
 * own \s also has U+180E. */
#include "tokenizer/pretokenize.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* White space for use inside a class. */
#define S "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" S "\\p{L}\\p{N}]+|[" S "]+(?![^" S "])|[" S "]+"
/* Llama 3 and Qwen 2 differ in how many digits go together.  (Qwen's own tokenizer brings text into normal form C
 * first; here, as in llama.cpp, text is taken as it is.) */
#define TIKTOKEN(digits)                                                                                               \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" digits "| ?[^" S "\\p{L}\\p{N}]+[\\r\\n]*|"    \
    "[" S "]*[\\r\\n]+|[" S "]+(?![^" S "])|[" S "]+"

enum { MAX_STAGES = 4 };

typedef struct family {
    const char *name;
    const char *stages[MAX_STAGES];
    bool whole_words, adds_bos;
} family;

static const family families[] = {
    {.name = "smollm", .stages = {"\\p{N}", GPT2}},
    {.name = "starcoder", .stages = {"\\p{N}", GPT2}},
    {.name = "gpt-2", .stages = {GPT2}},
    {.name = "llama-bpe", .stages = {TIKTOKEN("{1,3}")}, .whole_words = true, .adds_bos = true},
    {.name = "qwen2", .stages = {TIKTOKEN("")}},
    {.name = "default", .stages = {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
};
enum { N_FAMILIES = sizeof families / sizeof *families };

struct vq_pretokenizer {
    const family *family;
    int n_stages;
    pcre2_code *code[MAX_STAGES];
};

struct vq_pretokenizer_run {
    const vq_pretokenizer *p;
    pcre2_match_data *match[MAX_STAGES];
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    vq_word_fn word;
    void *arg;
};

/* Compiled code keeps its working memory out of the caller's stack: the interpreter takes frames from the heap, JIT
 * code a stack of its own. No expression needs more than a few steps a character, nested repeats have none of them. */
enum { JIT_STACK_START = 32 << 10, JIT_STACK_MOST = 1 << 20, HEAP_LIMIT_KIB = 64 << 10 };

static const family *family_named(vq_str name)
{
    for (int i = 0; i < N_FAMILIES; i++)
        if (strlen(families[i].name) == name.n_bytes && memcmp(families[i].name, name.at, name.n_bytes) == 0)
            return &families[i];
    return NULL;
}

static vq_status compile(vq_pretokenizer *p, int stage, vq_error *err)
{
    int code;
    PCRE2_SIZE offset;
    const char *pattern = p->family->stages[stage];
    p->code[stage] = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                   PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &offset, NULL);
    if (!p->code[stage])
        return vq_fail(err, code == PCRE2_ERROR_HEAP_FAILED ? VQ_ERR_NOMEM : VQ_ERR_UNSUPPORTED,
                       "expression %d of pre-tokeniser %s: PCRE2 error %d at %zu", stage, p->family->name, code,
                       offset);
    /* Where code may not be generated at run time, the interpreter gives the same matches, slower. */
    (void)pcre2_jit_compile(p->code[stage], PCRE2_JIT_COMPLETE);
    return VQ_OK;
}

vq_status vq_pretokenizer_open(vq_pretokenizer **out, vq_str name, vq_error *err)
{
    *out = NULL;
    const family *f = family_named(name);
    if (!f) {
        char known[256] = "";
        size_t at = 0;
        for (int i = 0; i < N_FAMILIES && at < sizeof known; i++)
            at += (size_t)snprintf(known + at, sizeof known - at, "%s%s", i ? ", " : "", families[i].name);
        return vq_fail(err, VQ_ERR_UNSUPPORTED, "tokenizer.ggml.pre is %.*s, known are %s",
                       name.n_bytes > 64 ? 64 : (int)name.n_bytes, name.at, known);
    }
    vq_pretokenizer *p = calloc(1, sizeof *p);
    if (!p)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for a pre-tokeniser");
    p->family = f;
    vq_status status = VQ_OK;
    while (status == VQ_OK && p->n_stages < MAX_STAGES && f->stages[p->n_stages])
        status = compile(p, p->n_stages++, err);
    if (status != VQ_OK) {
        vq_pretokenizer_close(p);
        return status;
    }
    *out = p;
    return VQ_OK;
}

void vq_pretokenizer_close(vq_pretokenizer *p)
{
    if (!p)
        return;
    for (int i = 0; i < p->n_stages; i++)
        pcre2_code_free(p->code[i]);
    free(p);
}

const char *vq_pretokenizer_name(const vq_pretokenizer *p) { return p->family->name; }

bool vq_pretokenizer_whole_words(const vq_pretokenizer *p) { return p->family->whole_words; }

bool vq_pretokenizer_adds_bos(const vq_pretokenizer *p) { return p->family->adds_bos; }

vq_status vq_pretokenizer_run_open(vq_pretokenizer_run **out, const vq_pretokenizer *p, vq_error *err)
{
    *out = NULL;
    vq_pretokenizer_run *run = calloc(1, sizeof *run);
    if (!run)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory to cut text into words");
    run->p = p;
    run->context = pcre2_match_context_create(NULL);
    run->stack = pcre2_jit_stack_create(JIT_STACK_START, JIT_STACK_MOST, NULL);
    bool whole = run->context && run->stack;
    for (int i = 0; i < p->n_stages; i++)
        whole &= (run->match[i] = pcre2_match_data_create(1, NULL)) != NULL;
    if (!whole) {
        vq_pretokenizer_run_close(run);
        return vq_fail(err, VQ_ERR_NOMEM, "no memory to cut text into words");
    }
    pcre2_jit_stack_assign(run->context, NULL, run->stack);
    pcre2_set_heap_limit(run->context, HEAP_LIMIT_KIB);
    *out = run;
    return VQ_OK;
}

void vq_pretokenizer_run_close(vq_pretokenizer_run *run)
{
    if (!run)
        return;
    for (int i = 0; i < MAX_STAGES; i++)
        pcre2_match_data_free(run->match[i]);
    pcre2_jit_stack_free(run->stack);
    pcre2_match_context_free(run->context);
    free(run);
}

static vq_status match_failed(const vq_pretokenizer_run *run, int code, size_t n, vq_error *err)
{
    const vq_status status = code == PCRE2_ERROR_NOMEMORY ? VQ_ERR_NOMEM : VQ_ERR_LIMIT;
    return vq_fail(err, status, "pre-tokeniser %s stopped in a text of %zu bytes: PCRE2 error %d", run->p->family->name,
                   n, code);
}

/* Stage `stage` and those after it, on one piece; at most MAX_STAGES deep. */
static vq_status cut(vq_pretokenizer_run *run, int stage, const char *text, size_t n, vq_error *err)
{
    if (n == 0)
        return VQ_OK;
    if (stage == run->p->n_stages)
        return run->word(run->arg, text, n, err);
    const pcre2_code *code = run->p->code[stage];
    const PCRE2_SIZE *found = pcre2_get_ovector_pointer(run->match[stage]);
    for (size_t at = 0; at < n;) {
        const int rc = pcre2_match(code, (PCRE2_SPTR)text, n, at, PCRE2_NO_UTF_CHECK, run->match[stage], run->context);
        if (rc == PCRE2_ERROR_NOMATCH)
            return cut(run, stage + 1, text + at, n - at, err);
        if (rc < 0)
            return match_failed(run, rc, n, err);
        const size_t start = found[0], end = found[1];
        VQ_TRY(cut(run, stage + 1, text + at, start - at, err));
        VQ_TRY(cut(run, stage + 1, text + start, end - start, err));
        at = end;
    }
    return VQ_OK;
}

vq_status vq_pretokenize(vq_pretokenizer_run *run, const char *text, size_t n, vq_word_fn word, void *arg,
                         vq_error *err)
{
    run->word = word;
    run->arg = arg;
    /* A match looks at each character a few times (once for each alternative that begins with white space). */
    const size_t steps = 1000 + 16 * n;
    pcre2_set_match_limit(run->context, steps > UINT32_MAX ? UINT32_MAX : (uint32_t)steps);
    return cut(run, 0, text, n, err);
}
