/* How it works: an event's fields are looked up once, by place or by key, into one struct of values; from there both shapes are the same. In
 * arrays, what stands behind the medium differs between engines and versions, so it is told apart by type. */
#include "kvindex/event.h"

#include "base/err.h"
#include "kvindex/chain.h"
#include "zmq/msgpack.h"

#include <stdlib.h>

#define EXTRA_DEPTH_MAX 4

typedef const bt_msgpack_value_t *value_t;

typedef struct fields {
    value_t hashes, parent, tokens, block_size, lora_id, medium, lora_name, extra_keys, group, kind;
    value_t salt, locality;
} fields_t;

void bt_kv_decoder_init(bt_kv_decoder_t *d)
{
    *d = (bt_kv_decoder_t){0};
}

void bt_kv_decoder_fini(bt_kv_decoder_t *d)
{
    free(d->hashes);
    free(d->extras);
    free(d->tokens);
    *d = (bt_kv_decoder_t){0};
}

static int reserve(void *array_p, unsigned *cap, unsigned count, size_t size)
{
    unsigned wanted = *cap > 0 ? *cap : 256;

    if (count <= *cap)
        return 0;
    while (wanted < count)
        wanted *= 2;
    void *grown = realloc(*(void **) array_p, wanted * size);
    if (grown == NULL)
        return BT_E_NOMEM;
    *(void **) array_p = grown;
    *cap = wanted;
    return 0;
}

/* ---- fields ---- */

static void fields_of_map(value_t e, fields_t *f)
{
    *f = (fields_t){.hashes = bt_msgpack_member(e, "block_hashes"),
                    .parent = bt_msgpack_member(e, "parent_block_hash"),
                    .tokens = bt_msgpack_member(e, "token_ids"),
                    .block_size = bt_msgpack_member(e, "block_size"),
                    .lora_id = bt_msgpack_member(e, "lora_id"),
                    .medium = bt_msgpack_member(e, "medium"),
                    .lora_name = bt_msgpack_member(e, "lora_name"),
                    .extra_keys = bt_msgpack_member(e, "extra_keys"),
                    .group = bt_msgpack_member(e, "group_idx"),
                    .kind = bt_msgpack_member(e, "kv_cache_spec_kind"),
                    .salt = bt_msgpack_member(e, "cache_salt"),
                    .locality = bt_msgpack_member(e, "locality")};
}

/* Behind the medium: lora_name, extra_keys, group_idx, the group's kind; SGLang has a map with the salt in the first's place. */
static void fields_of_tail(value_t e, unsigned from, fields_t *f)
{
    for (unsigned i = from; i < bt_msgpack_count(e); i++) {
        const value_t v = bt_msgpack_at(e, i);

        switch (bt_msgpack_type(v)) {
        case BT_MSGPACK_TEXT:
            *(i == from ? &f->lora_name : &f->kind) = v;
            break;
        case BT_MSGPACK_ARRAY:
            f->extra_keys = f->extra_keys != NULL ? f->extra_keys : v;
            break;
        case BT_MSGPACK_INT:
            f->group = f->group != NULL ? f->group : v; /* the next is a window's size */
            break;
        case BT_MSGPACK_MAP:
            f->salt = bt_msgpack_member(v, "cache_salt");
            break;
        default:
            break;
        }
    }
}

static void fields_of_array(value_t e, bool is_stored, fields_t *f)
{
    *f = (fields_t){.hashes = bt_msgpack_at(e, 1)};
    if (!is_stored) {
        f->medium = bt_msgpack_at(e, 2);
        f->group = bt_msgpack_at(e, 3);
        return;
    }
    f->parent = bt_msgpack_at(e, 2);
    f->tokens = bt_msgpack_at(e, 3);
    f->block_size = bt_msgpack_at(e, 4);
    f->lora_id = bt_msgpack_at(e, 5);
    f->medium = bt_msgpack_at(e, 6);
    fields_of_tail(e, 7, f);
}

/* ---- values ---- */

/* A number, or a digest's bytes: then its last eight, which are what the engine sends where it is told to send numbers. */
static bool hash_of(value_t v, uint64_t *hash_p)
{
    const bt_str_t bytes = bt_msgpack_string(v);
    uint64_t hash = 0;

    if (bt_msgpack_int(v, hash_p))
        return true;
    if (bt_msgpack_type(v) != BT_MSGPACK_BYTES || bytes.n < 8)
        return false;
    for (size_t i = bytes.n - 8; i < bytes.n; i++)
        hash = hash << 8 | (unsigned char) bytes.p[i];
    *hash_p = hash;
    return true;
}

