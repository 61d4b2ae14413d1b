/* Look-ups are linear: real heads have about ten headers, and a length compare throws out nearly all of them before a
 * byte is looked at.
 */
#include "http/message.h"

const bt_header_t *bt_head_find(const bt_head_t *head, bt_str_t name)
{
    for (unsigned i = 0; i < head->header_count; i++)
        if (bt_str_ieq(head->headers[i].name, name))
            return &head->headers[i];
    return NULL;
}

bt_str_t bt_head_get(const bt_head_t *head, bt_str_t name)
{
    const bt_header_t *header = bt_head_find(head, name);
    return header != NULL ? header->value : BT_STR_NULL;
}

static bt_str_t trim_blanks(bt_str_t s)
{
    while (s.n > 0 && (s.p[0] == ' ' || s.p[0] == '\t'))
        s.p++, s.n--;
    while (s.n > 0 && (s.p[s.n - 1] == ' ' || s.p[s.n - 1] == '\t'))
        s.n--;
    return s;
}

static bool list_has(bt_str_t list, bt_str_t token)
{
    while (list.n > 0) {
        const char *comma = memchr(list.p, ',', list.n);
        size_t n = comma != NULL ? (size_t) (comma - list.p) : list.n;
        if (bt_str_ieq(trim_blanks((bt_str_t){list.p, n}), token))
            return true;
        n += comma != NULL;
        list.p += n;
        list.n -= n;
    }
    return false;
}

void bt_head_drop(bt_head_t *head, bt_str_t name)
{
    unsigned kept = 0;

    for (unsigned i = 0; i < head->header_count; i++)
        if (!bt_str_ieq(head->headers[i].name, name))
            head->headers[kept++] = head->headers[i];
    head->header_count = kept;
}

/* The header may come several times; together the values are one list (RFC 9110 5.3). */
bool bt_head_has_token(const bt_head_t *head, bt_str_t name, bt_str_t token)
{
    for (unsigned i = 0; i < head->header_count; i++)
        if (bt_str_ieq(head->headers[i].name, name) && list_has(head->headers[i].value, token))
            return true;
    return false;
}

bool bt_head_is_hop(const bt_head_t *head, bt_str_t name)
{
    static const bt_str_t always[] = {
        {"connection", 10},
        {"keep-alive", 10},
        {"proxy-connection", 16},
        {"proxy-authenticate", 18},
        {"te", 2},
        {"proxy-authorization", 19},
        {"trailer", 7},
        {"upgrade", 7},
        {"transfer-encoding", 17},
    };
    for (size_t i = 0; i < sizeof(always) / sizeof(always[0]); i++)
        if (bt_str_ieq(name, always[i]))
            return true;
    return bt_head_has_token(head, BT_STR("connection"), name);
}

/* RFC 9110 15, and what engines answer beyond it. */
const char *bt_http_reason(unsigned status)
{
    static const struct {
        unsigned status;
        const char *text;
    } known[] = {
        {200, "OK"},
        {100, "Continue"},
        {101, "Switching Protocols"},
        {201, "Created"},
        {202, "Accepted"},
        {204, "No Content"},
        {206, "Partial Content"},
        {301, "Moved Permanently"},
        {302, "Found"},
        {303, "See Other"},
        {304, "Not Modified"},
        {307, "Temporary Redirect"},
        {308, "Permanent Redirect"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {402, "Payment Required"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {406, "Not Acceptable"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {410, "Gone"},
        {411, "Length Required"},
        {412, "Precondition Failed"},
        {413, "Content Too Large"},
        {414, "URI Too Long"},
        {415, "Unsupported Media Type"},
        {416, "Range Not Satisfiable"},
        {417, "Expectation Failed"},
        {421, "Misdirected Request"},
        {422, "Unprocessable Content"},
        {424, "Failed Dependency"},
        {425, "Too Early"},
        {426, "Upgrade Required"},
        {428, "Precondition Required"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {499, "Client Closed Request"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {502, "Bad Gateway"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
        {505, "HTTP Version Not Supported"},
        {507, "Insufficient Storage"},
        {529, "Site is overloaded"},
    };
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (known[i].status == status)
            return known[i].text;
    return "Unknown";
}
