/* The rules are a file without a name: everything that is done with texts is done with them as well. */
#include "rollout/set.h"

#include "base/err.h"
#include "base/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

int bt_rollout_set_new(bt_rollout_set_t **set_p)
{
    bt_rollout_set_t *set = calloc(1, sizeof *set);

    if (set == NULL)
        return BT_E_NOMEM;
    set->refs = 1;
    bt_rollout_set_seal(set);
    *set_p = set;
    return 0;
}

bt_rollout_set_t *bt_rollout_set_ref(bt_rollout_set_t *set)
{
    if (set != NULL)
        set->refs++;
    return set;
}

void bt_rollout_set_unref(bt_rollout_set_t *set)
{
    if (set == NULL || --set->refs > 0)
        return;
    for (unsigned i = 0; i < set->count; i++)
        free(set->files[i].text);
    free(set->files);
    free(set);
}

/* Where the name is, or belongs. */
static unsigned place_of(const bt_rollout_set_t *set, const char *name, bool *is_there_p)
{
    unsigned i = 0;

    while (i < set->count && strcmp(set->files[i].name, name) < 0)
        i++;
    *is_there_p = i < set->count && strcmp(set->files[i].name, name) == 0;
    return i;
}

const bt_rollout_file_t *bt_rollout_set_find(const bt_rollout_set_t *set, const char *name)
{
    bool is_there;
    unsigned i = place_of(set, name, &is_there);

    return is_there ? &set->files[i] : NULL;
}

/* ---- hashes ---- */

static void print_hash(XXH128_hash_t h, char out[BT_ROLLOUT_HASH_BYTES])
{
    snprintf(out, BT_ROLLOUT_HASH_BYTES, "%016" PRIx64 "%016" PRIx64, (uint64_t) h.high64,
             (uint64_t) h.low64);
}

void bt_rollout_set_seal(bt_rollout_set_t *set)
{
    bt_text_t all;

    bt_text_init(&all);
    for (unsigned i = 0; i < set->count; i++)
        bt_text_printf(&all, "%s %s\n", set->files[i].name, set->files[i].hash);
    print_hash(XXH3_128bits(all.data, all.len), set->hash);
    bt_text_fini(&all);
}

/* ---- changing ---- */

/* JSON replaces what is no UTF-8: such a text would come back as another one. */
static bool survives_json(bt_str_t text)
{
    bt_text_t json;
    char *back = malloc(text.n + 1);
    bool is_same = false;

    bt_text_init(&json);
    bt_text_json_str(&json, text);
    if (back != NULL && !json.failed)
        is_same = bt_json_unescape(bt_text_str(&json), back, text.n + 1) == (long) text.n &&
                  (text.n == 0 || memcmp(back, text.p, text.n) == 0);
    bt_text_fini(&json);
    free(back);
    return is_same;
}

static int make_room(bt_rollout_set_t *set, unsigned at)
{
    bt_rollout_file_t *files;

    if (set->count >= BT_ROLLOUT_FILES_MAX)
        return BT_E_LIMIT;
    files = realloc(set->files, (set->count + 1) * sizeof *files);
    if (files == NULL)
        return BT_E_NOMEM;
    set->files = files;
    memmove(&files[at + 1], &files[at], (set->count - at) * sizeof *files);
    files[at] = (bt_rollout_file_t){0};
    set->count++;
    return 0;
}

int bt_rollout_set_put(bt_rollout_set_t *set, const char *name, bt_str_t text)
{
    bool is_there;
    const unsigned at = place_of(set, name, &is_there);
    const size_t before = is_there ? set->files[at].size : 0;
    char *copy;
    int rc = 0;

    if (strlen(name) > BT_ROLLOUT_NAME_MAX ||
        set->text_bytes - before + text.n > BT_ROLLOUT_TEXT_MAX)
        return BT_E_LIMIT;
    if (!survives_json(text))
        return BT_E_JSON_UTF8;
    copy = bt_str_dup(text);
    if (copy == NULL || (!is_there && (rc = make_room(set, at)) < 0)) {
        free(copy);
        return rc < 0 ? rc : BT_E_NOMEM;
    }
    bt_rollout_file_t *file = &set->files[at];
    free(file->text);
    bt_str_copy(file->name, sizeof file->name, name);
    file->text = copy;
    file->size = text.n;
    print_hash(XXH3_128bits(copy, text.n), file->hash);
    set->text_bytes += text.n - before;
    return 0;
}

bool bt_rollout_set_drop(bt_rollout_set_t *set, const char *name)
{
    bool is_there;
    const unsigned at = place_of(set, name, &is_there);

    if (!is_there)
        return false;
    set->text_bytes -= set->files[at].size;
    free(set->files[at].text);
    set->count--;
    memmove(&set->files[at], &set->files[at + 1], (set->count - at) * sizeof *set->files);
    return true;
}

