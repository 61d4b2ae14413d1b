/* How fast base/json walks request bodies: the gateway does it once per request, so this is part of
 * its cost. Prints one line per shape of body; not a test.
 */
#include "base/clock.h"
#include "base/json.h"
#include "base/text.h"

#include <stdio.h>

#define BODY_BYTES ((size_t) 220 * 1024)
#define ROUNDS_US 300000
#define WALKS 8

static const char english[] = "The quick brown fox jumps over the lazy dog, and nobody minds. ";
static const char escaped[] = "A line with a \\\"quoted\\\" word and an end\\n";
static const char mixed[] = /* as load.c's */
    "the gateway takes what the \\\"first\\\" runner hands to the second,\\n"
    "and na\xc3\xafvely - \xe6\x8e\xa5\xe5\x8a\x9b\xe6\xa3\x92 - runs on ";
static const char chinese[] =
    "\xe4\xbd\xa0\xe5\xa5\xbd\xe4\xb8\x96\xe7\x95\x8c\xef\xbc\x8c\xe8\xbf\x99\xe6\x98\xaf\xe4\xb8"
    "\x80\xe4\xb8\xaa\xe6\xb5\x8b\xe8\xaf\x95\xe3\x80\x82";

static void open_body(bt_text_t *t)
{
    bt_text_init(t);
    bt_text_puts(t, "{\"model\":\"m\",\"stream\":true,\"max_tokens\":128,\"messages\":[");
}

/* Messages of about `bytes` each until the body is full. */
static void fill_messages(bt_text_t *t, const char *words, size_t bytes)
{
    open_body(t);
    while (t->len < BODY_BYTES) {
        bt_text_puts(t, "{\"role\":\"user\",\"content\":\"");
        for (size_t n = 0; n < bytes; n += strlen(words))
            bt_text_puts(t, words);
        bt_text_puts(t, "\"},");
    }
    bt_text_puts(t, "null]}");
}

static void fill_ids(bt_text_t *t)
{
    open_body(t);
    bt_text_puts(t, "null],\"input_ids\":[");
    for (unsigned i = 0; t->len < BODY_BYTES; i++)
        bt_text_printf(t, "%u,", i * 7919 % 128000);
    bt_text_puts(t, "0]}");
}

static int walk(bt_str_t body)
{
    bt_json_cursor_t c;
    bt_json_item_t item;
    int rc = bt_json_object(&c, body);
    while (rc == 0 && (rc = bt_json_next(&c, &item)) > 0)
        rc = 0;
    return rc;
}

/* The least of many short rounds: what the machine does besides only adds. */
static void measure(const char *name, bt_text_t *t)
{
    const uint64_t until = bt_clock_us() + ROUNDS_US;
    uint64_t least = UINT64_MAX;
    int rc = 0;

    while (bt_clock_us() < until) {
        const uint64_t start = bt_clock_us();
        for (unsigned i = 0; i < WALKS; i++)
            rc |= walk(bt_text_str(t));
        const uint64_t spent = bt_clock_us() - start;
        least = spent < least ? spent : least;
    }
    printf("%-32s %8zu bytes  %8.1f us  %6.2f GB/s%s\n", name, t->len, (double) least / WALKS,
           (double) t->len * WALKS / (double) least / 1000.0, rc != 0 ? "  REFUSED" : "");
    bt_text_fini(t);
}

int main(void)
{
    bt_text_t t;

    fill_messages(&t, english, BODY_BYTES);
    measure("one long string", &t);
    fill_messages(&t, english, 500);
    measure("messages of 500 bytes", &t);
    fill_messages(&t, english, 60);
    measure("messages of 60 bytes", &t);
    fill_messages(&t, escaped, 2000);
    measure("escapes every 20 bytes", &t);
    fill_messages(&t, mixed, BODY_BYTES);
    measure("escapes and letters beyond ASCII", &t);
    fill_messages(&t, chinese, 2000);
    measure("Chinese", &t);
    fill_ids(&t);
    measure("token ids", &t);
    return 0;
}
