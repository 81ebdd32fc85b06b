/* veloxquant eval all: the plan is made in eval_plan.c and carried out in eval_all.c. */
#ifndef CLI_EVAL_ALL_H
#define CLI_EVAL_ALL_H

#include "eval.h"

enum { ALL_MOST_STEPS = 240, ALL_MOST_WORDS = 72 };

/* One command of this program, run in a process of its own. */
typedef struct all_step {
    char name[128];              /* of its files in the folder */
    char *words[ALL_MOST_WORDS]; /* after "veloxquant"; NULL at the end */
    size_t n_words;
    bool is_json;   /* --json FILE is added, and FILE is DIR/NAME.json; else `product` is what it writes */
    char *product;  /* NULL with is_json */
    double seconds; /* a guess for a model of 135 million parameters on 2 cores */
} all_step;

typedef struct all_plan {
    all_step steps[ALL_MOST_STEPS];
    size_t n;
    bool failed; /* no memory or no room */
} all_plan;

typedef struct all_args {
    cli_texts kv, texts;
    const char *model, *dir;
    uint32_t n_threads;
    bool quick, full;
} all_args;

/* What the plan is about. */
typedef struct all_subject {
    const all_args *args;
    const char *calibration;      /* the file that a step makes */
    const char *calibration_text; /* which it is made of */
    cli_texts texts;              /* what is evaluated */
    bool is_large;                /* beyond 200 million parameters: fewer tokens, so that it does not take hours */
} all_subject;

void all_plan_make(all_plan *p, const all_subject *s);
void all_plan_free(all_plan *p);

#endif
