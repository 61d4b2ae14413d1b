/* A template is one piece of memory: its key, the edits, the holes, and the texts of all of them. The texts are copied as a
 * whole for each leg, and spans of them moved along; a value with holes is put together anew. Stand-ins are random, so that
 * nothing else can be taken for one.
 *
 * What the function asks may grow with each run. It is part of the key: what was kept under a smaller question is not found
 * any more, and goes with all others when they are made anew. */
#include "script/dialect/leg_template.h"

#include "base/err.h"
#include "base/json.h"
#include "base/rand.h"

#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#define HOLES_MAX 16 /* of all edits of a leg */

typedef struct hole {
    unsigned edit; /* of which edit's value */
    size_t at, n;  /* in it, the stand-in */
    enum bt_leg_own own;
} hole_t;

struct bt_leg_template {
    struct bt_leg_template *next;
    uint64_t hash;
    bt_str_t key, texts;
    bt_forward_t *forward; /* a piece of its own; NULL: none */
    unsigned count, hole_count;
    hole_t holes[HOLES_MAX]; /* by edit and place */
    bt_edit_t edits[];
};

/* ---- stand-ins ---- */

static void put_random_hex(char *at)
{
    bt_str_put_hex64(&at, bt_rand_u64());
    bt_str_put_hex64(&at, bt_rand_u64());
    *at = '\0';
}

void bt_stand_ins_init(bt_stand_ins_t *s)
{
    char *at = s->room_text;

    put_random_hex(s->request_id);
    put_random_hex(s->rid);
    s->room = bt_rand_u64() >> 2 | UINT64_C(1) << 62; /* 19 digits */
    bt_str_put_u64(&at, s->room);
    *at = '\0';
}

bt_leg_view_t bt_stand_ins_view(const bt_stand_ins_t *s, const bt_leg_view_t *leg)
{
    bt_leg_view_t view = *leg;

    view.request_id = bt_str(s->request_id);
    if (leg->rid.n > 0)
        view.rid = bt_str(s->rid);
    if (leg->room_count > 0)
        view.rooms = &s->room;
    return view;
}

/* ---- the key ---- */

static bool add(bt_leg_key_t *key, const void *bytes, size_t n)
{
    if (n > sizeof(key->bytes) - key->n)
        return false;
    if (n > 0) /* the texts of a worker that is not chosen yet are NULL */
        memcpy(key->bytes + key->n, bytes, n);
    key->n += n;
    return true;
}

static bool add_int(bt_leg_key_t *key, int value)
{
    return add(key, &value, sizeof(value));
}

static bool add_str(bt_leg_key_t *key, bt_str_t s)
{
    return s.n < BT_LEG_KEY_BYTES && add_int(key, (int) s.n) && add(key, s.p, s.n);
}

static bool add_field(bt_leg_key_t *key, const bt_dialect_peer_t *peer, enum bt_peer_field field)
{
    switch (field) {
    case BT_PEER_NAME:
        return add_str(key, peer->name);
    case BT_PEER_HOST:
        return add_str(key, peer->host);
    case BT_PEER_PORT:
        return add_int(key, (int) peer->port);
    case BT_PEER_ENGINE_ID:
        return add_str(key, peer->engine_id);
    case BT_PEER_KV_HOST:
        return add_str(key, peer->kv_host);
    case BT_PEER_KV_ADDRESS:
        return add_str(key, peer->kv_address);
    case BT_PEER_VERSION:
        return add_str(key, peer->version);
    case BT_PEER_BOOTSTRAP_PORT:
        return add_int(key, peer->bootstrap_port);
    case BT_PEER_DP_SIZE:
        return add_int(key, (int) peer->dp_size);
    case BT_PEER_TP_SIZE:
        return add_int(key, (int) peer->tp_size);
    case BT_PEER_PP_SIZE:
        return add_int(key, (int) peer->pp_size);
    case BT_PEER_DP_RANK:
        return add_int(key, peer->dp_rank);
    case BT_PEER_LEARNED:
        return add_int(key, peer->learned);
    case BT_PEER_IS_THERE: /* add_peer has said so */
        return true;
    case BT_PEER_FIELDS:
        break;
    }
    return false;
}

/* Whether there is a worker is asked by asking anything of it. */
static bool add_peer(bt_leg_key_t *key, const bt_dialect_peer_t *peer, uint32_t fields)
{
    bool fits = add_int(key, (int) fields) && (fields == 0 || add_int(key, peer->name.n > 0));

    for (; fields != 0 && fits; fields &= fields - 1)
        fits = add_field(key, peer, (enum bt_peer_field) __builtin_ctz(fields));
    return fits;
}

/* An id in a template's JSON is not quoted again. */
static bool is_plain_id(bt_str_t id)
{
    static const bool is_plain[256] = {
        ['0' ... '9'] = true, ['A' ... 'Z'] = true, ['a' ... 'z'] = true,
        ['-' ... '.'] = true, ['_'] = true,         [':'] = true};
    size_t i = 0;

    while (i < id.n && is_plain[(unsigned char) id.p[i]])
        i++;
    return i == id.n;
}

