/* leg_template.h - what a leg function of a dialect has said once, for the next legs of its kind. Private to core/script.
 *
 * Owner: a dialect file, one set for each of its legs; one loop.
 * Life:  from the first leg of a kind; when there are more kinds than are kept, until many legs have found none: all are made anew.
 * Flow:  find -> fill, or else: the function runs over a view with stand-ins for what each leg has of its own (request
 *        id, rid, room), notes what it asks of workers and of the body, and what it said is kept under the answers.
 * Cost:  a key of what the function asks, a look into a hash and one copy of the edits; no Lua.
 */
#ifndef BT_SCRIPT_LEG_TEMPLATE_H
#define BT_SCRIPT_LEG_TEMPLATE_H

#include "script/dialect/forward.h"

#define BT_LEG_TEMPLATES_MAX 1024 /* kinds that are kept of a leg */
#define BT_LEG_MISSES_MAX 16384   /* legs without, once full, before all are made anew */
#define BT_LEG_BUCKETS 64
#define BT_LEG_ASKS_MAX 8    /* members of the body that a function may ask for */
#define BT_LEG_KEY_BYTES 768 /* legs with longer keys have no template */

enum bt_peer_field {
    BT_PEER_NAME,
    BT_PEER_HOST,
    BT_PEER_PORT,
    BT_PEER_ENGINE_ID,
    BT_PEER_KV_HOST,
    BT_PEER_KV_ADDRESS,
    BT_PEER_VERSION,
    BT_PEER_BOOTSTRAP_PORT,
    BT_PEER_DP_SIZE,
    BT_PEER_TP_SIZE,
    BT_PEER_PP_SIZE,
    BT_PEER_DP_RANK,
    BT_PEER_LEARNED,
    BT_PEER_IS_THERE, /* anything at all was asked of a worker that was not chosen */
    BT_PEER_FIELDS
};

/* What each leg has of its own, and what stands for it while a function runs for a template. */
enum bt_leg_own { BT_OWN_REQUEST_ID, BT_OWN_RID, BT_OWN_ROOM, BT_OWNS };
typedef struct bt_stand_ins {
    char request_id[33], rid[33], room_text[24];
    uint64_t room;
} bt_stand_ins_t;

/* All that the function has ever asked, a bit each field of prefill and decode. */
typedef struct bt_leg_templates {
    struct bt_leg_template *buckets[BT_LEG_BUCKETS];
    unsigned count, misses; /* misses: since they are full */
    uint32_t peers[2];
    char *asks[BT_LEG_ASKS_MAX];
    unsigned ask_count;
    bool is_unfit;    /* it has asked too much: none is kept */
    bool reads_reply; /* it has looked at a reply itself: none is kept of legs that have one */
} bt_leg_templates_t;

typedef struct bt_leg_key {
    size_t n;
    char bytes[BT_LEG_KEY_BYTES];
} bt_leg_key_t;

void bt_stand_ins_init(bt_stand_ins_t *s);
/* The leg as the function sees it for a template. */
bt_leg_view_t bt_stand_ins_view(const bt_stand_ins_t *s, const bt_leg_view_t *leg);
enum bt_json_type bt_leg_member(const bt_leg_view_t *leg, bt_str_t key);

/* False: no template can serve this leg. */
bool bt_leg_key(const bt_leg_templates_t *t, const bt_leg_view_t *leg, bt_leg_key_t *key_p);
void bt_leg_note_peer(bt_leg_templates_t *t, bool is_decode, enum bt_peer_field field);
void bt_leg_note_member(bt_leg_templates_t *t, bt_str_t key);
const struct bt_leg_template *bt_leg_templates_find(const bt_leg_templates_t *t,
                                                    const bt_leg_key_t *key);
/* Before one is made. Where kinds do not come back, making all of them costs more than it saves. */
bool bt_leg_templates_have_room(bt_leg_templates_t *t);
/* There is room. Keeps edits that were made of the stand-ins, and forward (NULL: none). NULL: they are no template. */
const struct bt_leg_template *bt_leg_templates_put(bt_leg_templates_t *t, const bt_leg_key_t *key,
                                                   const bt_stand_ins_t *s, const bt_edits_t *edits,
                                                   const bt_forward_t *forward);
/* What is done with the leg's reply after the edits; NULL: nothing. */
const bt_forward_t *bt_leg_template_forward(const struct bt_leg_template *template);
/* Adds the edits for this leg. 0 or BT_E_LIMIT. */
int bt_leg_template_fill(const struct bt_leg_template *template, const bt_leg_view_t *leg,
                         bt_edits_t *edits);
void bt_leg_templates_fini(bt_leg_templates_t *t);

#endif
