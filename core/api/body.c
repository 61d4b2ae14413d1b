/* body.c - splicing.
 *
 * Members are taken in order; a run of untouched ones is one slice of the original, its own commas and white space included.
 * A comma is made only between runs. Keys of edits are plain names, keys of the body are compared unescaped, and every
 * duplicate of an edited key is dropped: engines differ in which duplicate they believe, so none may be left.
 */
#include "api/body.h"

#include "base/err.h"

int bt_body_index(bt_body_t *body, bt_arena_t *arena, bt_str_t text, size_t *err_off_p)
{
    bt_json_cursor_t c;
    bt_json_item_t item;
    unsigned cap = 24;
    int rc;

    *body = (bt_body_t){.text = text};
    body->items = bt_arena_alloc(arena, cap * sizeof(*body->items));
    rc = bt_json_object(&c, text);
    while (rc >= 0 && (rc = bt_json_next(&c, &item)) == 1) {
        if (body->count == BT_BODY_MEMBERS_MAX) {
            *err_off_p = item.start;
            return BT_E_LIMIT;
        }
        if (body->count == cap) {
            bt_json_item_t *more = bt_arena_alloc(arena, 2 * cap * sizeof(*more));
            memcpy(more, body->items, cap * sizeof(*more));
            body->items = more;
            cap *= 2;
        }
        body->items[body->count++] = item;
    }
    if (rc < 0) {
        *err_off_p = c.err_off;
        return rc;
    }
    body->open_off = c.open_off;
    body->close_off = c.close_off;
    return 0;
}

const bt_json_item_t *bt_body_find(const bt_body_t *body, bt_str_t name)
{
    for (unsigned i = 0; i < body->count; i++)
        if (bt_json_key_eq(&body->items[i], name))
            return &body->items[i];
    return NULL;
}

unsigned bt_slices_reserve(bt_slices_t *s, bt_arena_t *arena)
{
    if (s->count == s->cap) {
        unsigned cap = s->cap != 0 ? 2 * s->cap : 16;
        struct bt_slice *more = bt_arena_alloc(arena, cap * sizeof(*more));
        if (s->count != 0)
            memcpy(more, s->items, s->count * sizeof(*more));
        s->items = more;
        s->cap = cap;
    }
    s->items[s->count] = (struct bt_slice){.p = ""};
    return s->count++;
}

void bt_slices_fill(bt_slices_t *s, unsigned at, bt_str_t bytes)
{
    s->items[at] = (struct bt_slice){.p = bytes.p, .n = bytes.n, .owner = NULL};
    s->bytes += bytes.n;
}

void bt_slices_put(bt_slices_t *s, bt_arena_t *arena, bt_str_t bytes)
{
    if (bytes.n == 0)
        return;
    if (s->count != 0 && s->items[s->count - 1].p + s->items[s->count - 1].n == bytes.p &&
        s->items[s->count - 1].owner == NULL) { /* neighbours in the original stay one */
        s->items[s->count - 1].n += bytes.n;
        s->bytes += bytes.n;
        return;
    }
    bt_slices_fill(s, bt_slices_reserve(s, arena), bytes);
}

/* The edit that decides about (object, key), the last one given; NULL when there is none. */
static const bt_edit_t *edit_for(const bt_edits_t *edits, bt_str_t object,
                                 const bt_json_item_t *item)
{
    for (unsigned i = edits->count; i-- > 0;) {
        const bt_edit_t *e = &edits->items[i];
        if (e->op != BT_EDIT_HEADER && bt_str_eq(e->object, object) && bt_json_key_eq(item, e->key))
            return e;
    }
    return NULL;
}

static bool has_edits_inside(const bt_edits_t *edits, const bt_json_item_t *item)
{
    for (unsigned i = 0; i < edits->count; i++) {
        const bt_edit_t *e = &edits->items[i];
        if (e->op != BT_EDIT_HEADER && e->object.n != 0 && bt_json_key_eq(item, e->object))
            return true;
    }
    return false;
}

static bool is_last_word(const bt_edits_t *edits, unsigned at)
{
    const bt_edit_t *e = &edits->items[at];

    for (unsigned i = at + 1; i < edits->count; i++) {
        const bt_edit_t *later = &edits->items[i];
        if (later->op != BT_EDIT_HEADER && bt_str_eq(later->object, e->object) &&
            bt_str_eq(later->key, e->key))
            return false;
    }
    return true;
}

struct emitter {
    const bt_edits_t *edits;
    bt_arena_t *arena;
    bt_slices_t *out;
    bool any; /* something was emitted since the opening bracket */
};

static void put_run(struct emitter *e, bt_str_t text, size_t from, size_t to)
{
    if (e->any)
        bt_slices_put(e->out, e->arena, BT_STR(","));
    bt_slices_put(e->out, e->arena, (bt_str_t){text.p + from, to - from});
    e->any = true;
}

