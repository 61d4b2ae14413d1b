/* kv_control_fuzz.c - any bytes as what a gateway and an agent say to each other: what decodes is written again and decodes to the same bytes. */
#include "base/err.h"
#include "transport/wire/control.h"
#include "transport/wire/frame.h"

#include <stdio.h>
#include <stdlib.h>

#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "kv_control_fuzz: %s (line %d)\n", #cond, __LINE__);                   \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void round_trip(const bt_kv_control_t *message)
{
    static uint8_t once[BT_KV_CONTROL_BYTES], twice[BT_KV_CONTROL_BYTES];
    bt_kv_control_t again;
    const char *why = NULL;
    ptrdiff_t n = bt_kv_control_encode(message, once, sizeof(once));

    CHECK(n >= BT_KV_FRAME_HEAD);
    CHECK((size_t) n <=
          message->size + BT_KV_FRAME_HEAD); /* payloads may have grown at their end */
    CHECK(bt_kv_control_next(once, (size_t) n, &again) == n);
    CHECK(again.type == message->type && bt_kv_control_decode(&again, &why) == 0);
    CHECK(bt_kv_control_encode(&again, twice, sizeof(twice)) == n);
    CHECK(memcmp(once, twice, (size_t) n) == 0);
    CHECK(bt_kv_control_encode(&again, twice, (size_t) n - 1) == BT_E_LIMIT);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bt_kv_control_t message;
    ptrdiff_t used;

    while ((used = bt_kv_control_next(data, size, &message)) > 0) {
        const char *why = NULL;
        CHECK((size_t) used <= size && message.size == (size_t) used - BT_KV_FRAME_HEAD);
        int rc = bt_kv_control_decode(&message, &why);
        CHECK(rc == 0 || rc == 1 || (rc == BT_E_INVAL && why != NULL));
        if (rc == 0)
            round_trip(&message);
        data += used;
        size -= (size_t) used;
    }
    CHECK(used == 0 || used == BT_E_INVAL);
    return 0;
}
