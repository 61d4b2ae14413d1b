/* libzmq.h - loads libzmq; internal to core/zmq. Before that none of its functions may be called. */
#ifndef BT_ZMQ_LIBZMQ_H
#define BT_ZMQ_LIBZMQ_H

/* NULL, or why not. From any thread. */
const char *bt_libzmq_load(void);

#endif