static void put_new_member(struct emitter *e, bt_str_t key, bt_str_t value)
{
    char *p = bt_arena_alloc(e->arena, bt_json_quoted_max(key) + 2);
    size_t n = 0;

    if (e->any)
        p[n++] = ',';
    n += bt_json_quote(key, p + n);
    p[n++] = ':';
    bt_slices_put(e->out, e->arena, (bt_str_t){p, n});
    bt_slices_put(e->out, e->arena, value);
    e->any = true;
}

static int apply_object(const bt_body_t *body, bt_str_t object, struct emitter *e);

static int apply_nested(const bt_body_t *body, const bt_json_item_t *item, struct emitter *e)
{
    size_t value_end = item->value_off + item->value.n;
    struct emitter inner = *e;
    bt_body_t nested;
    bt_str_t name = item->key;
    size_t err_off;
    int rc;

    if (item->type !=
        BT_JSON_OBJECT) { /* an object is wanted here and the client sent something else: the engine says so */
        put_run(e, body->text, item->start, value_end);
        return 0;
    }
    if (item->key_escaped) {
        char *plain = bt_arena_alloc(e->arena, item->key.n + 1);
        long n = bt_json_unescape_raw(item->key, plain, item->key.n);
        if (n < 0)
            return BT_E_JSON;
        name = (bt_str_t){plain, (size_t) n};
    }
    rc = item->value.n <= BT_BODY_NESTED_MAX
             ? bt_body_index(&nested, e->arena, item->value, &err_off)
             : BT_E_LIMIT;
    if (rc < 0)
        return rc;
    put_run(e, body->text, item->start, item->value_off);
    inner.any = false;
    return apply_object(&nested, name, &inner);
}

static void append_absent(const bt_body_t *body, bt_str_t object, struct emitter *e)
{
    for (unsigned i = 0; i < e->edits->count; i++) {
        const bt_edit_t *edit = &e->edits->items[i];
        if (edit->op == BT_EDIT_SET && bt_str_eq(edit->object, object) &&
            is_last_word(e->edits, i) && bt_body_find(body, edit->key) == NULL)
            put_new_member(e, edit->key, edit->value);
    }
}

/* Objects that edits name and the client did not send are made, when some edit sets a member in them. */
static void append_absent_objects(const bt_body_t *body, struct emitter *e)
{
    for (unsigned i = 0; i < e->edits->count; i++) {
        const bt_edit_t *edit = &e->edits->items[i];
        bt_body_t empty = {.text = BT_STR("{}"), .open_off = 0, .close_off = 1};
        struct emitter inner = *e;
        bool earlier = false;

        if (edit->op != BT_EDIT_SET || edit->object.n == 0 ||
            bt_body_find(body, edit->object) != NULL)
            continue;
        for (unsigned k = 0; k < i; k++)
            earlier |= e->edits->items[k].op == BT_EDIT_SET &&
                       bt_str_eq(e->edits->items[k].object, edit->object);
        if (earlier)
            continue;
        put_new_member(e, edit->object, BT_STR_NULL);
        inner.any = false;
        (void) apply_object(&empty, edit->object, &inner);
    }
}

static int apply_object(const bt_body_t *body, bt_str_t object, struct emitter *e)
{
    size_t run_from = 0, run_to = 0;
    bool in_run = false;
    int rc = 0;

    bt_slices_put(e->out, e->arena, (bt_str_t){body->text.p, body->open_off + 1});
    for (unsigned i = 0; i < body->count && rc >= 0; i++) {
        const bt_json_item_t *item = &body->items[i];
        const bt_edit_t *edit = edit_for(e->edits, object, item);
        bool nested = edit == NULL && object.n == 0 && has_edits_inside(e->edits, item);

        if (edit == NULL && !nested) {
            if (!in_run)
                run_from = i == 0 ? body->open_off + 1
                                  : item->start; /* white space of the client's stays too */
            in_run = true;
            run_to = item->value_off + item->value.n;
            continue;
        }
        if (in_run)
            put_run(e, body->text, run_from, run_to);
        in_run = false;
        if (nested) {
            rc = apply_nested(body, item, e);
        } else if (edit->op == BT_EDIT_SET && bt_body_find(body, edit->key) == item) {
            put_run(e, body->text, item->start, item->value_off);
            bt_slices_put(e->out, e->arena, edit->value);
        }
    }
    if (rc < 0)
        return rc;
    if (in_run)
        put_run(e, body->text, run_from, body->close_off);
    append_absent(body, object, e);
    if (object.n == 0)
        append_absent_objects(body, e);
    bt_slices_put(e->out, e->arena,
                  (bt_str_t){body->text.p + body->close_off, body->text.n - body->close_off});
    return 0;
}

int bt_body_apply(const bt_body_t *body, const bt_edits_t *edits, bt_arena_t *arena,
                  bt_slices_t *out)
{
    struct emitter e = {.edits = edits, .arena = arena, .out = out, .any = false};

    return apply_object(body, BT_STR(""), &e);
}
