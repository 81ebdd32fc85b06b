/* Command-line options: one table drives parsing, range checks, suggestions and help.
 *
 * An option is a row; rows form groups with a heading; a subcommand is a page of groups, texts and examples.  Values go
 * to a struct at an offset, so that tables are constant. */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef enum cli_kind {
    CLI_FLAG,         /* bool: present or not */
    CLI_COUNT,        /* uint32_t in [min, max] */
    CLI_COUNT_OR_ALL, /* the same, and -1 for UINT32_MAX */
    CLI_WHOLE,        /* int64_t in [min, max] */
    CLI_REAL,         /* float in [min, max] */
    CLI_TEXT,         /* const char * */
    CLI_TEXTS,        /* cli_texts: may be given several times */
    CLI_COUNTS,       /* cli_counts: numbers with commas between, each in [min, max] */
} cli_kind;

enum { CLI_MOST_TEXTS = 32, CLI_MOST_COUNTS = 16 };

typedef struct cli_texts {
    const char *at[CLI_MOST_TEXTS];
    size_t n;
} cli_texts;

typedef struct cli_counts {
    uint32_t at[CLI_MOST_COUNTS];
    size_t n;
} cli_counts;

typedef struct cli_option {
    char letter;      /* 0: none */
    const char *name; /* without the dashes */
    cli_kind kind;
    size_t offset;     /* of the value in the struct that the group fills */
    const char *value; /* what the help calls the value: "N", "FILE" */
    const char *help;  /* the default is added when the struct holds one */
    double min, max;
} cli_option;

typedef struct cli_group {
    const char *title;
    const cli_option *options;
    size_t n;
    void *values; /* the struct; holds the defaults */
} cli_group;

typedef struct cli_page {
    const char *name;  /* of the subcommand */
    const char *usage; /* what follows it: "-m MODEL [options]" */
    const char *intro; /* paragraphs, one line each, empty lines between */
    const cli_group *groups;
    size_t n_groups;
    const char *ending;                   /* examples and remarks, printed as they are */
    size_t least_operands, most_operands; /* words that are no options */
} cli_page;

typedef enum cli_parsed { CLI_PARSED, CLI_HELP, CLI_WRONG } cli_parsed;

/* argv[0] is the subcommand.  Operands are moved to the front of argv[1 ..]; *n_operands says how many.  CLI_HELP when
 * -h or --help is among the words; CLI_WRONG with a message of one line. */
cli_parsed cli_options_parse(const cli_page *page, int argc, char **argv, size_t *n_operands, char *message,
                             size_t message_bytes);

void cli_options_help(const cli_page *page, FILE *to);

/* Of `names` [n] the one that `word` was probably meant to be; NULL when none is near. */
const char *cli_nearest(const char *word, const char *const *names, size_t n);

#endif
