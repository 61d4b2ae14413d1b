/* The words and flags of `baton fleet`. Flags may stand anywhere. */
#include "tools/fleet.h"

#include "config/suggest.h"
#include "tools/flags.h"

#include <stdio.h>
#include <stdlib.h>

#define ADMIN_URL "http://127.0.0.1:29000"
#define TIMEOUT_MS 10000

void bt_fleet_tool_help(bt_text_t *out)
{
    bt_text_puts(
        out,
        "usage: baton fleet COMMAND [flags]\n\n"
        "Asks a running fleet by the admin listener of one of its gateways (--redis-url makes "
        "gateways a fleet).\n\n"
        "  status                    replicas, the store, and which set of policies each serves\n"
        "  policy list               what the set holds, and the sets before it\n"
        "  policy push FILE...       these texts on every replica, or, if one refuses, on none; "
        "FILE's name is the policy's\n"
        "      [--rules FILE] [--replace]  with rules; --replace: and nothing else\n"
        "      [--dry-run]           all replicas try it, and nothing changes; withdraw and rules "
        "have "
        "it, too\n"
        "  policy withdraw NAME...|--all   each replica's own files count again\n"
        "  policy rollback [SET]     the set before, or that one\n"
        "  policy pin|unpin [--replica NAME]   this replica stays with what it serves / follows "
        "again\n"
        "  rules push FILE           the rules file of every replica\n"
        "  rules withdraw\n"
        "  workers list              workers as this gateway sees them\n"
        "  workers add URL [key=value...]   role=, pool=, connector=, ...: as in POST /workers; "
        "all replicas follow\n"
        "  workers remove NAME|URL   its running requests finish\n"
        "  workers drain|undrain NAME|URL   no new requests to it, from any replica, also one "
        "that joins later\n"
        "                            add, remove, drain, undrain: 1 when only this gateway has "
        "done it (the store is unavailable)\n"
        "  room NUMBER               whose a room is that an engine names (bootstrap_room=...), "
        "whichever gateway is asked\n"
        "  top                       what runs, live in this terminal (baton top)\n"
        "  advice                    which role holds each pool up, and how many workers of each "
        "would balance it\n"
        "\n"
        "  --admin URL               a gateway's admin listener (" ADMIN_URL ")\n"
        "  --admin-api-key KEY       its key; or BATON_ADMIN_API_KEY in the environment, which "
        "others cannot read in ps\n"
        "  --gateway URL             another gateway that may have the key: status, room and "
        "policy "
        "pin go on to it; may be\n"
        "                            repeated, or a list with commas. As the table of status "
        "writes "
        "it: localhost is not 127.0.0.1\n"
        "  --trust-store             the key may go to every address that the store names\n"
        "  --tls-ca FILE             https:// gateways are verified by these authorities (PEM; the "
        "system's)\n"
        "  --tls-cert FILE --tls-key FILE   our certificate, where they ask for one\n"
        "  --timeout SECS            of one call (10); a push may take 40\n"
        "  --json                    what the gateway says, for machines\n"
        "\n"
        "Exit status: 0 done, 1 not done (the reason is on stderr), or status found something "
        "wrong, 2 a wrong command line.\n"
        "push, withdraw, rollback: 0 all replicas serve it (or are pinned), 1 none does, 3 it is "
        "committed but a replica that is\n"
        "named does not serve it yet, 4 the store or the gateway went away: the outcome is "
        "unknown (policy list tells it later).\n"
        "\n"
        "Examples\n"
        "  baton fleet status\n"
        "  baton policy check mine.lua && baton fleet policy push mine.lua   # two-phase: all "
        "replicas, or none\n"
        "  baton fleet policy pin --replica b && baton fleet policy push mine.lua   # b stays as "
        "it is, to compare\n"
        "  baton fleet policy rollback\n"
        "  baton fleet workers add http://10.0.0.7:8000 role=decode\n"
        "  baton fleet room 4611686018427387904\n"
        "  baton fleet status --gateway http://10.0.0.1:29000,http://10.0.0.2:29000   # each is "
        "asked, "
        "with the key\n"
        "  baton fleet --admin http://10.0.0.2:29000 --json status | jq .policies.committed\n");
}

