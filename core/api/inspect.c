/* inspect.c - looks inside answers that say 200.
 *
 * Engines report failures in-band: {"error": {...}}, {"object": "error", ...}, an SSE error event first, SGLang's
 * finish_reason "abort" (sglang-on-cpu facts: "Failures", "Abort and disconnect"; vLLM: a failed KV load of a stream).
 */
#include "api/inspect.h"

#include "http/sse.h"

static unsigned status_or_500(const bt_json_item_t *code)
{
    int64_t value;

    if (code->type == BT_JSON_NUMBER && bt_json_i64(code->value, &value) == 0 && value >= 400 &&
        value <= 599)
        return (unsigned) value;
    return 500;
}

/* What is looked into below was validated when the member that holds it was yielded. */
static bt_json_item_t find(bt_str_t object, bt_str_t name)
{
    const bt_str_t value = bt_json_find(object, name);

    return (bt_json_item_t){.value = value, .type = bt_json_type_of(value)};
}

static unsigned error_status(const bt_json_item_t *error)
{
    bt_json_item_t code = {0};

    if (error->type == BT_JSON_OBJECT)
        code = find(error->value, BT_STR("code"));
    return code.type != BT_JSON_NONE ? status_or_500(&code) : 500;
}

/* SGLang: "finish_reason": {"type": "abort", ..., "status_code": 500}; OpenAI form: "finish_reason": "abort". */
static bool is_abort(bt_json_item_t reason, unsigned *status_p)
{
    bt_json_item_t code;

    *status_p = 500;
    if (reason.type == BT_JSON_STRING)
        return bt_str_eq(reason.value, BT_STR("\"abort\""));
    if (reason.type != BT_JSON_OBJECT ||
        !bt_str_eq(bt_json_find(reason.value, BT_STR("type")), BT_STR("\"abort\"")))
        return false;
    code = find(reason.value, BT_STR("status_code"));
    *status_p = status_or_500(&code);
    return true;
}

static bool choice_aborted(bt_str_t choices, unsigned *status_p)
{
    bt_json_walk_t w;
    bt_str_t choice;
    size_t members;

    bt_json_walk(&w, choices);
    while (bt_json_walk_next(&w, &choice, &members))
        if (choice.p[0] == '{' && is_abort(find(choice, BT_STR("finish_reason")), status_p))
            return true;
    return false;
}

static unsigned judge_member(const bt_json_item_t *m)
{
    unsigned status;

    if (bt_json_key_eq(m, BT_STR("error")))
        return m->type == BT_JSON_NULL || m->type == BT_JSON_FALSE ? 0 : error_status(m);
    if (bt_json_key_eq(m, BT_STR("object")))
        return bt_str_eq(m->value, BT_STR("\"error\"")) ? 500 : 0;
    if (bt_json_key_eq(m, BT_STR("choices")) && m->type == BT_JSON_ARRAY)
        return choice_aborted(m->value, &status) ? status : 0;
    if (bt_json_key_eq(m, BT_STR("meta_info")) && m->type == BT_JSON_OBJECT)
        return is_abort(find(m->value, BT_STR("finish_reason")), &status) ? status : 0;
    /* Anthropic: event data {"type":"error","error":{...}}; the error member decides. */
    return 0;
}

static void keep(bt_json_members_t *members, const bt_json_item_t *m)
{
    if (members->count < members->cap)
        members->items[members->count] = *m;
    members->count++;
}

/* members_p: NULL = nobody asks for them. is_judged: else it has no word of failure in it, and is only read. */
static unsigned judge_object(bt_str_t text, bool is_judged, bt_json_members_t *members_p)
{
    bt_json_cursor_t c;
    bt_json_item_t m;
    unsigned status = 0, code = 0;
    int rc = bt_json_object(&c, text);

    while (rc >= 0 && (rc = bt_json_next(&c, &m)) == 1) {
        if (members_p != NULL)
            keep(members_p, &m);
        if (!is_judged)
            continue;
        if (bt_json_key_eq(&m, BT_STR("code")))
            code = status_or_500(&m);
        if (status == 0)
            status = judge_member(&m);
    }
    if (members_p != NULL && rc == 0)
        members_p->text = text;
    return status == 500 && code != 0 ? code : status; /* {"object":"error", ..., "code": 400} */
}

/* SGLang batches: a list of answers. */
static unsigned judge_list(bt_str_t text)
{
    bt_json_cursor_t c;
    bt_json_item_t e;
    unsigned status = 0;
    int rc = bt_json_array(&c, text);

    while (status == 0 && rc >= 0 && (rc = bt_json_next(&c, &e)) == 1)
        if (e.type == BT_JSON_OBJECT)
            status = judge_object(e.value, true, NULL);
    return status;
}

/* Every failure has the word error or abort in it, spelled so or with escapes. Most answers have neither. */
static bool may_fail(bt_str_t text)
{
    return text.n != 0 &&
           (memchr(text.p, '\\', text.n) != NULL || bt_str_find(text, BT_STR("error")) >= 0 ||
            bt_str_find(text, BT_STR("abort")) >= 0);
}

/* A cut object is judged by the members that are whole. */
unsigned bt_inspect_json(bt_str_t body)
{
    body = bt_str_trim(body);
    if (!may_fail(body))
        return 0;
    if (body.n != 0 && body.p[0] == '[')
        return judge_list(body);
    return body.n != 0 && body.p[0] == '{' ? judge_object(body, true, NULL) : 0;
}

unsigned bt_inspect_event(bt_str_t data)
{
    data = bt_str_trim(data);
    if (data.n == 0 || data.p[0] != '{' || !may_fail(data))
        return 0; /* [DONE] and what is not JSON is the client's to judge */
    return judge_object(data, true, NULL);
}

bool bt_inspect_aborted(bt_str_t body, bt_json_members_t *members_p)
{
    bt_sse_t sse;
    bt_str_t event;
    size_t at = 0;
    bool aborted = false;
    char joined[2048];

    if (members_p != NULL) {
        members_p->text = BT_STR_NULL;
        members_p->count = 0;
    }
    body = bt_str_trim(body);
    if (members_p != NULL && body.n != 0 && body.p[0] == '{')
        return judge_object(body, may_fail(body), members_p) != 0;
    if (body.n == 0 || body.p[0] == '[' || body.p[0] == '{')
        return bt_inspect_json(body) != 0;
    bt_sse_init(&sse, BT_INSPECT_SSE_BYTES); /* a streamed prefill answer */
    while (!aborted && bt_sse_next(&sse, body, &at, &event) == 1)
        aborted = bt_inspect_event(bt_sse_data(event, joined, sizeof(joined))) != 0;
    bt_sse_fini(&sse);
    return aborted;
}

bool bt_inspect_kv_transfer(bt_str_t body)
{
    static const bt_str_t sentences[] = {
        BT_STR("KVTransferError"),          BT_STR("Decode transfer failed"),
        BT_STR("Decode handshake failed"),  BT_STR("Prefill transfer failed"),
        BT_STR("Prefill bootstrap failed"), BT_STR("Could not fetch bootstrap info")};

    for (size_t i = 0; i < sizeof(sentences) / sizeof(sentences[0]); i++)
        if (bt_str_find(body, sentences[i]) >= 0)
            return true;
    return false;
}
