/* The command line: flags, files, and parameters of the policy. */
#include "tools/replay.h"

#include "base/err.h"
#include "base/json.h"
#include "tools/flags.h"
#include "tools/policy.h"

#include <stdlib.h>

#define SHOW 10

/* ---- parameters ---- */

/* JSON where it is a number, a truth, or a list of these and texts; else a text as it stands. */
static bool read_value(bt_str_t text, bt_value_t *out)
{
    const enum bt_json_type type =
        bt_json_validate(text, NULL) == 0 ? bt_json_type_of(text) : BT_JSON_NONE;
    bt_json_cursor_t c;
    bt_json_item_t item;

    *out = (bt_value_t){.type = BT_VALUE_STRING, .key = out->key};
    if (type == BT_JSON_TRUE || type == BT_JSON_FALSE) {
        out->type = BT_VALUE_BOOL;
        out->boolean = type == BT_JSON_TRUE;
    } else if (type == BT_JSON_NUMBER && bt_json_double(text, &out->number) == 0) {
        out->type = BT_VALUE_NUMBER;
    } else if (type == BT_JSON_ARRAY) {
        long count = bt_json_count(text);
        out->type = BT_VALUE_LIST;
        out->items = calloc((size_t) count + 1, sizeof *out->items);
        bool ok = out->items != NULL && bt_json_array(&c, text) == 0;
        while (ok && bt_json_next(&c, &item) > 0)
            ok = read_value(item.value, &out->items[out->count++]);
        return ok;
    } else if (type == BT_JSON_STRING) {
        long n;
        out->string = calloc(1, text.n);
        n = out->string != NULL ? bt_json_unescape(text, out->string, text.n) : -1;
        return n >= 0;
    } else {
        out->string = bt_str_dup(text);
        return out->string != NULL;
    }
    return true;
}

static int compare_keys(const void *a, const void *b)
{
    return strcmp(((const bt_value_t *) a)->key, ((const bt_value_t *) b)->key);
}

int bt_replay_params(const bt_replay_policy_t *policy, bt_value_t **params_p)
{
    bt_value_t *root = calloc(1, sizeof *root);
    bool ok = root != NULL;

    *params_p = NULL;
    if (ok) {
        root->type = BT_VALUE_TABLE;
        root->items = calloc(policy->param_count + 1, sizeof *root->items);
        ok = root->items != NULL;
    }
    for (unsigned i = 0; ok && i < policy->param_count; i++) {
        const char *equals = strchr(policy->params[i], '=');
        bt_value_t *item = &root->items[root->count++];
        item->key =
            bt_str_dup((bt_str_t){policy->params[i], (size_t) (equals - policy->params[i])});
        ok = item->key != NULL && read_value(bt_str(equals + 1), item);
    }
    if (!ok) {
        bt_value_free(root);
        return BT_E_NOMEM;
    }
    qsort(root->items, root->count, sizeof *root->items, compare_keys);
    *params_p = root;
    return 0;
}

/* ---- flags ---- */

void bt_replay_help(bt_text_t *out)
{
    bt_text_puts(
        out,
        "usage: baton replay --policy NEW [flags] RECORDS...\n\n"
        "Takes the decisions of a record file (baton run --record-file) again, by another policy, "
        "and says what would\n"
        "have been different. RECORDS: files, or - for stdin. NEW: a Lua file, or a shipped "
        "policy's name.\n\n"
        "  --policy NAME|FILE     plans for every record that lists its candidates\n"
        "  --prefill-policy NAME|FILE, --decode-policy NAME|FILE\n"
        "                         plan a half of a pair each, as in baton run; a half that is not "
        "named, and what\n"
        "                         has no prefill to choose from, is --policy's (least_load)\n"
        "  --params K=V ..., --prefill-params K=V ..., --decode-params K=V ...\n"
        "                         their parameters; V as JSON, or a text as it stands\n"
        "  --against NAME|FILE    compare with this policy instead of with the recorded choice\n"
        "  --show N               differences to print, with their scores (10)\n"
        "  --dialect-dir DIR      dialects of one's own, as the gateway had them\n"
        "  --seed N               chance of records that do not tell theirs is made from it (1)\n"
        "  --json                 JSON lines: differences, failures, workers, a summary\n"
        "  --plot FILE.svg        over the records: how many were decided the same, and the tokens "
        "that were on the\n"
        "                         workers of the old and the new choice then\n"
        "  --fail-on-difference   exit 1 when a choice differs, the policy fails, or nothing could "
        "be compared\n\n"
        "Only plan is called, in the order of the records, with loads, chance (ties, random "
        "choices) "
        "and clock as they\n"
        "were then: the same policy decides the same. admit and route are not called: they\n"
        "may wait for others, and the record says what they said (req.class, and req.session where "
        "route gave a key).\n"
        "Nor are observe, fallback and tick: what a policy keeps in ctx.state has seen these plans "
        "alone, of a sampled\n"
        "file only the sampled ones. What it read of counters, windows, turns, baton.shared and "
        "prefixes is in the record,\n"
        "and answers the same calls again; another policy, which makes other calls, gets answers "
        "of "
        "this process, where\n"
        "prefixes find nothing: prompts and headers are not in records (--record-header names "
        "exceptions). Of pairing,\n"
        "transfer groups are not known.\n\n"
        "Exit status: 0 replayed, 1 see above, or nothing could be written, 2 a wrong command "
        "line, policy or file.\n\n"
        "Example\n"
        "  baton run --record-file records.jsonl --record-sample 0.1 ...\n"
        "  baton replay --policy mine.lua --plot mine.svg records.jsonl\n"
        "  baton replay --policy mine.lua --against least_load --fail-on-difference "
        "records.jsonl.1 records.jsonl\n");
}

