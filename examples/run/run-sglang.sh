#!/bin/sh
# The gateway over a real SGLang prefill/decode pair on this CPU. See README.md beside this file.
#   BATON_VENV_DIR=~/.cache/baton examples/run/run-sglang.sh
set -eu
exec python3 -B "$(dirname "$0")/real/run_sglang.py"
