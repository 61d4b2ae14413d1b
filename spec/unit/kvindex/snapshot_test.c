/* What was known is known again, as far as it was written here; whatever else is in the file is refused, with the reason, and ends nothing. */
#include "kvindex/snapshot.h"

#include "base/err.h"
#include "kvindex/chain.h"
#include "kvindex/query.h"
#include "unit.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK 4u
#define BLOCKS 6u
#define FILE_MAX 4096u

static char folder[64], path[96];
static bt_kv_index_t *index_;
static const uint32_t tokens[BLOCKS * BLOCK] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8,
                                                9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6, 4};
static const uint64_t names[BLOCKS] = {11, 0, 13, 14, 15, 16}; /* 0 is a name like others */

static int setup(void **state)
{
    snprintf(folder, sizeof(folder), "/tmp/kv-snapshot-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/index", folder);
    assert_int_equal(bt_kv_index_new(&index_, &(bt_kv_index_config_t){0}), 0);
    return 0;
}

static int teardown(void **state)
{
    bt_kv_index_free(index_);
    (void) unlink(path);
    assert_int_equal(rmdir(folder), 0); /* nothing was left beside it */
    return 0;
}

static uint32_t open_part(void)
{
    uint32_t part;

    assert_int_equal(bt_kv_part_open(index_, 1, &part), 0);
    return part;
}

static void apply(uint32_t part, enum bt_kv_event_kind kind, enum bt_kv_tier tier, unsigned from,
                  unsigned count)
{
    bt_kv_part_apply(index_, part,
                     &(bt_kv_event_t){.kind = kind,
                                      .tier = tier,
                                      .group = 3,
                                      .hashes = &names[from],
                                      .hash_count = count,
                                      .has_parent = from > 0,
                                      .parent = from > 0 ? names[from - 1] : 0,
                                      .tokens = &tokens[(size_t) from * BLOCK],
                                      .token_count = count * BLOCK,
                                      .block_tokens = BLOCK,
                                      .lora = BT_STR("adapter"),
                                      .root = bt_kv_root(BT_STR("adapter"), BT_STR(""))});
}

static unsigned read_tokens(void *user, unsigned wanted, const uint32_t **tokens_p)
{
    (void) user;
    *tokens_p = tokens;
    return wanted < BLOCKS * BLOCK ? wanted : BLOCKS * BLOCK;
}

static bt_kv_hit_t hit(uint32_t part)
{
    bt_kv_query_t *query;

    assert_int_equal(bt_kv_query_new(&query, index_), 0);
    (void) bt_kv_query_find(
        query, &(bt_kv_prompt_t){read_tokens, NULL, bt_kv_root(BT_STR("adapter"), BT_STR(""))});
    const bt_kv_hit_t found = bt_kv_query_hit(query, part);
    bt_kv_query_free(query);
    return found;
}

/* Two parts: one with five blocks, the first of them twice on the device, the last one in the host's memory; one without any. */
static void write_two(void)
{
    const uint32_t full = open_part(), empty = open_part();
    bt_kv_snapshot_writer_t *w;

    apply(full, BT_KV_STORED, BT_KV_DEVICE, 0, 4);
    apply(full, BT_KV_STORED, BT_KV_DEVICE, 0, 1);
    apply(full, BT_KV_STORED, BT_KV_HOST, 4, 1);
    assert_int_equal(bt_kv_snapshot_begin(&w, path), 0);
    bt_kv_snapshot_put(w, index_, full, "tcp://a:1", (bt_kv_place_t){41, 42});
    bt_kv_snapshot_put(w, index_, empty, "tcp://b:1", (bt_kv_place_t){7, 8});
    assert_int_equal(access(path, F_OK), -1); /* until it is whole */
    assert_int_equal(bt_kv_snapshot_commit(w, index_), 0);
}

static void begin_anew(void)
{
    bt_kv_index_free(index_);
    assert_int_equal(bt_kv_index_new(&index_, &(bt_kv_index_config_t){0}), 0);
}

static bt_kv_snapshot_t *read_it(void)
{
    bt_kv_snapshot_t *s;
    const char *why;

    assert_int_equal(bt_kv_snapshot_read(&s, path, &why), 0);
    return s;
}

