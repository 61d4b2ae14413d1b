/* redis_greeting.c - one question at a time, so that an error belongs to it.
 *
 * READWRITE asks a cluster's node nothing, and a server alone answers it with an error: an address that a cluster has left may be another server's by now, and
 * one that takes every key would pass for the owner.
 */
#include "store/redis_greeting.h"

#include "store/redis_ops.h"

#include <stdio.h>

static const char *const names[] = {[BT_REDIS_ASK_AUTH] = "AUTH",
                                    [BT_REDIS_ASK_DB] = "SELECT",
                                    [BT_REDIS_ASK_ROLE] = "ROLE",
                                    [BT_REDIS_ASK_CLUSTER] = "READWRITE"};

static bool is_needed(enum bt_redis_greeting step, const bt_redis_target_t *target)
{
    switch (step) {
    case BT_REDIS_ASK_AUTH:
        return target->password != NULL;
    case BT_REDIS_ASK_DB:
        return target->db != 0;
    case BT_REDIS_ASK_ROLE:
        return target->must_be_master;
    case BT_REDIS_ASK_CLUSTER:
        return target->must_be_cluster;
    default:
        return true;
    }
}

static void put_auth(const bt_redis_target_t *target, bt_text_t *text)
{
    bt_redis_put_head(text, target->username != NULL ? 3 : 2);
    bt_redis_put_arg(text, bt_str(names[BT_REDIS_ASK_AUTH]));
    if (target->username != NULL)
        bt_redis_put_arg(text, bt_str(target->username));
    bt_redis_put_arg(text, bt_str(target->password));
}

static void put_db(const bt_redis_target_t *target, bt_text_t *text)
{
    char db[16];

    snprintf(db, sizeof(db), "%u", target->db);
    bt_redis_put_head(text, 2);
    bt_redis_put_arg(text, bt_str(names[BT_REDIS_ASK_DB]));
    bt_redis_put_arg(text, bt_str(db));
}

bool bt_redis_greeting_next(enum bt_redis_greeting *step, const bt_redis_target_t *target,
                            bt_text_t *text)
{
    while (!is_needed(*step, target))
        ++*step;
    if (*step == BT_REDIS_ASK_NOTHING)
        return false;
    if (*step == BT_REDIS_ASK_AUTH) {
        put_auth(target, text);
    } else if (*step == BT_REDIS_ASK_DB) {
        put_db(target, text);
    } else {
        bt_redis_put_head(text, 1);
        bt_redis_put_arg(text, bt_str(names[*step]));
    }
    return true;
}

static bool is_master(const redisReply *reply)
{
    return reply->type == REDIS_REPLY_ARRAY && reply->elements > 0 &&
           reply->element[0]->type == REDIS_REPLY_STRING &&
           strcmp(reply->element[0]->str, "master") == 0;
}

bool bt_redis_greeting_take(enum bt_redis_greeting *step, const redisReply *reply,
                            bool *is_answer_p, char *why, size_t why_size)
{
    *is_answer_p = reply->type == REDIS_REPLY_ERROR;
    if (*is_answer_p && *step == BT_REDIS_ASK_CLUSTER &&
        bt_str_find((bt_str_t){reply->str, reply->len}, BT_STR("cluster support disabled")) >= 0) {
        snprintf(why, why_size, "it is no node of a cluster; write redis://");
        return false;
    }
    if (*is_answer_p) {
        snprintf(why, why_size, "%s is answered with: %s", names[*step], reply->str);
        return false;
    }
    if (*step == BT_REDIS_ASK_ROLE && !is_master(reply)) {
        snprintf(why, why_size, "the server that Sentinel names is no master now");
        return false;
    }
    ++*step;
    return true;
}
