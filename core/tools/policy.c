/* Every command is a thin use of script/policy/policy.h: what it says of a policy is what the gateway would say. Findings go to stdout
 * or, when they are the reason of a failure, to stderr, one line each, FILE:LINE first, as editors read them. */
#include "tools/policy.h"

#include "config/config.h"
#include "config/suggest.h"
#include "generation/builder.h"
#include "script/native/hook_op_api.h"
#include "script/policy/policy.h"
#include "script/policy/policy_source.h"
#include "script/testing/testing.h"
#include "script/vm/embedded.h"

#include <stdio.h>
#include <stdlib.h>

#define ERR_BYTES 1024

/* ---- check ---- */

static void put_names(bt_text_t *out, const char *title,
                      const char *(*name_at)(const bt_policy_t *, unsigned),
                      const bt_policy_t *policy)
{
    bt_text_printf(out, "%s: ", title);
    for (unsigned i = 0; name_at(policy, i) != NULL; i++)
        bt_text_printf(out, "%s%s", i > 0 ? ", " : "", name_at(policy, i));
    if (name_at(policy, 0) == NULL)
        bt_text_puts(out, "none");
}

static void print_ok(const bt_policy_t *policy, const bt_text_t *notes)
{
    bt_text_t text;
    bt_text_init(&text);
    bt_text_printf(&text, "ok %s@%s (", bt_policy_name(policy), bt_policy_version(policy));
    put_names(&text, "hooks", bt_policy_hook_at, policy);
    put_names(&text, "; params", bt_policy_param_at, policy);
    bt_text_puts(&text, ")\n");
    bt_text_put(&text, bt_text_str(notes));
    fwrite(text.data, 1, text.len, stdout);
    bt_text_fini(&text);
}

/* A policy may be written for pairs alone, or for single workers: it then finds nil where the others would be, the default
 * choice serves, and a note tells its author. Any other error is a mistake in a branch that the self-test has forgiven. */
static int check_kinds(bt_policy_t *policy, bt_text_t *notes, char *err, size_t err_size)
{
    static const char *const kinds[] = {"pairs of workers", "single workers"};

    for (int single = 0; single < 2; single++) {
        int rc = bt_policy_self_test_kind(policy, single != 0, err, err_size);

        if (rc < 0 && !bt_policy_is_absence(err))
            return rc;
        if (rc < 0)
            bt_text_printf(notes, "note: does not serve %s: %s\n", kinds[single], err);
    }
    return 0;
}

/* What a policy is checked with: the words behind the files. */
struct checking {
    bt_config_t config; /* of `run`'s flags: parameters, hosts that hooks may ask, the policy dir */
    bt_policy_trial_t trial;
};

static int check_source(const struct checking *with, const bt_policy_source_t *source,
                        bt_text_t *notes, char *err, size_t err_size)
{
    const bt_build_spec_t spec = {
        .source = source, .params = with->config.pools[0].params[BT_SLOT_BOTH], .is_dry_run = true};
    bt_built_t *built;
    int rc = bt_built_tried(&built, &spec, &with->trial, NULL, err, err_size);

    if (rc < 0)
        return rc;
    if (err[0] != '\0')
        bt_text_printf(notes, "warning: %s\n", err);
    else
        rc = check_kinds(bt_built_policy(built), notes, err, err_size);
    if (rc == 0)
        print_ok(bt_built_policy(built), notes);
    bt_built_free(built);
    return rc;
}

static int check_one(const struct checking *with, const char *name)
{
    char err[ERR_BYTES];
    bt_policy_source_t *source;
    bt_text_t notes;
    int rc = bt_policy_source_open(&source, name, with->config.policy_dir, err, sizeof err);

    bt_text_init(&notes);
    if (rc == 0) {
        rc = check_source(with, source, &notes, err, sizeof err);
        bt_policy_source_unref(source);
    }
    bt_text_fini(&notes);
    if (rc != 0)
        fprintf(stderr, "%s\n", err);
    return rc != 0 ? BT_TOOL_WRONG : 0;
}

