/* sanitize.h - which sanitizer is this build made with?
 *
 * Owner: nobody.
 * Life:  compile time; BT_ASAN and BT_TSAN are 0 or 1, for gcc and clang.
 * Flow:  AddressSanitizer: free lists are bypassed, so that every use-after-put is a use-after-free it can see.
 *        ThreadSanitizer: signals come late. Both: the same work takes longer.
 * Cost:  none.
 */
#ifndef BT_BASE_SANITIZE_H
#define BT_BASE_SANITIZE_H

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define BT_ASAN 1
#endif
#if __has_feature(thread_sanitizer)
#define BT_TSAN 1
#endif
#endif

#if !defined(BT_ASAN) && defined(__SANITIZE_ADDRESS__)
#define BT_ASAN 1
#elif !defined(BT_ASAN)
#define BT_ASAN 0
#endif

#if !defined(BT_TSAN) && defined(__SANITIZE_THREAD__)
#define BT_TSAN 1
#elif !defined(BT_TSAN)
#define BT_TSAN 0
#endif

#endif
