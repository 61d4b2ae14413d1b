/* The scan is a machine of seven states that takes one byte a step, so it finds the same fault wherever the bytes are
 * cut. Its state travels in the upper bits of *seen_p: a head has at most 2^16 bytes.
 *
 *   FIRST -> LINE -CR-> LINE_LF -> NAME_START -> NAME -:-> VALUE -CR-> VALUE_LF -> NAME_START ... -CR-> END_LF -> done
 *
 * What passes has only CRLF line ends, token names with the colon right behind them and no control character but tab:
 * there is nothing left on which two releases of llhttp could disagree. The start line, which the scan does not know
 * the kind of, is checked by the two parse functions before llhttp sees it.
 */
#include "http/head.h"

#include "base/err.h"

#include <endian.h>
#include <llhttp.h>

enum state { FIRST, LINE, LINE_LF, NAME_START, NAME, VALUE, VALUE_LF, END_LF };

#define STATE_SHIFT 20U
#define AT_MASK (((size_t) 1 << STATE_SHIFT) - 1)
_Static_assert(BT_HTTP_HEAD_MAX < AT_MASK, "position and state share a word");

#define C_TOKEN 1 /* RFC 9110 5.6.2 */
#define C_TEXT 2  /* allowed in a value: visible, blank, tab, obs-text */
#define C_HOST 4  /* in Host: what an authority may hold, without user names */

static const unsigned char class_of[256] = {
    [' '] = C_TEXT,
    ['\t'] = C_TEXT,
    ['!'] = C_TOKEN | C_TEXT | C_HOST,
    ['"'] = C_TEXT,
    ['#'] = C_TOKEN | C_TEXT,
    ['$' ... '\''] = C_TOKEN | C_TEXT | C_HOST,
    ['(' ... ')'] = C_TEXT | C_HOST,
    ['*' ... '+'] = C_TOKEN | C_TEXT | C_HOST,
    [','] = C_TEXT,
    ['-' ... '.'] = C_TOKEN | C_TEXT | C_HOST,
    ['/'] = C_TEXT,
    ['0' ... '9'] = C_TOKEN | C_TEXT | C_HOST,
    [':' ... ';'] = C_TEXT | C_HOST,
    ['<'] = C_TEXT,
    ['='] = C_TEXT | C_HOST,
    ['>' ... '@'] = C_TEXT,
    ['A' ... 'Z'] = C_TOKEN | C_TEXT | C_HOST,
    ['['] = C_TEXT | C_HOST,
    ['\\'] = C_TEXT,
    [']'] = C_TEXT | C_HOST,
    ['^'] = C_TOKEN | C_TEXT,
    ['_'] = C_TOKEN | C_TEXT | C_HOST,
    ['`'] = C_TOKEN | C_TEXT,
    ['a' ... 'z'] = C_TOKEN | C_TEXT | C_HOST,
    ['{'] = C_TEXT,
    ['|'] = C_TOKEN | C_TEXT,
    ['}'] = C_TEXT,
    ['~'] = C_TOKEN | C_TEXT | C_HOST,
    [0x80 ... 0xff] = C_TEXT,
};

static bool is_token(unsigned char c)
{
    return (class_of[c] & C_TOKEN) != 0;
}

static bool is_text(unsigned char c)
{
    return (class_of[c] & C_TEXT) != 0;
}

/* Next state, or -1 when the byte may not stand here. */
static int step(enum state state, unsigned char c)
{
    switch (state) {
    case FIRST:
        return is_token(c) ? LINE : -1;
    case LINE:
        return c == '\r' ? LINE_LF : is_text(c) ? LINE : -1;
    case NAME_START: /* a blank here would be obs-fold (RFC 9112 5.2) */
        return is_token(c) ? NAME : c == '\r' ? END_LF : -1;
    case NAME:
        return is_token(c) ? NAME : c == ':' ? VALUE : -1;
    case VALUE:
        return c == '\r' ? VALUE_LF : is_text(c) ? VALUE : -1;
    case LINE_LF:
    case VALUE_LF:
        return c == '\n' ? NAME_START : -1;
    case END_LF:
        break;
    }
    return -1;
}

