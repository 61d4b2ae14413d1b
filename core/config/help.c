/* A flag's text stands in a column of its own, wrapped, so that the page can be read and searched like a manual. */
#include "config/help.h"

#include "config/flag.h"

#include <stdio.h>

#define COLUMN 34
#define WIDTH 110

/* Appends text from column on, broken at spaces. */
static void put_wrapped(bt_text_t *out, const char *text)
{
    size_t room = WIDTH - COLUMN;
    while (strlen(text) > room) {
        size_t n = room;
        while (n > 0 && text[n] != ' ')
            n--;
        if (n == 0)
            n = room;
        bt_text_printf(out, "%.*s\n%*s", (int) n, text, COLUMN, "");
        text += n + (text[n] == ' ' ? 1 : 0);
    }
    bt_text_printf(out, "%s\n", text);
}

static void put_row(bt_text_t *out, const char *left, const char *text)
{
    if (strlen(left) + 3 > COLUMN)
        bt_text_printf(out, "  %s\n%*s", left, COLUMN, "");
    else
        bt_text_printf(out, "  %-*s", COLUMN - 2, left);
    put_wrapped(out, text);
}

static void put_flag(bt_text_t *out, const bt_flag_t *flag)
{
    char left[96];
    if (flag->hint != NULL)
        snprintf(left, sizeof left, "--%s %s", flag->name, flag->hint);
    else
        snprintf(left, sizeof left, flag->kind == BT_FLAG_ACTION ? "--%s" : "--[no-]%s",
                 flag->name);
    put_row(out, left, flag->help);
}

static void put_groups(bt_text_t *out)
{
    for (unsigned group = 0; group < BT_GROUP_COUNT; group++) {
        bt_text_printf(out, "\n%s\n", bt_flag_group_title((enum bt_flag_group) group));
        for (unsigned i = 0; i < bt_flag_count; i++)
            if (bt_flags[i].group == group)
                put_flag(out, &bt_flags[i]);
    }
}

static const char examples[] =
    "\nExamples\n"
    "  One SGLang pair, its prefill server with --disaggregation-bootstrap-port 8998:\n"
    "    baton run --pd-disaggregation --prefill http://10.0.0.1:30001 8998 --decode "
    "http://10.0.0.2:30001\n"
    "\n"
    "  Two vLLM prefill and two decode servers with NixlConnector, open to the network, with "
    "keys:\n"
    "    baton key new keys.txt --tenant acme\n"
    "    baton run --host 0.0.0.0 --client-api-keys-file keys.txt --vllm-pd-disaggregation \\\n"
    "      --prefill http://10.0.0.1:8000 --prefill http://10.0.0.2:8000 \\\n"
    "      --decode http://10.0.0.3:8000 --decode http://10.0.0.4:8000\n"
    "\n"
    "  Servers that do both, chosen by a policy of your own:\n"
    "    baton run --worker-urls http://10.0.0.1:8000 http://10.0.0.2:8000 --policy ./mine.lua\n"
    "\n"
    "  The same from a file; look before you leap, and change it while it runs:\n"
    "    baton check baton.lua && baton run baton.lua\n"
    "    kill -HUP $(pidof baton)    # pools, workers, policies and the log level are read again\n";

void bt_help_overview(bt_text_t *out)
{
    bt_text_puts(
        out,
        "baton: a programmable gateway for LLM servers that split prefill from decode\n\n"
        "  baton run [baton.lua] [flags]     serve (flags override the file)\n"
        "  baton check [baton.lua] [flags]   everything that run checks before it serves, "
        "then a summary\n"
        "  baton policy new NAME             writes a policy of your own; policy check, "
        "test, bench, list: help policy\n"
        "  baton fleet status                gateways that share a Redis; policy push, "
        "workers add, ...: help fleet\n"
        "  baton key new FILE                a key for a client; list, revoke: help key\n"
        "  baton replay --policy FILE RECORDS  recorded decisions, taken again by another "
        "policy: help replay\n"
        "  baton top                         what a gateway does, live in this terminal: help top\n"
        "  baton sim POLICY --trace TRACE    policies before a modelled fleet: help sim\n"
        "  baton kv-bench --backend shm|tcp  measures the KV transfer library: help kv-bench\n"
        "  baton help run                    all flags, with examples\n"
        "  baton help file                   all keys of baton.lua\n"
        "  baton help peers                  flags of sglang-router, smg and vllm-router: baton "
        "run takes their\n"
        "                                    command lines and says what it does not use\n"
        "  baton help table                  flags and keys for programs: a row a line, cells "
        "parted "
        "by tabs\n"
        "  baton version\n");
    bt_text_puts(out, examples);
}

