/* head.h - strict reading of HTTP/1.1 heads, shared by server and client. Private to core/http.
 *
 * Owner: the connection that reads.
 * Life:  scan until the blank line is there, then parse once.
 * Flow:  bt_head_scan is our own check (bare CR or LF, NUL, obs-fold, other control characters, space before the colon,
 *        empty name), made before llhttp sees a byte because llhttp's leniency differs by version; bt_head_parse_* then fills
 *        bt_head_t and applies the rules llhttp leaves open (Host count, CL+TE, two lengths, TE other than chunked).
 * Cost:  one pass each; header array from the arena or a fixed array of the connection.
 */
#ifndef BT_HTTP_HEAD_H
#define BT_HTTP_HEAD_H

#include "http/message.h"

/* Length of the head including its blank line; 0 = not complete yet; BT_E_HTTP = malformed; BT_E_HTTP_HEAD_SIZE = no end
 * within BT_HTTP_HEAD_MAX. *seen_p (in/out, start with 0; opaque) lets repeated calls continue where the last one stopped. */
long bt_head_scan(const char *p, size_t n, size_t *seen_p);

/* (p, n): exactly what bt_head_scan measured. headers: array for BT_HTTP_HEADERS_MAX entries that outlives *head_p.
 * Spans in *head_p point into `p`. 0, BT_E_HTTP, BT_E_HTTP_HEAD_SIZE (too many headers); on failure only
 * head_p->refuse says something. */
int bt_head_parse_request(const char *p, size_t n, bt_header_t *headers, bt_head_t *head_p);
/* Method, target and headers have come by HTTP/2: the rules that its framing does not keep. 0, or BT_E_HTTP and head->refuse. */
int bt_head_check_http2(bt_head_t *head);
int bt_head_parse_response(const char *p, size_t n, bt_header_t *headers, bt_head_t *head_p);

#endif