/* Of eight bytes those below 0x20 and 0x7f, by their top bits; above the first there may be more bits than such bytes. */
static uint64_t controls_of(const char *p)
{
    const uint64_t every = UINT64_C(0x0101010101010101);
    uint64_t eight, del;

    memcpy(&eight, p, sizeof(eight));
    eight = le64toh(eight);
    del = eight ^ every * 0x7f;
    return (((eight - every * 0x20) & ~eight) | ((del - every) & ~del)) & every * 0x80;
}

static size_t skip_text(const char *p, size_t at, size_t end)
{
    while (end - at >= 8) {
        const uint64_t controls = controls_of(p + at);
        if (controls == 0) {
            at += 8;
            continue;
        }
        at += (size_t) __builtin_ctzll(controls) / 8;
        if (p[at] != '\t')
            return at;
        at++;
    }
    while (at < end && is_text((unsigned char) p[at]))
        at++;
    return at;
}

static size_t skip_token(const char *p, size_t at, size_t end)
{
    while (at < end && is_token((unsigned char) p[at]))
        at++;
    return at;
}

/* Over what nearly all of a head is, names, colons, text and ends of lines, as long as both bytes of an end are there. */
static size_t skip_lines(int *state, const char *p, size_t at, size_t end)
{
    for (;;) {
        if (*state == NAME) {
            at = skip_token(p, at, end);
            if (at == end || p[at] != ':')
                return at;
            *state = VALUE;
            at++;
        }
        if (*state != LINE && *state != VALUE)
            return at;
        at = skip_text(p, at, end);
        if (end - at < 3 || p[at] != '\r' || p[at + 1] != '\n' ||
            !is_token((unsigned char) p[at + 2]))
            return at;
        *state = NAME;
        at += 3;
    }
}

long bt_head_scan(const char *p, size_t n, size_t *seen_p)
{
    size_t at = *seen_p & AT_MASK;
    int state = (int) (*seen_p >> STATE_SHIFT);
    size_t end = n < BT_HTTP_HEAD_MAX ? n : BT_HTTP_HEAD_MAX;

    for (; (at = skip_lines(&state, p, at, end)) < end; at++) {
        if (state == END_LF && p[at] == '\n')
            return (long) at + 1;
        state = step((enum state) state, (unsigned char) p[at]);
        if (state < 0)
            return BT_E_HTTP;
    }
    *seen_p = at | ((size_t) state << STATE_SHIFT);
    return at == BT_HTTP_HEAD_MAX ? BT_E_HTTP_HEAD_SIZE : 0;
}

/* ---- parsing ---- */

struct parse {
    llhttp_t llhttp;
    bt_head_t *head;
    bt_str_t name, value;
    bool complete;
};

static struct parse *parse_of(llhttp_t *llhttp)
{
    return (struct parse *) llhttp->data;
}

static void extend(bt_str_t *span, const char *at, size_t n)
{
    if (span->p == NULL)
        span->p = at;
    span->n = (size_t) (at - span->p) + n;
}

static int on_url(llhttp_t *llhttp, const char *at, size_t n)
{
    extend(&parse_of(llhttp)->head->target, at, n);
    return 0;
}

static int on_field(llhttp_t *llhttp, const char *at, size_t n)
{
    extend(&parse_of(llhttp)->name, at, n);
    return 0;
}

static int on_value(llhttp_t *llhttp, const char *at, size_t n)
{
    extend(&parse_of(llhttp)->value, at, n);
    return 0;
}