void bt_help_run(bt_text_t *out)
{
    bt_text_puts(out, "usage: baton run [baton.lua] [flags]\n\n"
                      "Flags override the file. --flag VALUE and --flag=VALUE are the same; --no-X "
                      "turns the switch X off.\n"
                      "Defaults are in parentheses.\n");
    put_groups(out);
    bt_text_puts(out,
                 "\nSignals\n"
                 "  SIGTERM, SIGINT   drain: no new connections, running requests end "
                 "(--drain-timeout-secs), exit 0;\n"
                 "                    a second one ends at once, exit 1\n"
                 "  SIGHUP            read the file again\n"
                 "  SIGUSR1           open --log-file, --record-file and --crash-file again "
                 "(logrotate)\n"
                 "  SIGUSR2           upgrade: the program's file is started again with the same "
                 "arguments, takes the\n"
                 "                    listening sockets, and once it is ready this process drains; "
                 "if it does not\n"
                 "                    start, this one serves on\n"
                 "\nExit status: 0 ended, 1 could not go on, 2 wrong command line or "
                 "configuration (one line says what).\n");
    bt_text_puts(out, examples);
}

static void put_key(bt_text_t *out, const char *name, const bt_option_t *option, const char *help)
{
    char key[64], expected[200], text[512];
    snprintf(key, sizeof key, "%s", name);
    for (char *p = key; *p != '\0'; p++)
        if (*p == '-')
            *p = '_';
    bt_option_expected(option, expected, sizeof expected);
    snprintf(text, sizeof text, "%s: %s", expected, help);
    put_row(out, key, text);
}

static void put_settings(bt_text_t *out, enum bt_flag_kind kind)
{
    for (unsigned i = 0; i < bt_flag_count; i++)
        if (bt_flags[i].kind == kind)
            put_key(out, bt_flags[i].name, &bt_flags[i].option, bt_flags[i].help);
}

/* Keys that hold tables: nothing of the kinds that the table of settings knows. */
static const struct table_key {
    const char *place, *name, *help;
} table_keys[] = {
    {"top", "pools", "a list of pools: workers that serve the same models under one policy"},
    {"top", "tls",
     "a table: certificates = { { cert = FILE, key = FILE }, ... }, and all tls_* without those "
     "words; in it tables admin (admin_tls_*), workers (worker_tls_*) and redis (redis_tls_*)"},
    {"top", "identity",
     "a table: keys_file, keys_in_store (client_api_*), and tables jwt (jwt_*) and anonymous "
     "(anonymous_*)"},
    {"pool", "name", "a string, needed when there are several pools"},
    {"pool", "models", "a list of strings; none = any model"},
    {"pool", "params, prefill_params, decode_params",
     "tables: parameters of policy, prefill_policy, decode_policy (baton policy params)"},
    {"pool", "workers", "a list of workers"},
    {"top", "limits", "a list of limits; who is above one gets 429 (LIMITS in baton.lua(5))"},
    {"limit", "name",
     "a string: what clients, logs and metrics call it. Of several limits of one "
     "name the first that fits a request counts"},
    {"limit", "per",
     "address, key, tenant or model, or a list of these: each has a count of its own; none = all "
     "requests together. An address is of IPv6 a /64"},
    {"limit", "match", "a table of these: only requests of this tenant, key, model or address"},
    {"limit", "requests", "so many in a window"},
    {"limit", "tokens, input_tokens, output_tokens",
     "likewise: reserved by estimate as a request comes in, trued up by the answer's usage"},
    {"limit", "concurrent", "requests at a time"},
    {"limit", "window_s",
     "a number of seconds from 1 to 2678400 (60); windows begin where the "
     "clock's minutes, hours and days do, in UTC"},
    {"limit", "answer_tokens",
     "reserved for an answer whose length the client does not bound (256)"},
};
#define TABLE_KEY_COUNT (sizeof table_keys / sizeof table_keys[0])

static void put_table_keys(bt_text_t *out, const char *place)
{
    for (size_t i = 0; i < TABLE_KEY_COUNT; i++)
        if (strcmp(table_keys[i].place, place) == 0)
            put_row(out, table_keys[i].name, table_keys[i].help);
}

void bt_help_file(bt_text_t *out)
{
    bt_text_puts(
        out, "baton.lua returns one table. Paths in it are relative to the file; env(\"NAME\") "
             "reads the\nenvironment, env(\"NAME\", default) where it may be missing.\n\n"
             "  return {\n"
             "    port = 30000,\n"
             "    pools = {\n"
             "      {\n"
             "        name = \"llama\", models = { \"llama-3.1-8b\" }, policy = \"least_load\",\n"
             "        workers = {\n"
             "          { url = \"http://10.0.0.1:8000\", role = \"prefill\", connector = "
             "\"NixlConnector\" },\n"
             "          { url = \"http://10.0.0.2:8000\", role = \"decode\", connector = "
             "\"NixlConnector\" },\n"
             "        },\n"
             "      },\n"
             "    },\n"
             "  }\n\nTop level\n");
    put_settings(out, BT_FLAG_SETTING);
    put_table_keys(out, "top");
    bt_text_puts(
        out, "\nA pool (all but name, models and workers also at the top level, for all pools)\n");
    put_table_keys(out, "pool");
    put_settings(out, BT_FLAG_POOL);
    bt_text_puts(out, "\nA limit\n");
    put_table_keys(out, "limit");
    bt_text_puts(out, "\nA worker\n");
    for (unsigned i = 0; i < bt_worker_key_count; i++)
        put_key(out, bt_worker_keys[i].name, &bt_worker_keys[i].option, bt_worker_keys[i].help);
}

