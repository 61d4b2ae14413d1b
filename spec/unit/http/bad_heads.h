/* bad_heads.h - request heads that are refused, and with what. Shared by the specs of the reader and of the server. */
#ifndef SPEC_UNIT_HTTP_BAD_HEADS_H
#define SPEC_UNIT_HTTP_BAD_HEADS_H

#include <stddef.h>

struct bad_head {
    const char *name;
    unsigned status;
    const char *bytes;
    size_t n;
};

#define BAD(name, status, bytes)                                                                   \
    {                                                                                              \
        name, status, bytes, sizeof(bytes) - 1                                                     \
    }
#define GET_ "GET / HTTP/1.1\r\n"
#define HOST_ "Host: h\r\n"
#define END_ "\r\n"

static const struct bad_head bad_heads[] = {
    BAD("no host", 400, GET_ "X: y\r\n" END_),
    BAD("no header at all", 400, GET_ END_),
    BAD("two hosts", 400, GET_ HOST_ "host: h\r\n" END_),
    BAD("two hosts, http/1.0", 400, "GET / HTTP/1.0\r\n" HOST_ HOST_ END_),
    BAD("host with a blank", 400, GET_ "Host: a b\r\n" END_),
    BAD("host with a path", 400, GET_ "Host: a/b\r\n" END_),
    BAD("host list", 400, GET_ "Host: a,b\r\n" END_),
    BAD("length and chunked", 400,
        GET_ HOST_ "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n" END_),
    BAD("chunked and length", 400,
        GET_ HOST_ "Transfer-Encoding: chunked\r\nContent-Length: 0\r\n" END_),
    BAD("two lengths in a list", 400, GET_ HOST_ "Content-Length: 5, 5\r\n" END_),
    BAD("two equal lengths", 400, GET_ HOST_ "Content-Length: 5\r\nContent-Length: 5\r\n" END_),
    BAD("two lengths", 400, GET_ HOST_ "Content-Length: 5\r\ncontent-length: 6\r\n" END_),
    BAD("negative length", 400, GET_ HOST_ "Content-Length: -1\r\n" END_),
    BAD("signed length", 400, GET_ HOST_ "Content-Length: +1\r\n" END_),
    BAD("hexadecimal length", 400, GET_ HOST_ "Content-Length: 0x5\r\n" END_),
    BAD("empty length", 400, GET_ HOST_ "Content-Length:\r\n" END_),
    BAD("length with a blank inside", 400, GET_ HOST_ "Content-Length: 1 2\r\n" END_),
    BAD("length of 2^64", 400, GET_ HOST_ "Content-Length: 18446744073709551616\r\n" END_),
    BAD("two codings", 400,
        GET_ HOST_ "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n" END_),
    BAD("empty coding", 400, GET_ HOST_ "Transfer-Encoding:\r\n" END_),
    BAD("chunked in http/1.0", 400,
        "GET / HTTP/1.0\r\n" HOST_ "Transfer-Encoding: chunked\r\n" END_),
    BAD("bare cr in a value", 400, GET_ HOST_ "X: a\rb\r\n" END_),
    BAD("bare cr at a line's end", 400, GET_ HOST_ "X: a\r\rY: b\r\n" END_),
    BAD("bare lf ends a line", 400, GET_ "Host: h\nX: y\r\n" END_),
    BAD("bare lf ends the start line", 400, "GET / HTTP/1.1\n" HOST_ END_),
    BAD("bare lf ends the head", 400, GET_ HOST_ "\n"),
    BAD("lf cr", 400, GET_ "Host: h\n\r" END_),
    BAD("obs-fold with a blank", 400, GET_ HOST_ "X: a\r\n b\r\n" END_),
    BAD("obs-fold with a tab", 400, GET_ HOST_ "X: a\r\n\tb\r\n" END_),
    BAD("blank before the first header", 400, GET_ " Host: h\r\n" END_),
    BAD("nul in a value", 400, GET_ HOST_ "X: a\0b\r\n" END_),
    BAD("nul in a name", 400, GET_ HOST_ "X\0: a\r\n" END_),
    BAD("nul in the target", 400, "GET /\0 HTTP/1.1\r\n" HOST_ END_),
    BAD("control character in a value", 400, GET_ HOST_ "X: a\x01\r\n" END_),
    BAD("delete in a value", 400, GET_ HOST_ "X: a\x7f\r\n" END_),
    BAD("blank before the colon", 400, GET_ HOST_ "X : a\r\n" END_),
    BAD("tab before the colon", 400, GET_ HOST_ "X\t: a\r\n" END_),
    BAD("empty name", 400, GET_ HOST_ ": a\r\n" END_),
    BAD("no colon", 400, GET_ HOST_ "X\r\n" END_),
    BAD("name that is no token", 400, GET_ HOST_ "X(: a\r\n" END_),
    BAD("name outside ascii", 400, GET_ HOST_ "X\xc3\xa4: a\r\n" END_),
    BAD("http/0.9", 400, "GET /\r\n" END_),
    BAD("two blanks", 400, "GET  / HTTP/1.1\r\n" HOST_ END_),
    BAD("blank at the end of the line", 400, "GET / HTTP/1.1 \r\n" HOST_ END_),
    BAD("tab in the line", 400, "GET\t/ HTTP/1.1\r\n" HOST_ END_),
    BAD("blank in the target", 400, "GET /a b HTTP/1.1\r\n" HOST_ END_),
    BAD("fragment", 400, "GET /a#b HTTP/1.1\r\n" HOST_ END_),
    BAD("target outside ascii", 400, "GET /\xc3\xa4 HTTP/1.1\r\n" HOST_ END_),
    BAD("target without a slash", 400, "GET a HTTP/1.1\r\n" HOST_ END_),
    BAD("asterisk without options", 400, "GET * HTTP/1.1\r\n" HOST_ END_),
    BAD("absolute target without a host", 400, "GET http:///a HTTP/1.1\r\n" HOST_ END_),
    BAD("absolute target with a user name", 400, "GET http://u@h/a HTTP/1.0\r\n" END_),
    BAD("absolute target with a list", 400, "GET http://g,h/a HTTP/1.0\r\n" END_),
    BAD("method that is no token", 400, "G(T / HTTP/1.1\r\n" HOST_ END_),
    BAD("lower-case version", 400, "GET / http/1.1\r\n" HOST_ END_),
    BAD("version with two digits", 400, "GET / HTTP/1.10\r\n" HOST_ END_),
    BAD("not http", 400, "\x16\x03\x01\x02\x00\x01\x00"),
    BAD("two empty lines", 400, "\r\n\r\n" GET_ HOST_ END_),
    BAD("coding gzip", 501, GET_ HOST_ "Transfer-Encoding: gzip\r\n" END_),
    BAD("coding gzip, chunked", 501, GET_ HOST_ "Transfer-Encoding: gzip, chunked\r\n" END_),
    BAD("chunked before gzip", 400, GET_ HOST_ "Transfer-Encoding: chunked, gzip\r\n" END_),
    BAD("chunked twice", 400, GET_ HOST_ "Transfer-Encoding: chunked, chunked\r\n" END_),
    BAD("identity", 501, GET_ HOST_ "Transfer-Encoding: identity\r\n" END_),
    BAD("almost chunked", 501, GET_ HOST_ "Transfer-Encoding: xchunked\r\n" END_),
    BAD("connect", 501, "CONNECT h:1 HTTP/1.1\r\n" HOST_ END_),
    BAD("unknown method", 501, "BREW / HTTP/1.1\r\n" HOST_ END_),
    BAD("lower-case method", 501, "get / HTTP/1.1\r\n" HOST_ END_),
    BAD("http/2 preface", 505, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    BAD("http/1.2", 505, "GET / HTTP/1.2\r\n" HOST_ END_),
    BAD("http/3.0", 505, "GET / HTTP/3.0\r\n" HOST_ END_),
};

#define BAD_HEADS (sizeof(bad_heads) / sizeof(bad_heads[0]))

#endif