static int on_value_complete(llhttp_t *llhttp)
{
    struct parse *parse = parse_of(llhttp);
    bt_head_t *head = parse->head;

    if (head->header_count == BT_HTTP_HEADERS_MAX) {
        head->truncated_headers = true;
        return HPE_USER;
    }
    bt_str_t value = parse->value;
    while (value.n > 0 && (value.p[value.n - 1] == ' ' || value.p[value.n - 1] == '\t'))
        value.n--;
    head->headers[head->header_count++] = (bt_header_t){parse->name, value};
    parse->name = parse->value = BT_STR_NULL;
    return 0;
}

/* Stops llhttp before it looks at the framing: that is decided here, by rules which do not change with its release. */
static int on_headers_complete(llhttp_t *llhttp)
{
    parse_of(llhttp)->complete = true;
    return HPE_PAUSED;
}

static llhttp_errno_t run_llhttp(enum llhttp_type type, const char *p, size_t n, bt_head_t *head)
{
    static const llhttp_settings_t settings = {
        .on_url = on_url,
        .on_header_field = on_field,
        .on_header_value = on_value,
        .on_header_value_complete = on_value_complete,
        .on_headers_complete = on_headers_complete,
    };
    struct parse parse = {.head = head};

    llhttp_init(&parse.llhttp, type, &settings);
    parse.llhttp.data = &parse;
    llhttp_errno_t rc = llhttp_execute(&parse.llhttp, p, n);
    if (!parse.complete)
        return rc == HPE_OK || rc == HPE_PAUSED ? HPE_INTERNAL : rc;
    if (type == HTTP_RESPONSE)
        head->status = parse.llhttp.status_code;
    return HPE_OK;
}

static int refuse(bt_head_t *head, unsigned status)
{
    head->refuse = status;
    return status == 431 ? BT_E_HTTP_HEAD_SIZE : BT_E_HTTP;
}

/* Number of headers of that name; *value_p gets the last one's value. */
static unsigned count_of(const bt_head_t *head, bt_str_t name, bt_str_t *value_p)
{
    unsigned count = 0;
    for (unsigned i = 0; i < head->header_count; i++) {
        if (!bt_str_ieq(head->headers[i].name, name))
            continue;
        *value_p = head->headers[i].value;
        count++;
    }
    return count;
}

/* chunked has to be the last coding, and only once (RFC 9112 6.1). */
static bool starts_chunked_list(bt_str_t s)
{
    return s.n > 7 && strncasecmp(s.p, "chunked", 7) == 0 && !is_token((unsigned char) s.p[7]);
}

/* RFC 9112 6.3, without its permissions to repair: two lengths are refused even when they agree, and so is a length
 * beside a transfer coding, because the peer behind or before us may repair differently (request smuggling).
 */
static int read_framing(bt_head_t *head)
{
    bt_str_t length, coding;
    unsigned lengths = count_of(head, BT_STR("content-length"), &length);
    unsigned codings = count_of(head, BT_STR("transfer-encoding"), &coding);

    if (lengths > 1 || codings > 1 || (lengths > 0 && codings > 0))
        return refuse(head, 400);
    if (codings > 0) {
        if (head->minor == 0 || coding.n == 0 || starts_chunked_list(coding))
            return refuse(head, 400);
        if (!bt_str_ieq(coding, BT_STR("chunked")))
            return refuse(head, 501);
        head->chunked = true;
    }
    if (lengths > 0) {
        if (length.n == 0 || bt_str_u64(length, &head->length) != 0)
            return refuse(head, 400);
        head->has_length = true;
    }
    return 0;
}

static void read_keep_alive(bt_head_t *head)
{
    bt_str_t name = BT_STR("connection");
    if (head->minor == 0)
        head->keep_alive = bt_head_has_token(head, name, BT_STR("keep-alive"));
    else
        head->keep_alive = true;
    if (bt_head_has_token(head, name, BT_STR("close")))
        head->keep_alive = false;
}

