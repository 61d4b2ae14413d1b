/* How fast base/json walks request bodies: the gateway does it once per request, so this is part of
 * its cost. Prints one line per shape of body; not a test.
 */
#include "base/clock.h"
#include "base/json.h"
#include "base/text.h"

#include <stdio.h>

#define BODY_BYTES ((size_t) 220 * 1024)
#define ROUND_US 300000

static const char english[] = "The quick brown fox jumps over the lazy dog, and nobody minds. ";
static const char escaped[] = "A line with a \\\"quoted\\\" word and an end\\n";
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

static void measure(const char *name, bt_text_t *t)
{
    uint64_t start = bt_clock_us(), spent;
    unsigned rounds = 0;
    int rc = 0;

    do {
        rc |= walk(bt_text_str(t));
        rounds++;
        spent = bt_clock_us() - start;
    } while (spent < ROUND_US);
    printf("%-28s %8zu bytes  %8.1f us  %6.2f GB/s%s\n", name, t->len, (double) spent / rounds,
           (double) t->len * rounds / (double) spent / 1000.0, rc != 0 ? "  REFUSED" : "");
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
    fill_messages(&t, chinese, 2000);
    measure("Chinese", &t);
    fill_ids(&t);
    measure("token ids", &t);
    return 0;
}
