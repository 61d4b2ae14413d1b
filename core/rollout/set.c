/* The rules are a file without a name: everything that is done with texts is done with them as
 * well. */
#include "rollout/set.h"

#include "base/err.h"
#include "base/json.h"

#include <inttypes.h>
#include <stddef.h>
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
    print_hash(XXH3_128bits(all.data, all.len), set->info.hash);
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

void bt_rollout_set_clear(bt_rollout_set_t *set)
{
    while (set->count > 0)
        (void) bt_rollout_set_drop(set, set->files[set->count - 1].name);
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

#define MEMBER(name, size)                                                                         \
    {                                                                                              \
#name, offsetof(bt_rollout_info_t, name), size                                             \
    }
static const struct member {
    const char *name;
    size_t at, size; /* size 0: a number */
} members[] = {MEMBER(number, 0),
               MEMBER(previous, 0),
               MEMBER(copy_of, 0),
               MEMBER(at_ms, 0),
               MEMBER(uuid, BT_ROLLOUT_UUID_BYTES),
               MEMBER(previous_uuid, BT_ROLLOUT_UUID_BYTES),
               MEMBER(hash, BT_ROLLOUT_HASH_BYTES),
               MEMBER(by, BT_ROLLOUT_BY_MAX + 1),
               MEMBER(replica, BT_ROLLOUT_REPLICA_MAX + 1)};
#define MEMBER_COUNT (sizeof members / sizeof members[0])

void bt_rollout_info_write(const bt_rollout_info_t *info, bt_text_t *out)
{
    for (size_t i = 0; i < MEMBER_COUNT; i++) {
        const char *at = (const char *) info + members[i].at;
        if (members[i].size > 0)
            bt_text_json_member(out, members[i].name, at[0] != '\0' ? at : NULL);
        else
            bt_text_printf(out, "%s\"%s\":%" PRIu64, i > 0 ? "," : "", members[i].name,
                           *(const uint64_t *) (const void *) at);
    }
}

static void get_string(const bt_json_item_t *item, char *out, size_t size)
{
    char *all = item->type == BT_JSON_STRING ? malloc(item->value.n + 1) : NULL;
    long n = all != NULL ? bt_json_unescape(item->value, all, item->value.n) : -1;

    out[0] = '\0';
    if (n >= 0) {
        all[n] = '\0';
        bt_str_copy(out, size, all);
    }
    free(all);
}

static uint64_t get_number(const bt_json_item_t *item)
{
    int64_t value;

    return item->type == BT_JSON_NUMBER && bt_json_i64(item->value, &value) == 0 && value > 0
               ? (uint64_t) value
               : 0;
}

void bt_rollout_get(bt_str_t json, const char *key, char *out, size_t size)
{
    bt_json_item_t item;

    out[0] = '\0';
    if (bt_json_get(json, bt_str(key), &item) == 0)
        get_string(&item, out, size);
}

uint64_t bt_rollout_get_number(bt_str_t json, const char *key)
{
    bt_json_item_t item;

    return bt_json_get(json, bt_str(key), &item) == 0 ? get_number(&item) : 0;
}

static void read_member(bt_rollout_info_t *info, const bt_json_item_t *item)
{
    for (size_t i = 0; i < MEMBER_COUNT; i++) {
        char *at = (char *) info + members[i].at;
        if (!bt_json_key_eq(item, bt_str(members[i].name)))
            continue;
        if (members[i].size > 0)
            get_string(item, at, members[i].size);
        else
            *(uint64_t *) (void *) at = get_number(item);
    }
}

void bt_rollout_info_read(bt_rollout_info_t *info, bt_str_t json)
{
    bt_json_cursor_t c;
    bt_json_item_t item;

    *info = (bt_rollout_info_t){0};
    if (bt_json_object(&c, json) == 0)
        while (bt_json_next(&c, &item) > 0)
            read_member(info, &item);
}

void bt_rollout_set_write(const bt_rollout_set_t *set, bt_text_t *out)
{
    bt_text_puts(out, "{");
    bt_rollout_info_write(&set->info, out);
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
    char name[BT_ROLLOUT_NAME_MAX + 1];
    bt_json_item_t item, text;
    char *bytes;
    long n;
    int rc = BT_E_INVAL;

    if (bt_json_get(json, BT_STR("name"), &item) < 0 || item.type != BT_JSON_STRING ||
        (n = bt_json_unescape(item.value, name, sizeof name - 1)) < 0 ||
        bt_json_get(json, BT_STR("text"), &text) < 0)
        return rc;
    name[n] = '\0';
    bytes = malloc(text.value.n + 1);
    if (bytes == NULL)
        return BT_E_NOMEM;
    n = bt_json_unescape(text.value, bytes, text.value.n);
    if (n >= 0)
        rc = bt_rollout_set_put(set, name, (bt_str_t){bytes, (size_t) n});
    free(bytes);
    return rc;
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
    bt_rollout_info_t info;
    bt_rollout_set_t *set;
    int rc = bt_rollout_set_new(&set);

    if (rc < 0)
        return rc;
    rc = read_files(set, json);
    bt_rollout_set_seal(set);
    bt_rollout_info_read(&info, json);
    if (rc == 0 && strcmp(info.hash, set->info.hash) != 0)
        rc = BT_E_INVAL;
    if (rc < 0) {
        bt_rollout_set_unref(set);
        return rc;
    }
    set->info = info;
    *set_p = set;
    return 0;
}
