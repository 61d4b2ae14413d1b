/* crc32c.h - CRC32C (Castagnoli), by the CPU's instruction where it has one.
 *
 * Owner: nobody.
 * Life:  static; the way is chosen at the first call.
 * Flow:  bt_kv_crc32c(0, ...) begins; the result continues: crc(crc(0, a), b) = crc(0, ab).
 * Cost:  O(bytes); the tables are several times slower than the instruction.
 */
#ifndef BT_TRANSPORT_CRC32C_H
#define BT_TRANSPORT_CRC32C_H

#include <stddef.h>
#include <stdint.h>

uint32_t bt_kv_crc32c(uint32_t crc, const void *p, size_t n);
/* The same by tables, for CPUs without the instruction; exported to be compared with the other. */
uint32_t bt_kv_crc32c_table(uint32_t crc, const void *p, size_t n);

#endif