static bool is_version(bt_str_t s)
{
    return s.n == 8 && memcmp(s.p, "HTTP/", 5) == 0 && s.p[5] >= '0' && s.p[5] <= '9' &&
           s.p[6] == '.' && s.p[7] >= '0' && s.p[7] <= '9';
}

/* 0, 400 or 505. */
static unsigned read_version(bt_str_t s, bt_head_t *head)
{
    if (!is_version(s))
        return 400;
    if (s.p[5] != '1' || s.p[7] > '1')
        return 505;
    head->minor = (unsigned) (s.p[7] - '0');
    return 0;
}

static bt_str_t first_line(const char *p, size_t n)
{
    const char *end = memchr(p, '\r', n);
    return (bt_str_t){p, end != NULL ? (size_t) (end - p) : n};
}

/* Cuts s at its first blank; the rest goes to *rest_p. False when there is none. */
static bool cut_blank(bt_str_t s, bt_str_t *word_p, bt_str_t *rest_p)
{
    const char *blank = s.n > 0 ? memchr(s.p, ' ', s.n) : NULL;
    if (blank == NULL)
        return false;
    *word_p = (bt_str_t){s.p, (size_t) (blank - s.p)};
    *rest_p = (bt_str_t){blank + 1, s.n - word_p->n - 1};
    return true;
}

static bool all_visible(bt_str_t s)
{
    for (size_t i = 0; i < s.n; i++)
        if (s.p[i] <= ' ' || s.p[i] > '~' || s.p[i] == '#')
            return false;
    return s.n > 0;
}

static const bt_str_t method_names[] = {
    [BT_GET] = {"GET", 3},         [BT_HEAD] = {"HEAD", 4},     [BT_POST] = {"POST", 4},
    [BT_PUT] = {"PUT", 3},         [BT_DELETE] = {"DELETE", 6}, [BT_PATCH] = {"PATCH", 5},
    [BT_OPTIONS] = {"OPTIONS", 7},
};

const char *bt_method_name(enum bt_method method)
{
    return method_names[method].p;
}

static enum bt_method method_of(bt_str_t s)
{
    for (unsigned i = 0; i < BT_METHOD_OTHER; i++)
        if (bt_str_eq(s, method_names[i]))
            return (enum bt_method) i;
    return BT_METHOD_OTHER;
}

/* 0, 400 or 501. */
static unsigned read_method(bt_head_t *head)
{
    if (head->method_text.n == 0)
        return 400;
    for (size_t i = 0; i < head->method_text.n; i++)
        if (!is_token((unsigned char) head->method_text.p[i]))
            return 400;
    if (bt_str_eq(head->method_text, BT_STR("CONNECT")))
        return 501;
    head->method = method_of(head->method_text);
    return 0;
}

/* method SP target SP version, one blank each (RFC 9112 3). */
static unsigned read_request_line(const char *p, size_t n, bt_head_t *head)
{
    bt_str_t rest, target, version;

    if (!cut_blank(first_line(p, n), &head->method_text, &rest) ||
        !cut_blank(rest, &target, &version) || !all_visible(target))
        return 400;
    unsigned status = read_method(head);
    if (status == 400)
        return 400;
    unsigned wrong_version = read_version(version, head);
    return wrong_version != 0 ? wrong_version : status;
}

static bool is_scheme(bt_str_t target, bt_str_t scheme)
{
    return target.n > scheme.n && strncasecmp(target.p, scheme.p, scheme.n) == 0;
}

/* What Host may hold: no blank, comma, slash or at-sign. */
static bool is_authority(bt_str_t s)
{
    for (size_t i = 0; i < s.n; i++)
        if ((class_of[(unsigned char) s.p[i]] & C_HOST) == 0)
            return false;
    return true;
}

