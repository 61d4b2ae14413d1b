/* What the job's table becomes: a bundle for the loops, then what serves, on probation until it has served for probation_ms. Enough errors
 * in that time (counted by the generation that brought it) put the last good text back, as a new generation; the bad one stays `rejected`
 * until somebody changes it. */
#include "reload/reload_impl.h"

#include "base/flight.h"
#include "base/log.h"
#include "reload/dev.h"

#include <stdio.h>

#define PROBATION_CHECK_MS 50

/* ---- a generation ---- */

static int fill_bundle(const bt_reload_t *reload, bt_policy_bundle_t *b)
{
    const bt_reload_table_t *table = &reload->next;
    int rc = 0;

    b->rules = bt_rules_ref(table->rules);
    b->first_variant = table->first_variant;
    for (unsigned i = 0; i < table->pool_count && rc == 0; i++) {
        rc = bt_bundle_name(b, i, table->pools[i].name);
        for (unsigned s = 0; s < BT_SLOT_COUNT && rc == 0; s++) {
            const bt_reload_part_t *part = &table->pools[i].parts[s];
            b->pools[i].parts[s].is_shadow = table->pools[i].is_shadow;
            if (part->next != NULL)
                rc = bt_bundle_put(b, i, (enum bt_policy_slot) s, part->next->source,
                                   part->next->params,
                                   part->next == part->selection ? part->born : b->number);
        }
    }
    return rc;
}

int bt_reload_bundle_make(bt_reload_t *reload, bt_policy_bundle_t **bundle_p)
{
    const uint64_t number = reload->number + 1;
    bt_policy_bundle_t *b;
    int rc = bt_bundle_new(&b, number, reload->next.pool_count);

    if (rc == 0 && (rc = fill_bundle(reload, b)) < 0)
        bt_bundle_unref(b);
    if (rc == 0) {
        reload->number = number;
        *bundle_p = b;
    }
    return rc;
}

/* ---- after a commit ---- */

static bool has_failed(bt_reload_t *reload, const bt_reload_part_t *part)
{
    char last[320];

    return bt_policy_errors_count(reload->config.errors, part->born, last, sizeof last) >=
           reload->error_limit;
}

/* What the one to come is taken back to: what serves now, on probation or not, unless that fails. */
static void note_before(bt_reload_t *reload, bt_reload_part_t *part)
{
    bt_reload_selection_t *before = part->selection;

    if (part->roll_back || before == NULL || (before != part->good && has_failed(reload, part)))
        before = part->good;
    bt_reload_selection_set(&part->before, bt_reload_selection_ref(before));
}

static void take_next(bt_reload_t *reload, const bt_reload_pool_t *pool, bt_reload_part_t *part)
{
    const bool was_dir = part->selection != NULL && part->selection->source->kind == BT_SOURCE_DIR;

    if (part->next != NULL && !part->is_test_only)
        part->error[0] = '\0';
    part->fallen_back = false;
    note_before(reload, part);
    if (part->roll_back)
        bt_reload_selection_set(&part->rejected, bt_reload_selection_ref(part->selection));
    bt_reload_selection_set(&part->selection, part->next);
    part->next = NULL;
    part->born = reload->number;
    part->committed_ms = bt_clock_ms();
    if (part->good == NULL || part->selection == NULL)
        bt_reload_selection_set(&part->good, bt_reload_selection_ref(part->selection));
    if (was_dir && part->selection != NULL && part->selection->source->kind == BT_SOURCE_SHIPPED) {
        reload->stats.fallbacks++;
        bt_log_warn("policy", "pool %s: the file of policy %s is gone: the shipped one serves",
                    pool->name, part->selection->source->name);
    }
}

/* The text that says why is lost on the way back: it is written again. */
static void note_rollback(bt_reload_t *reload, const bt_reload_pool_t *pool, bt_reload_part_t *part,
                          uint64_t bad)
{
    char last[320] = "";
    unsigned errors = bt_policy_errors_count(reload->config.errors, bad, last, sizeof last);

    part->roll_back = false;
    reload->stats.rollbacks++;
    snprintf(part->error, sizeof part->error,
             "generation %llu was taken back after %u errors, the last one: %s",
             (unsigned long long) bad, errors, last);
    bt_log_error("policy", "pool %s: %s; %s@%s serves again", pool->name, part->error,
                 part->selection->name, part->selection->version);
}

