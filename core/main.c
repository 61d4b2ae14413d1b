/* main.c - the command word. */
#include "config/check.h"
#include "config/help.h"
#include "config/passed.h"
#include "config/suggest.h"
#include "gateway/gateway.h"
#include "tools/fleet.h"
#include "tools/key.h"
#include "tools/kv_bench.h"
#include "tools/policy.h"
#include "tools/print.h"
#include "tools/replay.h"
#include "tools/sim.h"
#include "tools/top.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

static bool wants_help(int argc, const char *const *argv)
{
    for (int i = 0; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return true;
    return false;
}

/* A line each. */
static int tell(const char *lines)
{
    for (size_t n; *lines != '\0'; lines += n + (lines[n] == '\n')) {
        n = strcspn(lines, "\n");
        bt_tool_error(BT_TOOL_WRONG, "", "%.*s", (int) n, lines);
    }
    return BT_TOOL_WRONG;
}

static void tell_warnings(const bt_config_t *config)
{
    const char *line = config->warnings.data;
    for (size_t n; line != NULL && *line != '\0'; line += n + (line[n] == '\n')) {
        n = strcspn(line, "\n");
        fprintf(stderr, "warning: %.*s\n", (int) n, line);
    }
}

static int load(bt_config_t *config, bt_text_t *warnings, int argc, const char *const *argv,
                char *err, size_t err_size)
{
    int rc = bt_config_load(config, argc, argv, err, err_size);
    if (rc < 0)
        return rc;
    rc = bt_config_check(config, warnings, err, err_size);
    if (rc < 0) {
        tell_warnings(config);
        bt_config_fini(config);
    }
    return rc;
}

static int run(int argc, const char *const *argv)
{
    char err[BT_CONFIG_ERR_BYTES] = "";
    bt_config_t config;
    bt_gateway_t *gateway;
    if (bt_passed_take(err, sizeof err) < 0 || load(&config, NULL, argc, argv, err, sizeof err) < 0)
        return tell(err);
    if (bt_gateway_open(&gateway, &config, argc, argv, err, sizeof err) < 0) {
        bt_config_fini(&config);
        return bt_tool_error(BT_TOOL_WRONG, "", "%s", err);
    }
    int status = bt_gateway_run(gateway);
    bt_gateway_close(gateway);
    bt_config_fini(&config);
    return status;
}

static int check(int argc, const char *const *argv)
{
    char err[BT_CONFIG_ERR_BYTES] = "";
    bt_config_t config;
    bt_text_t text, warnings;
    bt_text_init(&text);
    bt_text_init(&warnings);
    int rc = load(&config, &warnings, argc, argv, err, sizeof err);
    if (rc == 0) {
        tell_warnings(&config);
        rc = bt_config_check_ports(&config, &warnings, err, sizeof err);
        if (rc == 0)
            bt_config_describe(&config, &text);
        bt_config_fini(&config);
    }
    if (text.len > 0)
        fwrite(text.data, 1, text.len, stdout);
    if (warnings.len > 0)
        fwrite(warnings.data, 1, warnings.len, stderr);
    bt_text_fini(&text);
    bt_text_fini(&warnings);
    return rc < 0 ? tell(err) : bt_tool_flushed();
}

static int version(int argc, const char *const *argv)
{
    (void) argc;
    (void) argv;
    puts("baton " BT_VERSION);
    return 0;
}

static int help(int argc, const char *const *argv);

static const struct command {
    const char *word;
    int (*run)(int argc, const char *const *argv);
    void (*help)(bt_text_t *out); /* NULL: there is only the overview */
} commands[] = {
    {"run", run, bt_help_run},
    {"check", check, bt_help_run},
    {"policy", bt_policy_tool, bt_policy_tool_help},
    {"fleet", bt_fleet_tool, bt_fleet_tool_help},
    {"key", bt_key_tool, bt_key_tool_help},
    {"replay", bt_replay, bt_replay_help},
    {"sim", bt_sim_tool, bt_sim_tool_help},
    {"kv-bench", bt_kv_bench, bt_kv_bench_help},
    {"top", bt_top, bt_top_help},
    {"version", version, NULL},
    {"help", help, NULL},
    {"--help", help, NULL},
    {"-h", help, NULL},
    {"--version", version, NULL},
};
#define COMMAND_COUNT (sizeof commands / sizeof commands[0])

static int help(int argc, const char *const *argv)
{
    static const struct {
        const char *word;
        void (*help)(bt_text_t *out);
    } topics[] = {{"file", bt_help_file}, {"peers", bt_help_peers}, {"table", bt_help_table}};

    for (size_t i = 0; argc > 0 && i < sizeof topics / sizeof topics[0]; i++)
        if (strcmp(argv[0], topics[i].word) == 0)
            return bt_tool_print(topics[i].help);
    for (size_t i = 0; argc > 0 && i < COMMAND_COUNT; i++)
        if (strcmp(argv[0], commands[i].word) == 0 && commands[i].help != NULL)
            return bt_tool_print(commands[i].help);
    if (argc > 0 && argv[0][0] != '-')
        return bt_tool_error(BT_TOOL_WRONG, "", "help %.100s: unknown topic; baton help lists them",
                             argv[0]);
    return bt_tool_print(bt_help_overview);
}

static int unknown_command(const char *word)
{
    char why[256];
    bt_suggest_t s;
    if (word[0] == '-') {
        snprintf(why, sizeof why, "%.100s: the command comes first: baton run %.100s ...", word,
                 word);
        return bt_tool_error(BT_TOOL_WRONG, "", "%s", why);
    }
    bt_suggest_init(&s, bt_str(word));
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (commands[i].word[0] != '-')
            bt_suggest_offer(&s, commands[i].word);
    if (bt_suggest_best(&s) != NULL)
        snprintf(why, sizeof why, "%.100s: unknown command, did you mean %s?", word,
                 bt_suggest_best(&s));
    else
        snprintf(why, sizeof why, "%.100s: unknown command; baton --help lists them", word);
    return bt_tool_error(BT_TOOL_WRONG, "", "%s", why);
}

/* What is opened next would be in their place, and what is meant for stderr would go there: to a file, to a client. */
static void fill_standard_streams(void)
{
    int fd = STDIN_FILENO;

    while (fd >= 0 && fd <= STDERR_FILENO)
        fd = open("/dev/null", O_RDWR);
    if (fd > STDERR_FILENO)
        close(fd);
}

int main(int argc, char **argv)
{
    fill_standard_streams();
    if (argc < 2)
        return bt_tool_error(BT_TOOL_WRONG, "", "no command; try baton --help");
    const char *const *rest = (const char *const *) argv + 2;
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (strcmp(argv[1], commands[i].word) == 0)
            return commands[i].help != NULL && wants_help(argc - 2, rest)
                       ? bt_tool_print(commands[i].help)
                       : commands[i].run(argc - 2, rest);
    return unknown_command(argv[1]);
}
