/* verbs_fake_pair.h - verbs_pair.h on the provider inside the process: fresh devices and tuning for each spec.
 *
 * Owner: the spec program; include it in its one file.
 * Life:  VERBS_SPEC(test) sets up and tears down; what the spec did not give back fails it.
 * Flow:  send_pages posts scattered pages by `batch`; `batches` are for more of them.
 * Cost:  tests only.
 */
#ifndef BT_SPEC_VERBS_FAKE_PAIR_H
#define BT_SPEC_VERBS_FAKE_PAIR_H

#include "transport/verbs_pair.h"

#include "transport/verbs_fake.h"

static const bt_verbs_tuning_t tuning_kept = {.modes = BT_VERBS_IMM | BT_VERBS_SEND,
                                              .slice_bytes = 64 << 10,
                                              .send_depth = 256,
                                              .signal_every = 32,
                                              .pause_ms = 30000,
                                              .drain_ms = 2000,
                                              .message_max = (uint64_t) 1 << 30};

static bt_kv_run_t runs[1024];
__attribute__((unused)) static rig_batch_t batch, batches[256];

static inline int setup(void **state)
{
    bt_verbs_tuning = tuning_kept;
    unsetenv("BATON_KV_RDMA_COMPLETION");
    verbs_fake_open(4);
    return 0;
}

static inline int teardown(void **state)
{
    unsigned left = verbs_fake_close();
    if (left > 0)
        fprintf(stderr, "%u verbs objects were not given back\n", left);
    return left == 0 ? 0 : -1;
}

static inline void send_pages(uint32_t n, uint64_t note)
{
    pair_scatter(runs, n);
    assert_int_equal(rig_post(pair.la, &batch, 1, runs, n, note), 0);
}

#define VERBS_SPEC(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

#endif
