#include "dispatch/queue/tenant_weights.h"

#include "base/err.h"
#include "dispatch/queue/fair_queue.h"
#include "script/shared/prefix_hash.h"

#include <stdlib.h>

struct bt_tenant_weight_row {
    uint64_t tenant_hash;
    unsigned weight;
};

/* Takes the first part off the text; false: it is none. */
static bool next_part(bt_str_t *text, bt_str_t *part_p, bt_str_t *tenant_p, uint64_t *weight_p)
{
    const char *comma = memchr(text->p, ',', text->n);
    const size_t n = comma != NULL ? (size_t) (comma - text->p) : text->n;
    const char *equals = memchr(text->p, '=', n);

    *part_p = (bt_str_t){text->p, n};
    *text = comma != NULL ? (bt_str_t){comma + 1, text->n - n - 1} : BT_STR_NULL;
    if (equals == NULL || equals == part_p->p)
        return false;
    *tenant_p = (bt_str_t){part_p->p, (size_t) (equals - part_p->p)};
    return bt_str_u64((bt_str_t){equals + 1, n - tenant_p->n - 1}, weight_p) == 0 &&
           *weight_p >= 1 && *weight_p <= BT_FAIR_WEIGHT_MAX;
}

bool bt_tenant_weights_check(bt_str_t text, bt_str_t *wrong_p)
{
    bt_str_t tenant;
    uint64_t weight;

    while (text.n != 0)
        if (!next_part(&text, wrong_p, &tenant, &weight))
            return false;
    return true;
}

int bt_tenant_weights_read(bt_tenant_weights_t *w, bt_str_t text)
{
    unsigned count = 1;
    bt_str_t part, tenant;
    uint64_t weight;

    *w = (bt_tenant_weights_t){.count = 0};
    if (text.n == 0)
        return 0;
    for (size_t i = 0; i < text.n; i++)
        count += text.p[i] == ',';
    w->rows = calloc(count, sizeof(*w->rows));
    if (w->rows == NULL)
        return BT_E_NOMEM;
    while (text.n != 0)
        if (next_part(&text, &part, &tenant, &weight))
            w->rows[w->count++] =
                (struct bt_tenant_weight_row){bt_hash64(tenant, 0), (unsigned) weight};
    return 0;
}

void bt_tenant_weights_fini(bt_tenant_weights_t *w)
{
    free(w->rows);
    *w = (bt_tenant_weights_t){.count = 0};
}

unsigned bt_tenant_weight(const bt_tenant_weights_t *w, bt_str_t tenant)
{
    const uint64_t hash = w->count != 0 ? bt_hash64(tenant, 0) : 0;

    for (unsigned i = 0; i < w->count; i++)
        if (w->rows[i].tenant_hash == hash)
            return w->rows[i].weight;
    return 1;
}
