#!/bin/sh
# The gateway over a real vLLM prefill/decode pair on this CPU. See README.md beside this file.
#   CONNECTOR=NixlConnector|NixlPushConnector|ExampleConnector|baton BACKEND=tcp|shm BATON_VENV_DIR=~/.cache/baton examples/run/run-vllm.sh
set -eu
exec python3 -B "$(dirname "$0")/real/run_vllm.py"
