/* Two walks over the same arguments: the first knows nothing of values and finds the file, the second applies. So flags win
 * over the file whatever their order, and an unknown flag is told before any file is read. */
#include "config/flags.h"

#include "base/err.h"
#include "config/flag.h"
#include "config/suggest.h"

#include <stdio.h>
#include <stdlib.h>

/* One occurrence on the command line. */
typedef struct occurrence {
    const bt_flag_t *flag; /* NULL: a positional argument, in values[0] */
    const char *spelled;   /* as the user wrote it, with dashes, up to '=' */
    int spelled_len;
    bool negated;
    const char **values; /* room for all of argv */
    unsigned count;
} occurrence_t;

typedef int (*visit_fn)(void *ctx, const occurrence_t *o, char *err, size_t err_size);

static int unknown_flag(bt_str_t name, char *err, size_t err_size)
{
    bt_suggest_t s;
    bt_suggest_init(&s, name);
    for (unsigned i = 0; i < bt_flag_count; i++)
        bt_suggest_offer(&s, bt_flags[i].name);
    for (unsigned i = 0; i < bt_peer_flag_count; i++)
        if (bt_peer_flags[i].alias != NULL)
            bt_suggest_offer(&s, bt_peer_flags[i].name);
    const char *best = bt_suggest_best(&s);
    if (best != NULL)
        snprintf(err, err_size, "--%.*s: unknown flag, did you mean --%s?", BT_STR_ARG(name), best);
    else
        snprintf(err, err_size, "--%.*s: unknown flag; baton run --help lists all",
                 BT_STR_ARG(name));
    return BT_E_CONFIG;
}

/* Ours, a peer's other name for ours, or --no-<switch>. */
static int find_flag(bt_str_t name, occurrence_t *o, char *err, size_t err_size)
{
    const bt_peer_flag_t *peer = bt_flag_find_peer(name);
    o->flag = bt_flag_find(name);
    o->negated = false;
    if (o->flag == NULL && peer != NULL && peer->alias != NULL)
        o->flag = bt_flag_find(bt_str(peer->alias));
    if (o->flag != NULL)
        return 0;
    if (peer != NULL) {
        snprintf(err, err_size, "--%.*s: %s", BT_STR_ARG(name), peer->use);
        return BT_E_CONFIG;
    }
    if (name.n > 3 && bt_str_starts(name, BT_STR("no-"))) {
        const bt_flag_t *positive = bt_flag_find((bt_str_t){name.p + 3, name.n - 3});
        if (positive != NULL && positive->kind != BT_FLAG_ACTION && bt_flag_is_switch(positive)) {
            o->flag = positive;
            o->negated = true;
            return 0;
        }
    }
    return unknown_flag(name, err, err_size);
}

static bool is_port_word(const char *arg)
{
    return strcmp(arg, "none") == 0 || strcmp(arg, "None") == 0 ||
           (arg[0] != '\0' && strspn(arg, "0123456789") == strlen(arg));
}

/* The list of a flag with many values ends before the next flag and before the configuration file. */
static bool ends_list(const char *arg)
{
    size_t n = strlen(arg);
    return arg[0] == '-' || (n > 4 && strcmp(arg + n - 4, ".lua") == 0);
}

static enum bt_flag_arity arity_of(const bt_flag_t *flag)
{
    return bt_flag_is_switch(flag)        ? BT_ARITY_NONE
           : flag->kind == BT_FLAG_ACTION ? flag->arity
                                          : BT_ARITY_ONE;
}

/* A value that begins with a dash is a forgotten value, unless it is a number. */
static bool is_value(int argc, const char *const *argv, int i)
{
    return i < argc &&
           (argv[i][0] != '-' || argv[i][1] == '\0' || (argv[i][1] >= '0' && argv[i][1] <= '9'));
}

/* Takes the values of o from argv[*i_p ...] and moves *i_p behind them. */
static int take_values(occurrence_t *o, const char *inline_value, int argc, const char *const *argv,
                       int *i_p, char *err, size_t err_size)
{
    enum bt_flag_arity arity = arity_of(o->flag);
    o->count = 0;
    if (inline_value != NULL)
        o->values[o->count++] = inline_value;
    if (arity == BT_ARITY_NONE) {
        if (inline_value == NULL || (o->flag->kind != BT_FLAG_ACTION && !o->negated))
            return 0; /* --access-log=false is fine, --no-access-log=... is not */
        snprintf(err, err_size, "%.*s: takes no value", o->spelled_len, o->spelled);
        return BT_E_CONFIG;
    }
    if (o->count == 0 && is_value(argc, argv, *i_p))
        o->values[o->count++] = argv[(*i_p)++];
    if (o->count == 0) {
        snprintf(err, err_size, "%.*s: needs a value: %.*s %s", o->spelled_len, o->spelled,
                 o->spelled_len, o->spelled, o->flag->hint);
        return BT_E_CONFIG;
    }
    if (arity == BT_ARITY_ONE_AND_PORT && *i_p < argc && is_port_word(argv[*i_p]))
        o->values[o->count++] = argv[(*i_p)++];
    while (arity == BT_ARITY_MANY && inline_value == NULL && *i_p < argc && !ends_list(argv[*i_p]))
        o->values[o->count++] = argv[(*i_p)++];
    return 0;
}

