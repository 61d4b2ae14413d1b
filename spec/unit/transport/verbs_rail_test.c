/* Opening devices, choosing addresses, registering memory. */
#include "transport/verbs_fake_pair.h"

#include "transport/backends/verbs/verbs_rail.h"

/* ---- devices ---- */
static int open_with(const char *devices, int gid_index, char *err, size_t size)
{
    bt_kv_config_t config = {.name = "x", .rdma_devices = devices, .gid_index = gid_index};
    bt_kv_backend_t *backend = NULL;
    rig_t rig = {.epoll = epoll_create1(0)};

    err[0] = '\0';
    int rc = bt_kv_verbs_ops()->open(&backend, &rig, &config, err, size);
    if (rc == 0)
        bt_kv_verbs_ops()->close(backend);
    close(rig.epoll);
    return rc;
}

static void test_open(void **state)
{
    char err[200];

    assert_int_equal(open_with(NULL, 0, err, sizeof(err)), 0);
    assert_int_equal(open_with("fake2,fake0:1", 0, err, sizeof(err)), 0);
    assert_int_equal(open_with("fake0,mlx5_9", 0, err, sizeof(err)), BT_E_INVAL);
    assert_non_null(strstr(err, "there is no device \"mlx5_9\""));
    assert_int_equal(open_with("fake", 0, err, sizeof(err)), BT_E_INVAL);
    assert_int_equal(open_with("fake0:2", 0, err, sizeof(err)), BT_E_INVAL);
    assert_int_equal(open_with("fake0", 5, err, sizeof(err)), BT_E_INVAL);
    assert_non_null(strstr(err, "gid_index"));
    verbs_fake_options(1)->is_down = true;
    assert_int_equal(open_with("fake0,fake1", 0, err, sizeof(err)), BT_E_INVAL);
    assert_string_equal(err, "fake1: port 1 is not active");
    assert_int_equal(open_with(NULL, 0, err, sizeof(err)), 0);
    setenv("BATON_KV_RDMA_COMPLETION", "telepathy", 1);
    assert_int_equal(open_with(NULL, 0, err, sizeof(err)), BT_E_INVAL);
    assert_non_null(strstr(err, "imm, send or control"));
    unsetenv("BATON_KV_RDMA_COMPLETION");
    assert_int_equal(verbs_fake_close(), 0);
    verbs_fake_open(0);
    assert_null(bt_kv_verbs_ops());
}

static void test_no_common_mode(void **state)
{
    uint8_t offer[64];
    bt_kv_path_t *path;
    bt_kv_config_t config = {.name = "x"};
    rig_t rig;

    rig_open_config(&rig, bt_kv_verbs_ops(), &config);
    size_t n = rig.ops->offer(rig.backend, offer, sizeof(offer));
    offer[5] = BT_VERBS_CONTROL;
    assert_int_equal(rig.ops->path_open(&path, rig.backend, &rig.links[0], offer, n, true),
                     BT_E_INVAL);
    offer[5] = BT_VERBS_IMM;
    offer[0] ^= 1;
    assert_int_equal(rig.ops->path_open(&path, rig.backend, &rig.links[0], offer, n, true),
                     BT_E_INVAL);
    offer[0] ^= 1;
    offer[4] = 200;
    assert_int_equal(rig.ops->path_open(&path, rig.backend, &rig.links[0], offer, n, true),
                     BT_E_INVAL);
    offer[4] = 1;
    verbs_fake_options(0)->no_qp = true;
    assert_true(rig.ops->path_open(&path, rig.backend, &rig.links[0], offer, n, true) < 0);
    rig_close(&rig);
}

static void test_memory(void **state)
{
    bt_kv_config_t config = {.name = "x", .rdma_devices = "fake0,fake1"};
    bt_kv_mem_t mem = {.id = 1, .size = 8192, .fd = 0, .fd_offset = 4096};
    uint8_t key[64];
    rig_t rig;

    rig_open_config(&rig, bt_kv_verbs_ops(), &config);
    assert_int_equal(rig.ops->region_add(rig.backend, &mem), BT_E_INVAL);
    rig_close(&rig);
    verbs_fake_options(0)->has_dmabuf = verbs_fake_options(1)->has_dmabuf = true;
    rig_open_config(&rig, bt_kv_verbs_ops(), &config);
    assert_int_equal(rig.ops->region_add(rig.backend, &mem), 0);
    assert_int_equal(rig.ops->region_key(rig.backend, &mem, key, sizeof(key)), 16);
    uint64_t base;
    memcpy(&base, key, 8);
    assert_int_equal(base, 4096);
    assert_int_equal(rig.ops->region_key(rig.backend, &mem, key, 15), 0);
    assert_int_equal(verbs_fake_options(0)->relaxed, 1);
    rig.ops->region_remove(rig.backend, &mem);
    rig_close(&rig);
    bt_verbs_tuning.modes =
        BT_VERBS_CONTROL; /* no relaxed ordering where the word comes another way */
    rig_open_config(&rig, bt_kv_verbs_ops(), &config);
    rig_private(&rig, 4096);
    assert_int_equal(verbs_fake_options(0)->relaxed, 1);
    rig_close(&rig);
}

