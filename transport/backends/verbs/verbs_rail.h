/* verbs_rail.h - one port of one device, as an agent uses it.
 *
 * Owner: the verbs back end; a rail outlives every connection on it.
 * Life:  open (context, pd, channel, receive queue filled with notice slots) -> close.
 * Flow:  all connections of a rail receive into one shared receive queue and one completion queue; each sends with a completion
 *        queue of its own, so that no number of peers can overrun one. All of them report to the rail's channel.
 * Cost:  a poll of an empty queue is one call.
 */
#ifndef BT_TRANSPORT_VERBS_RAIL_H
#define BT_TRANSPORT_VERBS_RAIL_H

#include "base/list.h"

#include <infiniband/verbs.h>
#include <stdbool.h>

#define BT_VERBS_RAILS_MAX 8
#define BT_VERBS_NOTICES 512     /* slots of a rail's receive queue */
#define BT_VERBS_SLOT_BYTES 128  /* of one */
#define BT_VERBS_QPN_BUCKETS 256 /* a power of two */
#define BT_VERBS_GIDS_MAX 256    /* of a device's table that are looked at */

typedef struct bt_verbs_rail {
    unsigned index; /* in the agent */
    char name[64];  /* of the device */
    uint8_t port;
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *recv_cq;
    struct ibv_srq *srq;
    char *slots;
    struct ibv_mr *slots_mr;
    union ibv_gid gid;
    uint8_t gid_index;
    bool is_ethernet;
    uint16_t lid;
    enum ibv_mtu mtu;
    uint64_t message_max;
    unsigned sge_max, send_max; /* of the device, cut to what we use */
    uint8_t reads_max;
    bool is_up;   /* the port's state, by its events */
    bool is_dead; /* the device said that it is lost */
    uint64_t errors;
    bt_list_t by_qpn[BT_VERBS_QPN_BUCKETS];
} bt_verbs_rail_t;

/* gid_index > 0 forces one. BT_E_INVAL with err where the port cannot be used. */
int bt_verbs_rail_open(bt_verbs_rail_t *rail, struct ibv_device *device, uint8_t port,
                       int gid_index, char *err, size_t err_size);
void bt_verbs_rail_close(bt_verbs_rail_t *rail);
/* Gives a slot back to the receive queue. */
int bt_verbs_rail_refill(bt_verbs_rail_t *rail, const uint64_t *slots, unsigned count);
/* Reads what has happened to the device and port; the number of events. A queue pair's error is the completion's to tell. */
int bt_verbs_rail_events(bt_verbs_rail_t *rail);
/* Empties the channel: the queues that spoke must be armed again. */
void bt_verbs_rail_wakes(bt_verbs_rail_t *rail);

/* Is this network interface the inside of an overlay or a tunnel? */
typedef bool (*bt_verbs_overlay_cb)(uint32_t ifindex);

/* RoCE v2 before v1; IPv4 before global IPv6 before link-local. Null ids, those without a network
 * interface and those of overlays are passed over. Infiniband: the first of the port. Returns the
 * place in `entries`, or -1. forced > 0: that gid_index, if it is there. */
int bt_verbs_choose_gid(const struct ibv_gid_entry *entries, size_t count, uint8_t port,
                        bool is_ethernet, int forced, bt_verbs_overlay_cb is_overlay_if);

#endif