/* Brings an absolute target (RFC 9112 3.2.2) to origin form and splits it. False: neither form. */
static bool read_target(bt_head_t *head)
{
    bt_str_t t = head->target;
    size_t skip = is_scheme(t, BT_STR("http://")) ? 7 : is_scheme(t, BT_STR("https://")) ? 8 : 0;

    if (skip > 0) {
        t.p += skip;
        t.n -= skip;
        size_t authority = 0;
        while (authority < t.n && t.p[authority] != '/' && t.p[authority] != '?')
            authority++;
        head->authority = (bt_str_t){t.p, authority};
        t.p += authority;
        t.n -= authority;
        if (authority == 0 || !is_authority(head->authority) || (t.n > 0 && t.p[0] == '?'))
            return false;
        if (t.n == 0)
            t = BT_STR("/");
    }
    bool any = bt_str_eq(t, BT_STR("*")) && head->method == BT_OPTIONS;
    if (t.n == 0 || (t.p[0] != '/' && !any))
        return false;
    const char *mark = memchr(t.p, '?', t.n);
    head->target = t;
    head->path = (bt_str_t){t.p, mark != NULL ? (size_t) (mark - t.p) : t.n};
    head->query = mark != NULL ? (bt_str_t){mark + 1, t.n - head->path.n - 1} : BT_STR_NULL;
    return true;
}

/* One Host, or none in HTTP/1.0 (RFC 9112 3.2). Where the target names one too, it is the same: a server that goes by the one and a
 * checker that goes by the other would be told two things. */
static bool is_host_fine(const bt_head_t *head)
{
    bt_str_t host = BT_STR_NULL;
    unsigned hosts = count_of(head, BT_STR("host"), &host);

    if (hosts > 1 || (hosts == 0 && head->minor > 0) || !is_authority(host))
        return false;
    return hosts == 0 || head->authority.n == 0 || bt_str_ieq(head->authority, host);
}

int bt_head_parse_request(const char *p, size_t n, bt_header_t *headers, bt_head_t *head_p)
{
    bt_head_t head = {.headers = headers};
    *head_p = head;
    unsigned status = read_request_line(p, n, &head);
    if (status != 0)
        return refuse(head_p, status);
    llhttp_errno_t rc = run_llhttp(HTTP_REQUEST, p, n, &head);
    if (rc != HPE_OK)
        return refuse(head_p, head.truncated_headers ? 431 : rc == HPE_INVALID_METHOD ? 501 : 400);
    if (!read_target(&head) || !is_host_fine(&head))
        return refuse(head_p, 400);
    if (read_framing(&head) != 0)
        return refuse(head_p, head.refuse);
    read_keep_alive(&head);
    *head_p = head;
    return 0;
}

int bt_head_check_http2(bt_head_t *head)
{
    unsigned status = read_method(head);

    if (status != 0)
        return refuse(head, status);
    if (!all_visible(head->target) || (head->target.p[0] != '/' && head->target.p[0] != '*') ||
        !read_target(head) || !is_host_fine(head))
        return refuse(head, 400);
    head->keep_alive = true;
    return read_framing(head);
}

/* Three digits, then the end or a blank and the reason. */
static bool is_status(bt_str_t s)
{
    for (size_t i = 0; i < 3; i++)
        if (s.n < 3 || s.p[i] < '0' || s.p[i] > '9')
            return false;
    return s.n == 3 || s.p[3] == ' ';
}

int bt_head_parse_response(const char *p, size_t n, bt_header_t *headers, bt_head_t *head_p)
{
    bt_head_t head = {.headers = headers};
    bt_str_t version, rest;

    *head_p = head;
    if (!cut_blank(first_line(p, n), &version, &rest) || read_version(version, &head) != 0 ||
        !is_status(rest))
        return refuse(head_p, 400);
    if (run_llhttp(HTTP_RESPONSE, p, n, &head) != HPE_OK)
        return refuse(head_p, head.truncated_headers ? 431 : 400);
    if (head.status < 100 || head.status > 599 || read_framing(&head) != 0)
        return refuse(head_p, 400);
    read_keep_alive(&head);
    *head_p = head;
    return 0;
}
