/* libFuzzer target: base/json against jansson on whatever the fuzzer finds. */
#include "json_oracle.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_oracle_check((bt_str_t){(const char *) data, size});
    return 0;
}
