/* https.h - calls to an HTTP or HTTPS server on a loop, beside everything else that it does (the only place with libcurl).
 *
 * Owner: the loop that it is made on. A call is embedded in the caller's struct.
 * Life:  new -> get, the call's on_end exactly once, or cancel and then never -> close.
 * Flow:  bytes of the answer come by on_data, never more than a bounded number in one turn of the loop.
 * Cost:  no thread and no blocking call: addresses are the caller's to look up, certificates are given as bytes.
 */
#ifndef BT_DISCOVERY_HTTPS_H
#define BT_DISCOVERY_HTTPS_H

#include "base/str.h"
#include "loop/loop.h"

typedef struct bt_https bt_https_t;
typedef struct bt_https_call bt_https_call_t;

typedef struct bt_https_request { /* borrowed for the call to get */
    const char *url;
    const char *address; /* "10.0.0.1" of the url's host, where that is a name; NULL: it is one */
    const char *token;   /* of a bearer; NULL = none */
    bt_str_t ca;         /* PEM; empty = the system's */
    uint64_t total_ms;   /* from beginning to end */
    const char *const *headers; /* "name: value", NULL-terminated; NULL = no others */
    bt_str_t body;              /* of a POST: JSON, and must live until the call ends */
} bt_https_request_t;

#define BT_HTTPS_WHY_BYTES 320
typedef struct bt_https_end {
    int status;                   /* of the answer; 0 = none came */
    bool is_whole;                /* it came to its end */
    uint64_t retry_after_ms;      /* as it says; 0 = it does not */
    char why[BT_HTTPS_WHY_BYTES]; /* where it did not: what went wrong */
} bt_https_end_t;

struct bt_https_call {
    void (*on_head)(bt_https_call_t *call, int status); /* the answer begins */
    /* False: enough, the call ends as one that is not whole. */
    bool (*on_data)(bt_https_call_t *call, int status, bt_str_t bytes);
    void (*on_end)(bt_https_call_t *call, const bt_https_end_t *end);
    /* private */
    bt_https_t *https;
    void *easy;
    struct curl_slist *headers, *addresses;
    bt_timer_t resume;
    bool is_paused;
    char error[256];
};

/* Without libcurl it says so in err. */
int bt_https_new(bt_https_t **https_p, bt_loop_t *loop, char *err, size_t err_size);
/* Frees itself as soon as the loop has let go of its sockets. No call may run. */
void bt_https_close(bt_https_t *https);
int bt_https_get(bt_https_t *https, bt_https_call_t *call, const bt_https_request_t *request);
int bt_https_post(bt_https_t *https, bt_https_call_t *call, const bt_https_request_t *request);
void bt_https_cancel(bt_https_call_t *call); /* one that does not run is fine */
static inline bool bt_https_runs(const bt_https_call_t *call)
{
    return call->easy != NULL;
}

#endif
