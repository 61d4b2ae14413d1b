/* record.c - see record.h. */
#include "record.h"

#include "base/clock.h"
#include "base/err.h"

#include <stdlib.h>

int sim_record_init(sim_record_t *r, unsigned size, unsigned body_max)
{
    *r = (sim_record_t){.size = size, .body_max = body_max, .next = 1};
    if (size == 0)
        return 0;
    r->ring = calloc(size, sizeof(*r->ring));
    return r->ring != NULL ? 0 : BT_E_NOMEM;
}

static void drop(sim_entry_t *e)
{
    free(e->method);
    free(e->target);
    free(e->headers);
    free(e->body);
    *e = (sim_entry_t){0};
}

void sim_record_clear(sim_record_t *r)
{
    for (unsigned i = 0; r->ring != NULL && i < r->size; i++)
        drop(&r->ring[i]);
}

void sim_record_fini(sim_record_t *r)
{
    sim_record_clear(r);
    free(r->ring);
    r->ring = NULL;
}

static void put_headers(bt_text_t *t, const bt_head_t *head)
{
    char name[128];

    bt_text_puts(t, "{");
    for (unsigned i = 0; i < head->header_count; i++) {
        const bt_header_t *h = &head->headers[i];
        size_t n = h->name.n < sizeof(name) ? h->name.n : sizeof(name);
        for (size_t k = 0; k < n; k++)
            name[k] = (char) (h->name.p[k] >= 'A' && h->name.p[k] <= 'Z' ? h->name.p[k] + 32
                                                                         : h->name.p[k]);
        bt_text_puts(t, i == 0 ? "" : ",");
        bt_text_json_str(t, (bt_str_t){name, n});
        bt_text_puts(t, ":");
        bt_text_json_str(t, h->value);
    }
    bt_text_puts(t, "}");
}

uint64_t sim_record_add(sim_record_t *r, const bt_head_t *head, bt_str_t body)
{
    uint64_t number = r->next++;
    bt_text_t headers;
    sim_entry_t *e;

    if (r->size == 0)
        return number;
    e = &r->ring[number % r->size];
    drop(e);
    bt_text_init(&headers);
    put_headers(&headers, head);
    e->number = number;
    e->time_us = bt_clock_us();
    e->method = bt_str_dup(head->method_text);
    e->target = bt_str_dup(head->target);
    e->headers = bt_str_dup(bt_text_str(&headers));
    e->body_len = body.n;
    e->body_kept = body.n < r->body_max ? body.n : r->body_max;
    e->body = bt_str_dup((bt_str_t){body.p, e->body_kept});
    e->end = "open";
    bt_text_fini(&headers);
    return number;
}

void sim_record_note(sim_record_t *r, uint64_t number, unsigned status, const char *end)
{
    sim_entry_t *e = r->size > 0 ? &r->ring[number % r->size] : NULL;

    if (e == NULL || e->number != number)
        return;
    e->status = status;
    e->end = end;
}

static void print_entry(const sim_entry_t *e, bt_text_t *out)
{
    bt_text_printf(out, "{\"number\":%llu,\"time_us\":%llu,\"method\":\"%s\",\"target\":",
                   (unsigned long long) e->number, (unsigned long long) e->time_us,
                   e->method != NULL ? e->method : "");
    bt_text_json_str(out, bt_str(e->target));
    bt_text_printf(out, ",\"status\":%u,\"end\":\"%s\",\"headers\":%s,\"body_bytes\":%zu,\"body\":",
                   e->status, e->end, e->headers != NULL ? e->headers : "{}", e->body_len);
    bt_text_json_str(out, (bt_str_t){e->body, e->body_kept});
    bt_text_puts(out, "}");
}

void sim_record_print(const sim_record_t *r, uint64_t since, bt_text_t *out)
{
    uint64_t first = r->next > r->size ? r->next - r->size : 1;
    bool any = false;

    if (first <= since)
        first = since + 1;
    bt_text_printf(out, "{\"next\":%llu,\"requests\":[", (unsigned long long) r->next);
    for (uint64_t i = first; r->size > 0 && i < r->next; i++) {
        const sim_entry_t *e = &r->ring[i % r->size];
        if (e->number != i)
            continue;
        bt_text_puts(out, any ? "," : "");
        print_entry(e, out);
        any = true;
    }
    bt_text_puts(out, "]}");
}
