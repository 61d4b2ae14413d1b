#!/bin/sh
# verbs_wire.sh PROGRAM - the groups of verbs_real_test that want two devices on one wire. The last two break it.
set -e
export BATON_RDMA_A=rxe0 BATON_RDMA_B=rxe1
"$1"
BATON_RDMA_A=rxe0,rxe1 BATON_RDMA_B=rxe1,rxe0 "$1" rails
"$1" black
"$1" down
