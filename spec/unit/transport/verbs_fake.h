/* verbs_fake.h - libibverbs inside this process, for specs: its functions, with devices that copy memory.
 *
 * Owner: the spec; one world at a time.
 * Life:  open (so many devices, named fake0, fake1, ...) -> close, which counts what was not given back.
 * Flow:  a message is carried out when it is posted, unless its device holds messages back or the receiver has no place; completions, queue depths,
 *        key checks and queue pair states are as the verbs say: whoever does not wait for a signalled completion finds the send queue full.
 * Cost:  none that matters.
 */
#ifndef SPEC_VERBS_FAKE_H
#define SPEC_VERBS_FAKE_H

#include <infiniband/verbs.h>
#include <stdbool.h>

#define VERBS_FAKE_DEVICES 4

typedef struct verbs_fake_options {
    struct ibv_gid_entry gids[8];
    unsigned gid_count;
    bool is_down; /* as query_port says */
    uint8_t link_layer;
    enum ibv_mtu mtu;
    uint32_t message_max;
    int sge_max, send_max;
    uint32_t inline_max;
    bool has_dmabuf, no_qp; /* no_qp: create_qp fails */
    bool holds;             /* posted messages wait for verbs_fake_step */
    bool starves;           /* as a receiver: no place for notices */
    unsigned fail_after;    /* the so-manieth message from now fails; 0 = none */
    enum ibv_wc_status fail_status;
    bool
        fail_delivers; /* the failing message arrives all the same: its acknowledgement is what is lost */
    /* counted */
    unsigned messages, posts, signalled, notices, immediates, sges_most, relaxed, waits;
    uint64_t bytes;
} verbs_fake_options_t;

void verbs_fake_open(unsigned devices);
/* Objects that are still there; 0 is clean. */
unsigned verbs_fake_close(void);
verbs_fake_options_t *verbs_fake_options(unsigned device);
/* Carries out up to n messages that the device has held back; how many it did. */
unsigned verbs_fake_step(unsigned device, unsigned n);
/* The port's state changes, and the device says so. */
void verbs_fake_port(unsigned device, bool is_up);
void verbs_fake_fatal(unsigned device);
/* Queue pairs of a device in this state. */
unsigned verbs_fake_count(unsigned device, enum ibv_qp_state state);

#endif
