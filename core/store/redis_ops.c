/* redis_ops.c - commands out, replies in. A shape that no server of ours would send is an error of the store, never an assertion. */
#include "store/redis_ops.h"

#include "base/err.h"

#include <hiredis/hiredis.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- out ---- */
/* "*3\r\n", "$12\r\n": by hand, since each command has a handful and printf would be most of its cost. */
static void put_count(bt_text_t *text, char kind, size_t n)
{
    char line[24];
    size_t at = sizeof(line);

    line[--at] = '\n';
    line[--at] = '\r';
    do
        line[--at] = (char) ('0' + n % 10);
    while ((n /= 10) > 0);
    line[--at] = kind;
    bt_text_put(text, (bt_str_t){line + at, sizeof(line) - at});
}

void bt_redis_put_head(bt_text_t *text, unsigned count)
{
    put_count(text, '*', count);
}

void bt_redis_put_arg(bt_text_t *text, bt_str_t arg)
{
    put_count(text, '$', arg.n);
    bt_text_put(text, arg);
    bt_text_put(text, BT_STR("\r\n"));
}

void bt_redis_key(bt_str_t space, bt_str_t key, char *out, size_t size, size_t *n_p)
{
    int n = snprintf(out, size, "baton:{");
    size_t at = (size_t) n;

    memcpy(out + at, space.p, space.n);
    at += space.n;
    out[at++] = '}';
    out[at++] = ':';
    memcpy(out + at, key.p, key.n);
    *n_p = at + key.n;
}

static void put(bt_redis_command_t *c, bt_str_t arg)
{
    bt_redis_put_arg(c->args, arg);
    c->count++;
}

static void put_u64(bt_redis_command_t *c, uint64_t n)
{
    char text[24];

    snprintf(text, sizeof(text), "%" PRIu64, n);
    put(c, bt_str(text));
}

static void put_i64(bt_redis_command_t *c, int64_t n)
{
    char text[24];

    snprintf(text, sizeof(text), "%" PRId64, n);
    put(c, bt_str(text));
}

static void put_key(bt_redis_command_t *c, const bt_store_op_t *op)
{
    char key[BT_STORE_SPACE_MAX + BT_STORE_KEY_MAX + 16];
    size_t n;

    bt_redis_key(op->space, op->key, key, sizeof(key), &n);
    put(c, (bt_str_t){key, n});
}

static void begin_script(bt_redis_command_t *c, enum bt_redis_script script,
                         const bt_store_op_t *op)
{
    c->script = script;
    put(c, BT_STR("1"));
    put_key(c, op);
}

static void put_cell_set(bt_redis_command_t *c, const bt_store_op_t *op)
{
    put(c, BT_STR("SET"));
    put_key(c, op);
    put(c, op->value);
    if (op->ttl_ms > 0) {
        put(c, BT_STR("PX"));
        put_u64(c, bt_store_ttl_ms(op));
    }
    if (op->if_absent)
        put(c, BT_STR("NX"));
}

static void put_counter(bt_redis_command_t *c, const bt_store_op_t *op)
{
    if (op->ttl_ms > 0) {
        begin_script(c, BT_REDIS_COUNTER_ADD, op);
        put_i64(c, op->amount);
        put_u64(c, bt_store_ttl_ms(op));
        return;
    }
    put(c, BT_STR("INCRBY"));
    put_key(c, op);
    put_i64(c, op->amount);
}

static void put_cell_or_counter(bt_redis_command_t *c, const bt_store_op_t *op)
{
    if (op->what == BT_STORE_COUNTER_ADD) {
        put_counter(c, op);
    } else if (op->what == BT_STORE_CELL_SET) {
        put_cell_set(c, op);
    } else {
        put(c, op->what == BT_STORE_CELL_GET ? BT_STR("GET") : BT_STR("DEL"));
        put_key(c, op);
    }
}

static void put_lease(bt_redis_command_t *c, const bt_store_op_t *op)
{
    bool takes = op->what == BT_STORE_LEASE_TAKE;

    begin_script(c, takes ? BT_REDIS_LEASE_TAKE : BT_REDIS_LEASE_DROP, op);
    put(c, op->value);
    if (takes)
        put_u64(c, bt_store_ttl_ms(op));
}

static void put_window(bt_redis_command_t *c, const bt_store_op_t *op)
{
    bool takes = op->what == BT_STORE_WINDOW_TAKE;

    begin_script(c, takes ? BT_REDIS_WINDOW_TAKE : BT_REDIS_WINDOW_GIVE, op);
    if (takes)
        put_i64(c, op->limit);
    put_u64(c, op->window_ms);
    put_i64(c, op->amount);
    if (!takes)
        put_u64(c, op->window);
}

