#!/bin/sh
# verbs_faults.sh PROGRAM - verbs_fault_test's cases one after the other. The last two break the wire.
set -e
for how in kill stop black; do
    echo "-- $how"
    "$1" "$how"
done
tc qdisc del dev va root
echo "-- down"
"$1" down
