/* faults.c - see faults.h. */
#include "faults.h"

#include "base/err.h"
#include "base/json.h"

#include <stdio.h>

static const struct {
    const char *name;
    enum sim_fault_kind kind;
} kinds[] = {
    {"refuse", SIM_REFUSE},
    {"hang", SIM_HANG},
    {"hang_after_headers", SIM_HANG_HEADERS},
    {"slow_first_byte", SIM_SLOW_FIRST_BYTE},
    {"late_answer", SIM_LATE_ANSWER},
    {"stall", SIM_STALL},
    {"rst", SIM_RST},
    {"fin", SIM_FIN},
    {"cut", SIM_CUT},
    {"lose_end", SIM_LOSE_END},
    {"recompute", SIM_RECOMPUTE},
    {"recompute_again", SIM_RECOMPUTE_AGAIN},
    {"status", SIM_STATUS},
    {"error_body", SIM_ERROR_BODY},
    {"sse_error", SIM_SSE_ERROR},
    {"no_params", SIM_NO_PARAMS},
    {"kv_lost", SIM_KV_LOST},
    {"eos", SIM_EOS},
    {"die", SIM_DIE},
    {"no_call", SIM_NO_CALL},
    {"call_twice", SIM_CALL_TWICE},
    {"bad_call", SIM_BAD_CALL},
    {"late_call", SIM_LATE_CALL},
    {"kv_stall", SIM_KV_STALL},
    {"kv_corrupt", SIM_KV_CORRUPT},
};
#define KIND_COUNT (sizeof(kinds) / sizeof(kinds[0]))

static enum sim_fault_kind kind_of(bt_str_t name)
{
    for (size_t i = 0; i < KIND_COUNT; i++)
        if (bt_str_eq(name, bt_str(kinds[i].name)))
            return kinds[i].kind;
    return SIM_OK;
}

static void put_defaults(sim_fault_t *fault)
{
    if (fault->kind == SIM_STATUS && fault->status == 0)
        fault->status = 500;
    if ((fault->kind == SIM_SLOW_FIRST_BYTE || fault->kind == SIM_LATE_ANSWER) && fault->ms == 0)
        fault->ms = 1000;
    if (fault->kind == SIM_REFUSE && fault->ms == 0)
        fault->ms = 1000;
}

/* The argument's meaning depends on the kind; one number is enough for all of them. */
static void put_argument(sim_fault_t *fault, unsigned number)
{
    switch (fault->kind) {
    case SIM_STATUS:
        fault->status = number;
        break;
    case SIM_SLOW_FIRST_BYTE:
    case SIM_LATE_ANSWER:
    case SIM_REFUSE:
    case SIM_LATE_CALL:
        fault->ms = number;
        break;
    default:
        fault->after_chunks = number;
        break;
    }
}

static int read_number(bt_json_item_t *item, unsigned *out)
{
    int64_t number = 0;

    if (bt_json_i64(item->value, &number) != 0 || number < 0 || number > UINT32_MAX)
        return -1;
    *out = (unsigned) number;
    return 0;
}

static int read_text(bt_json_item_t *item, char *out, size_t size)
{
    long n = bt_json_unescape(item->value, out, size - 1);

    if (n < 0)
        return -1;
    out[n] = '\0';
    return 0;
}

int sim_fault_read(bt_str_t body, sim_fault_t *fault_p, char *error, size_t error_size)
{
    sim_fault_t fault = {.times = 1};
    bt_json_cursor_t c;
    bt_json_item_t item;
    char kind[32] = "";
    int rc = bt_json_object(&c, body), bad = 0;

    while (rc == 0 && bad == 0 && (rc = bt_json_next(&c, &item)) == 1) {
        rc = 0;
        if (bt_json_key_eq(&item, BT_STR("kind")))
            bad = read_text(&item, kind, sizeof(kind));
        else if (bt_json_key_eq(&item, BT_STR("path")))
            bad = read_text(&item, fault.path, sizeof(fault.path));
        else if (bt_json_key_eq(&item, BT_STR("with")))
            bad = read_text(&item, fault.with, sizeof(fault.with));
        else if (bt_json_key_eq(&item, BT_STR("times")))
            bad = read_number(&item, &fault.times);
        else if (bt_json_key_eq(&item, BT_STR("after_chunks")))
            bad = read_number(&item, &fault.after_chunks);
        else if (bt_json_key_eq(&item, BT_STR("status")))
            bad = read_number(&item, &fault.status);
        else if (bt_json_key_eq(&item, BT_STR("ms")))
            bad = read_number(&item, &fault.ms);
        else
            bad = -1;
        if (bad != 0)
            snprintf(error, error_size, "wrong member \"%.*s\"", BT_STR_ARG(item.key));
    }
    if (bad != 0)
        return -1;
    fault.kind = kind_of(bt_str(kind));
    if (rc != 0 || fault.kind == SIM_OK) {
        snprintf(error, error_size, rc != 0 ? "not a JSON object" : "unknown kind \"%s\"", kind);
        return -1;
    }
    put_defaults(&fault);
    *fault_p = fault;
    return 0;
}

int sim_faults_add(sim_faults_t *faults, const sim_fault_t *fault)
{
    if (faults->count == SIM_FAULTS_MAX)
        return BT_E_LIMIT;
    faults->list[faults->count++] = *fault;
    return 0;
}

/* "kind[:number][@role]" */
static sim_fault_t read_header(bt_str_t text, enum sim_role role)
{
    const char *at = memchr(text.p, '@', text.n), *colon;
    sim_fault_t fault = {.times = 1};
    uint64_t number = 0;

    if (at != NULL) {
        bt_str_t wanted = {at + 1, text.n - (size_t) (at + 1 - text.p)};
        if (!bt_str_eq(wanted, bt_str(sim_role_name(role))))
            return (sim_fault_t){0};
        text.n = (size_t) (at - text.p);
    }
    colon = memchr(text.p, ':', text.n);
    if (colon == NULL) {
        fault.kind = kind_of(text);
    } else {
        fault.kind = kind_of((bt_str_t){text.p, (size_t) (colon - text.p)});
        if (bt_str_u64((bt_str_t){colon + 1, text.n - (size_t) (colon + 1 - text.p)}, &number) == 0)
            put_argument(&fault, (unsigned) number);
    }
    put_defaults(&fault);
    return fault;
}

sim_fault_t sim_faults_pick(sim_faults_t *faults, const bt_head_t *head, bt_str_t body,
                            enum sim_role role, bool is_inference)
{
    bt_str_t header = is_inference ? bt_head_get(head, BT_STR("x-sim-fault")) : BT_STR_NULL;

    for (unsigned i = 0; i < faults->count; i++) {
        sim_fault_t fault = faults->list[i];
        if (fault.path[0] == '\0' ? !is_inference : !bt_str_starts(head->path, bt_str(fault.path)))
            continue;
        if (fault.with[0] != '\0' && bt_str_find(body, bt_str(fault.with)) < 0)
            continue;
        if (fault.times != UINT32_MAX && --faults->list[i].times == 0) {
            faults->count--;
            memmove(&faults->list[i], &faults->list[i + 1],
                    (faults->count - i) * sizeof(faults->list[0]));
        }
        return fault;
    }
    return header.n > 0 ? read_header(header, role) : (sim_fault_t){0};
}
