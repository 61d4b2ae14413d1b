/* A body is read against a table of its members: each known one at most once, of the right type and in range; unknown ones are skipped, since SGLang's
 * clients add members with each version. The table also says where each value goes, so that a reader is a table and a few checks between members.
 */
#include "transport/registry/registry_body.h"

#include "base/err.h"
#include "base/json.h"

#include <stdio.h>

#define ROOM_MAX INT64_MAX
#define SIZE_MAX_EACH 65536

enum want { INTEGER, TEXT, FLAG, LIST };

typedef struct member {
    const char *name;
    enum want want;
    bool is_optional; /* absent or null: what `to` holds stays */
    int64_t min, max; /* INTEGER */
    void *to;         /* int64_t, char[BT_KV_WORD_BYTES], bool, bt_str_t */
} member_t;

static int refuse(char *why, const char *name, const char *what)
{
    snprintf(why, BT_KV_SENTENCE_BYTES, "%s %s", name, what);
    return BT_E_INVAL;
}

static int read_integer(const member_t *m, bt_str_t value, char *why)
{
    int64_t number;

    if (bt_json_i64(value, &number) == 0 && number >= m->min && number <= m->max) {
        *(int64_t *) m->to = number;
        return 0;
    }
    snprintf(why, BT_KV_SENTENCE_BYTES, "%s must be an integer from %lld to %lld", m->name,
             (long long) m->min, (long long) m->max);
    return BT_E_INVAL;
}

static int read_text(const member_t *m, bt_str_t value, char *why)
{
    char *to = m->to;
    long n = bt_json_unescape(value, to, BT_KV_WORD_BYTES - 1);

    to[n > 0 ? n : 0] = '\0';
    if (n < 0)
        return refuse(why, m->name, "must be a string of at most 64 bytes");
    for (long i = 0; i < n; i++)
        if ((unsigned char) to[i] <= ' ' || to[i] == 0x7f)
            return refuse(why, m->name, "must not hold spaces or control characters");
    return 0;
}

static int read_list(const member_t *m, bt_str_t value, char *why)
{
    bt_json_cursor_t c;
    bt_json_item_t item;
    int64_t room;

    if (bt_json_array(&c, value) < 0)
        return refuse(why, m->name, "must be an array of integers");
    while (bt_json_next(&c, &item) > 0) /* well-formed: the object's cursor has passed it */
        if (bt_json_i64(item.value, &room) < 0 || room < 0)
            return refuse(why, m->name, "must hold integers from 0 to 9223372036854775807 only");
    *(bt_str_t *) m->to = value;
    return 0;
}

static int read_member(const member_t *m, const bt_json_item_t *item, char *why)
{
    if (item->type == BT_JSON_NULL && m->is_optional)
        return 0;
    switch (m->want) {
    case INTEGER:
        return read_integer(m, item->value, why);
    case TEXT:
        return read_text(m, item->value, why);
    case LIST:
        return read_list(m, item->value, why);
    case FLAG:
        if (item->type != BT_JSON_TRUE && item->type != BT_JSON_FALSE)
            return refuse(why, m->name, "must be true or false");
        *(bool *) m->to = item->type == BT_JSON_TRUE;
    }
    return 0;
}

/* At most 32 members. */
static int read_body(bt_str_t body, const member_t *members, unsigned count, char *why)
{
    bt_json_cursor_t c;
    bt_json_item_t item;
    uint32_t seen = 0;

    int rc = bt_json_object(&c, body);
    while (rc == 0 && (rc = bt_json_next(&c, &item)) > 0) {
        unsigned i = 0;
        while (i < count && !bt_json_key_eq(&item, bt_str(members[i].name)))
            i++;
        rc = 0;
        if (i == count)
            continue;
        if ((seen >> i & 1) != 0)
            return refuse(why, members[i].name, "is there twice");
        seen |= 1u << i;
        if (read_member(&members[i], &item, why) < 0)
            return BT_E_INVAL;
    }
    if (rc < 0) {
        snprintf(why, BT_KV_SENTENCE_BYTES, "The body must be a JSON object: %s at byte %zu",
                 bt_err_text(rc), c.err_off);
        return BT_E_INVAL;
    }
    for (unsigned i = 0; i < count; i++)
        if ((seen >> i & 1) == 0 && !members[i].is_optional)
            return refuse(why, members[i].name, "is missing");
    return 0;
}

/* ---- PUT /route ---- */
typedef struct numbers {
    int64_t tp, tp_rank, cp, cp_rank, attn_dp, attn_dp_rank, pp, pp_rank, system_dp, system_dp_rank,
        port, page_size, http_port;
} numbers_t;

static int check_axis(const char *name, int64_t size, int64_t rank, char *why)
{
    if (rank < size)
        return 0;
    snprintf(why, BT_KV_SENTENCE_BYTES, "%s_rank %lld must be below %s_size %lld", name,
             (long long) rank, name, (long long) size);
    return BT_E_INVAL;
}

static int check_shape(const numbers_t *n, uint32_t max_ranks, char *why)
{
    bool is_attn = n->system_dp == 1;
    int64_t dp = is_attn ? n->attn_dp : n->system_dp;

    if (check_axis("attn_tp", n->tp, n->tp_rank, why) < 0 ||
        check_axis("attn_cp", n->cp, n->cp_rank, why) < 0 ||
        check_axis("pp", n->pp, n->pp_rank, why) < 0 ||
        check_axis(is_attn ? "attn_dp" : "system_dp", dp,
                   is_attn ? n->attn_dp_rank : n->system_dp_rank, why) < 0)
        return BT_E_INVAL;
    /* Each is at most 2^16: the product of two fits, and each step is checked. */
    int64_t product = dp;
    const int64_t rest[] = {n->cp, n->tp, n->pp};
    for (unsigned i = 0; i < 3 && product <= max_ranks; i++)
        product *= rest[i];
    if (product <= max_ranks)
        return 0;
    snprintf(why, BT_KV_SENTENCE_BYTES,
             "dp_size * attn_cp_size * attn_tp_size * pp_size must be at most %u", max_ranks);
    return BT_E_INVAL;
}

