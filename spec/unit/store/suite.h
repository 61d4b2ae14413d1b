/* suite.h - what every store does; one suite over both. */
#ifndef SPEC_UNIT_STATE_SUITE_H
#define SPEC_UNIT_STATE_SUITE_H

#include "rig.h"

/* cmocka's result. config is used by every test; the store may be one that other tests use too. */
int suite_run(const char *name, const bt_store_config_t *config);

#endif