enum bt_json_type bt_leg_member(const bt_leg_view_t *leg, bt_str_t key)
{
    bt_json_item_t item;

    if (leg->member != NULL)
        return leg->member(leg->member_user, key);
    return bt_json_get(leg->body, key, &item) == 0 ? item.type : BT_JSON_NONE;
}

bool bt_leg_key(const bt_leg_templates_t *t, const bt_leg_view_t *leg, bt_leg_key_t *key_p)
{
    const int shape =
        leg->stream | (leg->rid.n > 0) << 1 | (leg->room_count > 0) << 2 | (leg->reply.n > 0) << 3;
    bool fits;

    if (t->is_unfit || leg->prompt_count != 0 || leg->room_count > 1 ||
        (leg->reply.n != 0 && t->reads_reply) || leg->metaserver.n != 0 ||
        !is_plain_id(leg->request_id))
        return false;
    key_p->n = 0;
    fits = add_int(key_p, shape) && add_str(key_p, leg->path) &&
           add_peer(key_p, &leg->prefill, t->peers[0]) &&
           add_peer(key_p, &leg->decode_peer, t->peers[1]) && add_int(key_p, (int) t->ask_count);
    for (unsigned i = 0; fits && i < t->ask_count; i++)
        fits = add_int(key_p, (int) bt_leg_member(leg, bt_str(t->asks[i])));
    return fits;
}

void bt_leg_note_peer(bt_leg_templates_t *t, bool is_decode, enum bt_peer_field field)
{
    t->peers[is_decode] |= UINT32_C(1) << field;
}

void bt_leg_note_member(bt_leg_templates_t *t, bt_str_t key)
{
    for (unsigned i = 0; i < t->ask_count; i++)
        if (bt_str_eq(bt_str(t->asks[i]), key))
            return;
    if (t->ask_count < BT_LEG_ASKS_MAX && memchr(key.p, '\0', key.n) == NULL &&
        (t->asks[t->ask_count] = bt_str_dup(key)) != NULL)
        t->ask_count++;
    else
        t->is_unfit = true;
}

/* ---- what is kept ---- */

static uint64_t hash_of(bt_str_t key)
{
    return XXH3_64bits(key.p, key.n);
}

const struct bt_leg_template *bt_leg_templates_find(const bt_leg_templates_t *t,
                                                    const bt_leg_key_t *key)
{
    const bt_str_t bytes = {key->bytes, key->n};
    const uint64_t hash = hash_of(bytes);
    const struct bt_leg_template *at = t->buckets[hash % BT_LEG_BUCKETS];

    while (at != NULL && (at->hash != hash || !bt_str_eq(at->key, bytes)))
        at = at->next;
    return at;
}

static void drop_all(bt_leg_templates_t *t)
{
    for (unsigned i = 0; i < BT_LEG_BUCKETS; i++)
        for (struct bt_leg_template *at; (at = t->buckets[i]) != NULL;) {
            t->buckets[i] = at->next;
            free(at->forward);
            free(at);
        }
    t->count = t->misses = 0;
}

bool bt_leg_templates_have_room(bt_leg_templates_t *t)
{
    if (t->count == BT_LEG_TEMPLATES_MAX && ++t->misses > BT_LEG_MISSES_MAX)
        drop_all(t);
    return t->count < BT_LEG_TEMPLATES_MAX;
}

/* The first stand-in in a text from `at` on; false: none. */
static bool find_hole(bt_str_t text, size_t at, const bt_stand_ins_t *s, hole_t *hole_p)
{
    const bt_str_t names[BT_OWNS] = {bt_str(s->request_id), bt_str(s->rid), bt_str(s->room_text)};
    size_t first = SIZE_MAX;

    for (unsigned i = 0; i < BT_OWNS; i++) {
        const ptrdiff_t found = bt_str_find((bt_str_t){text.p + at, text.n - at}, names[i]);
        if (found < 0 || at + (size_t) found >= first)
            continue;
        first = at + (size_t) found;
        *hole_p = (hole_t){.at = first, .n = names[i].n, .own = i};
    }
    return first != SIZE_MAX;
}

/* False: more than are kept, or where no value is. */
static bool find_holes(const bt_edits_t *edits, const bt_stand_ins_t *s,
                       struct bt_leg_template *template)
{
    hole_t hole;

    for (unsigned i = 0; i < edits->count; i++) {
        const bt_edit_t *e = &edits->items[i];
        if (find_hole(e->key, 0, s, &hole) || find_hole(e->object, 0, s, &hole))
            return false;
        for (size_t at = 0; find_hole(e->value, at, s, &hole); at = hole.at + hole.n) {
            if (template->hole_count == HOLES_MAX)
                return false;
            hole.edit = i;
            template->holes[template->hole_count++] = hole;
        }
    }
    return true;
}

/* What is said of a reply has no place for an id: its tests know the leg's. */
static bool has_hole(const bt_forward_t *f, const bt_stand_ins_t *s)
{
    return f != NULL &&
           (bt_forward_mentions(f, bt_str(s->request_id)) ||
            bt_forward_mentions(f, bt_str(s->rid)) || bt_forward_mentions(f, bt_str(s->room_text)));
}