static void test_what_was_known(void **state)
{
    bt_kv_place_t place;

    write_two();
    begin_anew();
    bt_kv_snapshot_t *s = read_it();
    const uint32_t empty = open_part(), other = open_part(), full = open_part();
    assert_true(bt_kv_snapshot_restore(s, index_, empty, "tcp://b:1", &place)); /* in any order */
    assert_int_equal(place.number, 7);
    assert_int_equal(bt_kv_part_held(index_, empty), 0);
    assert_false(bt_kv_snapshot_restore(s, index_, other, "tcp://c:1", &place));
    assert_true(bt_kv_snapshot_restore(s, index_, full, "tcp://a:1", &place));
    assert_int_equal(place.number, 41);
    assert_int_equal(place.hash, 42);
    bt_kv_snapshot_free(s);
    assert_false(bt_kv_part_is_live(index_, full)); /* that is for who follows it to say */
    assert_int_equal(hit(full).blocks, 5);
    assert_int_equal(hit(full).host, 1);
    assert_int_equal(hit(full).tokens, 5 * BLOCK);
    assert_true(bt_kv_index_knows_lora(index_, BT_STR("adapter")));
    /* and goes on from there: names, copies and the group that counts */
    apply(full, BT_KV_STORED, BT_KV_DEVICE, 5, 1);
    assert_int_equal(hit(full).blocks, 6);
    apply(full, BT_KV_REMOVED, BT_KV_DEVICE, 0, 1);
    assert_int_equal(hit(full).blocks, 6); /* the second copy */
    apply(full, BT_KV_REMOVED, BT_KV_DEVICE, 0, 1);
    assert_int_equal(hit(full).blocks, 0);
    bt_kv_part_clear(index_, full);
    assert_int_equal(bt_kv_part_held(index_, full), 0);
}

/* A fifth size of blocks has no place. */
static void test_sizes(void **state)
{
    bt_kv_place_t place;

    write_two();
    begin_anew();
    for (unsigned i = 1; i <= BT_KV_SIZES_MAX; i++)
        bt_kv_part_apply(index_, open_part(),
                         &(bt_kv_event_t){.kind = BT_KV_STORED,
                                          .hashes = names,
                                          .hash_count = 1,
                                          .tokens = tokens,
                                          .token_count = BLOCK + i,
                                          .block_tokens = BLOCK + i});
    bt_kv_snapshot_t *s = read_it();
    const uint32_t part = open_part();
    assert_false(bt_kv_snapshot_restore(s, index_, part, "tcp://a:1", &place));
    assert_int_equal(bt_kv_part_held(index_, part), 0);
    bt_kv_snapshot_free(s);
}

static void test_bounds(void **state)
{
    bt_kv_index_stats_t stats;
    bt_kv_place_t place;

    write_two();
    bt_kv_index_free(index_);
    assert_int_equal(bt_kv_index_new(&index_, &(bt_kv_index_config_t){.max_held = 3}), 0);
    bt_kv_snapshot_t *s = read_it();
    assert_true(bt_kv_snapshot_restore(s, index_, open_part(), "tcp://a:1", &place));
    bt_kv_index_stats(index_, &stats);
    assert_int_equal(stats.held, 3);
    bt_kv_snapshot_free(s);
}

static void test_nothing_to_say(void **state)
{
    bt_kv_snapshot_writer_t *w;

    write_two();
    assert_int_equal(bt_kv_snapshot_begin(&w, path), 0);
    assert_int_equal(bt_kv_snapshot_commit(w, index_), 0);
    bt_kv_snapshot_free(read_it()); /* the one that was there */
    assert_int_equal(bt_kv_snapshot_begin(&w, path), 0);
    bt_kv_snapshot_abort(w);
    bt_kv_snapshot_free(read_it());
    bt_kv_snapshot_abort(NULL);
}

