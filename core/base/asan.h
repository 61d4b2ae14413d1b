/* asan.h - is this build one with AddressSanitizer?
 *
 * Owner: nobody.
 * Life:  compile time; internal to base.
 * Flow:  free lists are bypassed when it is, so that every use-after-put is a use-after-free it can
 * see. Cost:  none.
 */
#ifndef BT_BASE_ASAN_H
#define BT_BASE_ASAN_H

#if defined(__SANITIZE_ADDRESS__)
#define BT_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define BT_ASAN 1
#endif
#endif
#ifndef BT_ASAN
#define BT_ASAN 0
#endif

#endif
