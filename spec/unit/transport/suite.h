/* suite.h - the behaviour that every back end must have, over the public interface alone; and the rig that other specs of transport use.
 *
 * Owner: the spec program; one suite a process.
 * Life:  of a test each: two agents, their pools, a layout on either side.
 * Flow:  int main(void) { return bt_kv_suite(&(bt_kv_suite_t){"mem", BT_KV_MEM, false}); }
 * Cost:  a few seconds for a back end.
 */
#ifndef SPEC_TRANSPORT_SUITE_H
#define SPEC_TRANSPORT_SUITE_H

#include "transport/baton_kv.h"

#include "base/err.h"
#include "unit.h"

#include <stdlib.h>
#include <string.h>

typedef struct bt_kv_suite {
    const char *name;
    uint32_t backends; /* bits of both agents */
    bool is_private;   /* malloc'ed memory in place of pools */
    /* Adds to the agents' configuration; may be NULL. */
    void (*tune)(bt_kv_config_t *config);
} bt_kv_suite_t;

/* The exit status. */
int bt_kv_suite(const bt_kv_suite_t *how);

/* ---- the rig ---- */
#define RIG_PAGES 64u
#define RIG_BUFFERS 3u
#define RIG_PAGE_BYTES 1024u
#define RIG_AUX_BYTES 512u

typedef struct rig_side {
    bt_kv_agent_t *agent;
    bt_kv_config_t config;
    char *p; /* buffers of RIG_PAGES pages each, then the aux bytes */
    size_t size;
    bt_kv_region_t region;
    bt_kv_layout_t layout;
    bool is_private;
} rig_side_t;

typedef struct rig {
    rig_side_t from, to;
} rig_t;

/* How agents are made until the next bt_kv_rig_use. */
void bt_kv_rig_use(const bt_kv_suite_t *how);
/* A side with RIG_BUFFERS buffers of RIG_PAGES pages; the pages' bytes are distinct when seed is not 0. Pages have a gap when stride > bytes. */
void rig_side_open(rig_side_t *side, const char *name, const bt_kv_config_t *config, uint64_t seed,
                   uint32_t page_bytes, uint32_t stride);
void rig_side_close(rig_side_t *side);
void rig_open(rig_t *rig, const bt_kv_config_t *config); /* config NULL: defaults */
void rig_close(rig_t *rig);
char *rig_page(const rig_side_t *side, uint32_t buffer, uint32_t page);
char *rig_aux(const rig_side_t *side);
bt_kv_piece_t rig_aux_piece(const rig_side_t *side);

/* Opens both ends of a room over pages[count]; the receiver's aux piece is asked for when has_aux. */
bt_kv_room_t rig_recv(rig_t *rig, uint64_t id, const uint32_t *pages, uint32_t count,
                      uint32_t prefix, bool has_aux);
bt_kv_room_t rig_send_open(rig_t *rig, uint64_t id, uint32_t receivers);
int rig_send(rig_t *rig, bt_kv_room_t room, uint32_t first, const uint32_t *pages, uint32_t count,
             bool is_last, bool has_aux);
/* Turns (CALLER) or looks (THREAD) until the room is in this state, or has ended; fails the test after 9 s. */
void rig_wait(rig_side_t *side, rig_side_t *other, bt_kv_room_t room, enum bt_kv_state state);
void rig_turn(rig_side_t *side, rig_side_t *other);
/* Asks until the answer is 1; fails the test after 9 s. */
void rig_release(rig_side_t *side, rig_side_t *other, bt_kv_room_t room);
/* The receiver's pages hold the sender's; every other page is untouched (zero). */
void rig_check_pages(const rig_t *rig, const uint32_t *to, const uint32_t *from, uint32_t count,
                     uint32_t prefix);
const char *rig_error(rig_side_t *side, bt_kv_room_t room);
uint64_t rig_now_ms(void);

#endif