/* ---- flags ---- */

#define TEXT(flag, member) BT_TOOL_TEXT(flag, fleet_tool_t, member)
#define SWITCH(flag, member) BT_TOOL_SWITCH(flag, fleet_tool_t, member)
static const bt_tool_flag_t flags[] = {
    TEXT("--admin", admin),
    TEXT("--admin-api-key", key),
    BT_TOOL_OPTION("--timeout", fleet_tool_t, timeout_ms, .kind = BT_OPTION_U64, .min = 0.1,
                   .max = 3600, .scale = 1000),
    TEXT("--replica", replica),
    TEXT("--rules", rules),
    SWITCH("--json", is_json),
    SWITCH("--all", is_all),
    SWITCH("--replace", is_replace),
    BT_TOOL_OPTION("--gateway", fleet_tool_t, gateways, .kind = BT_OPTION_TEXTS,
                   .count_offset = offsetof(fleet_tool_t, gateway_count),
                   .list_max = FLEET_GATEWAYS_MAX),
    SWITCH("--trust-store", does_trust_store),
    TEXT("--tls-ca", tls_ca),
    TEXT("--tls-cert", tls_cert),
    TEXT("--tls-key", tls_key),
    SWITCH("--dry-run", is_dry_run)};

static int read_word(void *options, bt_tool_line_t *line)
{
    fleet_tool_t *t = options;

    if (t->count == FLEET_WORDS_MAX)
        return fleet_refuse("too many words");
    t->words[t->count++] = line->argv[line->at];
    return 0;
}

static const bt_tool_syntax_t syntax = {"fleet", flags, sizeof flags / sizeof flags[0], read_word};

/* A key with a line break in it would become another header. */
static bool is_header_value(const char *text)
{
    for (const unsigned char *p = (const unsigned char *) text; *p != '\0'; p++)
        if (*p < 0x20 || *p == 0x7f)
            return false;
    return true;
}

/* ---- the words ---- */

static const struct command {
    const char *word;
    int (*run)(const fleet_tool_t *t);
} commands[] = {{"status", fleet_status},   {"policy", fleet_policy}, {"rules", fleet_rules},
                {"workers", fleet_workers}, {"room", fleet_room},     {"advice", fleet_advice},
                {"top", fleet_top}};
#define COMMAND_COUNT (sizeof commands / sizeof commands[0])

static int unknown_command(const char *word)
{
    const char *near = bt_suggest_row(word, commands, COMMAND_COUNT, sizeof commands[0]);

    if (near != NULL)
        return fleet_refuse("%.100s: unknown command, did you mean %s?", word, near);
    return fleet_refuse("%.100s: unknown command; baton fleet --help lists them", word);
}

int bt_fleet_tool(int argc, const char *const *argv)
{
    static fleet_tool_t t; /* too large for a stack that somebody made small */
    int status;

    t = (fleet_tool_t){
        .admin = ADMIN_URL, .key = getenv("BATON_ADMIN_API_KEY"), .timeout_ms = TIMEOUT_MS};
    status = bt_tool_flags_read(&syntax, &t, argc, argv);
    if (status != 0)
        return status;
    if (t.key != NULL && !is_header_value(t.key))
        return fleet_refuse("the admin key holds a control character");
    if ((t.tls_cert == NULL) != (t.tls_key == NULL))
        return fleet_refuse("--tls-%s: only with --tls-%s", t.tls_cert != NULL ? "cert" : "key",
                            t.tls_cert != NULL ? "key" : "cert");
    if ((status = fleet_check_gateways(&t)) != 0)
        return status;
    if (t.is_dry_run &&
        (t.count < 2 || (strcmp(t.words[1], "push") != 0 && strcmp(t.words[1], "withdraw") != 0)))
        return fleet_refuse("--dry-run: policy push, policy withdraw, rules push and rules "
                            "withdraw have one");
    if (t.count == 0)
        return fleet_refuse("no command; try baton fleet --help");
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (strcmp(t.words[0], commands[i].word) == 0) {
            t.count--;
            memmove(t.words, t.words + 1, t.count * sizeof t.words[0]);
            return commands[i].run(&t);
        }
    return unknown_command(t.words[0]);
}
