/* Which of the wide scans this processor can run. */
#include "base/json_scan.h"

#ifdef BT_JSON_X86
/* Processors whose whole package slows down for registers of 64 bytes (before Ice Lake) have no VBMI2. */
static bool has_avx512(void)
{
    return __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("bmi");
}

const bt_json_wide_t *bt_json_wide(unsigned nth)
{
    const bt_json_wide_t *can[2] = {NULL};
    unsigned n = 0;

    __builtin_cpu_init();
    if (has_avx512())
        can[n++] = &bt_json_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
        __builtin_cpu_supports("bmi2"))
        can[n++] = &bt_json_avx2;
    return nth < n ? can[nth] : NULL;
}
#elif defined(BT_JSON_NEON)
const bt_json_wide_t *bt_json_wide(unsigned nth)
{
    return nth == 0 ? &bt_json_neon : NULL;
}
#else
const bt_json_wide_t *bt_json_wide(unsigned nth)
{
    (void) nth;
    return NULL;
}
#endif
