/* How it works: smooth weighted round robin: each turn every worker gains its weight, the one with most goes and pays the sum
 * of all weights. With weights 5, 1, 1 the order is a a b a c a a, never five a in a row.
 *
 * A wheel belongs to a name and to one VM (one event thread and generation), because a turn changes every worker's number:
 * over L threads the counts are exact to within L turns. When the members change, those that stay keep their numbers. */
#include "script/native/native.h"

#include <stdlib.h>

#define WHEELS_MAX 256
#define WEIGHT_MAX 1e6
#define LABELS_CHECK_EVERY 128

struct spoke {
    uint64_t worker;
    double weight, now;
};

struct wheel {
    enum bt_policy_magic magic;
    unsigned count;
    uint64_t list; /* serial of the list that it was last compared with; 0 = none */
    double sum;
    struct spoke spokes[];
};

/* "weight" in "gpu=h100,weight=3"; 1 when there is none or no number. */
static double weight_of(const bt_worker_t *w, bt_str_t label)
{
    const char *at = w->spec.labels;

    for (; at != NULL; at = strchr(at, ',') != NULL ? strchr(at, ',') + 1 : NULL) {
        bt_str_t word = bt_str_trim((bt_str_t){at, strcspn(at, ",=")});
        const char *eq = at + strcspn(at, ",=");

        if (*eq == '=' && bt_str_eq(word, label)) {
            char *end;
            double weight = strtod(eq + 1, &end);
            bool ok = end != eq + 1 && weight >= 0; /* NaN is not */

            return !ok ? 1 : weight < WEIGHT_MAX ? weight : WEIGHT_MAX;
        }
    }
    return 1;
}

static bool is_current(struct wheel *wheel, const bt_rows_t *rows)
{
    if (wheel == NULL || wheel->count != rows->count)
        return false;
    if (rows->list != NULL && wheel->list == rows->list->serial)
        return true;
    for (unsigned i = 0; i < rows->count; i++)
        if (wheel->spokes[i].worker != rows->workers[i]->id)
            return false;
    wheel->list = rows->list != NULL ? rows->list->serial : 0;
    return true;
}

/* Where each worker stands in the wheel before: open addressing by its id. */
struct positions {
    const struct wheel *wheel;
    unsigned mask;
    uint32_t at[]; /* of the spokes, from 1 on; 0 = free */
};

/* The worker's place, or the free one where it belongs. */
static uint32_t *position_of(struct positions *p, uint64_t worker)
{
    unsigned slot = (unsigned) worker;

    while (p->at[slot & p->mask] != 0 &&
           p->wheel->spokes[p->at[slot & p->mask] - 1].worker != worker)
        slot++;
    return &p->at[slot & p->mask];
}

/* Pushes them; NULL: there was no wheel, and nil is pushed. */
static struct positions *make_positions(lua_State *L, const struct wheel *wheel)
{
    struct positions *p;
    unsigned slots = 4;

    if (wheel == NULL) {
        lua_pushnil(L);
        return NULL;
    }
    while (slots < 2 * wheel->count)
        slots *= 2;
    p = bt_native_chunk(L, sizeof(*p) + slots * sizeof(p->at[0]));
    p->wheel = wheel;
    p->mask = slots - 1;
    memset(p->at, 0, slots * sizeof(p->at[0]));
    for (unsigned i = 0; i < wheel->count; i++) {
        if (i % BT_CHECK_EVERY == 0)
            bt_vm_check_time(L);
        *position_of(p, wheel->spokes[i].worker) = i + 1;
    }
    return p;
}

static double number_before(struct positions *p, uint64_t worker)
{
    const uint32_t at = p != NULL ? *position_of(p, worker) : 0;

    return at != 0 ? p->wheel->spokes[at - 1].now : 0;
}

/* Pushes a wheel for these rows; numbers come from the old one. */
static struct wheel *make_wheel(lua_State *L, const struct wheel *old, const bt_rows_t *rows,
                                bt_str_t label)
{
    struct positions *positions = make_positions(L, old);
    struct wheel *wheel =
        lua_newuserdata(L, sizeof(*wheel) + rows->count * sizeof(wheel->spokes[0]));

    *wheel = (struct wheel){.magic = BT_MAGIC_OTHER,
                            .count = rows->count,
                            .list = rows->list != NULL ? rows->list->serial : 0};
    for (unsigned i = 0; i < rows->count; i++) {
        const bt_worker_t *w = rows->workers[i];

        if (i % LABELS_CHECK_EVERY == 0)
            bt_vm_check_time(L);
        wheel->spokes[i] =
            (struct spoke){w->id, weight_of(w, label), number_before(positions, w->id)};
        wheel->sum += wheel->spokes[i].weight;
    }
    lua_remove(L, -2);
    return wheel;
}

static int turn(struct wheel *wheel)
{
    int best = -1;

    for (unsigned i = 0; i < wheel->count; i++) {
        struct spoke *s = &wheel->spokes[i];

        s->now += s->weight;
        if (s->weight > 0 && (best < 0 || s->now > wheel->spokes[best].now))
            best = (int) i;
    }
    if (best >= 0)
        wheel->spokes[best].now -= wheel->sum;
    return best;
}

/* baton.smooth(list, name[, label]) -> the next in turn; weights are the workers' label (default "weight", 1 each) */
static int native_smooth(lua_State *L)
{
    bt_policy_t *policy = bt_policy_of(L);
    bt_str_t label = BT_STR("weight");
    struct wheel *wheel;
    bt_rows_t rows;
    int best;

    luaL_checktype(L, 2, LUA_TSTRING);
    if (!lua_isnoneornil(L, 3))
        label.p = luaL_checklstring(L, 3, &label.n);
    lua_settop(L, 3);
    bt_rows_get(L, policy, 1, &rows);
    bt_vm_push(L, policy->native->wheels_ref);
    lua_pushvalue(L, 2);
    lua_rawget(L, 4);
    wheel = lua_touserdata(L, 5);
    if (!is_current(wheel, &rows)) {
        const bool is_new = wheel == NULL;
        if (is_new && policy->native->wheel_count == WHEELS_MAX)
            return luaL_error(L, "smooth: more than %d names", WHEELS_MAX);
        lua_pushvalue(L, 2);
        wheel = make_wheel(L, wheel, &rows, label);
        lua_rawset(L, 4);
        policy->native->wheel_count += is_new;
    }
    best = turn(wheel);
    if (best < 0)
        return 0;
    bt_rows_push(L, &rows, (unsigned) best);
    return 1;
}

void bt_native_add_turn(lua_State *L)
{
    static const luaL_Reg functions[] = {{"smooth", native_smooth}, {NULL, NULL}};

    bt_native_set_reads(L, "", functions);
}
