/* The cursor: a walk over one object's members or one array's elements. It trusts nothing that it
 * has not scanned, and scans each byte once: the value of each item is validated when it is
 * yielded, the punctuation on the way.
 *
 *     OPENED --first item--> AMID --',' item--> AMID --closing bracket--> ENDED
 *        '--closing bracket--------------------------------------------> ENDED
 * Any error leaves it BAD, so that a caller that keeps asking keeps getting the same answer.
 */
#include "base/json.h"

#include "base/err.h"
#include "base/json_scan.h"

#include <stdarg.h>

enum { OPENED, AMID, ENDED, BAD };

static int fail(bt_json_cursor_t *c, const char *at, int rc)
{
    c->err_off = (size_t) (at - c->text.p);
    c->state = BAD;
    c->rc = rc;
    return rc;
}

static int open_cursor(bt_json_cursor_t *c, bt_str_t text, char bracket)
{
    bt_json_scan_t s;

    memset(c, 0, sizeof(*c));
    c->text = text.p != NULL ? text : BT_STR("");
    bt_json_scan_init(&s, c->text.p, c->text.p + c->text.n, 0);
    bt_json_scan_space(&s);
    if (s.at >= s.end || *s.at != bracket)
        return fail(c, s.at, BT_E_JSON);
    c->kind = (unsigned char) bracket;
    c->open_off = (size_t) (s.at - c->text.p);
    c->at = c->prev_end = c->open_off + 1;
    c->state = OPENED;
    return 0;
}

int bt_json_object(bt_json_cursor_t *c, bt_str_t text)
{
    return open_cursor(c, text, '{');
}

int bt_json_array(bt_json_cursor_t *c, bt_str_t text)
{
    return open_cursor(c, text, '[');
}

static int finish(bt_json_cursor_t *c, bt_json_scan_t *s)
{
    c->close_off = (size_t) (s->at - c->text.p);
    s->at++;
    bt_json_scan_space(s);
    if (s->at != s->end)
        return fail(c, s->at, BT_E_JSON);
    c->at = c->text.n;
    c->state = ENDED;
    return 0;
}

/* From a key's opening quote to its value's first byte. */
static int read_key(bt_json_scan_t *s, bt_json_item_t *item)
{
    const char *quote = s->at;

    if (s->at >= s->end || *s->at != '"')
        return BT_E_JSON;
    int rc = bt_json_scan_string(s);
    if (rc < 0)
        return rc;
    item->key = (bt_str_t){quote + 1, (size_t) (s->at - quote) - 2};
    item->key_escaped = s->escaped; /* the key is the first string of this scan */
    bt_json_scan_space(s);
    if (s->at >= s->end || *s->at != ':')
        return BT_E_JSON;
    s->at++;
    bt_json_scan_space(s);
    return 0;
}

static int read_item(bt_json_cursor_t *c, bt_json_scan_t *s, bt_json_item_t *item_p)
{
    bt_json_item_t item = {.key = {s->at, 0}, .prev_end = c->prev_end, .ordinal = c->count};

    item.start = (size_t) (s->at - c->text.p);
    int rc = c->kind == '{' ? read_key(s, &item) : 0;
    if (rc < 0)
        return fail(c, s->at, rc);
    const char *value = s->at;
    item.value_off = (size_t) (value - c->text.p);
    rc = bt_json_scan_value(s);
    if (rc < 0)
        return fail(c, s->at, rc);
    item.value = (bt_str_t){value, (size_t) (s->at - value)};
    item.type = bt_json_type_of(item.value);
    c->at = c->prev_end = (size_t) (s->at - c->text.p);
    c->count++;
    c->state = AMID;
    *item_p = item;
    return 1;
}

