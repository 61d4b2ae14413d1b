/* policy.h - `baton policy ...`: what an author of policies uses before a policy meets traffic.
 *
 * Owner: main; one command a process.
 * Life:  the command's.
 * Flow:  a word -> new, check, test, bench, params or list, over the gateway's own loader, sandbox and native functions.
 * Cost:  not measured; no gateway runs.
 */
#ifndef BT_TOOLS_POLICY_H
#define BT_TOOLS_POLICY_H

#include "base/text.h"
#include "tools/print.h"

/* argv begins after "policy". Exit status: 0, 1 could not write or a spec failed, 2 a wrong command line or policy. */
int bt_policy_tool(int argc, const char *const *argv);
void bt_policy_tool_help(bt_text_t *out);
/* Findings are told without the command's name: they begin with a file's. */
#define bt_policy_tool_refuse(...) bt_tool_error(BT_TOOL_WRONG, "", __VA_ARGS__)

/* ---- between the files ---- */
int bt_policy_tool_new(int argc, const char *const *argv);   /* tools/policy_new.c */
int bt_policy_tool_bench(int argc, const char *const *argv); /* tools/policy_bench.c */

#endif
