/* libcurl.h - loads libcurl; internal to core/discovery. Before that none of its functions may be called. */
#ifndef BT_DISCOVERY_LIBCURL_H
#define BT_DISCOVERY_LIBCURL_H

#include <stddef.h>

/* 0, or BT_E_CONFIG with why. On the control loop. */
int bt_libcurl_load(char *err, size_t err_size);

#endif
