/* The known chat templates, and how to tell from a model's own template text (a Jinja program, which is not run) which
 * one it is. */
#include "tokenizer/chat_templates.h"

#include <stdio.h>
#include <string.h>

#include "base/status.h"

#define BOS VQ_CHAT_BOS
#define EOS VQ_CHAT_EOS

/* ---- turns, in the order system, user, assistant ---- */

static const vq_chat_turn chatml[] = {
    {"<|im_start|>system\n", "<|im_end|>\n", false},
    {"<|im_start|>user\n", "<|im_end|>\n", false},
    {"<|im_start|>assistant\n", "<|im_end|>\n", false},
};
#define CHATML_GENERATE "<|im_start|>assistant\n"
#define CHATML_NEEDS                                                                                                   \
    {                                                                                                                  \
        "<|im_start|>", "<|im_end|>"                                                                                   \
    }

static const vq_chat_turn llama2[] = {
    {BOS "[INST] <<SYS>>\n", "\n<</SYS>>\n\n", false},
    {BOS "[INST] ", " [/INST]", true},
    {" ", " " EOS, true},
};

#define LLAMA3_HEADER(role) "<|start_header_id|>" role "<|end_header_id|>\n\n"
#define LLAMA3_NEEDS                                                                                                   \
    {                                                                                                                  \
        "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"                                                       \
    }
static const vq_chat_turn llama3[] = {
    {LLAMA3_HEADER("system"), "<|eot_id|>", true},
    {LLAMA3_HEADER("user"), "<|eot_id|>", true},
    {LLAMA3_HEADER("assistant"), "<|eot_id|>", true},
};
/* The date is the one that the template falls back to. */
static const vq_chat_turn llama31[] = {
    {LLAMA3_HEADER("system") "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n", "<|eot_id|>", true},
    {LLAMA3_HEADER("user"), "<|eot_id|>", true},
    {LLAMA3_HEADER("assistant"), "<|eot_id|>", true},
};

static const vq_chat_turn gemma[] = {
    {"<start_of_turn>user\n", "\n\n", false},
    {"<start_of_turn>user\n", "<end_of_turn>\n", true},
    {"<start_of_turn>model\n", "<end_of_turn>\n", true},
};

/* Mistral's later templates put the system message into the last user turn, where each turn would move it; like others
 * do, it stays in the first. */
static const vq_chat_turn mistral_v1[] = {
    {" [INST] ", "\n\n", false},
    {" [INST] ", " [/INST]", false},
    {" ", EOS, false},
};
static const vq_chat_turn mistral_v3[] = {
    {"[INST] ", "\n\n", false},
    {"[INST] ", "[/INST]", false},
    {" ", EOS, true},
};
static const vq_chat_turn mistral_v3_tekken[] = {
    {"[INST]", "\n\n", false},
    {"[INST]", "[/INST]", false},
    {"", EOS, false},
};
static const vq_chat_turn mistral_v7[] = {
    {"[SYSTEM_PROMPT] ", "[/SYSTEM_PROMPT]", false},
    {"[INST] ", "[/INST]", false},
    {" ", EOS, false},
};
static const vq_chat_turn mistral_v7_tekken[] = {
    {"[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", false},
    {"[INST]", "[/INST]", false},
    {"", EOS, false},
};

static const vq_chat_turn zephyr[] = {
    {"<|system|>\n", EOS "\n", false},
    {"<|user|>\n", EOS "\n", false},
    {"<|assistant|>\n", EOS "\n", false},
};

/* The template has a newline after each of these tokens, and the tokens swallow white space that follows them. */
static const vq_chat_turn phi3[] = {
    {"<|system|>", "<|end|>", true},
    {"<|user|>", "<|end|>", true},
    {"<|assistant|>", "<|end|>", true},
};

/* ---- templates ---- */

