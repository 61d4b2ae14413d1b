/* Written by specs only; see now.h. */
#include "script/shared/now.h"

_Atomic uint64_t bt_now_faked_us;
