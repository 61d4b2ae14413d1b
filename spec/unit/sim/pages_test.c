/* Pages as bytes: what was written is read back, and no single byte can be another without being seen. */
#include "pages.h"

#include "unit.h"

#include <stdlib.h>
#include <string.h>

static sim_pages_t p;
static const sim_block_t block = {.from = 11, .to = 22, .bytes = 33};

static int setup(void **state)
{
    p = (sim_pages_t){.rank = 1, .buffers = 4, .count = 3, .page_bytes = 64};
    p.base = calloc(1, sim_pages_size(&p));
    return p.base == NULL;
}

static int teardown(void **state)
{
    free(p.base);
    return 0;
}

static void test_what_is_written_is_read(void **state)
{
    sim_block_t out = {0};

    assert_int_equal(sim_pages_size(&p), 3 * (4 * 64 + SIM_AUX_BYTES));
    sim_page_write(&p, 2, &block);
    assert_int_equal(sim_page_read(&p, 2, &out), 0);
    assert_int_equal(out.from, 11);
    assert_int_equal(out.to, 22);
    assert_int_equal(out.bytes, 33);
}

static void test_any_flipped_bit_is_seen(void **state)
{
    sim_block_t out;

    sim_page_write(&p, 1, &block);
    for (unsigned b = 0; b < p.buffers; b++)
        for (size_t i = 0; i < p.page_bytes; i++) {
            char *at = p.base + sim_pages_offset(&p, b, 1) + i;
            *at = (char) (*at ^ (1 << (i % 8)));
            assert_int_not_equal(sim_page_read(&p, 1, &out), 0);
            *at = (char) (*at ^ (1 << (i % 8)));
        }
    assert_int_equal(sim_page_read(&p, 1, &out), 0);
}

/* Of another layer, of another rank, of another page, or none at all. */
static void test_bytes_of_elsewhere_are_seen(void **state)
{
    sim_pages_t other = p;
    sim_block_t out, changed = block;

    sim_page_write(&p, 1, &block);
    memcpy(p.base + sim_pages_offset(&p, 2, 1), p.base + sim_pages_offset(&p, 3, 1), 64);
    assert_int_not_equal(sim_page_read(&p, 1, &out), 0);
    sim_page_write(&p, 1, &block);
    other.rank = 2;
    assert_int_not_equal(sim_page_read(&other, 1, &out), 0);
    changed.to++;
    sim_page_write(&p, 2, &changed);
    memcpy(p.base + sim_pages_offset(&p, 1, 1), p.base + sim_pages_offset(&p, 1, 2), 64);
    assert_int_not_equal(sim_page_read(&p, 1, &out), 0);
    sim_page_write(&p, 1, &block);
    sim_page_poison(&p, 1);
    assert_int_not_equal(sim_page_read(&p, 1, &out), 0);
    assert_int_not_equal(sim_page_read(&p, 0, &out), 0); /* zeros, as a fresh pool has them */
}

static void test_aux(void **state)
{
    sim_aux_write(&p, 2, 100, 7);
    assert_int_equal(sim_aux_read(&p, 2, 100, 7), 0);
    assert_int_not_equal(sim_aux_read(&p, 2, 101, 7), 0);
    assert_int_not_equal(sim_aux_read(&p, 2, 100, 8), 0);
    assert_int_not_equal(sim_aux_read(&p, 1, 100, 7), 0);
    sim_aux_poison(&p, 2);
    assert_int_not_equal(sim_aux_read(&p, 2, 100, 7), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_what_is_written_is_read),
        TEST(test_any_flipped_bit_is_seen),
        TEST(test_bytes_of_elsewhere_are_seen),
        TEST(test_aux),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