static void put_peer(bt_text_t *out, const bt_peer_flag_t *peer)
{
    char left[64], text[300];

    snprintf(left, sizeof left, "--%s", peer->name);
    switch (peer->kind) {
    case BT_PEER_ALIAS:
    case BT_PEER_MEANS:
        snprintf(text, sizeof text, "--%s", peer->text);
        break;
    case BT_PEER_PARAM:
        snprintf(text, sizeof text, "--policy-param %s, of the policy %.*s%s",
                 strchr(peer->text, '.') + 1, (int) strcspn(peer->text, "."), peer->text,
                 peer->divisor > 1 ? ", in its own unit" : "");
        break;
    default:
        snprintf(text, sizeof text, "%s", peer->text);
    }
    put_row(out, left, text);
}

void bt_help_peers(bt_text_t *out)
{
    static const struct {
        unsigned kinds;
        const char *title;
    } parts[] = {
        {1u << BT_PEER_ALIAS | 1u << BT_PEER_MEANS, "Other names for flags of ours"},
        {1u << BT_PEER_PARAM, "Parameters of policies"},
        {1u << BT_PEER_UNUSED, "Accepted with a warning, not used"},
        {1u << BT_PEER_REFUSED, "Refused: to go without would be unsafe"},
    };

    bt_text_puts(out,
                 "What becomes of the flags of sglang-router, smg and vllm-router. Those that "
                 "baton help run\nlists are ours as well, with the same meaning; numbers beyond "
                 "our range become the nearest.\n");
    for (size_t k = 0; k < sizeof parts / sizeof parts[0]; k++) {
        bt_text_printf(out, "\n%s\n", parts[k].title);
        for (unsigned i = 0; i < bt_peer_flag_count; i++)
            if ((parts[k].kinds >> bt_peer_flags[i].kind & 1) != 0)
                put_peer(out, &bt_peer_flags[i]);
    }
    bt_text_puts(out, "\nPolicies\n");
    for (const bt_peer_policy_t *p = bt_peer_policies; p->theirs != NULL; p++) {
        char text[200];
        if (p->but != NULL)
            snprintf(text, sizeof text, "%s: %s", p->ours, p->but);
        else
            snprintf(text, sizeof text, "refused; the nearest is %s", p->ours);
        put_row(out, p->theirs, text);
    }
}

/* ---- for programs ---- */

static void put_words(bt_text_t *out, const bt_option_t *option)
{
    const char *between = "";

    if (option->kind != BT_OPTION_WORD)
        return;
    for (const bt_word_t *w = option->words; w->word != NULL; w++)
        if (!w->hidden) {
            bt_text_printf(out, "%s%s", between, w->word);
            between = "|";
        }
}

static void put_flag_rows(bt_text_t *out)
{
    for (unsigned i = 0; i < bt_flag_count; i++) {
        const bt_flag_t *flag = &bt_flags[i];
        const bool is_plain = flag->hint != NULL || flag->kind == BT_FLAG_ACTION;

        bt_text_printf(out, "flag\t%s\t%s%s\t%s\t", bt_flag_group_title(flag->group),
                       is_plain ? "" : "[no-]", flag->name, flag->hint != NULL ? flag->hint : "");
        if (flag->kind != BT_FLAG_ACTION)
            put_words(out, &flag->option);
        bt_text_printf(out, "\t%s\n", flag->help);
    }
}

static void put_key_row(bt_text_t *out, const char *place, const char *name,
                        const bt_option_t *option, const char *help)
{
    char expected[200];

    bt_option_expected(option, expected, sizeof expected);
    bt_text_printf(out, "key\t%s\t", place);
    for (; *name != '\0'; name++)
        bt_text_printf(out, "%c", *name == '-' ? '_' : *name);
    bt_text_printf(out, "\t%s\t%s\n", expected, help);
}

void bt_help_table(bt_text_t *out)
{
    put_flag_rows(out);
    for (size_t i = 0; i < TABLE_KEY_COUNT; i++)
        bt_text_printf(out, "key\t%s\t%s\t\t%s\n", table_keys[i].place, table_keys[i].name,
                       table_keys[i].help);
    for (unsigned i = 0; i < bt_flag_count; i++)
        if (bt_flags[i].kind != BT_FLAG_ACTION)
            put_key_row(out, bt_flags[i].kind == BT_FLAG_POOL ? "pool" : "top", bt_flags[i].name,
                        &bt_flags[i].option, bt_flags[i].help);
    for (unsigned i = 0; i < bt_worker_key_count; i++)
        put_key_row(out, "worker", bt_worker_keys[i].name, &bt_worker_keys[i].option,
                    bt_worker_keys[i].help);
}