static size_t text_bytes(const bt_edits_t *edits)
{
    size_t n = 0;

    for (unsigned i = 0; i < edits->count; i++)
        n += edits->items[i].object.n + edits->items[i].key.n + edits->items[i].value.n;
    return n;
}

static bt_str_t put_text(char **at, bt_str_t s)
{
    const bt_str_t copy = {s.p != NULL ? *at : NULL, s.n};

    bt_str_put(at, s);
    return copy;
}

static struct bt_leg_template *make(const bt_leg_key_t *key, const bt_edits_t *edits)
{
    const size_t texts = text_bytes(edits), items = edits->count * sizeof(bt_edit_t);
    struct bt_leg_template *template = malloc(sizeof(*template) + items + texts + key->n);
    char *at;

    if (template == NULL)
        return NULL;
    at = (char *) &template->edits[edits->count];
    *template = (struct bt_leg_template){.texts = {at, texts}, .count = edits->count};
    for (unsigned i = 0; i < edits->count; i++) {
        const bt_edit_t *e = &edits->items[i];
        template->edits[i] = (bt_edit_t){.op = e->op,
                                         .object = put_text(&at, e->object),
                                         .key = put_text(&at, e->key),
                                         .value = put_text(&at, e->value)};
    }
    template->key = put_text(&at, (bt_str_t){key->bytes, key->n});
    template->hash = hash_of(template->key);
    return template;
}

const struct bt_leg_template *bt_leg_templates_put(bt_leg_templates_t *t, const bt_leg_key_t *key,
                                                   const bt_stand_ins_t *s, const bt_edits_t *edits,
                                                   const bt_forward_t *forward)
{
    struct bt_leg_template *template = has_hole(forward, s) ? NULL : make(key, edits);

    if (template == NULL || !find_holes(edits, s, template) ||
        (forward != NULL && (template->forward = bt_forward_copy(forward)) == NULL)) {
        free(template);
        return NULL;
    }
    template->next = t->buckets[template->hash % BT_LEG_BUCKETS];
    t->buckets[template->hash % BT_LEG_BUCKETS] = template;
    t->count++;
    return template;
}

void bt_leg_templates_fini(bt_leg_templates_t *t)
{
    drop_all(t);
    for (unsigned i = 0; i < t->ask_count; i++)
        free(t->asks[i]);
}

/* ---- a leg's edits ---- */

/* *count_p: how many of the holes were this value's. */
static bt_str_t fill_value(bt_arena_t *arena, bt_str_t value, const hole_t *holes, unsigned left,
                           const bt_str_t *own, unsigned *count_p)
{
    size_t n = value.n, from = 0;
    unsigned count = 0;
    char *out, *at;

    for (; count < left && holes[count].edit == holes[0].edit; count++)
        n += own[holes[count].own].n - holes[count].n;
    out = at = bt_arena_alloc(arena, n);
    for (unsigned i = 0; i < count; i++) {
        bt_str_put(&at, (bt_str_t){value.p + from, holes[i].at - from});
        bt_str_put(&at, own[holes[i].own]);
        from = holes[i].at + holes[i].n;
    }
    bt_str_put(&at, (bt_str_t){value.p + from, value.n - from});
    *count_p = count;
    return (bt_str_t){out, n};
}

static void move(bt_str_t *s, const char *from, const char *to)
{
    if (s->p != NULL)
        s->p = to + (s->p - from);
}

const bt_forward_t *bt_leg_template_forward(const struct bt_leg_template *template)
{
    return template->forward;
}

int bt_leg_template_fill(const struct bt_leg_template *template, const bt_leg_view_t *leg,
                         bt_edits_t *edits)
{
    const bt_edits_t all = {.items = (bt_edit_t *) (uintptr_t) template->edits,
                            .count = template->count};
    char room[BT_STR_U64_MAX], *end = room + sizeof(room), *digits = end;
    bt_edit_t *items;
    char *texts;

    if (bt_edits_append(edits, &all) < 0)
        return BT_E_LIMIT;
    if (leg->room_count > 0)
        digits = bt_str_digits(end, leg->rooms[0], 1);
    const bt_str_t own[BT_OWNS] = {leg->request_id, leg->rid, {digits, (size_t) (end - digits)}};
    texts = bt_arena_alloc(edits->arena, template->texts.n);
    memcpy(texts, template->texts.p, template->texts.n);
    items = &edits->items[edits->count - template->count];
    for (unsigned i = 0; i < template->count; i++) {
        move(&items[i].object, template->texts.p, texts);
        move(&items[i].key, template->texts.p, texts);
        move(&items[i].value, template->texts.p, texts);
    }
    for (unsigned i = 0, count; i < template->hole_count; i += count) {
        bt_str_t *value = &items[template->holes[i].edit].value;
        *value = fill_value(edits->arena, *value, &template->holes[i], template->hole_count - i,
                            own, &count);
    }
    return 0;
}
