/* expect.h - the text that a right answer has, on the command line.
 *
 * Owner: the caller.
 * Life:  one call.
 * Flow:  options -> prompt bytes as the routes flatten them -> words.
 * Cost:  none that matters.
 */
#ifndef SIM_EXPECT_H
#define SIM_EXPECT_H

#include "base/text.h"
#include "options.h"

void sim_expect(const sim_options_t *options, bt_text_t *out);

#endif
