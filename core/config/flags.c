/* Two walks over the same arguments: the first knows nothing of values and finds the file, the second
 * applies. So flags win over the file whatever their order. Neither ends at the first mistake: each is
 * a line of err. Where the first walk has found one no file is read, and the second tells them all. */
#include "config/config_impl.h"

#include "base/err.h"
#include "config/flag.h"
#include "config/suggest.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* One occurrence on the command line. */
typedef struct occurrence {
    const bt_flag_t *flag;      /* NULL: a positional argument, in values[0], or peer alone */
    const bt_peer_flag_t *peer; /* it is another router's */
    const char *spelled;        /* as the user wrote it, with dashes, up to '=' */
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
        if (strchr(bt_peer_flags[i].name, '*') == NULL)
            bt_suggest_offer(&s, bt_peer_flags[i].name);
    const char *best = bt_suggest_best(&s);
    if (best != NULL)
        return bt_err_refuse(err, err_size, "--%.*s: unknown flag, did you mean --%s?",
                             BT_STR_ARG(name), best);
    return bt_err_refuse(err, err_size, "--%.*s: unknown flag; baton run --help lists all",
                         BT_STR_ARG(name));
}

/* Our flag that stands for a peer's; its fixed value, where it has one. */
static const bt_flag_t *flag_of_peer(const bt_peer_flag_t *peer, const char **value_p)
{
    const char *equals = strchr(peer->text, '=');

    if (peer->kind != BT_PEER_ALIAS && peer->kind != BT_PEER_MEANS)
        return NULL;
    *value_p = peer->kind == BT_PEER_MEANS ? equals + 1 : NULL;
    return bt_flag_find(*value_p == NULL ? bt_str(peer->text)
                                         : (bt_str_t){peer->text, (size_t) (equals - peer->text)});
}

/* Ours, --no-<switch>, or a peer's. *fixed_p: the value that the flag itself says. */
static int find_flag(bt_str_t name, occurrence_t *o, const char **fixed_p, char *err,
                     size_t err_size)
{
    *fixed_p = NULL;
    o->peer = NULL;
    o->negated = false;
    if ((o->flag = bt_flag_find(name)) != NULL)
        return 0;
    if (name.n > 3 && bt_str_starts(name, BT_STR("no-"))) {
        const bt_flag_t *positive = bt_flag_find((bt_str_t){name.p + 3, name.n - 3});
        if (positive != NULL && positive->kind != BT_FLAG_ACTION && bt_flag_is_switch(positive)) {
            o->flag = positive;
            o->negated = true;
            return 0;
        }
    }
    if ((o->peer = bt_flag_find_peer(name)) == NULL)
        return unknown_flag(name, err, err_size);
    if (o->peer->kind == BT_PEER_REFUSED)
        return bt_err_refuse(err, err_size, "--%.*s: %s", BT_STR_ARG(name), o->peer->text);
    o->flag = flag_of_peer(o->peer, fixed_p);
    return 0;
}

static bool is_port_word(const char *arg)
{
    return strcasecmp(arg, "none") == 0 ||
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

/* All words up to the next flag: what an unused flag has is not known. */
static void take_all(occurrence_t *o, const char *inline_value, int argc, const char *const *argv,
                     int *i_p)
{
    o->count = 0;
    if (inline_value != NULL)
        o->values[o->count++] = inline_value;
    while (inline_value == NULL && is_value(argc, argv, *i_p) &&
           (argv[*i_p][0] == '-' || !ends_list(argv[*i_p])))
        o->values[o->count++] = argv[(*i_p)++];
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
        return bt_err_refuse(err, err_size, "%.*s: takes no value", o->spelled_len, o->spelled);
    }
    if (o->count == 0 && is_value(argc, argv, *i_p))
        o->values[o->count++] = argv[(*i_p)++];
    if (o->count == 0)
        return bt_err_refuse(err, err_size, "%.*s: needs a value: %.*s %s", o->spelled_len,
                             o->spelled, o->spelled_len, o->spelled, o->flag->hint);
    if (arity == BT_ARITY_ONE_AND_PORT && *i_p < argc && is_port_word(argv[*i_p]))
        o->values[o->count++] = argv[(*i_p)++];
    while (arity == BT_ARITY_MANY && inline_value == NULL && *i_p < argc && !ends_list(argv[*i_p]))
        o->values[o->count++] = argv[(*i_p)++];
    return 0;
}

static int read_flag(occurrence_t *o, int argc, const char *const *argv, int *i_p, char *err,
                     size_t err_size)
{
    const char *arg = argv[(*i_p)++], *equals = strchr(arg, '='), *fixed = NULL;
    const char *value = equals != NULL ? equals + 1 : NULL;
    o->spelled = arg;
    o->spelled_len = equals != NULL ? (int) (equals - arg) : (int) strlen(arg);
    if (arg[1] != '-')
        return bt_err_refuse(err, err_size,
                             "%s: flags begin with two dashes; baton run --help lists them", arg);
    int rc = find_flag((bt_str_t){arg + 2, (size_t) o->spelled_len - 2}, o, &fixed, err, err_size);
    if (rc == 0 && o->flag != NULL && fixed == NULL)
        return take_values(o, value, argc, argv, i_p, err, err_size);
    if (fixed != NULL) {
        o->values[0] = fixed;
        o->count = 1;
        return 0;
    }
    take_all(o, value, argc, argv, i_p);
    if (rc == 0 && o->peer->kind == BT_PEER_PARAM && o->count != 1)
        return bt_err_refuse(err, err_size, "%.*s: needs a number", o->spelled_len, o->spelled);
    return rc;
}

