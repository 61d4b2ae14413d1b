/* message.h - what a request head and a response head look like to the rest of the house.
 *
 * Owner: the connection that parsed it; spans point into its head buffer.
 * Life:  until the exchange ends.
 * Flow:  filled by head.c after the strict scan and llhttp agreed; read-only afterwards.
 * Cost:  header look-up is linear over at most 128 headers, with a precomputed id for the ones that matter.
 */
#ifndef BT_HTTP_MESSAGE_H
#define BT_HTTP_MESSAGE_H

#include "base/str.h"

#include <stdbool.h>
#include <stdint.h>

#define BT_HTTP_HEAD_MAX ((size_t) 64 * 1024)
#define BT_HTTP_HEADERS_MAX 128

typedef struct bt_header {
    bt_str_t name;  /* as sent */
    bt_str_t value; /* trimmed */
} bt_header_t;

enum bt_method {
    BT_GET,
    BT_HEAD,
    BT_POST,
    BT_PUT,
    BT_DELETE,
    BT_PATCH,
    BT_OPTIONS,
    BT_METHOD_OTHER
};
const char *bt_method_name(enum bt_method method); /* no BT_METHOD_OTHER */

typedef struct bt_head {
    enum bt_method method; /* requests */
    unsigned status;       /* responses */
    unsigned minor;        /* HTTP/1.<minor> */
    unsigned header_count;
    bt_header_t *headers;
    bt_str_t method_text;
    bt_str_t target;      /* origin form, as sent */
    bt_str_t path, query; /* target split at '?'; query without it */
    bt_str_t authority;   /* of an absolute target; it is Host's; else empty */
    uint64_t length;      /* Content-Length */
    unsigned refuse; /* refused heads: the status that says why (400, 431, 501, 505); otherwise 0 */
    bool has_length;
    bool chunked;
    bool keep_alive;
    bool truncated_headers; /* never true on accepted heads; more than the maximum is an error */
} bt_head_t;

/* First header of that name (ASCII case-insensitive), or NULL. */
const bt_header_t *bt_head_find(const bt_head_t *head, bt_str_t name);
/* Value or BT_STR_NULL. */
bt_str_t bt_head_get(const bt_head_t *head, bt_str_t name);
/* Takes all headers of that name out. */
void bt_head_drop(bt_head_t *head, bt_str_t name);
/* True when a comma-separated header holds the token. */
bool bt_head_has_token(const bt_head_t *head, bt_str_t name, bt_str_t token);
/* Hop-by-hop (RFC 9110 7.6.1), incl. names listed in Connection. */
bool bt_head_is_hop(const bt_head_t *head, bt_str_t name);
const char *bt_http_reason(unsigned status);

#endif
