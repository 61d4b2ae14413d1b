/* Who takes which heads from whom: whatever the two numbers of ranks, each head that a receiver holds comes to it exactly once, from where the sender has it. */
#include "transport/gateway/heads.h"
#include "unit.h"

#define HEADS_MAX 24u
#define RANKS_MAX 32u
#define HEAD_BYTES 16u

/* By the rule in the header, one head after the other. */
static bool has_head(uint32_t total, uint32_t head, uint32_t rank, uint32_t ranks)
{
    return ranks >= total ? rank * total / ranks == head : head * ranks / total == rank;
}

static uint32_t first_head(uint32_t total, uint32_t rank, uint32_t ranks)
{
    uint32_t head = 0;

    while (!has_head(total, head, rank, ranks))
        head++;
    return head;
}

static uint32_t count_heads(uint32_t total, uint32_t rank, uint32_t ranks)
{
    uint32_t count = 0;

    for (uint32_t head = 0; head < total; head++)
        count += has_head(total, head, rank, ranks);
    return count;
}

/* Marks what the slice brings, in units of heads, row by row. */
static void take(const bt_kv_slice_t *slice, bt_kv_heads_t heads, uint32_t to, uint32_t to_ranks,
                 uint32_t from, uint32_t from_ranks, uint32_t *came)
{
    uint32_t own = count_heads(heads.total, to, to_ranks);
    uint32_t theirs = count_heads(heads.total, from, from_ranks);
    bt_kv_slice_t s = *slice;

    if (s.rows == 0)
        s = (bt_kv_slice_t){heads.rows, theirs * HEAD_BYTES, own * HEAD_BYTES, 0,
                            0,          own * HEAD_BYTES};
    assert_int_equal(s.rows, heads.rows);
    assert_int_equal(s.dst_row, own * HEAD_BYTES);
    assert_int_equal(s.src_row, theirs * HEAD_BYTES);
    assert_true(s.src_offset + s.bytes <= s.src_row && s.dst_offset + s.bytes <= s.dst_row);
    for (uint32_t at = 0; at < s.bytes; at += HEAD_BYTES) {
        uint32_t head = first_head(heads.total, to, to_ranks) + (s.dst_offset + at) / HEAD_BYTES;
        assert_int_equal(
            first_head(heads.total, from, from_ranks) + (s.src_offset + at) / HEAD_BYTES, head);
        came[head]++;
    }
}

static void check_receiver(bt_kv_heads_t heads, uint32_t to, uint32_t to_ranks, uint32_t from_ranks,
                           uint32_t *asked)
{
    uint32_t came[HEADS_MAX] = {0};
    uint64_t page = (uint64_t) heads.rows * count_heads(heads.total, to, to_ranks) * HEAD_BYTES;
    bt_kv_slice_t slice;

    for (uint32_t from = 0; from < from_ranks; from++) {
        if (!bt_kv_heads_slice(heads, to, to_ranks, from, from_ranks, page, &slice))
            continue;
        asked[from]++;
        take(&slice, heads, to, to_ranks, from, from_ranks, came);
    }
    for (uint32_t head = 0; head < heads.total; head++)
        assert_int_equal(came[head], has_head(heads.total, head, to, to_ranks));
}

static void test_every_head_comes_once(void **state)
{
    uint32_t pairs = 0;

    for (uint32_t total = 1; total <= HEADS_MAX; total++)
        for (uint32_t d = 1; d <= RANKS_MAX; d++)
            for (uint32_t p = 1; p <= RANKS_MAX; p++) {
                uint32_t asked[RANKS_MAX] = {0};
                if (!bt_kv_heads_fit(total, d) || !bt_kv_heads_fit(total, p))
                    continue;
                for (uint32_t to = 0; to < d; to++)
                    check_receiver((bt_kv_heads_t){total, total % 3 + 1}, to, d, p, asked);
                pairs++;
                for (uint32_t from = 0; p == d && from < p; from++)
                    assert_int_equal(asked[from], 1);
            }
    assert_true(pairs > 1000);
}

/* MLA: all ranks hold one head. The receivers spread over the senders. */
static void test_copies_share_the_work(void **state)
{
    bt_kv_heads_t latent = {1, 1};

    for (uint32_t p = 1; p <= 8; p++)
        for (uint32_t d = 1; d <= 8; d++) {
            uint32_t asked[RANKS_MAX] = {0};
            for (uint32_t to = 0; to < d; to++)
                check_receiver(latent, to, d, p, asked);
            for (uint32_t from = 0; from < p; from++)
                assert_in_range(asked[from], d / p, (d + p - 1) / p);
        }
}

static void test_what_cannot_be_shared_out(void **state)
{
    assert_true(bt_kv_heads_fit(8, 4) && bt_kv_heads_fit(4, 8) && bt_kv_heads_fit(1, 64));
    assert_false(bt_kv_heads_fit(8, 3) || bt_kv_heads_fit(3, 8) || bt_kv_heads_fit(6, 4));
    assert_false(bt_kv_heads_fit(0, 4) || bt_kv_heads_fit(4, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_head_comes_once),
        cmocka_unit_test(test_copies_share_the_work),
        cmocka_unit_test(test_what_cannot_be_shared_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