static void take_part(bt_reload_t *reload, const bt_reload_pool_t *pool, enum bt_policy_slot slot,
                      bt_reload_part_t *part, const char *why)
{
    const bool was_bad = part->roll_back;
    const uint64_t before = part->born;

    if (part->next == part->selection) {
        bt_reload_selection_set(&part->next, NULL);
        return;
    }
    take_next(reload, pool, part);
    if (was_bad)
        note_rollback(reload, pool, part, before);
    else if (part->selection != NULL && why != NULL)
        bt_log_info("policy", "pool %s: generation %llu, %s %s@%s from %s (%s)", pool->name,
                    (unsigned long long) reload->number, bt_policy_slot_name(slot),
                    part->selection->name, part->selection->version, part->selection->source->path,
                    why);
    if (!was_bad && part->selection != NULL)
        bt_dev_taken(reload->config.first, part->selection->source);
}

/* The job's table is what serves. why: NULL = the start. */
void bt_reload_take_table(bt_reload_t *reload, const char *why)
{
    if (why != NULL && reload->next.rules != reload->now.rules)
        bt_log_info("rules", "generation %llu: %u rules (%s)", (unsigned long long) reload->number,
                    bt_rules_count(reload->next.rules), why);
    if (reload->next.rules != reload->now.rules)
        reload->rules_error[0] = '\0';
    for (unsigned i = 0; i < reload->next.pool_count; i++)
        for (unsigned s = 0; s < BT_SLOT_COUNT; s++)
            take_part(reload, &reload->next.pools[i], (enum bt_policy_slot) s,
                      &reload->next.pools[i].parts[s], why);
    bt_reload_table_fini(&reload->now);
    reload->now = reload->next;
    reload->next = (bt_reload_table_t){0};
}

void bt_reload_take_generation(bt_reload_t *reload, const char *why)
{
    const bt_reload_commit_t *commit = &reload->commit;

    bt_reload_take_table(reload, why);
    reload->serving = reload->number;
    reload->stats.results[BT_RELOAD_OK]++;
    bt_flight_note(BT_FLIGHT_RELOAD, commit->stall_us, "generation %llu serves (%s)",
                   (unsigned long long) reload->number, why != NULL ? why : "the first");
    bt_log_info("policy",
                "generation %llu serves: %.1f ms to prepare, %llu us to commit, a loop stood still "
                "for at most %llu us",
                (unsigned long long) reload->number,
                (double) (commit->commit_us - commit->start_us) / 1000.0,
                (unsigned long long) reload->stats.last_commit_us,
                (unsigned long long) commit->stall_us);
}

/* ---- probation ---- */

static bool check_probation(bt_reload_t *reload, bt_reload_part_t *part, bool is_shadow,
                            bool *is_bad_p)
{
    if (part->selection == NULL || part->selection == part->good)
        return false;
    if (!is_shadow && has_failed(reload, part))
        *is_bad_p = part->roll_back = true;
    else if (bt_clock_ms() - part->committed_ms >= reload->probation_ms)
        bt_reload_selection_set(&part->good, bt_reload_selection_ref(part->selection));
    return part->selection != part->good;
}

static void on_probation(bt_timer_t *timer)
{
    bt_reload_t *reload = bt_container_of(timer, bt_reload_t, probation);
    bool is_on_probation = false, is_bad = false;

    if (reload->job != NULL) { /* it may be about to replace what is looked at */
        bt_timer_start(timer, PROBATION_CHECK_MS);
        return;
    }
    for (unsigned i = 0; i < reload->now.pool_count; i++)
        for (unsigned s = 0; s < BT_SLOT_COUNT; s++)
            is_on_probation |= check_probation(reload, &reload->now.pools[i].parts[s],
                                               reload->now.pools[i].is_shadow, &is_bad);
    if (is_on_probation)
        bt_timer_start(timer, PROBATION_CHECK_MS);
    if (is_bad && bt_reload_job_add(reload, BT_JOB_ROLLBACK, "rollback", NULL) == 0)
        bt_reload_jobs_run(reload);
}

void bt_reload_probation_init(bt_reload_t *reload)
{
    bt_timer_init(reload->config.control, &reload->probation, on_probation);
}

void bt_reload_probation_start(bt_reload_t *reload)
{
    if (!reload->is_closing && !bt_timer_active(&reload->probation))
        bt_timer_start(&reload->probation, PROBATION_CHECK_MS);
}