static bool is_param(const char *text)
{
    size_t n = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");

    return n > 0 && text[n] == '=';
}

/* They stand one after the other behind their flag, so they stay where they are in argv. */
static int read_param_words(void *options, bt_tool_line_t *line)
{
    bt_replay_policy_t *policy = (void *) ((char *) options + line->flag->option.offset);
    const char *flag = line->flag->name;

    if (policy->params != NULL)
        return bt_policy_tool_refuse("%s: once, with all of them: %s a=1 b=2", flag, flag);
    policy->params = line->argv + line->at;
    while (line->at < line->argc && is_param(line->argv[line->at])) {
        policy->param_count++;
        line->at++;
    }
    line->at--;
    return policy->param_count > 0
               ? 0
               : bt_policy_tool_refuse("%s: expected NAME=VALUE behind it", flag);
}

static int read_file(void *options, bt_tool_line_t *line)
{
    bt_replay_options_t *o = options;

    if (o->file_count == BT_REPLAY_FILES_MAX)
        return bt_policy_tool_refuse("replay: at most %u files", BT_REPLAY_FILES_MAX);
    o->files[o->file_count++] = line->argv[line->at];
    return 0;
}

#define TEXT(flag, member) BT_TOOL_TEXT(flag, bt_replay_options_t, member)
#define SWITCH(flag, member) BT_TOOL_SWITCH(flag, bt_replay_options_t, member)
#define PARAMS(flag, slot)                                                                         \
    {                                                                                              \
        .name = (flag), .option = {.offset = offsetof(bt_replay_options_t, policies[slot])},       \
        .read = read_param_words                                                                   \
    }
static const bt_tool_flag_t flags[] = {
    TEXT("--policy", policies[BT_SLOT_BOTH].name),
    PARAMS("--params", BT_SLOT_BOTH),
    TEXT("--prefill-policy", policies[BT_SLOT_PREFILL].name),
    PARAMS("--prefill-params", BT_SLOT_PREFILL),
    TEXT("--decode-policy", policies[BT_SLOT_DECODE].name),
    PARAMS("--decode-params", BT_SLOT_DECODE),
    TEXT("--against", against),
    BT_TOOL_OPTION("--show", bt_replay_options_t, show, .kind = BT_OPTION_UINT, .max = UINT32_MAX),
    BT_TOOL_OPTION("--seed", bt_replay_options_t, seed, .kind = BT_OPTION_U64, .max = 1e15),
    SWITCH("--json", json),
    TEXT("--dialect-dir", dialect_dir),
    SWITCH("--fail-on-difference", fail_on_difference),
    TEXT("--plot", plot)};
static const bt_tool_syntax_t syntax = {"replay", flags, sizeof flags / sizeof flags[0], read_file};

static int check_policies(bt_replay_options_t *o)
{
    const bt_replay_policy_t *prefill = &o->policies[BT_SLOT_PREFILL],
                             *decode = &o->policies[BT_SLOT_DECODE];
    const bool has_half = prefill->name != NULL || decode->name != NULL;

    if (o->policies[BT_SLOT_BOTH].name == NULL && !has_half)
        return bt_policy_tool_refuse("replay: which policy? --policy NAME|FILE");
    if (prefill->params != NULL && prefill->name == NULL)
        return bt_policy_tool_refuse("--prefill-params: of which policy? --prefill-policy");
    if (decode->params != NULL && decode->name == NULL)
        return bt_policy_tool_refuse("--decode-params: of which policy? --decode-policy");
    if (o->policies[BT_SLOT_BOTH].name == NULL)
        o->policies[BT_SLOT_BOTH].name = "least_load"; /* a pool's, where none is named */
    return 0;
}

int bt_replay_options(bt_replay_options_t *o, int argc, const char *const *argv)
{
    *o = (bt_replay_options_t){.show = SHOW, .seed = 1};
    int status = bt_tool_flags_read(&syntax, o, argc, argv);

    if (status == 0)
        status = check_policies(o);
    if (status == 0 && o->file_count == 0)
        status = bt_policy_tool_refuse(
            "replay: which records? a file of baton run --record-file, or - for stdin");
    return status;
}