static void put_table(bt_redis_command_t *c, const bt_store_op_t *op)
{
    static const enum bt_redis_script scripts[] = {[BT_STORE_TABLE_PUT] = BT_REDIS_TABLE_PUT,
                                                   [BT_STORE_TABLE_DROP] = BT_REDIS_TABLE_DROP,
                                                   [BT_STORE_TABLE_ALL] = BT_REDIS_TABLE_ALL,
                                                   [BT_STORE_TABLE_SYNC] = BT_REDIS_TABLE_SYNC};

    begin_script(c, scripts[op->what], op);
    if (op->what == BT_STORE_TABLE_ALL)
        return;
    put(c, op->field);
    if (op->what == BT_STORE_TABLE_DROP)
        return;
    put(c, op->value);
    put_u64(c, bt_store_ttl_ms(op));
}

static void put_log(bt_redis_command_t *c, const bt_store_op_t *op)
{
    int64_t rows = op->limit < BT_STORE_ROWS_MAX ? op->limit : BT_STORE_ROWS_MAX;

    if (op->what == BT_STORE_LOG_ADD) {
        begin_script(c, BT_REDIS_LOG_ADD, op);
        put(c, op->value);
        put_i64(c, op->limit);
    } else {
        begin_script(c, BT_REDIS_LOG_READ, op);
        put(c, op->field);
        put_i64(c, rows);
    }
}

void bt_redis_op_encode(const bt_store_op_t *op, bt_redis_command_t *command)
{
    command->script = BT_REDIS_NO_SCRIPT;
    command->count = 0;
    command->args->len = 0;
    command->args->failed = false;
    if (op->what <= BT_STORE_CELL_DROP)
        put_cell_or_counter(command, op);
    else if (op->what <= BT_STORE_LEASE_DROP)
        put_lease(command, op);
    else if (op->what <= BT_STORE_WINDOW_GIVE)
        put_window(command, op);
    else if (op->what <= BT_STORE_TABLE_SYNC)
        put_table(command, op);
    else
        put_log(command, op);
}

void bt_redis_command_put(const bt_redis_command_t *command, bool with_text, bt_text_t *out)
{
    bool has_script = command->script != BT_REDIS_NO_SCRIPT;

    bt_redis_put_head(out, command->count + (has_script ? 2 : 0));
    if (has_script) {
        bt_redis_put_arg(out, with_text ? BT_STR("EVAL") : BT_STR("EVALSHA"));
        bt_redis_put_arg(out, with_text ? bt_redis_script_text(command->script)
                                        : bt_redis_script_sha(command->script));
    }
    bt_text_put(out, bt_text_str(command->args));
    out->failed |= command->args->failed;
}

/* ---- errors ---- */
static bool has(bt_str_t text, const char *word)
{
    return bt_str_find(text, bt_str(word)) >= 0;
}

/* Up to Redis 6 an error inside a script is wrapped in a sentence, so the code is looked for anywhere in it. */
static bool is_code(bt_str_t text, const char *code)
{
    return bt_str_starts(text, bt_str(code)) ||
           (bt_str_starts(text, BT_STR("ERR Error running script")) && has(text, code));
}

enum bt_redis_error bt_redis_error_of(bt_str_t text)
{
    if (is_code(text, "NOSCRIPT"))
        return BT_REDIS_E_NOSCRIPT;
    if (bt_str_starts(text, BT_STR("MOVED ")))
        return BT_REDIS_E_MOVED;
    if (bt_str_starts(text, BT_STR("ASK ")))
        return BT_REDIS_E_ASK;
    if (is_code(text, "WRONGTYPE") || has(text, "value is not an integer") ||
        has(text, "Invalid stream ID"))
        return BT_REDIS_E_TYPE;
    if (has(text, "would overflow"))
        return BT_REDIS_E_OVERFLOW;
    return is_code(text, "READONLY") ? BT_REDIS_E_READONLY : BT_REDIS_E_STATE;
}

static void decode_error(const redisReply *reply, bt_store_reply_t *r)
{
    switch (bt_redis_error_of((bt_str_t){reply->str, reply->len})) {
    case BT_REDIS_E_TYPE:
        r->rc = BT_E_INVAL;
        break;
    case BT_REDIS_E_OVERFLOW:
        r->rc = BT_E_LIMIT;
        break;
    default:
        r->rc = BT_E_STORE;
    }
    bt_str_tame(reply->str, reply->len);
    r->error = reply->str;
}

/* ---- in ---- */
static bool take_text(const redisReply *reply, bt_str_t *text_p)
{
    if (reply->type != REDIS_REPLY_STRING && reply->type != REDIS_REPLY_STATUS)
        return false;
    *text_p = (bt_str_t){reply->str, reply->len};
    return true;
}