static const vq_chat_template templates[] = {
    {.name = "chatml", .turns = chatml, .generate = CHATML_GENERATE, .needs = CHATML_NEEDS},
    {.name = "smollm2",
     .turns = chatml,
     .generate = CHATML_GENERATE,
     .needs = CHATML_NEEDS,
     .default_system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"},
    {.name = "qwen2",
     .turns = chatml,
     .generate = CHATML_GENERATE,
     .needs = CHATML_NEEDS,
     .default_system = "You are a helpful assistant."},
    {.name = "qwen2.5",
     .turns = chatml,
     .generate = CHATML_GENERATE,
     .needs = CHATML_NEEDS,
     .default_system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."},
    {.name = "qwen3", .turns = chatml, .generate = CHATML_GENERATE, .needs = CHATML_NEEDS, .drops_thoughts = true},
    {.name = "llama-2",
     .turns = llama2,
     .generate = "",
     .alternates = true,
     .system_opens = true,
     .joined_keeps_left = true},
    {.name = "llama-3", .turns = llama3, .generate = LLAMA3_HEADER("assistant"), .needs = LLAMA3_NEEDS},
    {.name = "llama-3.1",
     .turns = llama31,
     .generate = LLAMA3_HEADER("assistant"),
     .needs = LLAMA3_NEEDS,
     .default_system = ""},
    {.name = "gemma",
     .turns = gemma,
     .generate = "<start_of_turn>model\n",
     .needs = {"<start_of_turn>", "<end_of_turn>"},
     .alternates = true,
     .system_opens = true},
    {.name = "mistral-v1", .turns = mistral_v1, .generate = "", .alternates = true, .system_opens = true},
    {.name = "mistral-v3",
     .turns = mistral_v3,
     .generate = "",
     .needs = {"[INST]", "[/INST]"},
     .alternates = true,
     .system_opens = true},
    {.name = "mistral-v3-tekken",
     .turns = mistral_v3_tekken,
     .generate = "",
     .needs = {"[INST]", "[/INST]"},
     .alternates = true,
     .system_opens = true},
    {.name = "mistral-v7",
     .turns = mistral_v7,
     .generate = "",
     .needs = {"[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"},
     .alternates = true},
    {.name = "mistral-v7-tekken",
     .turns = mistral_v7_tekken,
     .generate = "",
     .needs = {"[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"},
     .alternates = true},
    {.name = "zephyr", .turns = zephyr, .generate = "<|assistant|>\n"},
    {.name = "phi-3", .turns = phi3, .generate = "<|assistant|>", .needs = {"<|user|>", "<|assistant|>", "<|end|>"}},
};
enum { N_TEMPLATES = sizeof templates / sizeof *templates };

const char *vq_chat_template_name(const vq_chat_template *tmpl) { return tmpl->name; }

const vq_chat_template *vq_chat_template_at(size_t index) { return index < N_TEMPLATES ? &templates[index] : NULL; }

static bool same(vq_str text, const char *other)
{
    return text.n_bytes == strlen(other) && memcmp(text.at, other, text.n_bytes) == 0;
}

static const vq_chat_template *find(const char *name)
{
    const vq_str text = {name, strlen(name)};
    for (int i = 0; i < N_TEMPLATES; i++)
        if (same(text, templates[i].name))
            return &templates[i];
    return NULL;
}

/* "chatml, smollm2, ..." */
static void list_names(char *out, size_t room)
{
    size_t at = 0;
    for (int i = 0; i < N_TEMPLATES && at < room; i++)
        at += (size_t)snprintf(out + at, room - at, "%s%s", i ? ", " : "", templates[i].name);
}

vq_status vq_chat_template_named(const vq_chat_template **out, const char *name, vq_error *err)
{
    *out = find(name);
    if (*out)
        return VQ_OK;
    char names[256];
    list_names(names, sizeof names);
    return vq_fail(err, VQ_ERR_ARG, "no chat template is called \"%.64s\"; there are %s", name, names);
}

/* ---- detection ---- */

static bool has(vq_str text, const char *what) { return memmem(text.at, text.n_bytes, what, strlen(what)) != NULL; }

/* The text that follows the first "<|im_start|>system\n" (the newline as such or as \n of a Jinja string) with
 * something other than the end of the string behind it: a system message that the template itself holds. */
static bool find_default_system(vq_str text, vq_str *out)
{
    static const char header[] = "<|im_start|>system";
    const char *end = text.at + text.n_bytes;
    for (const char *at = text.at; (at = memmem(at, (size_t)(end - at), header, strlen(header))) != NULL;) {
        at += strlen(header);
        if (end - at >= 1 && *at == '\n')
            at += 1;
        else if (end - at >= 2 && at[0] == '\\' && at[1] == 'n')
            at += 2;
        else
            continue;
        if (at == end || *at == '\'' || *at == '"')
            continue;
        const char *stop = memmem(at, (size_t)(end - at), "<|im_end|>", 10);
        *out = (vq_str){at, (size_t)((stop ? stop : end) - at)};
        return true;
    }
    return false;
}

static const vq_chat_template *detect_chatml(vq_str text)
{
    if (has(text, "<|im_sep|>"))
        return NULL;
    vq_str system;
    if (!find_default_system(text, &system))
        return find(has(text, "</think>") ? "qwen3" : "chatml");
    for (int i = 0; i < N_TEMPLATES; i++)
        if (templates[i].turns == chatml && templates[i].default_system && same(system, templates[i].default_system))
            return &templates[i];
    return NULL; /* leaving out a default that the model was trained with would be a silent difference */
}

static const vq_chat_template *detect_inst(vq_str text)
{
    /* A default system message, unless it is switched off (Llama 2's own template says "false == true"). */
    if ((has(text, "set system_message = '") || has(text, "set system_message = \"")) && !has(text, "false == true"))
        return NULL;
    if (has(text, "[SYSTEM_PROMPT]"))
        return find(has(text, "[SYSTEM_PROMPT] ") ? "mistral-v7" : "mistral-v7-tekken");
    if (has(text, "<<SYS>>"))
        return find("llama-2");
    if (has(text, " [INST]") || has(text, " [/INST]"))
        return find("mistral-v1");
    return find(has(text, "[INST] ") ? "mistral-v3" : "mistral-v3-tekken");
}

static const vq_chat_template *detect(vq_str text)
{
    if (has(text, "<|im_start|>"))
        return detect_chatml(text);
    if (has(text, "[INST]"))
        return detect_inst(text);
    if (has(text, "<|start_header_id|>") && has(text, "<|end_header_id|>"))
        return find(has(text, "Cutting Knowledge Date: December 2023") ? "llama-3.1" : "llama-3");
    if (has(text, "<start_of_turn>"))
        return find("gemma");
    if (has(text, "<|assistant|>") && has(text, "<|end|>"))
        return find("phi-3");
    if (has(text, "<|assistant|>") && has(text, "<|user|>") && has(text, "['content'] + eos_token"))
        return find("zephyr");
    return NULL;
}

vq_status vq_chat_template_detect(const vq_chat_template **out, const vq_gguf *gguf, vq_error *err)
{
    *out = NULL;
    vq_str text;
    VQ_TRY(vq_gguf_get_str(gguf, "tokenizer.chat_template", &text, err));
    *out = detect(text);
    if (*out)
        return VQ_OK;
    char names[256];
    list_names(names, sizeof names);
    return vq_fail(err, VQ_ERR_UNSUPPORTED,
                   "%s: tokenizer.chat_template is of no known family (\"%.*s...\"); name one: %s", vq_gguf_path(gguf),
                   text.n_bytes > 48 ? 48 : (int)text.n_bytes, text.at, names);
}
