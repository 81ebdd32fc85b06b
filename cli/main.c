/* The program: picks the subcommand. */
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cli.h"

static const cli_command commands[] = {
    {"generate", "go on from a prompt", cli_generate},
    {"chat", "talk with an instruction-tuned model", cli_chat},
    {"perplexity", "judge a model, or a cache against another, on a text", cli_perplexity},
    {"eval", "measure what caches and eviction policies do to quality", cli_eval},
    {"report", "figures and a page from results files", cli_report},
    {"bench", "measure prompt and decode speed", cli_bench},
    {"calibrate", "collect the statistics that calibrated caches need", cli_calibrate},
    {"precompute", "write rotations and codebooks that caches would draw", cli_precompute},
    {"plan", "choose bits of a cache by layer and head for a budget", cli_plan},
    {"recommend", "what fits into this machine's memory, and how to run it", cli_recommend},
    {"tokenize", "text to token ids and back", cli_tokenize},
    {"inspect", "what is in a model file", cli_inspect},
    {"quantize", "pack a model's weights into one file that processes share", cli_quantize},
    {"verify", "check a model, prompt, calibration or precomputed file to its last byte", cli_verify},
    {"methods", "the ways to store keys and values", cli_methods},
    {"fidelity", "what a way of storing does to rows in NumPy files", cli_fidelity},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static const char ending[] = "\n"
                             "First steps:\n"
                             "  veloxquant inspect model.gguf\n"
                             "  veloxquant generate -m model.gguf -p \"The capital of France is\" -n 32 --temp 0\n"
                             "  veloxquant chat -m model.gguf\n"
                             "  veloxquant generate -m model.gguf -f long.txt --kv turboquant-mse:bits=3\n"
                             "\n"
                             "'veloxquant COMMAND --help' explains a command and its options, with examples.\n"
                             "'veloxquant --version' prints the version.\n"
                             "\n"
                             "Environment: VQ_CPU=c, avx2 or avx512 limits which instructions are used.\n"
                             "Exit status: 0 fine, 1 failure, 2 wrong usage, 130 stopped by Ctrl-C.\n";

static void print_help(FILE *to)
{
    fputs("usage: veloxquant COMMAND [options]\n"
          "\n"
          "Runs language models (GGUF files, reservoirs) on the CPU, with keys and values of the\n"
          "attention cache stored packed, at 1 to 8 bits a value.\n"
          "\n"
          "Commands:\n",
          to);
    for (size_t i = 0; i < N_COMMANDS; i++)
        fprintf(to, "  %-12s %s\n", commands[i].name, commands[i].summary);
    fputs(ending, to);
}

static const cli_command *find(const char *name)
{
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

static int unknown(const char *name)
{
    const char *names[N_COMMANDS];
    for (size_t i = 0; i < N_COMMANDS; i++)
        names[i] = commands[i].name;
    const char *near = cli_nearest(name, names, N_COMMANDS);
    if (near)
        cli_say("unknown command '%s'; did you mean '%s'?", name, near);
    else
        cli_say("unknown command '%s'", name);
    fputs("Try 'veloxquant help'.\n", stderr);
    return CLI_USAGE;
}

static int help(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stdout);
        return CLI_FINE;
    }
    const cli_command *command = find(argv[1]);
    if (!command)
        return unknown(argv[1]);
    char option[] = "--help", *words[] = {argv[1], option, NULL};
    return command->run(2, words);
}

static int dispatch(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return CLI_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "--version") == 0 || strcmp(name, "version") == 0) {
        printf("veloxquant %s\n", vq_version());
        return CLI_FINE;
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        print_help(stdout);
        return CLI_FINE;
    }
    if (strcmp(name, "help") == 0)
        return help(argc - 1, argv + 1);
    const cli_command *command = find(name);
    return command ? command->run(argc - 1, argv + 1) : unknown(name);
}

/* A small `ulimit -s` is raised as far as the system lets it, since the stack grows up to what holds when it grows. */
static bool has_stack(void)
{
    const rlim_t least = 2 * VQ_STACK_BYTES;
    struct rlimit limit;
    if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= least)
        return true;
    limit.rlim_cur = limit.rlim_max == RLIM_INFINITY || limit.rlim_max > least ? least : limit.rlim_max;
    if (limit.rlim_cur == least && setrlimit(RLIMIT_STACK, &limit) == 0)
        return true;
    cli_say("the stack may have %llu KiB ('ulimit -s'), at least %llu are needed",
            (unsigned long long)limit.rlim_cur / 1024, (unsigned long long)least / 1024);
    return false;
}

int main(int argc, char **argv)
{
    /* A help text or a table is written in one piece, so that the reason of a failure is still known at the end. */
    static char buffer[1 << 16];
    if (!isatty(STDOUT_FILENO))
        setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    cli_signals_init();
    if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1)
        setlocale(LC_CTYPE, "C.UTF-8");
    return has_stack() ? cli_finish_output(dispatch(argc, argv)) : CLI_FAILED;
}