static int read_hashes(bt_kv_decoder_t *d, value_t v, bt_kv_event_t *event)
{
    const unsigned n = bt_msgpack_count(v);

    if (bt_msgpack_type(v) != BT_MSGPACK_ARRAY || n > BT_KV_EVENT_HASHES_MAX)
        return BT_E_INVAL;
    if (reserve(&d->hashes, &d->hash_cap, n, sizeof(d->hashes[0])) < 0)
        return BT_E_NOMEM;
    for (unsigned i = 0; i < n; i++)
        if (!hash_of(bt_msgpack_at(v, i), &d->hashes[i]))
            return BT_E_INVAL;
    event->hashes = d->hashes;
    event->hash_count = n;
    return 0;
}

/* Where drafts are keyed by pairs of tokens, a block's own are the first ones. */
static bool token_of(value_t v, uint32_t *token_p)
{
    uint64_t token;

    if (bt_msgpack_count(v) > 0)
        v = bt_msgpack_at(v, 0);
    if (!bt_msgpack_int(v, &token) || token > UINT32_MAX)
        return false;
    *token_p = (uint32_t) token;
    return true;
}

static int read_tokens(bt_kv_decoder_t *d, const fields_t *f, bt_kv_event_t *event)
{
    const unsigned n = bt_msgpack_count(f->tokens);
    uint64_t size = 0;

    if (n == 0)
        return 0;
    if (n > BT_KV_EVENT_TOKENS_MAX || !bt_msgpack_int(f->block_size, &size) || size == 0 ||
        size > BT_KV_BLOCK_TOKENS_MAX || size * event->hash_count != n)
        return BT_E_INVAL;
    if (reserve(&d->tokens, &d->token_cap, n, sizeof(d->tokens[0])) < 0)
        return BT_E_NOMEM;
    for (unsigned i = 0; i < n; i++)
        if (!token_of(bt_msgpack_at(f->tokens, i), &d->tokens[i]))
            return BT_E_INVAL;
    event->tokens = d->tokens;
    event->token_count = n;
    event->block_tokens = (unsigned) size;
    return 0;
}

static bool tier_of(value_t medium, enum bt_kv_tier *tier_p)
{
    const bt_str_t name = bt_msgpack_string(medium);

    if (bt_msgpack_type(medium) == BT_MSGPACK_NIL || bt_str_ieq(name, BT_STR("GPU")))
        *tier_p = BT_KV_DEVICE;
    else if (bt_str_starts(name, BT_STR("CPU")))
        *tier_p = BT_KV_HOST;
    else if (bt_str_eq(name, BT_STR("STORAGE")) || bt_str_eq(name, BT_STR("DISK")) ||
             bt_str_eq(name, BT_STR("EXTERNAL")))
        *tier_p = BT_KV_DISK;
    else
        return false;
    return true;
}

/* ---- what stands in a block beside its tokens ---- */

static uint64_t hash_extra(value_t v, unsigned depth)
{
    uint64_t hash = 1, number;

    if (bt_msgpack_type(v) != BT_MSGPACK_ARRAY)
        return bt_msgpack_int(v, &number) ? bt_kv_mix(hash, number)
                                          : bt_kv_hash(bt_msgpack_string(v));
    for (unsigned i = 0; i < bt_msgpack_count(v) && depth < EXTRA_DEPTH_MAX; i++)
        hash = bt_kv_mix(hash, hash_extra(bt_msgpack_at(v, i), depth + 1));
    return hash;
}

/* vLLM puts the adapter's name before all else, and the salt, where there is one, into a prompt's first block. */
static uint64_t extra_of(value_t keys, const bt_kv_event_t *event, bool is_first, bt_str_t *salt)
{
    uint64_t extra = 0;

    for (unsigned i = 0; i < bt_msgpack_count(keys); i++) {
        const value_t key = bt_msgpack_at(keys, i);
        const bool is_text = bt_msgpack_type(key) == BT_MSGPACK_TEXT;
        const bt_str_t text = bt_msgpack_string(key);

        if (is_text && event->lora.n > 0 && bt_str_eq(text, event->lora))
            continue;
        if (is_text && is_first && (salt->n == 0 || bt_str_eq(text, *salt)))
            *salt = text;
        else
            extra = bt_kv_mix(extra + 1, hash_extra(key, 0));
    }
    return extra;
}

static int read_extras(bt_kv_decoder_t *d, const fields_t *f, bt_kv_event_t *event, bt_str_t *salt)
{
    const unsigned n = bt_msgpack_count(f->extra_keys);
    uint64_t any = 0;

    if (n == 0)
        return 0;
    if (n != event->hash_count)
        return BT_E_INVAL;
    if (reserve(&d->extras, &d->extra_cap, n, sizeof(d->extras[0])) < 0)
        return BT_E_NOMEM;
    for (unsigned i = 0; i < n; i++)
        any |= d->extras[i] =
            extra_of(bt_msgpack_at(f->extra_keys, i), event, i == 0 && !event->has_parent, salt);
    event->extras = any != 0 ? d->extras : NULL;
    return 0;
}