static void test_no_place_to_write(void **state)
{
    bt_kv_snapshot_writer_t *w;
    char nowhere[128], name[5000];

    snprintf(nowhere, sizeof(nowhere), "%s/no/index", folder);
    assert_int_equal(bt_kv_snapshot_begin(&w, nowhere), -ENOENT);
    memset(name, 'x', sizeof(name));
    name[sizeof(name) - 1] = '\0';
    assert_int_equal(bt_kv_snapshot_begin(&w, name), -ENAMETOOLONG);
    /* what is there already is no file that could be replaced */
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(bt_kv_snapshot_begin(&w, path), 0);
    bt_kv_snapshot_put(w, index_, open_part(), "tcp://a:1", (bt_kv_place_t){1, 2});
    assert_int_equal(bt_kv_snapshot_commit(w, index_), -EISDIR);
    assert_int_equal(rmdir(path), 0);
}

/* ---- files that are something else ---- */

static char whole[FILE_MAX];
static size_t size;

static void read_whole(void)
{
    FILE *f = fopen(path, "r");

    assert_non_null(f);
    size = fread(whole, 1, sizeof(whole), f);
    assert_true(size > 100 && size < sizeof(whole));
    fclose(f);
}

static void put_file(const void *bytes, size_t count)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, count, f), count);
    assert_int_equal(fclose(f), 0);
}

static void is_refused(const char *expected)
{
    bt_kv_snapshot_t *s;
    const char *why = NULL;

    assert_int_equal(bt_kv_snapshot_read(&s, path, &why), BT_E_INVAL);
    assert_non_null(why);
    if (expected != NULL)
        assert_non_null(strstr(why, expected));
}

static void test_flipped_and_cut(void **state)
{
    write_two();
    read_whole();
    for (size_t i = 0; i < size; i++) {
        whole[i] = (char) (whole[i] ^ (1 << i % 8));
        put_file(whole, size);
        is_refused(NULL);
        whole[i] = (char) (whole[i] ^ (1 << i % 8));
    }
    for (size_t n = 0; n < size; n++) {
        put_file(whole, n);
        is_refused(NULL);
    }
    whole[size] = 0;
    put_file(whole, size + 1);
    is_refused("damaged");
    put_file(whole, size - 1);
    is_refused("damaged");
    whole[7] = '9';
    put_file(whole, size);
    is_refused("version");
}

/* As if somebody had made the checksum fit: whatever it says, nothing is read or written where it should not be. */
static void test_nonsense_with_a_checksum(void **state)
{
    const char *const endpoints[] = {"tcp://a:1", "tcp://b:1"};
    bt_kv_snapshot_t *s;
    bt_kv_place_t place;
    const char *why;
    unsigned taken = 0;

    write_two();
    read_whole();
    for (size_t i = 16; i < size - 8; i++)
        for (unsigned value = 0; value < 256; value += 51) {
            const char was = whole[i];
            whole[i] = (char) value;
            const uint64_t sum = bt_kv_hash((bt_str_t){whole, size - 8});
            memcpy(whole + size - 8, &sum, sizeof(sum));
            put_file(whole, size);
            whole[i] = was;
            if (bt_kv_snapshot_read(&s, path, &why) < 0)
                continue;
            begin_anew();
            for (unsigned k = 0; k < 2; k++)
                taken += bt_kv_snapshot_restore(s, index_, open_part(), endpoints[k], &place);
            (void) hit(1);
            bt_kv_part_clear(index_, 1);
            bt_kv_snapshot_free(s);
        }
    assert_true(taken > 0);
}

static void test_foreign(void **state)
{
    bt_kv_snapshot_t *s;
    const char *why;

    assert_int_equal(bt_kv_snapshot_read(&s, path, &why), -ENOENT);
    put_file("a log\n", 6);
    is_refused("no snapshot");
    put_file("", 0);
    is_refused("no snapshot");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0); /* nobody writes into it, ever */
    is_refused("no snapshot");
    assert_int_equal(bt_kv_snapshot_read(&s, folder, &why), BT_E_INVAL);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(test_##name, setup, teardown)
    const struct CMUnitTest tests[] = {T(what_was_known),
                                       T(sizes),
                                       T(bounds),
                                       T(nothing_to_say),
                                       T(no_place_to_write),
                                       T(flipped_and_cut),
                                       T(nonsense_with_a_checksum),
                                       T(foreign)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
