/* A description is made a worker twice where it has to be: what it has registered is part of what a worker is. */
#include "cluster/successor.h"

#include "base/err.h"

#include <stdlib.h>

/* ---- is it the same process? ---- */

static bool contradicts(const char *a, const char *b)
{
    return a != NULL && b != NULL && strcasecmp(a, b) != 0;
}

static bool differ(int a, int b)
{
    return a != 0 && b != 0 && a != b;
}

static bool have_other_children(const bt_worker_spec_t *a, const bt_worker_spec_t *b)
{
    if (a->child_count == 0 || b->child_count == 0)
        return false;
    if (a->child_count != b->child_count)
        return true;
    for (unsigned i = 0; i < a->child_count; i++)
        if (contradicts(a->children[i], b->children[i]))
            return true;
    return false;
}

/* One that had said nothing of itself may be who says something now. */
static bool has_another_word(const bt_registered_t *before, const bt_registered_t *now)
{
    return before->kv_address[0] != '\0' && !bt_registered_same(before, now);
}

static bool is_same_process(const bt_worker_t *before, const bt_worker_t *now)
{
    const bt_worker_spec_t *a = &before->spec, *b = &now->spec;

    return a->role == b->role && before->engine == now->engine &&
           !contradicts(a->connector, b->connector) &&
           !contradicts(a->dispatch_profile, b->dispatch_profile) &&
           !contradicts(a->engine_id, b->engine_id) && !contradicts(a->kv_host, b->kv_host) &&
           !contradicts(a->kv_address, b->kv_address) && !contradicts(a->version, b->version) &&
           !differ(a->bootstrap_port, b->bootstrap_port) && !differ(a->dp_size, b->dp_size) &&
           !differ(a->tp_size, b->tp_size) && !differ(a->pp_size, b->pp_size) &&
           !have_other_children(a, b) && !has_another_word(&a->registered, &b->registered);
}

/* ---- what is carried ---- */

static void carry_names(bt_worker_t *w, const bt_worker_t *before)
{
    atomic_store(&w->sources, atomic_load(&before->sources));
    for (unsigned i = 0; i < BT_NAMED_COUNT; i++)
        atomic_store(&w->named_ms[i], atomic_load(&before->named_ms[i]));
    atomic_store(&w->draining, atomic_load(&before->draining));
}

/* An engine that is asked for another role may have taken it: no description says which it has. */
static void carry_doubt(bt_worker_t *w, const bt_worker_t *before)
{
    const int state = atomic_load(&before->switching);

    if (state == BT_SWITCH_ASKING || state == BT_SWITCH_UNKNOWN)
        atomic_store(&w->switching, BT_SWITCH_UNKNOWN);
}

static void carry_load(bt_load_sample_t *to, const bt_load_sample_t *from)
{
    atomic_store(&to->running, atomic_load(&from->running));
    atomic_store(&to->waiting, atomic_load(&from->waiting));
    atomic_store(&to->blocked, atomic_load(&from->blocked));
    atomic_store(&to->kv_used_ppm, atomic_load(&from->kv_used_ppm));
    atomic_store(&to->total_tokens, atomic_load(&from->total_tokens));
    atomic_store(&to->started_since, atomic_load(&from->started_since));
    atomic_store(&to->at_ms, atomic_load(&from->at_ms));
}

static void carry_process(bt_worker_t *w, bt_worker_t *before)
{
    struct sockaddr_storage addr;

    w->since_ms = before->since_ms;
    w->succeeds = before->id;
    bt_breaker_carry(&w->breaker, &before->breaker);
    atomic_store(&w->routes_off, atomic_load(&before->routes_off));
    atomic_store(&w->ttft_ema_us, atomic_load(&before->ttft_ema_us));
    atomic_store(&w->tpot_ema_us, atomic_load(&before->tpot_ema_us));
    carry_load(&w->load, &before->load);
    if (atomic_load(&before->health) != BT_HEALTH_UP)
        return;
    if (!atomic_load(&w->has_addr) && bt_worker_get_addr(before, &addr))
        bt_worker_set_addr(w, &addr);
    atomic_store(&w->health, BT_HEALTH_UP);
}

static int carry_ids(bt_worker_t *w, bt_worker_t *before)
{
    const bool has_learned = atomic_load(&before->has_learned);
    int rc = 0;

    pthread_mutex_lock(&before->lock);
    w->learned = before->learned;
    if (before->engine_id_count > 0) {
        w->engine_ids = malloc(before->engine_id_count * sizeof *w->engine_ids);
        rc = w->engine_ids != NULL ? 0 : BT_E_NOMEM;
    }
    if (w->engine_ids != NULL) {
        w->engine_id_count = before->engine_id_count;
        memcpy(w->engine_ids, before->engine_ids, w->engine_id_count * sizeof *w->engine_ids);
    }
    pthread_mutex_unlock(&before->lock);
    atomic_store(&w->has_learned, has_learned);
    atomic_store(&w->has_engine_ids, w->engine_ids != NULL);
    atomic_store(&w->first_token_differs, atomic_load(&before->first_token_differs));
    return rc;
}

static bool speak_alike(const bt_worker_t *a, const bt_worker_t *b)
{
    return a->dialect == b->dialect ||
           (a->dialect != NULL && b->dialect != NULL && strcmp(a->dialect, b->dialect) == 0);
}

static int carry(bt_worker_t *w, bt_worker_t *before, enum bt_successor_by by)
{
    carry_names(w, before);
    w->registered_at_ms = before->registered_at_ms; /* or it would have fallen silent long ago */
    if (by != BT_SUCCESSOR_SWITCHED)
        carry_doubt(w, before);
    if (!is_same_process(before, w))
        return 0;
    carry_process(w, before);
    return speak_alike(before, w) ? carry_ids(w, before) : 0;
}

