/* Lines for chat: with editing and history on a terminal, plain otherwise. */
#ifndef CLI_CHAT_INPUT_H
#define CLI_CHAT_INPUT_H

#include <stdbool.h>
#include <stddef.h>

typedef struct chat_input chat_input;

typedef enum chat_line { CHAT_LINE, CHAT_END, CHAT_INTERRUPTED, CHAT_FAILED } chat_line;

/* NULL: no memory. */
chat_input *chat_input_open(void);
void chat_input_close(chat_input *in);
bool chat_input_is_terminal(const chat_input *in);

/* The next line without its end; a backslash at the end of a line joins the next one with a line feed.  *text lives
 * until the next call and may hold NUL bytes. */
chat_line chat_input_next(chat_input *in, const char **text, size_t *n_bytes);

#endif