/* --labels and --zone are the self-test's own; all others are flags of `run`. */
static int read_checking(struct checking *with, int argc, const char *const *argv, char *err,
                         size_t err_size)
{
    const char **flags = calloc((size_t) argc + 1, sizeof *flags);
    int count = 0, rc;

    *with = (struct checking){.trial = {.or_half = true}};
    if (flags == NULL)
        return BT_E_NOMEM;
    for (int i = 0; i < argc; i++) {
        const char **value = strcmp(argv[i], "--labels") == 0 ? &with->trial.labels
                             : strcmp(argv[i], "--zone") == 0 ? &with->trial.zone
                                                              : NULL;
        if (value == NULL)
            flags[count++] = argv[i];
        else
            *value = ++i < argc ? argv[i] : "";
    }
    rc = bt_config_load(&with->config, count, flags, err, err_size);
    free(flags);
    return rc;
}

static int check(int argc, const char *const *argv)
{
    char err[BT_CONFIG_ERR_BYTES] = "";
    struct checking with;
    int status = 0, files = 0;

    while (files < argc && argv[files][0] != '-')
        files++;
    if (files == 0)
        return bt_policy_tool_refuse("policy check: which file? Flags come behind it");
    if (read_checking(&with, argc - files, argv + files, err, sizeof err) < 0)
        return bt_policy_tool_refuse("%s", err);
    bt_policy_allow_hosts(with.config.policy_http_host_count > 0
                              ? (const char *const *) with.config.policy_http_hosts
                              : NULL);
    for (int i = 0; i < files; i++)
        if (check_one(&with, argv[i]) != 0)
            status = BT_TOOL_WRONG;
    bt_policy_allow_hosts(NULL);
    bt_config_fini(&with.config);
    return status != 0 ? status : bt_tool_flushed();
}

/* ---- params, list, types, test ---- */

static int params(int argc, const char *const *argv)
{
    char err[ERR_BYTES];
    bt_policy_t *policy;
    char *schema;

    if (argc != 1)
        return bt_policy_tool_refuse("policy params: one file");
    if (bt_policy_load(&policy, argv[0], NULL, err, sizeof err) < 0) {
        fprintf(stderr, "%s\n", err);
        return BT_TOOL_WRONG;
    }
    schema = bt_policy_params_schema(policy);
    if (schema != NULL)
        puts(schema);
    free(schema);
    bt_policy_free(policy);
    return schema != NULL ? bt_tool_flushed() : 1;
}

/* What the file's first line says after "-- name - ". */
static bt_str_t summary_of(const char *name, const char *text)
{
    bt_str_t line = {text, strcspn(text, "\n")};
    size_t prefix = strlen("-- ") + strlen(name) + strlen(" - ");

    if (line.n <= prefix || strncmp(line.p, "-- ", 3) != 0)
        return BT_STR("");
    return (bt_str_t){line.p + prefix, line.n - prefix};
}

static int list_one(const char *name)
{
    char err[ERR_BYTES];
    bt_policy_source_t *source;
    bt_policy_t *policy;

    if (bt_policy_source_open(&source, name, NULL, err, sizeof err) < 0)
        return bt_policy_tool_refuse("%s", err);
    if (bt_policy_load_source(&policy, source, err, sizeof err) < 0) {
        bt_policy_source_unref(source);
        return bt_policy_tool_refuse("%s", err);
    }
    bt_str_t what = summary_of(name, source->code);
    printf("%-20s %-5s %.*s\n", name, bt_policy_version(policy), (int) what.n, what.p);
    bt_policy_free(policy);
    bt_policy_source_unref(source);
    return 0;
}

