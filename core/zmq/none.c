/* In the place of all other sources where libzmq or libmsgpack-c were not there when this was built. */
#include "base/err.h"
#include "zmq/feeds.h"
#include "zmq/msgpack.h"
#include "zmq/publisher.h"
#include "zmq/sender.h"
#include "zmq/sockets.h"

const char bt_zmq_not_built[] =
    "this build has no ZeroMQ: install libzmq3-dev and libmsgpack-dev (Debian 13: "
    "libmsgpack-c-dev), then build again";

bool bt_zmq_is_built(void)
{
    return false;
}

int bt_zmq_new(bt_zmq_t **zmq_p, bt_loop_t *control)
{
    (void) zmq_p;
    (void) control;
    return BT_E_CONFIG;
}

int bt_zmq_bind(bt_zmq_t *zmq, const bt_zmq_socket_config_t *config, unsigned *port_p)
{
    (void) zmq;
    (void) config;
    (void) port_p;
    return BT_E_CONFIG;
}

int bt_zmq_start(bt_zmq_t *zmq)
{
    (void) zmq;
    return BT_E_CONFIG;
}

int bt_zmq_set_allowed(bt_zmq_t *zmq, const bt_network_t *networks, unsigned count)
{
    (void) zmq;
    (void) networks;
    (void) count;
    return BT_E_CONFIG;
}

bt_zmq_stats_t bt_zmq_stats(bt_zmq_t *zmq)
{
    (void) zmq;
    return (bt_zmq_stats_t){0};
}

void bt_zmq_close(bt_zmq_t *zmq, uint64_t deadline_ms, void (*done)(void *user), void *user)
{
    (void) zmq;
    (void) deadline_ms;
    if (done != NULL)
        done(user);
}

int bt_zmq_sender_new(bt_zmq_sender_t **sender_p, enum bt_zmq_sender_kind kind,
                      const char *endpoint, bt_str_t identity)
{
    (void) sender_p;
    (void) kind;
    (void) endpoint;
    (void) identity;
    return BT_E_CONFIG;
}

int bt_zmq_sender_send(bt_zmq_sender_t *sender, const bt_str_t *frames, unsigned count)
{
    (void) sender;
    (void) frames;
    (void) count;
    return BT_E_CONFIG;
}

void bt_zmq_sender_free(bt_zmq_sender_t *sender)
{
    (void) sender;
}

int bt_msgpack_open(bt_msgpack_t *m, bt_str_t bytes)
{
    (void) m;
    (void) bytes;
    return BT_E_CONFIG;
}

void bt_msgpack_close(bt_msgpack_t *m)
{
    (void) m;
}

bool bt_msgpack_is_map(const bt_msgpack_t *m)
{
    (void) m;
    return false;
}

bt_str_t bt_msgpack_text(const bt_msgpack_t *m, const char *key)
{
    (void) m;
    (void) key;
    return BT_STR_NULL;
}

int bt_msgpack_uint(const bt_msgpack_t *m, const char *key, uint64_t *value_p)
{
    (void) m;
    (void) key;
    (void) value_p;
    return BT_E_CONFIG;
}

const bt_msgpack_value_t *bt_msgpack_root(const bt_msgpack_t *m)
{
    (void) m;
    return NULL;
}

enum bt_msgpack_type bt_msgpack_type(const bt_msgpack_value_t *v)
{
    (void) v;
    return BT_MSGPACK_NIL;
}

unsigned bt_msgpack_count(const bt_msgpack_value_t *v)
{
    (void) v;
    return 0;
}

const bt_msgpack_value_t *bt_msgpack_at(const bt_msgpack_value_t *array, unsigned i)
{
    (void) array;
    (void) i;
    return NULL;
}

const bt_msgpack_value_t *bt_msgpack_member(const bt_msgpack_value_t *map, const char *key)
{
    (void) map;
    (void) key;
    return NULL;
}

bt_str_t bt_msgpack_string(const bt_msgpack_value_t *v)
{
    (void) v;
    return BT_STR_NULL;
}

bool bt_msgpack_int(const bt_msgpack_value_t *v, uint64_t *value_p)
{
    (void) v;
    (void) value_p;
    return false;
}

int bt_zmq_feeds_new(bt_zmq_feeds_t **feeds_p, const bt_zmq_feeds_config_t *config)
{
    (void) feeds_p;
    (void) config;
    return BT_E_CONFIG;
}

int bt_zmq_feeds_post(bt_zmq_feeds_t *feeds, void (*run)(void *arg), void *arg)
{
    (void) feeds;
    (void) run;
    (void) arg;
    return BT_E_CONFIG;
}

bool bt_zmq_feeds_close(bt_zmq_feeds_t *feeds, unsigned deadline_ms)
{
    (void) feeds;
    (void) deadline_ms;
    return true;
}

int bt_zmq_feed_open(bt_zmq_feeds_t *feeds, const char *endpoint, const char *answers_at,
                     void *user, bt_zmq_feed_t **feed_p)
{
    (void) feeds;
    (void) endpoint;
    (void) answers_at;
    (void) user;
    (void) feed_p;
    return BT_E_CONFIG;
}

int bt_zmq_feed_ask(bt_zmq_feed_t *feed, bt_str_t question)
{
    (void) feed;
    (void) question;
    return BT_E_CONFIG;
}

void bt_zmq_feed_close(bt_zmq_feed_t *feed)
{
    (void) feed;
}

int bt_zmq_publisher_new(bt_zmq_publisher_t **publisher_p, const bt_zmq_publisher_config_t *config)
{
    (void) publisher_p;
    (void) config;
    return BT_E_CONFIG;
}

int bt_zmq_publish(bt_zmq_publisher_t *publisher, bt_str_t payload, bool is_lost)
{
    (void) publisher;
    (void) payload;
    (void) is_lost;
    return BT_E_CONFIG;
}

unsigned bt_zmq_publisher_serve(bt_zmq_publisher_t *publisher)
{
    (void) publisher;
    return 0;
}

void bt_zmq_publisher_free(bt_zmq_publisher_t *publisher)
{
    (void) publisher;
}
