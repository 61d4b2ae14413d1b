/* short_memory.h - the next buffer that is asked for is not there.
 *
 * Owner: the spec that sets it.
 * Life:  until one was refused.
 * Flow:  the program is linked with --wrap=bt_buf_new.
 * Cost:  irrelevant.
 */
#ifndef SPEC_UNIT_HTTP_SHORT_MEMORY_H
#define SPEC_UNIT_HTTP_SHORT_MEMORY_H

#include "base/buf.h"

__attribute__((weak)) bool is_memory_short; /* one for all files of a program */

bt_buf_t *__real_bt_buf_new(size_t cap);
bt_buf_t *__wrap_bt_buf_new(size_t cap);
__attribute__((weak)) bt_buf_t *__wrap_bt_buf_new(size_t cap)
{
    if (!is_memory_short)
        return __real_bt_buf_new(cap);
    is_memory_short = false;
    return NULL;
}

#endif