static int list(int argc, const char *const *argv)
{
    const char *const *names = bt_policy_embedded_names();
    int rc = 0;

    (void) argv;
    if (argc != 0)
        return bt_policy_tool_refuse("policy list: takes no arguments");
    for (unsigned i = 0; rc == 0 && names[i] != NULL; i++)
        rc = list_one(names[i]);
    return rc != 0 ? rc : bt_tool_flushed();
}

static int types(int argc, const char *const *argv)
{
    const struct bt_embedded *file = bt_embedded_files;

    (void) argv;
    if (argc != 0)
        return bt_policy_tool_refuse("policy types: takes no arguments; it prints to stdout");
    while (file->path != NULL && strcmp(file->path, "lua/_meta/baton.lua") != 0)
        file++;
    if (file->path == NULL || fwrite(file->data, 1, file->size, stdout) != file->size)
        return 1;
    return bt_tool_flushed();
}

static int test(int argc, const char *const *argv)
{
    if (argc == 0)
        return bt_policy_tool_refuse("policy test: which spec?");
    return bt_testing_run(NULL, argc, argv);
}

/* ---- the words ---- */

static int help(int argc, const char *const *argv);

static const struct command {
    const char *word;
    int (*run)(int argc, const char *const *argv);
} commands[] = {
    {"new", bt_policy_tool_new},
    {"check", check},
    {"test", test},
    {"bench", bt_policy_tool_bench},
    {"params", params},
    {"list", list},
    {"types", types},
    {"help", help},
};
#define COMMAND_COUNT (sizeof commands / sizeof commands[0])

void bt_policy_tool_help(bt_text_t *out)
{
    bt_text_puts(out, "usage: baton policy COMMAND ...\n\n"
                      "  new NAME [DIR]            writes NAME.lua, a policy that works, and "
                      "NAME_spec.lua; overwrites nothing\n"
                      "  check FILE... [FLAG...]   loads and self-tests without workers, with one "
                      "and with 512, within its time;\n"
                      "                            flags of run as it will have them "
                      "(--policy-param weight=2, --policy-http-host a:80)\n"
                      "      [--labels k=v,...]    of the self-test's workers\n"
                      "      [--zone ZONE]         theirs, too\n"
                      "  test SPEC...              runs specs (needs busted: Debian package "
                      "lua-busted); further words go to busted\n"
                      "  bench FILE [--workers 2,64,1000,10000]\n"
                      "                            microseconds per plan, and who was chosen\n"
                      "  params FILE               JSON Schema of its parameters\n"
                      "  list                      the shipped policies\n"
                      "  types                     what a policy can use, as a file for "
                      "lua-language-server\n"
                      "\nWherever a FILE is asked for, the name of a shipped policy does as well.\n"
                      "\nExit status: 0 all is well, 1 a spec failed or nothing could be written, "
                      "2 a wrong command line or policy.\n"
                      "\nExample\n"
                      "  baton policy new mine && baton policy check mine.lua && baton policy test "
                      "mine_spec.lua\n"
                      "  baton run --policy ./mine.lua --prefill http://10.0.0.1:8000 --decode "
                      "http://10.0.0.2:8000\n"
                      "    # answers say x-baton-policy: mine@1; edit mine.lua while it runs, and "
                      "the next request has it\n");
}

static int help(int argc, const char *const *argv)
{
    (void) argc;
    (void) argv;
    return bt_tool_print(bt_policy_tool_help);
}

int bt_policy_tool(int argc, const char *const *argv)
{
    if (argc == 0)
        return bt_policy_tool_refuse("policy: no command; try baton policy --help");
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (strcmp(argv[0], commands[i].word) == 0)
            return commands[i].run(argc - 1, argv + 1);
    const char *near = bt_suggest_row(argv[0], commands, COMMAND_COUNT, sizeof commands[0]);
    if (near != NULL)
        return bt_policy_tool_refuse("policy %.100s: unknown command, did you mean %s?", argv[0],
                                     near);
    return bt_policy_tool_refuse("policy %.100s: unknown command; baton policy --help lists them",
                                 argv[0]);
}