/* One mistake more; a text that is full keeps its first lines. */
static void add_line(char *err, size_t err_size, const char *line)
{
    const size_t used = strlen(err), n = strlen(line);

    if (used == 0)
        snprintf(err, err_size, "%s", line);
    else if (used + 1 + n < err_size)
        snprintf(err + used, err_size - used, "\n%s", line);
}

static int walk(int argc, const char *const *argv, visit_fn visit, void *ctx, char *err,
                size_t err_size)
{
    occurrence_t o = {.values = malloc(((size_t) argc + 2) * sizeof(char *))};
    char line[BT_CONFIG_ERR_BYTES];
    int rc = o.values != NULL ? 0 : BT_E_NOMEM;
    bool is_wrong = false;
    err[0] = '\0';
    for (int i = 0; i < argc && rc == 0;) {
        line[0] = '\0';
        if (argv[i][0] == '-' && argv[i][1] != '\0') {
            rc = read_flag(&o, argc, argv, &i, line, sizeof line);
        } else {
            o.flag = NULL;
            o.peer = NULL;
            o.values[0] = argv[i++];
        }
        if (rc == 0)
            rc = visit(ctx, &o, line, sizeof line);
        if (rc == BT_E_CONFIG) {
            add_line(err, err_size, line);
            is_wrong = true;
            rc = 0;
        }
    }
    free(o.values);
    return rc == 0 && is_wrong ? BT_E_CONFIG : rc;
}

struct scan {
    const char *file;
    bool is_dev;
};

static int take_file(const char **file_p, const occurrence_t *o, char *err, size_t err_size)
{
    if (*file_p != NULL)
        return bt_err_refuse(
            err, err_size,
            "unexpected argument \"%.120s\": the configuration file is %.120s already",
            o->values[0], *file_p);
    *file_p = o->values[0];
    return 0;
}

static int visit_scan(void *ctx, const occurrence_t *o, char *err, size_t err_size)
{
    struct scan *scan = ctx;
    if (o->flag == NULL && o->peer == NULL)
        return take_file(&scan->file, o, err, err_size);
    scan->is_dev |= o->flag != NULL && strcmp(o->flag->name, "dev") == 0;
    return 0;
}

int bt_flags_scan(int argc, const char *const *argv, const char **file_p, bool *is_dev_p, char *err,
                  size_t err_size)
{
    struct scan scan = {.file = NULL};
    int rc = walk(argc, argv, visit_scan, &scan, err, err_size);
    *file_p = scan.file;
    *is_dev_p = scan.is_dev;
    return rc;
}

/* A peer's number beyond what ours takes becomes the nearest. Borrows number. */
static const char *nearest(bt_config_t *c, const occurrence_t *o, char *number, size_t size)
{
    const bt_option_t *option = &o->flag->option;
    char *end;
    const double wanted = strtod(o->values[0], &end);

    if (o->peer == NULL || !bt_option_takes_number(option) || *end != '\0' || !isfinite(wanted) ||
        (wanted >= option->min && wanted <= option->max))
        return o->values[0];
    snprintf(number, size, "%.15g", wanted < option->min ? option->min : option->max);
    bt_config_warn(c, "%.*s: --%s takes %.15g to %.15g: %s it is", o->spelled_len, o->spelled,
                   o->flag->name, option->min, option->max, number);
    return number;
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

/* What an unused flag and a parameter come to is told, or kept for the policies (peers.c). */
static int apply_peer(bt_config_t *c, const occurrence_t *o, char *err, size_t err_size)
{
    char *end;

    if (o->peer->kind != BT_PEER_PARAM) {
        bt_config_warn(c, "%.*s: not used: %s", o->spelled_len, o->spelled, o->peer->text);
        return 0;
    }
    const double number = strtod(o->values[0], &end);
    if (o->values[0][0] == '\0' || *end != '\0' || !isfinite(number))
        return bt_err_refuse(err, err_size, "%.*s: expected a number, got \"%.120s\"",
                             o->spelled_len, o->spelled, o->values[0]);
    return bt_config_keep_peer_param(c, o->peer, number);
}

static int apply_ours(bt_config_t *c, const occurrence_t *o, char *err, size_t err_size)
{
    if (o->flag->kind == BT_FLAG_ACTION)
        return o->flag->apply(c, (const char *const *) o->values, o->count, err, err_size);
    return o->flag->kind == BT_FLAG_POOL ? set_pools(c, o, err, err_size)
                                         : set_option(o, c, err, err_size);
}

struct apply {
    bt_config_t *c;
    const char *file;
};

static int visit_apply(void *ctx, const occurrence_t *o, char *err, size_t err_size)
{
    struct apply *apply = ctx;
    char why[BT_CONFIG_ERR_BYTES] = "", number[32];
    int rc;
    if (o->flag == NULL && o->peer == NULL)
        return take_file(&apply->file, o, err, err_size);
    if (o->flag == NULL)
        return apply_peer(apply->c, o, err, err_size);
    if (o->count > 0)
        o->values[0] = nearest(apply->c, o, number, sizeof number);
    rc = apply_ours(apply->c, o, why, sizeof why);
    if (rc < 0)
        snprintf(err, err_size, "%.*s: %.*s", o->spelled_len, o->spelled, (int) sizeof why - 128,
                 rc == BT_E_CONFIG ? why : bt_err_text(rc));
    return rc;
}

int bt_flags_apply(bt_config_t *c, int argc, const char *const *argv, char *err, size_t err_size)
{
    struct apply apply = {.c = c};
    return walk(argc, argv, visit_apply, &apply, err, err_size);
}
