/* The suite over TCP, with one data connection and with four. */
#include "suite.h"

static void four_streams(bt_kv_config_t *config)
{
    config->tcp_streams = 4;
}

int main(void)
{
    int status = bt_kv_suite(&(bt_kv_suite_t){.name = "tcp", .backends = BT_KV_TCP});
    int streams =
        bt_kv_suite(&(bt_kv_suite_t){.name = "tcp4", .backends = BT_KV_TCP, .tune = four_streams});

    return status != 0 ? status : streams;
}