/* ---- events ---- */

static bool is_full_attention(value_t kind)
{
    const bt_str_t name = bt_msgpack_string(kind);

    return name.n == 0 || bt_str_starts(name, BT_STR("full")) || bt_str_starts(name, BT_STR("mla"));
}

static int read_stored(bt_kv_decoder_t *d, const fields_t *f, bt_kv_event_t *event)
{
    bt_str_t salt = bt_msgpack_string(f->salt);
    uint64_t lora_id;

    event->is_partial = !is_full_attention(f->kind);
    event->has_parent = bt_msgpack_type(f->parent) != BT_MSGPACK_NIL;
    if (event->has_parent && !hash_of(f->parent, &event->parent))
        return BT_E_INVAL;
    event->lora = bt_msgpack_string(f->lora_name);
    int rc = read_tokens(d, f, event);
    if (rc == 0)
        rc = read_extras(d, f, event, &salt);
    event->root = bt_kv_root(event->lora, salt);
    if (event->lora.n == 0 && bt_msgpack_int(f->lora_id, &lora_id)) /* an adapter without a name */
        event->root = bt_kv_mix(event->root + 3, lora_id);
    return rc;
}

/* BT_E_AGAIN: nothing that concerns us. */
static int read_event(bt_kv_decoder_t *d, value_t e, bt_kv_event_t *event)
{
    const bool is_map = bt_msgpack_type(e) == BT_MSGPACK_MAP;
    const value_t tag = is_map ? bt_msgpack_member(e, "type") : bt_msgpack_at(e, 0);
    const bt_str_t name = bt_msgpack_string(tag);
    uint64_t group = 0;
    fields_t f;

    *event = (bt_kv_event_t){.kind = BT_KV_STORED};
    if (bt_msgpack_type(tag) != BT_MSGPACK_TEXT)
        return BT_E_INVAL;
    if (bt_str_eq(name, BT_STR("AllBlocksCleared"))) {
        event->kind = BT_KV_CLEARED;
        return 0;
    }
    if (bt_str_eq(name, BT_STR("BlockRemoved")))
        event->kind = BT_KV_REMOVED;
    else if (!bt_str_eq(name, BT_STR("BlockStored")))
        return BT_E_AGAIN;
    if (is_map)
        fields_of_map(e, &f);
    else
        fields_of_array(e, event->kind == BT_KV_STORED, &f);
    if (!tier_of(f.medium, &event->tier) ||
        bt_str_eq(bt_msgpack_string(f.locality), BT_STR("REMOTE")))
        return BT_E_AGAIN;
    if (bt_msgpack_type(f.group) != BT_MSGPACK_NIL &&
        (!bt_msgpack_int(f.group, &group) || group > UINT16_MAX))
        return BT_E_INVAL;
    event->group = (unsigned) group;
    const int rc = read_hashes(d, f.hashes, event);
    return rc == 0 && event->kind == BT_KV_STORED ? read_stored(d, &f, event) : rc;
}

static int read_events(bt_kv_decoder_t *d, value_t events, bt_kv_event_cb on_event, void *user)
{
    bt_kv_event_t event;

    for (unsigned i = 0; i < bt_msgpack_count(events); i++) {
        const int rc = read_event(d, bt_msgpack_at(events, i), &event);

        if (rc == BT_E_NOMEM)
            return rc;
        d->stats.events++;
        d->stats.unknown += rc == BT_E_AGAIN;
        d->stats.malformed += rc < 0 && rc != BT_E_AGAIN;
        if (rc == 0)
            on_event(user, &event);
    }
    return 0;
}

int bt_kv_decode(bt_kv_decoder_t *d, bt_str_t payload, bt_kv_event_cb on_event, void *user)
{
    bt_msgpack_t m;

    if (payload.n > BT_KV_PAYLOAD_MAX)
        return BT_E_LIMIT;
    int rc = bt_msgpack_open(&m, payload);
    if (rc < 0)
        return rc;
    const value_t root = bt_msgpack_root(&m);
    const value_t events = bt_msgpack_type(root) == BT_MSGPACK_MAP
                               ? bt_msgpack_member(root, "events")
                               : bt_msgpack_at(root, 1);
    rc = bt_msgpack_type(events) == BT_MSGPACK_ARRAY ? read_events(d, events, on_event, user)
                                                     : BT_E_INVAL;
    bt_msgpack_close(&m);
    return rc;
}
