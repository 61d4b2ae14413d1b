#!/bin/sh
# verbs_loss.sh REAL SUITE - verbs over a wire that loses packets: a group of verbs_real_test, and the whole suite.
set -e
export BATON_RDMA_A=rxe0 BATON_RDMA_B=rxe1 BATON_RDMA_LOSSY=1
"$1" loss
"$2"
