/* Trees are small; members are sorted by key, so two trees of the same data are alike. */
#include "script/value/value.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define PART_BYTES ((size_t) 16 << 10)

static void free_items(bt_value_t *value)
{
    for (unsigned i = 0; i < value->count; i++) {
        free_items(&value->items[i]);
        free(value->items[i].key);
    }
    free(value->items);
    free(value->string);
}

void bt_value_free(bt_value_t *root)
{
    if (root == NULL)
        return;
    free_items(root);
    free(root->key);
    free(root);
}

const bt_value_t *bt_value_get(const bt_value_t *table, const char *key)
{
    if (table == NULL || table->type != BT_VALUE_TABLE)
        return NULL;
    for (unsigned i = 0; i < table->count; i++)
        if (strcmp(table->items[i].key, key) == 0)
            return &table->items[i];
    return NULL;
}

/* ---- copies ---- */

static char *copy_or_null(const char *z)
{
    return z != NULL ? strdup(z) : NULL;
}

static bool copy_into(bt_value_t *out, const bt_value_t *from)
{
    *out = (bt_value_t){.type = from->type, .boolean = from->boolean, .number = from->number};
    out->key = copy_or_null(from->key);
    out->string = copy_or_null(from->string);
    if ((from->key != NULL && out->key == NULL) || (from->string != NULL && out->string == NULL))
        return false;
    if (from->count == 0)
        return true;
    out->items = calloc(from->count, sizeof(*out->items));
    if (out->items == NULL)
        return false;
    for (; out->count < from->count; out->count++)
        if (!copy_into(&out->items[out->count], &from->items[out->count])) {
            out->count++; /* half made, but to be freed */
            return false;
        }
    return true;
}

bt_value_t *bt_value_copy(const bt_value_t *value)
{
    bt_value_t *copy = value != NULL ? calloc(1, sizeof(*copy)) : NULL;

    if (copy == NULL || copy_into(copy, value))
        return copy;
    bt_value_free(copy);
    return NULL;
}

/* ---- comparing, showing ---- */

static bool same_text(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

bool bt_value_equal(const bt_value_t *a, const bt_value_t *b)
{
    if (a == NULL || b == NULL || a == b)
        return a == b;
    if (a->type != b->type || a->count != b->count || !same_text(a->key, b->key))
        return false;
    if (a->type == BT_VALUE_BOOL)
        return a->boolean == b->boolean;
    if (a->type == BT_VALUE_NUMBER)
        return a->number == b->number;
    if (a->type == BT_VALUE_STRING)
        return same_text(a->string, b->string);
    for (unsigned i = 0; i < a->count; i++)
        if (!bt_value_equal(&a->items[i], &b->items[i]))
            return false;
    return true;
}

struct checker {
    void (*check)(void *user);
    void *user;
};

void bt_value_write_number(bt_text_t *out, double number)
{
    char text[40];

    snprintf(text, sizeof(text), "%.15g", number);
    if (strtod(text, NULL) != number)
        snprintf(text, sizeof(text), "%.17g", number);
    bt_text_puts(out, isfinite(number) ? text : "null");
}

/* In parts: quoting a MiB takes milliseconds. Each part brings quotes of its own, and those between two go. */
static void put_text(const struct checker *c, bt_str_t left, bt_text_t *out)
{
    size_t seam = 0;

    do {
        const size_t n = c != NULL ? bt_value_part(left) : left.n;

        if (c != NULL)
            c->check(c->user);
        bt_text_json_str(out, (bt_str_t){left.p, n});
        if (seam > 0 && !out->failed) {
            out->len -= 2;
            memmove(out->data + seam, out->data + seam + 2, out->len - seam + 1);
        }
        seam = out->len > 0 ? out->len - 1 : 0;
        left = (bt_str_t){left.p + n, left.n - n};
    } while (left.n > 0 && !out->failed);
}

static void put_value(const struct checker *c, const bt_value_t *value, bt_text_t *out)
{
    const bool is_list = value->type == BT_VALUE_LIST;

    if (c != NULL)
        c->check(c->user);
    if (value->type == BT_VALUE_BOOL) {
        bt_text_puts(out, value->boolean ? "true" : "false");
    } else if (value->type == BT_VALUE_NUMBER) {
        bt_value_write_number(out, value->number);
    } else if (value->type == BT_VALUE_STRING) {
        put_text(c, bt_str(value->string), out);
    } else {
        bt_text_puts(out, is_list ? "[" : "{");
        for (unsigned i = 0; i < value->count; i++) {
            bt_text_puts(out, i > 0 ? "," : "");
            if (!is_list) {
                put_text(c, bt_str(value->items[i].key), out);
                bt_text_puts(out, ":");
            }
            put_value(c, &value->items[i], out);
        }
        bt_text_puts(out, is_list ? "]" : "}");
    }
}

void bt_value_json(const bt_value_t *value, bt_text_t *out)
{
    put_value(NULL, value, out);
}

void bt_value_json_checked(const bt_value_t *value, void (*check)(void *user), void *user,
                           bt_text_t *out)
{
    const struct checker checker = {check, user};

    put_value(&checker, value, out);
}

size_t bt_value_part(bt_str_t text)
{
    size_t n = text.n < PART_BYTES ? text.n : PART_BYTES;

    while (n < text.n && n > PART_BYTES - 4 && ((unsigned char) text.p[n] & 0xc0) == 0x80)
        n--;
    return n;
}