int bt_json_next(bt_json_cursor_t *c, bt_json_item_t *item_p)
{
    bt_json_scan_t s;

    if (c->state >= ENDED)
        return c->rc;
    bt_json_scan_init(&s, c->text.p + c->at, c->text.p + c->text.n, 1);
    bt_json_scan_space(&s);
    if (s.at >= s.end)
        return fail(c, s.at, BT_E_JSON);
    if (*s.at == (c->kind == '{' ? '}' : ']'))
        return finish(c, &s);
    if (c->state == AMID) {
        if (*s.at != ',')
            return fail(c, s.at, BT_E_JSON);
        s.at++;
        bt_json_scan_space(&s);
    }
    return read_item(c, &s, item_p);
}

int bt_json_validate(bt_str_t text, size_t *err_off_p)
{
    bt_json_scan_t s;

    if (text.p == NULL)
        text = BT_STR("");
    bt_json_scan_init(&s, text.p, text.p + text.n, 0);
    bt_json_scan_space(&s);
    int rc = bt_json_scan_value(&s);
    if (rc == 0) {
        bt_json_scan_space(&s);
        rc = s.at == s.end ? 0 : BT_E_JSON;
    }
    if (rc < 0 && err_off_p != NULL)
        *err_off_p = (size_t) (s.at - text.p);
    return rc;
}

enum bt_json_type bt_json_type_of(bt_str_t value)
{
    if (value.n == 0)
        return BT_JSON_NONE;
    switch (value.p[0]) {
    case 'n':
        return BT_JSON_NULL;
    case 'f':
        return BT_JSON_FALSE;
    case 't':
        return BT_JSON_TRUE;
    case '"':
        return BT_JSON_STRING;
    case '[':
        return BT_JSON_ARRAY;
    case '{':
        return BT_JSON_OBJECT;
    default:
        return value.p[0] == '-' || (value.p[0] >= '0' && value.p[0] <= '9') ? BT_JSON_NUMBER
                                                                             : BT_JSON_NONE;
    }
}

/* Looks for a member, and reads on to the end: nothing is answered about text that is not JSON. */
int bt_json_get(bt_str_t object, bt_str_t name, bt_json_item_t *item_p)
{
    bt_json_item_t item, found = {.type = BT_JSON_NONE};
    bt_json_cursor_t c;

    int rc = bt_json_object(&c, object);
    if (rc < 0)
        return rc;
    while ((rc = bt_json_next(&c, &item)) > 0)
        if (found.type == BT_JSON_NONE && bt_json_key_eq(&item, name))
            found = item;
    if (rc == 0)
        *item_p = found;
    return rc;
}

static void rebase(bt_json_item_t *item, size_t by)
{
    item->start += by;
    item->value_off += by;
    item->prev_end += by;
}

int bt_json_path(bt_str_t object, bt_json_item_t *item_p, const char *name, ...)
{
    bt_json_item_t item;
    va_list names;

    int rc = bt_json_get(object, bt_str(name), &item);
    va_start(names, name);
    while (rc == 0 && (name = va_arg(names, const char *)) != NULL) {
        if (item.type != BT_JSON_OBJECT) {
            item = (bt_json_item_t){.type = BT_JSON_NONE};
            break;
        }
        bt_json_item_t inner;
        rc = bt_json_get(item.value, bt_str(name), &inner);
        if (rc == 0 && inner.type != BT_JSON_NONE)
            rebase(&inner, item.value_off);
        if (rc == 0)
            item = inner;
    }
    va_end(names);
    if (rc == 0)
        *item_p = item;
    return rc;
}

long bt_json_count(bt_str_t value)
{
    bt_str_t bare = bt_str_trim(value);
    bt_json_cursor_t c;
    bt_json_item_t item;

    int rc = bt_json_type_of(bare) == BT_JSON_OBJECT ? bt_json_object(&c, value)
                                                     : bt_json_array(&c, value);
    if (rc < 0)
        return rc;
    while ((rc = bt_json_next(&c, &item)) > 0)
        ;
    return rc < 0 ? rc : (long) c.count;
}
