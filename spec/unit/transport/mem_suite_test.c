/* The suite over mem: both agents in this process. */
#include "suite.h"

int main(void)
{
    return bt_kv_suite(&(bt_kv_suite_t){.name = "mem", .backends = BT_KV_MEM});
}
