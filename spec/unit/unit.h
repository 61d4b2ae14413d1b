/* unit.h - cmocka, and the four headers that must stand before it. */
#ifndef SPEC_UNIT_H
#define SPEC_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#endif
