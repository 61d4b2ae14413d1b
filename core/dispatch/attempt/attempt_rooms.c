/* attempt_rooms.c - what an attempt is called by: its rooms, one a prompt, and its ids.
 *
 * A retry has new ones: engines may still hold what goes by the old.
 */
#include "base/line.h"
#include "base/rand.h"
#include "dispatch/attempt/attempt.h"

void bt_attempt_give_rooms_back(bt_attempt_t *a)
{
    bt_rooms_t *rooms = &a->task->request->d->rooms;

    for (unsigned i = 0; i < a->room_count; i++)
        bt_rooms_close(rooms, a->rooms[i]);
    a->room_count = 0;
}

static uint64_t *room_for(bt_attempt_t *a, unsigned count)
{
    uint64_t *rooms = bt_arena_alloc(&a->task->request->arena, count * sizeof(*rooms));

    if (a->room_count != 0)
        memcpy(rooms, a->rooms, a->room_count * sizeof(*rooms));
    return rooms;
}

static int mint_one(bt_attempt_t *a)
{
    bt_worker_t *p = a->pair.prefill;
    const unsigned dp = p != NULL ? p->dp_size : 1; /* a trigger's room names no rank */
    const int fixed =
        a->pair.prefill_rank >= 0 || p == NULL ? a->pair.prefill_rank : p->spec.dp_rank;
    unsigned rank = fixed >= 0 ? (unsigned) fixed : dp > 1 ? bt_worker_next_rank(p) : 0;
    int rc = bt_rooms_open(&a->task->request->d->rooms, dp, rank % dp, a, &a->rooms[a->room_count]);

    a->room_count += rc == 0;
    return rc;
}

int bt_attempt_mint_rooms(bt_attempt_t *a)
{
    const unsigned count = a->task->prompt_count != 0 ? a->task->prompt_count : 1;
    int rc = 0;

    a->rooms = room_for(a, count);
    while (a->room_count < count && rc == 0)
        rc = mint_one(a);
    return rc;
}

int bt_attempt_mint_room(bt_attempt_t *a, uint64_t *room_p)
{
    int rc;

    a->rooms = room_for(a, a->room_count + 1);
    rc = mint_one(a);
    if (rc == 0)
        *room_p = a->rooms[a->room_count - 1];
    return rc;
}

static const char *id_from(const bt_attempt_t *a, const char *base)
{
    char text[BT_REQUEST_ID_MAX + 24];
    bt_line_t id;

    if (a->number == 1 && a->task->suffix[0] == '\0')
        return base;
    bt_line_init(&id, text, sizeof(text) - 1);
    bt_line_z(&id, base);
    bt_line_z(&id, a->task->suffix);
    if (a->number > 1) {
        bt_line_lit(&id, "-a");
        bt_line_u64(&id, a->number);
    }
    *id.at = '\0';
    return bt_arena_str(&a->task->request->arena, bt_str(text)).p;
}

void bt_attempt_make_ids(bt_attempt_t *a)
{
    const bt_request_t *r = a->task->request;
    char fresh[BT_UUID_CHARS + 1], *rid = a->rid;

    a->id = id_from(a, r->id);
    if (r->id_registered && strcmp(a->id, r->id) != 0 &&
        bt_ids_has(r->d->shared->ids, bt_str(a->id))) {
        bt_rand_uuid(fresh); /* another client's own id reads so */
        a->id = id_from(a, fresh);
    }
    bt_str_put_hex64(&rid, bt_rand_u64());
    bt_str_put_hex64(&rid, bt_rand_u64());
    *rid = '\0';
}
