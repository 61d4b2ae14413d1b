/* The command line: flags, files, and parameters of the policy. */
#include "tools/replay.h"

#include "base/err.h"
#include "base/json.h"
#include "config/suggest.h"
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

/* The value of --name VALUE or --name=VALUE; NULL = argv[*i] is another flag, or ends the line. */
static const char *value_of(const char *name, int argc, const char *const *argv, int *i)
{
    const size_t n = strlen(name);

    if (strncmp(argv[*i], name, n) != 0)
        return NULL;
    if (argv[*i][n] == '=')
        return argv[*i] + n + 1;
    return argv[*i][n] == '\0' && *i + 1 < argc ? argv[++*i] : NULL;
}

static bool is_param(const char *text)
{
    size_t n = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");

    return n > 0 && text[n] == '=';
}

static int unknown(const char *word)
{
    static const char *const flags[] = {
        "--policy",        "--params",        "--prefill-policy", "--prefill-params",
        "--decode-policy", "--decode-params", "--against",        "--show",
        "--seed",          "--json",          "--dialect-dir",    "--fail-on-difference",
        "--plot"};
    const size_t count = sizeof flags / sizeof flags[0];
    const char *near = bt_suggest_row(word, flags, count, sizeof flags[0]);

    for (size_t i = 0; i < count; i++)
        if (strcmp(word, flags[i]) == 0)
            return bt_policy_tool_refuse("replay %s: a value is missing", word);
    if (near != NULL)
        return bt_policy_tool_refuse("replay: unknown flag %.100s, did you mean %s?", word, near);
    return bt_policy_tool_refuse("replay: unknown flag %.100s; baton replay --help lists them",
                                 word);
}

static int read_number(const char *flag, const char *value, uint64_t *number_p)
{
    if (bt_str_u64(bt_str(value), number_p) == 0)
        return 0;
    return bt_policy_tool_refuse("%s: expected a whole number, got \"%.100s\"", flag, value);
}

/* Parameters stand one after the other behind their flag, so they stay where they are in argv. */
static int read_param_words(bt_replay_policy_t *policy, int argc, const char *const *argv, int *i)
{
    const char *flag = argv[*i];

    if (policy->params != NULL)
        return bt_policy_tool_refuse("%s: once, with all of them: %s a=1 b=2", flag, flag);
    policy->params = argv + *i + 1;
    while (*i + 1 < argc && is_param(argv[*i + 1])) {
        policy->param_count++;
        ++*i;
    }
    return policy->param_count > 0
               ? 0
               : bt_policy_tool_refuse("%s: expected NAME=VALUE behind it", flag);
}

/* -1: it is another flag. */
static int read_policy_flag(bt_replay_options_t *o, int argc, const char *const *argv, int *i)
{
    static const char *const names[BT_SLOT_COUNT] = {"--policy", "--prefill-policy",
                                                     "--decode-policy"};
    static const char *const params[BT_SLOT_COUNT] = {"--params", "--prefill-params",
                                                      "--decode-params"};

    for (unsigned s = 0; s < BT_SLOT_COUNT; s++) {
        if (strcmp(argv[*i], params[s]) == 0)
            return read_param_words(&o->policies[s], argc, argv, i);
        const char *value = value_of(names[s], argc, argv, i);
        if (value != NULL) {
            o->policies[s].name = value;
            return 0;
        }
    }
    return -1;
}

static int read_flag(bt_replay_options_t *o, int argc, const char *const *argv, int *i)
{
    const char *value;
    uint64_t number = 0;
    const int status = read_policy_flag(o, argc, argv, i);

    if (status >= 0)
        return status;
    if (strcmp(argv[*i], "--json") == 0)
        o->json = true;
    else if (strcmp(argv[*i], "--fail-on-difference") == 0)
        o->fail_on_difference = true;
    else if ((value = value_of("--against", argc, argv, i)) != NULL)
        o->against = value;
    else if ((value = value_of("--plot", argc, argv, i)) != NULL)
        o->plot = value;
    else if ((value = value_of("--dialect-dir", argc, argv, i)) != NULL)
        o->dialect_dir = value;
    else if ((value = value_of("--seed", argc, argv, i)) != NULL)
        return read_number("--seed", value, &o->seed);
    else if ((value = value_of("--show", argc, argv, i)) != NULL) {
        int rc = read_number("--show", value, &number);
        o->show = number < UINT32_MAX ? (unsigned) number : UINT32_MAX;
        return rc;
    } else
        return unknown(argv[*i]);
    return 0;
}

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
    int status = 0;

    *o = (bt_replay_options_t){.show = SHOW, .seed = 1};
    for (int i = 0; i < argc && status == 0; i++) {
        if (argv[i][0] == '-' && argv[i][1] != '\0')
            status = read_flag(o, argc, argv, &i);
        else if (o->file_count == BT_REPLAY_FILES_MAX)
            status = bt_policy_tool_refuse("replay: at most %u files", BT_REPLAY_FILES_MAX);
        else
            o->files[o->file_count++] = argv[i];
    }
    if (status == 0)
        status = check_policies(o);
    if (status == 0 && o->file_count == 0)
        status = bt_policy_tool_refuse(
            "replay: which records? a file of baton run --record-file, or - for stdin");
    return status;
}
