/* suite_impl.h - what the two halves of the suite share. */
#ifndef SPEC_UNIT_STATE_SUITE_IMPL_H
#define SPEC_UNIT_STATE_SUITE_IMPL_H

#include "suite.h"

#include "base/clock.h"

#include <stdio.h>

extern const bt_store_config_t *suite_config;
extern rig_t suite_rig; /* of the test that runs */
int suite_setup(void **state);
int suite_teardown(void **state);
int suite_run_life(const char *name);

#define rig suite_rig
#define DO(...) rig_do(&rig, OP(__VA_ARGS__))
#define ASK(...) rig_ask(&rig, OP(__VA_ARGS__))
#define S(lit) BT_STR(lit)
#define T(test) cmocka_unit_test_setup_teardown(test, suite_setup, suite_teardown)

/* Turns until the store's clock is surely past: ops in between keep the loop honest. */
#define UNTIL(condition)                                                                           \
    do {                                                                                           \
        turn_once(&rig.loop);                                                                      \
        STEP_UNTIL(condition, turn_once(&rig.loop));                                               \
    } while (0)

#endif