static bool take_number(const redisReply *reply, int64_t *number_p)
{
    if (reply->type == REDIS_REPLY_INTEGER) {
        *number_p = reply->integer;
        return true;
    }
    if (reply->type != REDIS_REPLY_STRING || reply->len == 0)
        return false;
    char *end;
    *number_p = strtoll(reply->str, &end, 10);
    return *end == '\0';
}

static bool take_rows(const redisReply *reply, size_t from, bt_redis_rows_t *rows,
                      bt_store_reply_t *r)
{
    size_t count = (reply->elements - from) / 2;

    if ((reply->elements - from) % 2 != 0)
        return false;
    if (count > rows->cap) {
        bt_store_row_t *grown = realloc(rows->rows, count * sizeof(*grown));
        if (grown == NULL) {
            r->rc = BT_E_NOMEM;
            return true;
        }
        rows->rows = grown;
        rows->cap = (unsigned) count;
    }
    for (size_t i = 0; i < count; i++)
        if (!take_text(reply->element[from + 2 * i], &rows->rows[i].name) ||
            !take_text(reply->element[from + 2 * i + 1], &rows->rows[i].value))
            return false;
    r->rows = rows->rows;
    r->row_count = (unsigned) count;
    return true;
}

static bool is_array(const redisReply *reply, size_t at_least)
{
    return reply->type == REDIS_REPLY_ARRAY && reply->elements >= at_least;
}

static bool take_set(const redisReply *reply, bt_store_reply_t *r)
{
    r->number = reply->type == REDIS_REPLY_STATUS;
    return reply->type == REDIS_REPLY_STATUS || reply->type == REDIS_REPLY_NIL;
}

static bool take_get(const redisReply *reply, bt_store_reply_t *r)
{
    r->is_none = reply->type == REDIS_REPLY_NIL;
    return r->is_none || take_text(reply, &r->text);
}

static bool take_lease(const redisReply *reply, bt_store_reply_t *r)
{
    return is_array(reply, 1) && take_number(reply->element[0], &r->number) &&
           (r->number != 0 || (reply->elements > 1 && take_text(reply->element[1], &r->text)));
}

static bool take_window(const redisReply *reply, bt_store_reply_t *r)
{
    int64_t window, left_ms;

    if (!is_array(reply, 4) || !take_number(reply->element[0], &r->number) ||
        !take_number(reply->element[1], &window) || !take_number(reply->element[2], &left_ms) ||
        !take_number(reply->element[3], &r->rest) || window < 0)
        return false;
    r->window = (uint64_t) window;
    r->left_ms = left_ms > 0 ? (uint64_t) left_ms : 0;
    return true;
}

static bool take_log(const redisReply *reply, bt_redis_rows_t *rows, bt_store_reply_t *r)
{
    int64_t gap;

    if (!is_array(reply, 2) || !take_text(reply->element[0], &r->text) ||
        !take_number(reply->element[1], &gap))
        return false;
    r->is_gap = gap != 0;
    return take_rows(reply, 2, rows, r);
}

static bool decode(const bt_store_op_t *op, const redisReply *reply, bt_redis_rows_t *rows,
                   bt_store_reply_t *r)
{
    switch (op->what) {
    case BT_STORE_CELL_GET:
        return take_get(reply, r);
    case BT_STORE_CELL_SET:
        return take_set(reply, r);
    case BT_STORE_LEASE_TAKE:
        return take_lease(reply, r);
    case BT_STORE_WINDOW_TAKE:
        return take_window(reply, r);
    case BT_STORE_TABLE_ALL:
    case BT_STORE_TABLE_SYNC:
        return is_array(reply, 0) && take_rows(reply, 0, rows, r);
    case BT_STORE_LOG_ADD:
        return take_text(reply, &r->text);
    case BT_STORE_LOG_READ:
        return take_log(reply, rows, r);
    case BT_STORE_TABLE_PUT:
        return reply->type == REDIS_REPLY_INTEGER;
    case BT_STORE_COUNTER_ADD:
    case BT_STORE_CELL_DROP:
    case BT_STORE_LEASE_DROP:
    case BT_STORE_WINDOW_GIVE:
    case BT_STORE_TABLE_DROP:
        return take_number(reply, &r->number);
    }
    return false;
}

void bt_redis_op_decode(const bt_store_op_t *op, const struct redisReply *reply,
                        bt_redis_rows_t *rows, bt_store_reply_t *reply_p)
{
    memset(reply_p, 0, sizeof(*reply_p));
    if (reply->type == REDIS_REPLY_ERROR)
        decode_error(reply, reply_p);
    else if (!decode(op, reply, rows, reply_p))
        *reply_p = (bt_store_reply_t){.rc = BT_E_STORE,
                                      .error = "the shared store sent an unexpected answer"};
}
