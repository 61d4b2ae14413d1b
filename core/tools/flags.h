/* flags.h - the command line of a command: one table of its flags, and what becomes of other words.
 *
 * Owner: the command's constant table; texts stay in argv.
 * Life:  one call.
 * Flow:  --name VALUE or --name=VALUE -> the member of the command's options that the row names; other words -> read_word, in their order.
 * Cost:  linear search, once a process.
 */
#ifndef BT_TOOLS_FLAGS_H
#define BT_TOOLS_FLAGS_H

#include "config/option.h"
#include "tools/print.h"

/* Where the walk stands. A reader that takes more words than one moves `at` to the last of them. */
typedef struct bt_tool_line {
    const struct bt_tool_syntax *syntax;
    int argc, at;
    const char *const *argv;
    const struct bt_tool_flag *flag; /* with its value; of a reader of flags */
    const char *value;
} bt_tool_line_t;

/* Both return 0, or the exit status once they have told why. */
typedef struct bt_tool_flag {
    const char *name;   /* with its dashes */
    bt_option_t option; /* BOOL: a switch; TEXT, TEXTS: not copied; NONE: read's */
    int (*read)(void *options, bt_tool_line_t *line);
} bt_tool_flag_t;

typedef struct bt_tool_syntax {
    const char *command;
    const bt_tool_flag_t *flags;
    size_t flag_count;
    int (*read_word)(void *options, bt_tool_line_t *line); /* NULL: there are only flags */
} bt_tool_syntax_t;

/* Rows of flags. What stands behind the member of OPTION: .kind = ..., its range, its list. */
#define BT_TOOL_OPTION(flag, type, member, ...)                                                    \
    {                                                                                              \
        .name = (flag), .option = {.offset = offsetof(type, member), __VA_ARGS__ }                 \
    }
#define BT_TOOL_SWITCH(flag, type, member)                                                         \
    BT_TOOL_OPTION(flag, type, member, .kind = BT_OPTION_BOOL)
#define BT_TOOL_TEXT(flag, type, member) BT_TOOL_OPTION(flag, type, member, .kind = BT_OPTION_TEXT)
#define BT_TOOL_READ(flag, reader)                                                                 \
    {                                                                                              \
        .name = (flag), .read = (reader)                                                           \
    }

/* 0, or the exit status: a line on stderr says what is wrong. */
int bt_tool_flags_read(const bt_tool_syntax_t *syntax, void *options, int argc,
                       const char *const *argv);
/* For readers: line's value is none that its flag takes. */
int bt_tool_refuse_value(const bt_tool_line_t *line);

#endif
