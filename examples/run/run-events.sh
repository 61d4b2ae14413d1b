#!/bin/sh
# The gateway over two real engines on this CPU that publish their KV events. See README.md beside this file.
#   BATON_VENV_DIR=~/.cache/baton examples/run/run-events.sh vllm|sglang|pair|sim
set -eu
exec python3 -B "$(dirname "$0")/real/run_events.py" "$@"