/* ---- a role that was switched ---- */

const bt_worker_spec_t *bt_successor_said_of(const bt_worker_t *w)
{
    return w->said != NULL ? w->said : &w->spec;
}

bool bt_successor_is_needed(const bt_worker_t *w, const bt_worker_spec_t *spec)
{
    return !bt_worker_spec_same(bt_successor_said_of(w), spec);
}

static bool is_same_text(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

/* What came with the role comes with it again, unless the source says it otherwise now. */
static int keep_role(bt_worker_spec_t *spec, const bt_worker_t *before)
{
    const bt_worker_spec_t *said = before->said, *now = &before->spec;

    spec->role = now->role;
    if (spec->engine == said->engine)
        spec->engine = now->engine;
    if (spec->bootstrap_port == said->bootstrap_port)
        spec->bootstrap_port = now->bootstrap_port;
    if (spec->lease_ms == said->lease_ms)
        spec->lease_ms = now->lease_ms;
    if (!is_same_text(spec->connector, said->connector))
        return 0;
    free(spec->connector);
    spec->connector = now->connector != NULL ? bt_str_dup(bt_str(now->connector)) : NULL;
    return now->connector == NULL || spec->connector != NULL ? 0 : BT_E_NOMEM;
}

static int keep_said(bt_worker_t *w, const bt_worker_spec_t *said)
{
    if (said == NULL || said->role == w->spec.role)
        return 0;
    w->said = malloc(sizeof *w->said);
    const int rc = w->said != NULL ? bt_worker_spec_copy(w->said, said) : BT_E_NOMEM;
    if (rc < 0) {
        free(w->said);
        w->said = NULL;
    }
    return rc;
}

/* ---- what it has registered ---- */

/* Not one of another connector, or of the other role, nor one that comes by a word of its own. */
static bool has_word_for(const bt_worker_t *before, const bt_worker_t *now)
{
    return before->registered_at_ms != 0 && now->spec.registered.kv_address[0] == '\0' &&
           before->spec.role == now->spec.role && before->pair_rules.family != NULL &&
           now->pair_rules.family != NULL &&
           strcmp(before->pair_rules.family, now->pair_rules.family) == 0;
}

/* Takes *worker_p: it becomes one that has registered what `before` has. */
static int keep_registration(bt_registry_t *r, bt_worker_spec_t *spec, const bt_worker_t *before,
                             bt_worker_t **worker_p, char *err, size_t err_size)
{
    if (!has_word_for(before, *worker_p))
        return 0;
    spec->registered = before->spec.registered;
    spec->registered.is_new = false;
    bt_worker_unref(*worker_p);
    *worker_p = NULL;
    const int rc = bt_registry_make_worker(r, spec, worker_p, err, err_size);
    if (rc < 0)
        return rc;
    (*worker_p)->word_at_ms = before->word_at_ms;
    (*worker_p)->is_registered = atomic_load(&before->is_registered);
    return 0;
}

/* ---- the public verbs ---- */

/* It has registered nothing yet. */
static int make_other(bt_registry_t *r, bt_worker_spec_t *spec, const bt_worker_t *before,
                      bt_worker_t **worker_p, char *err, size_t err_size)
{
    spec->registered = (bt_registered_t){0};
    const int rc = bt_registry_make_worker(r, spec, worker_p, err, err_size);
    if (rc == 0)
        carry_names(*worker_p, before);
    return rc;
}

static int make(bt_registry_t *r, enum bt_successor_by by, const bt_worker_spec_t *said,
                bt_worker_spec_t *spec, bt_worker_t *before, bt_worker_t **worker_p, char *err,
                size_t err_size)
{
    const bool keeps_role =
        by == BT_SUCCESSOR_DESCRIBED && before->said != NULL && before->said->role == said->role;
    int rc = keeps_role ? keep_role(spec, before) : 0;

    if (rc == 0)
        rc = bt_registry_make_worker(r, spec, worker_p, err, err_size);
    if (rc == 0)
        rc = keep_registration(r, spec, before, worker_p, err, err_size);
    if (rc == 0)
        rc = carry(*worker_p, before, by);
    if (rc == 0 && by != BT_SUCCESSOR_ADDED)
        rc = keep_said(*worker_p, keeps_role                      ? said
                                  : by == BT_SUCCESSOR_SWITCHED   ? bt_successor_said_of(before)
                                  : by == BT_SUCCESSOR_REGISTERED ? before->said
                                                                  : NULL);
    return rc;
}

int bt_successor_make(bt_registry_t *r, enum bt_successor_by by, const bt_worker_spec_t *spec,
                      const bt_worker_t *before, bt_worker_t **worker_p, char *err, size_t err_size)
{
    bt_worker_t *w = NULL;
    bt_worker_spec_t own;
    int rc;

    if (before == NULL)
        return bt_registry_make_worker(r, spec, worker_p, err, err_size);
    if ((rc = bt_worker_spec_copy(&own, spec)) < 0)
        return rc;
    rc = by == BT_SUCCESSOR_ENDED
             ? make_other(r, &own, before, &w, err, err_size)
             : make(r, by, spec, &own, (bt_worker_t *) (uintptr_t) before, &w, err, err_size);
    bt_worker_spec_fini(&own);
    if (rc < 0)
        bt_worker_unref(w);
    else
        *worker_p = w;
    return rc;
}

int bt_successor_keep_name(bt_worker_t *w, const bt_worker_t *before)
{
    if (w->name == NULL)
        w->name = bt_str_dup(bt_str(before->name));
    return w->name != NULL ? 0 : BT_E_NOMEM;
}