static int read_registration(bt_str_t body, bt_kv_registration_t *r, numbers_t *n, char *method,
                             char *why)
{
    const member_t members[] = {
        {"attn_tp_size", INTEGER, false, 1, SIZE_MAX_EACH, &n->tp},
        {"attn_tp_rank", INTEGER, false, 0, SIZE_MAX_EACH, &n->tp_rank},
        {"attn_cp_size", INTEGER, false, 1, SIZE_MAX_EACH, &n->cp},
        {"attn_cp_rank", INTEGER, false, 0, SIZE_MAX_EACH, &n->cp_rank},
        {"attn_dp_size", INTEGER, false, 1, SIZE_MAX_EACH, &n->attn_dp},
        {"attn_dp_rank", INTEGER, false, 0, SIZE_MAX_EACH, &n->attn_dp_rank},
        {"pp_size", INTEGER, false, 1, SIZE_MAX_EACH, &n->pp},
        {"pp_rank", INTEGER, false, 0, SIZE_MAX_EACH, &n->pp_rank},
        {"system_dp_size", INTEGER, false, 1, SIZE_MAX_EACH, &n->system_dp},
        {"system_dp_rank", INTEGER, false, 0, SIZE_MAX_EACH, &n->system_dp_rank},
        {"rank_ip", TEXT, false, 0, 0, r->ip},
        {"rank_port", INTEGER, false, 1, 65535, &n->port},
        {"page_size", INTEGER, false, 1, INT32_MAX, &n->page_size},
        {"kv_cache_dtype", TEXT, true, 0, 0, r->topology.kv_cache_dtype},
        {"load_balance_method", TEXT, true, 0, 0, method},
        {"enable_dsa_cache_layer_split", FLAG, true, 0, 0,
         &r->topology.enable_dsa_cache_layer_split},
        {"prefill_http_port", INTEGER, true, 1, 65535, &n->http_port},
        {"incarnation", TEXT, true, 0, 0, r->incarnation},
    };
    return read_body(body, members, sizeof(members) / sizeof(*members), why);
}

int bt_kv_read_registration(bt_str_t body, uint32_t max_ranks, bt_kv_registration_t *r_p, char *why)
{
    char method[BT_KV_WORD_BYTES] = "follow_bootstrap_room";
    bt_kv_registration_t r = {.port = 0};
    numbers_t n = {.tp = 0};

    if (read_registration(body, &r, &n, method, why) < 0 || check_shape(&n, max_ranks, why) < 0)
        return BT_E_INVAL;
    bool is_attn = n.system_dp == 1;
    r.topology.dp = (uint32_t) (is_attn ? n.attn_dp : n.system_dp);
    r.topology.cp = (uint32_t) n.cp;
    r.topology.tp = (uint32_t) n.tp;
    r.topology.pp = (uint32_t) n.pp;
    r.topology.page_size = n.page_size;
    r.topology.follow_bootstrap_room = strcmp(method, "follow_bootstrap_room") == 0;
    r.key = (bt_kv_rank_key_t){(uint32_t) (is_attn ? n.attn_dp_rank : n.system_dp_rank),
                               (uint32_t) n.cp_rank, (uint32_t) n.tp_rank, (uint32_t) n.pp_rank};
    r.port = (uint16_t) n.port;
    r.prefill_http_port = (uint16_t) n.http_port;
    *r_p = r;
    return 0;
}

/* ---- rooms ---- */
int bt_kv_read_room_rank(bt_str_t body, uint32_t max_ranks, uint64_t *room_p, uint32_t *dp_rank_p,
                         char *why)
{
    int64_t room = 0, rank = 0;
    const member_t members[] = {
        {"bootstrap_room", INTEGER, false, 0, ROOM_MAX, &room},
        {"dp_rank", INTEGER, false, 0, (int64_t) max_ranks - 1, &rank},
    };

    if (read_body(body, members, 2, why) < 0)
        return BT_E_INVAL;
    *room_p = (uint64_t) room;
    *dp_rank_p = (uint32_t) rank;
    return 0;
}

int bt_kv_read_rooms(bt_str_t body, bt_str_t *rooms_p, char *why)
{
    const member_t members[] = {{"bootstrap_rooms", LIST, false, 0, 0, rooms_p}};

    return read_body(body, members, 1, why);
}

/* ---- comparing ---- */
bool bt_kv_topology_eq(const bt_kv_topology_t *a, const bt_kv_topology_t *b)
{
    return a->dp == b->dp && a->cp == b->cp && a->tp == b->tp && a->pp == b->pp &&
           a->page_size == b->page_size && a->follow_bootstrap_room == b->follow_bootstrap_room &&
           a->enable_dsa_cache_layer_split == b->enable_dsa_cache_layer_split &&
           strcmp(a->kv_cache_dtype, b->kv_cache_dtype) == 0;
}

bool bt_kv_is_wildcard(const char *ip)
{
    static const char *const wildcards[] = {"", "0.0.0.0", "::", "[::]", "*"};

    for (unsigned i = 0; i < sizeof(wildcards) / sizeof(*wildcards); i++)
        if (strcmp(ip, wildcards[i]) == 0)
            return true;
    return false;
}
