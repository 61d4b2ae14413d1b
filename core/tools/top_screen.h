/* top_screen.h - the terminal of `baton top`: raw keys, another screen, and the old one back on any end.
 *
 * Owner: the process; there is one.
 * Life:  open -> (draw, key)* -> close, which exit and deadly signals do as well.
 * Flow:  plain ANSI: no terminfo, as all terminals of today understand these few sequences.
 * Cost:  a write a picture.
 */
#ifndef BT_TOOLS_TOP_SCREEN_H
#define BT_TOOLS_TOP_SCREEN_H

#include "base/text.h"

enum { TOP_KEY_NONE = 0, TOP_KEY_UP = 256, TOP_KEY_DOWN, TOP_KEY_PAGE_UP, TOP_KEY_PAGE_DOWN };

/* False: stdin or stdout is no terminal. */
bool top_screen_open(void);
void top_screen_close(void);
void top_screen_size(unsigned *rows_p, unsigned *cols_p);
/* Text of rows, drawn from the top, each cut at the right edge; the rest of the screen is empty. The row `marked` is inverse; -1: none. */
void top_screen_draw(bt_str_t text, int marked);
/* Waits at most that long. */
int top_screen_key(int timeout_ms);
/* A signal has asked for the end, or the terminal is gone. */
bool top_screen_is_over(void);

#endif