/* ---- addresses ---- */
#define V4 "0000:0000:0000:0000:0000:ffff:0a00:0001"
#define V6 "2001:0db8:0000:0000:0000:0000:0000:0001"
#define LL "fe80:0000:0000:0000:0000:0000:0000:0001"
#define NO "0000:0000:0000:0000:0000:0000:0000:0000"

struct gid_row {
    const char *gid;
    uint32_t type, ifindex, port;
};

static union ibv_gid parse_gid(const char *text)
{
    union ibv_gid gid;

    for (unsigned i = 0; i < 8; i++) {
        unsigned long part = strtoul(text + 5 * i, NULL, 16);
        gid.raw[2 * i] = (uint8_t) (part >> 8);
        gid.raw[2 * i + 1] = (uint8_t) part;
    }
    return gid;
}

static bool is_overlay(uint32_t ifindex)
{
    return ifindex >= 1000;
}

static void test_gid_choice(void **state)
{
    enum { IB = IBV_GID_TYPE_IB, V1 = IBV_GID_TYPE_ROCE_V1, V2 = IBV_GID_TYPE_ROCE_V2 };
    static const struct {
        const char *what;
        bool is_ethernet;
        int forced, chosen;
        struct gid_row rows[6];
    } cases[] = {
        {"v2 IPv4 first",
         true,
         0,
         3,
         {{LL, V1, 1, 1}, {LL, V2, 1, 1}, {V4, V1, 1, 1}, {V4, V2, 1, 1}}},
        {"then v2 global", true, 0, 2, {{V4, V1, 1, 1}, {LL, V2, 1, 1}, {V6, V2, 1, 1}}},
        {"then v2 link-local", true, 0, 1, {{V4, V1, 1, 1}, {LL, V2, 1, 1}, {V6, V1, 1, 1}}},
        {"then v1 in the same order", true, 0, 2, {{LL, V1, 1, 1}, {V6, V1, 1, 1}, {V4, V1, 1, 1}}},
        {"the first of equals", true, 0, 0, {{V4, V2, 1, 1}, {V4, V2, 1, 1}}},
        {"null ids are passed over", true, 0, 1, {{NO, V2, 1, 1}, {LL, V1, 1, 1}}},
        {"ids without an interface too", true, 0, 1, {{V4, V2, 0, 1}, {LL, V2, 1, 1}}},
        {"and those of overlays", true, 0, 1, {{V4, V2, 1000, 1}, {LL, V2, 1, 1}}},
        {"and other ports' ones", true, 0, 1, {{V4, V2, 1, 2}, {LL, V2, 1, 1}}},
        {"none", true, 0, -1, {{NO, V2, 1, 1}, {V4, V2, 0, 1}}},
        {"an empty table", true, 0, -1, {{NULL, 0, 0, 0}}},
        {"Infiniband: the first", false, 0, 0, {{LL, IB, 0, 1}, {V6, IB, 0, 1}}},
        {"forced", true, 2, 2, {{V4, V2, 1, 1}, {V4, V2, 1, 1}, {LL, V1, 0, 1}}},
        {"forced, null", true, 1, -1, {{V4, V2, 1, 1}, {NO, V2, 1, 1}}},
        {"forced, absent", true, 4, -1, {{V4, V2, 1, 1}, {V4, V2, 1, 1}}},
    };

    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        struct ibv_gid_entry entries[6] = {0};
        uint32_t n = 0;
        for (; n < 6 && cases[c].rows[n].gid != NULL; n++) {
            const struct gid_row *row = &cases[c].rows[n];
            entries[n] = (struct ibv_gid_entry){.gid = parse_gid(row->gid),
                                                .gid_index = n,
                                                .port_num = row->port,
                                                .gid_type = row->type,
                                                .ndev_ifindex = row->ifindex};
        }
        int chosen =
            bt_verbs_choose_gid(entries, n, 1, cases[c].is_ethernet, cases[c].forced, is_overlay);
        if (chosen != cases[c].chosen)
            fail_msg("%s: %d", cases[c].what, chosen);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        VERBS_SPEC(test_open),
        VERBS_SPEC(test_no_common_mode),
        VERBS_SPEC(test_memory),
        VERBS_SPEC(test_gid_choice),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
