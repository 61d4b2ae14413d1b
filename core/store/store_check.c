/* store_check.c - what an op must be before a store sees it, so that both refuse the same things in the same words. */
#include "store/store_impl.h"

bool bt_store_position_parse(bt_str_t text, uint64_t *epoch_p, uint64_t *number_p)
{
    ptrdiff_t at = bt_str_find(text, BT_STR("-"));

    if (at <= 0 || text.n > 41)
        return false;
    bt_str_t tail = {text.p + at + 1, text.n - (size_t) at - 1};
    return bt_str_u64((bt_str_t){text.p, (size_t) at}, epoch_p) == 0 &&
           bt_str_u64(tail, number_p) == 0;
}

static const char *wrong_name(const bt_store_op_t *op)
{
    if (op->space.n == 0 || op->space.n > BT_STORE_SPACE_MAX ||
        memchr(op->space.p, '{', op->space.n) != NULL ||
        memchr(op->space.p, '}', op->space.n) != NULL)
        return "a space has 1 to 128 bytes and no brace";
    if (op->key.n == 0 || op->key.n > BT_STORE_KEY_MAX)
        return "a key has 1 to 512 bytes";
    if (op->field.n > BT_STORE_FIELD_MAX)
        return "a field has at most 512 bytes";
    if (op->value.n > BT_STORE_VALUE_MAX)
        return "a value has at most 1 MiB";
    return NULL;
}

static bool is_amount(int64_t n)
{
    return n >= 0 && n <= BT_STORE_NUMBER_MAX;
}

static const char *wrong_window(const bt_store_op_t *op)
{
    if (op->window_ms == 0 || op->window_ms > BT_STORE_TTL_MAX_MS)
        return "a window needs window_ms";
    if (!is_amount(op->amount) || !is_amount(op->limit))
        return "amount and limit of a window are not negative and below 2^53";
    return NULL;
}

static const char *wrong_log(const bt_store_op_t *op)
{
    uint64_t epoch, number;

    if (op->limit < 1 || op->limit > BT_STORE_NUMBER_MAX)
        return "a log needs a limit";
    if (op->what == BT_STORE_LOG_READ && op->field.n > 0 && !bt_str_eq(op->field, BT_STR("0")) &&
        !bt_store_position_parse(op->field, &epoch, &number))
        return "this is no position of a log";
    return NULL;
}

const char *bt_store_wrong_with(const bt_store_op_t *op)
{
    const char *wrong = wrong_name(op);

    if (wrong != NULL)
        return wrong;
    switch (op->what) {
    case BT_STORE_COUNTER_ADD:
    case BT_STORE_CELL_GET:
    case BT_STORE_CELL_SET:
    case BT_STORE_CELL_DROP:
    case BT_STORE_TABLE_PUT:
    case BT_STORE_TABLE_DROP:
    case BT_STORE_TABLE_ALL:
    case BT_STORE_TABLE_SYNC:
        return NULL;
    case BT_STORE_LEASE_TAKE:
        if (op->ttl_ms == 0)
            return "a lease needs a ttl";
        __attribute__((fallthrough));
    case BT_STORE_LEASE_DROP:
        return op->value.n == 0 ? "a lease needs an owner" : NULL;
    case BT_STORE_WINDOW_TAKE:
    case BT_STORE_WINDOW_GIVE:
        return wrong_window(op);
    case BT_STORE_LOG_ADD:
    case BT_STORE_LOG_READ:
        return wrong_log(op);
    }
    return "unknown operation";
}
