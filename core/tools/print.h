/* print.h - how every command ends: a line on stderr, or what was asked for on stdout, and the exit status.
 *
 * Owner: nobody; stateless.
 * Life:  static.
 * Flow:  a command's functions -> return bt_tool_error(...) or bt_tool_flushed().
 * Cost:  one line.
 */
#ifndef BT_TOOLS_PRINT_H
#define BT_TOOLS_PRINT_H

#include "base/text.h"

#define BT_TOOL_FAILED 1 /* it could not be done, or something is not well */
#define BT_TOOL_WRONG 2  /* the command line, or what it names, is wrong */

/* "baton: <who><line>" on stderr; returns the status. who: "", or a command's name with ": ". */
int bt_tool_error(int status, const char *who, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* 0, or BT_TOOL_FAILED when stdout has not taken everything. */
int bt_tool_flushed(void);
/* What make writes, on stdout. Status as flushed. */
int bt_tool_print(void (*make)(bt_text_t *out));

#endif