int bt_rollout_set_copy(bt_rollout_set_t **set_p, const bt_rollout_set_t *from)
{
    bt_rollout_set_t *set;
    int rc = bt_rollout_set_new(&set);

    if (rc < 0)
        return rc;
    for (unsigned i = 0; i < from->count && rc == 0; i++)
        rc = bt_rollout_set_put(set, from->files[i].name,
                                (bt_str_t){from->files[i].text, from->files[i].size});
    if (rc < 0) {
        bt_rollout_set_unref(set);
        return rc;
    }
    bt_rollout_set_seal(set);
    *set_p = set;
    return 0;
}

/* ---- JSON ---- */

void bt_rollout_set_write(const bt_rollout_set_t *set, bt_text_t *out)
{
    bt_text_printf(out,
                   "{\"number\":%" PRIu64 ",\"previous\":%" PRIu64 ",\"copy_of\":%" PRIu64
                   ",\"at_ms\":%" PRIu64 ",\"hash\":\"%s\",\"by\":",
                   set->number, set->previous, set->copy_of, set->at_ms, set->hash);
    bt_text_json_str(out, bt_str(set->by));
    bt_text_puts(out, ",\"replica\":");
    bt_text_json_str(out, bt_str(set->replica));
    bt_text_puts(out, ",\"files\":[");
    for (unsigned i = 0; i < set->count; i++) {
        bt_text_puts(out, i > 0 ? ",{\"name\":" : "{\"name\":");
        bt_text_json_str(out, bt_str(set->files[i].name));
        bt_text_puts(out, ",\"text\":");
        bt_text_json_str(out, (bt_str_t){set->files[i].text, set->files[i].size});
        bt_text_puts(out, "}");
    }
    bt_text_puts(out, "]}");
}

static int read_file(bt_rollout_set_t *set, bt_str_t json)
{
    bt_json_item_t name, text;
    char called[BT_ROLLOUT_NAME_MAX + 1];
    char *bytes;
    long n;
    int rc = BT_E_INVAL;

    if (bt_json_get(json, BT_STR("name"), &name) < 0 ||
        bt_json_get(json, BT_STR("text"), &text) < 0)
        return rc;
    n = bt_json_unescape(name.value, called, sizeof called - 1);
    if (n < 0)
        return rc;
    called[n] = '\0';
    bytes = malloc(text.value.n + 1);
    if (bytes == NULL)
        return BT_E_NOMEM;
    n = bt_json_unescape(text.value, bytes, text.value.n);
    if (n >= 0)
        rc = bt_rollout_set_put(set, called, (bt_str_t){bytes, (size_t) n});
    free(bytes);
    return rc;
}

uint64_t bt_rollout_get_number(bt_str_t json, const char *key)
{
    bt_json_item_t item;
    int64_t value;

    if (bt_json_get(json, bt_str(key), &item) < 0 || bt_json_i64(item.value, &value) < 0 ||
        value < 0)
        return 0;
    return (uint64_t) value;
}

static void read_text(bt_str_t json, const char *key, char *out, size_t size)
{
    bt_json_item_t item;
    long n = -1;

    if (bt_json_get(json, bt_str(key), &item) == 0)
        n = bt_json_unescape(item.value, out, size - 1);
    out[n > 0 ? n : 0] = '\0';
}

static int read_files(bt_rollout_set_t *set, bt_str_t json)
{
    bt_json_item_t files, item;
    bt_json_cursor_t c;
    int rc;

    if (bt_json_get(json, BT_STR("files"), &files) < 0 || bt_json_array(&c, files.value) < 0)
        return BT_E_INVAL;
    while ((rc = bt_json_next(&c, &item)) > 0)
        if ((rc = read_file(set, item.value)) < 0)
            return rc;
    return rc < 0 ? BT_E_INVAL : 0;
}

int bt_rollout_set_read(bt_rollout_set_t **set_p, bt_str_t json)
{
    char hash[BT_ROLLOUT_HASH_BYTES];
    bt_rollout_set_t *set;
    int rc = bt_rollout_set_new(&set);

    if (rc < 0)
        return rc;
    rc = read_files(set, json);
    bt_rollout_set_seal(set);
    read_text(json, "hash", hash, sizeof hash);
    if (rc == 0 && strcmp(hash, set->hash) != 0)
        rc = BT_E_INVAL;
    if (rc < 0) {
        bt_rollout_set_unref(set);
        return rc;
    }
    set->number = bt_rollout_get_number(json, "number");
    set->previous = bt_rollout_get_number(json, "previous");
    set->copy_of = bt_rollout_get_number(json, "copy_of");
    set->at_ms = bt_rollout_get_number(json, "at_ms");
    read_text(json, "by", set->by, sizeof set->by);
    read_text(json, "replica", set->replica, sizeof set->replica);
    *set_p = set;
    return 0;
}
