#!/bin/sh
# The gateway over two prefill and two decode simulated workers; Ctrl-C ends all of it.
#   PORT=30000 ADMIN_PORT=29000 ENGINE=vllm|sglang|baton POLICY=least_load examples/run/run.sh
set -eu
cd "$(dirname "$0")/../.."

bin=${BATON_BUILD_DIR:-build/release}
port=${PORT:-30000}
admin_port=${ADMIN_PORT:-29000}
transfer_port=${TRANSFER_PORT:-29500}
engine=${ENGINE:-vllm}
policy=${POLICY:-least_load}
dir=$(mktemp -d)
sim_pid= gateway_pid=

finish() {
    trap - EXIT INT TERM
    [ -z "$gateway_pid" ] || kill "$gateway_pid" 2>/dev/null || true
    [ -z "$gateway_pid" ] || wait "$gateway_pid" 2>/dev/null || true
    [ -z "$sim_pid" ] || kill "$sim_pid" 2>/dev/null || true
    [ -z "$sim_pid" ] || wait "$sim_pid" 2>/dev/null || true
    rm -rf "$dir"
    echo
    echo "stopped"
    exit "${1:-0}"
}
trap 'finish 0' INT TERM
trap 'finish $?' EXIT

case $engine in
vllm) pd=--vllm-pd-disaggregation connector=,connector=NixlConnector ;;
sglang) pd=--pd-disaggregation connector= ;;
baton) # vLLM whose KV really moves, managed by the gateway
    pd="--vllm-pd-disaggregation --connector BatonConnector --transfer-port $transfer_port"
    engine=vllm connector=",connector=BatonConnector,gateway=127.0.0.1:$transfer_port" ;;
*) echo "ENGINE must be vllm, sglang or baton, not $engine" >&2; exit 2 ;;
esac

# Waits until a file appears or the process that should write it has ended (its log then says why).
wait_for() { # file pid log what
    tries=0
    while [ ! -s "$1" ]; do
        if ! kill -0 "$2" 2>/dev/null; then
            echo "$4 ended at start:" >&2
            cat "$3" >&2
            exit 1
        fi
        tries=$((tries + 1))
        if [ "$tries" -gt 300 ]; then
            echo "$4 was not ready within 30 s; see $3" >&2
            exit 1
        fi
        sleep 0.1
    done
}

echo "starting 2 prefill and 2 decode simulated $engine workers"
"$bin/baton-sim" --ready-file "$dir/sim.ready" --model demo \
    --worker "role=prefill,engine=$engine$connector,count=2,ttft=40,ttft_per_token=0.05" \
    --worker "role=decode,engine=$engine$connector,count=2,itl=20,answer_tokens=64" >"$dir/sim.log" 2>&1 &
sim_pid=$!
wait_for "$dir/sim.ready" "$sim_pid" "$dir/sim.log" baton-sim

# "worker p0 prefill http://127.0.0.1:4711 bootstrap=4712"
flags=$(awk '$1 == "worker" && $3 == "prefill" { split($5, b, "="); printf "--prefill %s%s ", $4, (b[2] + 0 > 0) ? " " b[2] : "" }
             $1 == "worker" && $3 == "decode" { printf "--decode %s ", $4 }' "$dir/sim.log")
echo "starting the gateway with policy $policy"
# shellcheck disable=SC2086
"$bin/baton" run --host 127.0.0.1 --port "$port" --prometheus-port "$admin_port" --policy "$policy" $pd $flags \
    --no-access-log --record-sample 1 --ready-file "$dir/gateway.ready" >"$dir/gateway.log" 2>&1 &
gateway_pid=$!
wait_for "$dir/gateway.ready" "$gateway_pid" "$dir/gateway.log" baton

tries=0
until curl -fsS -o /dev/null "http://127.0.0.1:$port/readiness" 2>/dev/null; do
    tries=$((tries + 1))
    if [ "$tries" -gt 100 ]; then
        echo "the gateway found no usable pair:" >&2
        curl -sS "http://127.0.0.1:$port/readiness" >&2 || true
        exit 1
    fi
    sleep 0.1
done

cat <<TEXT

ready. In another terminal:

  curl -N http://127.0.0.1:$port/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"model":"demo","stream":true,"messages":[{"role":"user","content":"hello"}]}'

  what the answer must say:  $bin/baton-sim --expect --chat --prompt hello --max-tokens 64
  look:     http://127.0.0.1:$admin_port/ui
  admin:    http://127.0.0.1:$admin_port/   metrics: http://127.0.0.1:$admin_port/metrics
  workers:  curl -s http://127.0.0.1:$admin_port/workers
  why:      curl -s 'http://127.0.0.1:$admin_port/explain?format=text', then /explain/<its id>?format=text

Ctrl-C ends all.

TEXT

# One live line: requests so far, those that got a 2xx, events relayed, requests running now.
line() {
    curl -fsS --max-time 2 "http://127.0.0.1:$admin_port/metrics" 2>/dev/null | awk '
        /^baton_requests_total\{/ { n += $NF; if ($0 ~ /status="2[0-9][0-9]"/) ok += $NF }
        /^baton_events_total/ { events += $NF }
        /^baton_live_requests/ { live += $NF }
        END { printf "requests %d   2xx %d   live %d   events %d", n, ok, live, events }'
}
while kill -0 "$gateway_pid" 2>/dev/null && kill -0 "$sim_pid" 2>/dev/null; do
    now=$(line || true)
    if [ -t 1 ]; then
        printf '\r%s   ' "$now"
    elif [ "$now" != "${last:-}" ]; then
        printf '%s\n' "$now"
    fi
    last=$now
    sleep 1
done
echo "a process ended by itself:" >&2
tail -n 5 "$dir/gateway.log" "$dir/sim.log" >&2
exit 1
