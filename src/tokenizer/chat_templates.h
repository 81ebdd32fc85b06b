/* What the known chat templates write around messages. */
#ifndef VQ_TOKENIZER_CHAT_TEMPLATES_H
#define VQ_TOKENIZER_CHAT_TEMPLATES_H

#include <stdbool.h>

#include "veloxquant/chat.h"

/* In markup: the beginning-of-sequence token where the model wants one, and the end-of-sequence token. */
#define VQ_CHAT_BOS "\1"
#define VQ_CHAT_EOS "\2"

enum { VQ_CHAT_N_ROLES = 3, VQ_CHAT_MAX_NEEDS = 4 };

typedef struct vq_chat_turn {
    const char *before, *after; /* markup around the text */
    bool strip;                 /* white space at both ends of the text goes */
} vq_chat_turn;

struct vq_chat_template {
    const char *name;
    const vq_chat_turn *turns;            /* [VQ_CHAT_N_ROLES] by vq_chat_role */
    const char *generate;                 /* the header of the turn that is to be generated */
    const char *default_system;           /* for conversations that don't begin with a system message; NULL: none */
    const char *needs[VQ_CHAT_MAX_NEEDS]; /* control tokens that the markup is made of */
    bool alternates;                      /* user and assistant take turns, after one system message at most */
    bool system_opens;      /* the system message opens the user's turn, which then has no `before` of its own */
    bool joined_keeps_left; /* and then the left end of the user's text is not stripped */
    bool drops_thoughts;    /* replies to all but the last question lose what comes before </think> */
};

#endif
