#include "cluster/worker.h"

#include "base/err.h"

#include <stddef.h>
#include <stdlib.h>

/* The strings of a spec are listed once, by offset, so that copy, free and compare can never disagree about which members
 * there are. The numbers are compared one by one. */

static const size_t text_offsets[] = {
    offsetof(bt_worker_spec_t, url),       offsetof(bt_worker_spec_t, name),
    offsetof(bt_worker_spec_t, connector), offsetof(bt_worker_spec_t, dispatch_profile),
    offsetof(bt_worker_spec_t, engine_id), offsetof(bt_worker_spec_t, kv_host),
    offsetof(bt_worker_spec_t, version),   offsetof(bt_worker_spec_t, transfer_group),
    offsetof(bt_worker_spec_t, zone),      offsetof(bt_worker_spec_t, labels),
    offsetof(bt_worker_spec_t, api_key),   offsetof(bt_worker_spec_t, kv_address),
    offsetof(bt_worker_spec_t, tls_ca),    offsetof(bt_worker_spec_t, tls_cert),
    offsetof(bt_worker_spec_t, tls_key),   offsetof(bt_worker_spec_t, tls_name),
    offsetof(bt_worker_spec_t, kv_events), offsetof(bt_worker_spec_t, kv_events_replay),
};
#define TEXT_COUNT (sizeof text_offsets / sizeof text_offsets[0])

static char **text_at(bt_worker_spec_t *spec, size_t i)
{
    return (char **) (void *) ((char *) spec + text_offsets[i]);
}

static const char *text_of(const bt_worker_spec_t *spec, size_t i)
{
    return *(char *const *) (const void *) ((const char *) spec + text_offsets[i]);
}

static int copy_text(char **to, const char *from)
{
    *to = from != NULL ? bt_str_dup(bt_str(from)) : NULL;
    return from == NULL || *to != NULL ? 0 : BT_E_NOMEM;
}

static bool same_text(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

static bool same_list(char *const *a, unsigned a_count, char *const *b, unsigned b_count)
{
    if (a_count != b_count)
        return false;
    for (unsigned i = 0; i < a_count; i++)
        if (!same_text(a[i], b[i]))
            return false;
    return true;
}

void bt_worker_spec_init(bt_worker_spec_t *spec)
{
    *spec = (bt_worker_spec_t){.role = BT_ROLE_HYBRID, .dp_rank = -1};
}

void bt_worker_spec_fini(bt_worker_spec_t *spec)
{
    for (size_t i = 0; i < TEXT_COUNT; i++)
        free(*text_at(spec, i));
    for (unsigned i = 0; i < spec->model_count; i++)
        free(spec->models[i]);
    for (unsigned i = 0; i < spec->child_count; i++)
        free(spec->children[i]);
    bt_worker_spec_init(spec);
}

int bt_worker_spec_copy(bt_worker_spec_t *to, const bt_worker_spec_t *from)
{
    int rc = 0;
    *to = *from;
    for (size_t i = 0; i < TEXT_COUNT; i++)
        rc |= copy_text(text_at(to, i), text_of(from, i));
    for (unsigned i = 0; i < from->model_count; i++)
        rc |= copy_text(&to->models[i], from->models[i]);
    for (unsigned i = 0; i < from->child_count; i++)
        rc |= copy_text(&to->children[i], from->children[i]);
    if (rc == 0)
        return 0;
    bt_worker_spec_fini(to);
    return BT_E_NOMEM;
}

/* A rank may be given beside the url or at its end. */
static int rank_of(const bt_worker_spec_t *spec)
{
    const char *at = spec->url != NULL ? strrchr(spec->url, '@') : NULL;
    return spec->dp_rank >= 0 || at == NULL ? spec->dp_rank : atoi(at + 1);
}

bool bt_worker_spec_same(const bt_worker_spec_t *a, const bt_worker_spec_t *b)
{
    for (size_t i = 0; i < TEXT_COUNT; i++)
        if (text_offsets[i] != offsetof(bt_worker_spec_t, name) &&
            !same_text(text_of(a, i), text_of(b, i)))
            return false;
    return a->role == b->role && a->engine == b->engine && a->bootstrap_port == b->bootstrap_port &&
           a->dp_size == b->dp_size && a->tp_size == b->tp_size && a->pp_size == b->pp_size &&
           rank_of(a) == rank_of(b) && a->lease_ms == b->lease_ms &&
           same_list(a->models, a->model_count, b->models, b->model_count) &&
           same_list(a->children, a->child_count, b->children, b->child_count);
}
