#include "limits/limit.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define WINDOW_MS 60000
#define ANSWER_TOKENS 256
#define PART_MAX 72 /* of a key; a longer one, and one with a NUL, is its hash */

const char *bt_limit_what_name(enum bt_limit_what what)
{
    static const char *const names[] = {"concurrent", "requests", "tokens", "input_tokens",
                                        "output_tokens"};

    return names[what];
}

const char *bt_limit_part_name(enum bt_limit_part part)
{
    static const char *const names[] = {"address", "key", "tenant", "model"};

    return names[part];
}

/* ---- the list ---- */

bt_limit_table_t *bt_limit_table_new(void)
{
    bt_limit_table_t *table = calloc(1, sizeof *table);

    if (table != NULL)
        atomic_init(&table->refs, 1);
    return table;
}

bt_limit_table_t *bt_limit_table_ref(bt_limit_table_t *table)
{
    atomic_fetch_add_explicit(&table->refs, 1, memory_order_relaxed);
    return table;
}

void bt_limit_table_unref(bt_limit_table_t *table)
{
    if (table == NULL || atomic_fetch_sub_explicit(&table->refs, 1, memory_order_acq_rel) != 1)
        return;
    for (unsigned i = 0; i < table->count; i++) {
        free(table->items[i].name);
        for (unsigned k = 0; k < BT_LIMIT_PARTS; k++)
            free(table->items[i].match[k]);
    }
    free(table);
}

bt_limit_t *bt_limit_table_add(bt_limit_table_t *table)
{
    bt_limit_t *limit;

    if (table->count == BT_LIMITS_MAX)
        return NULL;
    limit = &table->items[table->count++];
    *limit = (bt_limit_t){.window_ms = WINDOW_MS, .answer_tokens = ANSWER_TOKENS};
    for (unsigned i = 0; i < BT_LIMIT_WHATS; i++)
        limit->most[i] = -1;
    return limit;
}

void bt_limit_table_finish(bt_limit_table_t *table)
{
    for (unsigned i = 0; i < table->count; i++) {
        unsigned first = 0;
        while (strcmp(table->items[first].name, table->items[i].name) != 0)
            first++;
        table->items[i].first = first;
    }
}

/* ---- who ---- */

bool bt_limit_fits(const bt_limit_t *limit, const bt_limit_subject_t *subject)
{
    for (unsigned i = 0; i < BT_LIMIT_PARTS; i++)
        if (limit->match[i] != NULL && !bt_str_eq(subject->parts[i], bt_str(limit->match[i])))
            return false;
    return true;
}

/* With lengths, for clients write some of these: no two of them read alike. */
size_t bt_limit_key(const bt_limit_t *limit, enum bt_limit_what what,
                    const bt_limit_subject_t *subject, char out[BT_LIMIT_KEY_MAX])
{
    int n = snprintf(out, BT_LIMIT_KEY_MAX, "l:%s:%s", limit->name, bt_limit_what_name(what));

    if (subject == NULL)
        n += snprintf(out + n, BT_LIMIT_KEY_MAX - (size_t) n, "::others");
    for (unsigned i = 0; subject != NULL && i < BT_LIMIT_PARTS; i++) {
        const bt_str_t part = subject->parts[i];
        if ((limit->per & 1U << i) == 0)
            continue;
        const char kind = bt_limit_part_name(i)[0];
        if (part.n <= PART_MAX && (part.n == 0 || memchr(part.p, '\0', part.n) == NULL))
            n += snprintf(out + n, BT_LIMIT_KEY_MAX - (size_t) n, ":%c%zu=%.*s", kind, part.n,
                          BT_STR_ARG(part));
        else
            n += snprintf(out + n, BT_LIMIT_KEY_MAX - (size_t) n, ":%c%zu#%016" PRIx64, kind,
                          part.n, bt_str_hash(part));
    }
    n += snprintf(out + n, BT_LIMIT_KEY_MAX - (size_t) n, ":%" PRIu64, limit->window_ms);
    return (size_t) n;
}

bt_str_t bt_limit_address(bt_str_t peer, char *out)
{
    static const unsigned char mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    unsigned char v6[16];

    if (peer.n >= BT_LIMIT_ADDRESS_MAX)
        peer.n = BT_LIMIT_ADDRESS_MAX - 1;
    if (peer.n != 0)
        memcpy(out, peer.p, peer.n);
    out[peer.n] = '\0';
    if (inet_pton(AF_INET6, out, v6) != 1)
        return (bt_str_t){out, peer.n};
    if (memcmp(v6, mapped, sizeof mapped) == 0) {
        inet_ntop(AF_INET, v6 + 12, out, BT_LIMIT_ADDRESS_MAX);
        return bt_str(out);
    }
    memset(v6 + 8, 0, 8);
    inet_ntop(AF_INET6, v6, out, BT_LIMIT_ADDRESS_MAX - 4);
    memcpy(out + strlen(out), "/64", 4);
    return bt_str(out);
}