static int read_flag(occurrence_t *o, int argc, const char *const *argv, int *i_p, char *err,
                     size_t err_size)
{
    const char *arg = argv[(*i_p)++], *equals = strchr(arg, '=');
    o->spelled = arg;
    o->spelled_len = equals != NULL ? (int) (equals - arg) : (int) strlen(arg);
    if (arg[1] != '-') {
        snprintf(err, err_size, "%s: flags begin with two dashes; baton run --help lists them",
                 arg);
        return BT_E_CONFIG;
    }
    int rc = find_flag((bt_str_t){arg + 2, (size_t) o->spelled_len - 2}, o, err, err_size);
    return rc < 0
               ? rc
               : take_values(o, equals != NULL ? equals + 1 : NULL, argc, argv, i_p, err, err_size);
}

static int walk(int argc, const char *const *argv, visit_fn visit, void *ctx, char *err,
                size_t err_size)
{
    occurrence_t o = {.values = malloc(((size_t) argc + 2) * sizeof(char *))};
    int rc = o.values != NULL ? 0 : BT_E_NOMEM;
    for (int i = 0; i < argc && rc == 0;) {
        if (argv[i][0] == '-' && argv[i][1] != '\0') {
            rc = read_flag(&o, argc, argv, &i, err, err_size);
        } else {
            o.flag = NULL;
            o.values[0] = argv[i++];
        }
        if (rc == 0)
            rc = visit(ctx, &o, err, err_size);
    }
    free(o.values);
    return rc;
}

static int visit_scan(void *ctx, const occurrence_t *o, char *err, size_t err_size)
{
    const char **file_p = ctx;
    if (o->flag != NULL)
        return 0;
    if (*file_p != NULL) {
        snprintf(err, err_size,
                 "unexpected argument \"%.120s\": the configuration file is %.120s already",
                 o->values[0], *file_p);
        return BT_E_CONFIG;
    }
    *file_p = o->values[0];
    return 0;
}

int bt_flags_scan(int argc, const char *const *argv, const char **file_p, char *err,
                  size_t err_size)
{
    const char *file = NULL;
    int rc = walk(argc, argv, visit_scan, &file, err, err_size);
    if (rc == 0)
        *file_p = file;
    return rc;
}

struct search {
    const char *name;
    bool is_found;
};

static int visit_search(void *ctx, const occurrence_t *o, char *err, size_t err_size)
{
    struct search *search = ctx;
    (void) err;
    (void) err_size;
    search->is_found |= o->flag != NULL && strcmp(o->flag->name, search->name) == 0;
    return 0;
}

bool bt_flags_has(int argc, const char *const *argv, const char *name)
{
    struct search search = {.name = name};
    char err[BT_CONFIG_ERR_BYTES];
    return walk(argc, argv, visit_search, &search, err, sizeof err) == 0 && search.is_found;
}

static int set_option(const occurrence_t *o, void *base, char *err, size_t err_size)
{
    const char *text = o->count > 0 ? o->values[0] : o->negated ? "false" : "true";
    return bt_option_set_text(&o->flag->option, base, bt_str(text), err, err_size);
}

static int set_pools(bt_config_t *c, const occurrence_t *o, char *err, size_t err_size)
{
    int rc = set_option(o, &c->defaults, err, err_size);
    for (unsigned i = 0; i < c->pool_count && rc == 0; i++)
        rc = set_option(o, &c->pools[i], err, err_size);
    return rc;
}

static int visit_apply(void *ctx, const occurrence_t *o, char *err, size_t err_size)
{
    bt_config_t *c = ctx;
    char why[BT_CONFIG_ERR_BYTES] = "";
    int rc;
    if (o->flag == NULL)
        return 0;
    if (o->flag->kind == BT_FLAG_ACTION)
        rc = o->flag->apply(c, (const char *const *) o->values, o->count, why, sizeof why);
    else
        rc = o->flag->kind == BT_FLAG_POOL ? set_pools(c, o, why, sizeof why)
                                           : set_option(o, c, why, sizeof why);
    if (rc < 0)
        snprintf(err, err_size, "%.*s: %s", o->spelled_len, o->spelled,
                 rc == BT_E_CONFIG ? why : bt_err_text(rc));
    return rc;
}

int bt_flags_apply(bt_config_t *c, int argc, const char *const *argv, char *err, size_t err_size)
{
    return walk(argc, argv, visit_apply, c, err, err_size);
}
