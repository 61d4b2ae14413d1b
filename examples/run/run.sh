#!/bin/sh
# The gateway over two prefill and two decode simulated workers, each a process of its own, and a small load; Ctrl-C ends all of it.
# A worker that ends comes back after COMEBACK seconds. examples/tour.md walks through what there is to see.
#   PORT=30000 ADMIN_PORT=29000 ENGINE=baton|vllm|sglang POLICY=least_load LOAD=2 examples/run/run.sh
# With ENGINE=vllm or sglang the workers share a process: simulated KV of those does not leave it.
set -eu
cd "$(dirname "$0")/../.."

bin=${BATON_BUILD_DIR:-build/release}
port=${PORT:-30000}
admin_port=${ADMIN_PORT:-29000}
transfer_port=${TRANSFER_PORT:-29500}
engine=${ENGINE:-baton}
policy=${POLICY:-least_load}
load=${LOAD:-2}
comeback=${COMEBACK:-15}
dir=${RUN_DIR:-build/run}
gateway_pid= load_pid=
mkdir -p "$dir"
rm -f "$dir"/*.pid "$dir"/*.port "$dir"/*.ready "$dir"/*.log

stop() { # pid...
    for pid in "$@"; do kill "$pid" 2>/dev/null || true; done
    for pid in "$@"; do wait "$pid" 2>/dev/null || true; done
}

finish() {
    trap - EXIT INT TERM HUP
    # shellcheck disable=SC2046,SC2086 # words
    stop $load_pid $gateway_pid $(cat "$dir"/*.pid 2>/dev/null)
    rm -f "$dir"/*.pid "$dir"/*.ready
    echo
    echo "stopped"
    exit "${1:-0}"
}
trap 'finish 0' INT TERM HUP
trap 'finish $?' EXIT

case $engine in
vllm) pd=--vllm-pd-disaggregation connector=,connector=NixlConnector ;;
sglang) pd=--pd-disaggregation connector= ;;
baton) # vLLM whose KV really moves, managed by the gateway
    pd="--vllm-pd-disaggregation --connector BatonConnector --transfer-port $transfer_port"
    connector=",connector=BatonConnector,gateway=127.0.0.1:$transfer_port" ;;
*) echo "ENGINE must be baton, vllm or sglang, not $engine" >&2; exit 2 ;;
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

prefill=role=prefill,ttft=40,ttft_per_token=0.05
decode=role=decode,itl=20,answer_tokens=64

# A process of one worker, at the port that it had before; its pid is in $dir/NAME.pid.
start_worker() { # name words
    rm -f "$dir/$1.ready"
    "$bin/baton-sim" --ready-file "$dir/$1.ready" --model demo \
        --worker "$2,engine=vllm$connector,port=$(cat "$dir/$1.port" 2>/dev/null || echo 0)" >"$dir/$1.log" 2>&1 &
    echo $! >"$dir/$1.pid"
}

# "worker p0 prefill http://127.0.0.1:4711 bootstrap=4712" -> --prefill URL 4712, or --decode URL
flags_of() {
    awk '$1 == "worker" && $3 == "prefill" { split($5, b, "="); printf "--prefill %s%s ", $4, (b[2] + 0 > 0) ? " " b[2] : "" }
         $1 == "worker" && $3 == "decode" { printf "--decode %s ", $4 }' "$@"
}

echo "starting 2 prefill and 2 decode simulated workers ($engine)"
if [ "$engine" = baton ]; then
    names="p0 p1 d0 d1"
    for name in $names; do
        case $name in p*) start_worker "$name" "$prefill" ;; *) start_worker "$name" "$decode" ;; esac
    done
    for name in $names; do
        wait_for "$dir/$name.ready" "$(cat "$dir/$name.pid")" "$dir/$name.log" "worker $name"
        awk '$1 == "worker" { n = split($4, part, ":"); print part[n] }' "$dir/$name.log" >"$dir/$name.port"
    done
    flags=$(flags_of "$dir/p0.log" "$dir/p1.log" "$dir/d0.log" "$dir/d1.log")
else
    names=sim
    "$bin/baton-sim" --ready-file "$dir/sim.ready" --model demo \
        --worker "$prefill,engine=$engine$connector,count=2" --worker "$decode,engine=$engine$connector,count=2" >"$dir/sim.log" 2>&1 &
    echo $! >"$dir/sim.pid"
    wait_for "$dir/sim.ready" "$(cat "$dir/sim.pid")" "$dir/sim.log" baton-sim
    flags=$(flags_of "$dir/sim.log")
fi

# Copies that may be edited while it runs.
case $policy in
*/* | *.lua) file=$policy ;; # edit it: it is followed
*)
    file=$dir/policy.lua
    [ -e "policies/$policy.lua" ] || { echo "POLICY=$policy: there is no policies/$policy.lua" >&2; exit 2; }
    cp "policies/$policy.lua" "$file"
    ;;
esac
echo 'return { api = 1, rules = {} }' >"$dir/rules.lua"

echo "starting the gateway with policy $policy"
# shellcheck disable=SC2086
"$bin/baton" run --host 127.0.0.1 --port "$port" --prometheus-port "$admin_port" --policy "$file" --rules-file "$dir/rules.lua" \
    $pd $flags --no-access-log --record-sample 1 --ready-file "$dir/gateway.ready" >"$dir/gateway.log" 2>&1 &
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

# $load requests a second, each at most 20 s.
make_load() {
    trap 'kill "$pause" 2>/dev/null; exit 0' TERM
    n=0 pause=
    while :; do
        n=$((n + 1))
        curl -sN -m 20 -o /dev/null "http://127.0.0.1:$port/v1/chat/completions" -H 'Content-Type: application/json' \
            -H "x-tenant-id: tenant-$((n % 3))" \
            -d "{\"model\":\"demo\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"question $n\"}]}" &
        sleep "$(awk -v rate="$load" 'BEGIN { print 1 / rate }')" &
        pause=$!
        wait "$pause" || true
    done
}
if [ "$load" != 0 ]; then
    make_load >/dev/null 2>&1 &
    load_pid=$!
fi

cat <<TEXT

ready. The dashboard: http://127.0.0.1:$admin_port/ui

Four things to try in another terminal, while you look at it (examples/tour.md has more):

  kill a worker          kill -9 \$(cat $dir/d1.pid)          # it comes back after $comeback s
  break the policy       echo 'oops' >> $file    # the old text serves on; Policies says which line
  explain a request      curl -s 'http://127.0.0.1:$admin_port/explain?format=text', then /explain/<its id>?format=text
  shadow another policy  cp examples/run/shadow.lua $dir/rules.lua    # Policies counts where they disagree

  a request of your own:
  curl -N http://127.0.0.1:$port/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"model":"demo","stream":true,"messages":[{"role":"user","content":"hello"}]}'

  what the answer must say:  $bin/baton-sim --expect --chat --prompt hello --max-tokens 64
  admin:    http://127.0.0.1:$admin_port/   metrics: http://127.0.0.1:$admin_port/metrics   logs: $dir/*.log

Ctrl-C ends all.

TEXT

# Workers that have ended begin again, where each has a process.
gone=
look_after_workers() {
    for name in $names; do
        pid=$(cat "$dir/$name.pid")
        kill -0 "$pid" 2>/dev/null && continue
        [ "$engine" = baton ] || return 1
        case " $gone" in
        *" $name:"*) ;;
        *) gone="$gone$name:$((now + comeback)) "; printf '\nworker %s has ended, and comes back in %s s\n' "$name" "$comeback" ;;
        esac
    done
    left=
    for one in $gone; do
        name=${one%%:*}
        if [ "$now" -lt "${one##*:}" ]; then
            left="$left$one "
            continue
        fi
        case $name in p*) start_worker "$name" "$prefill" ;; *) start_worker "$name" "$decode" ;; esac
        printf '\nworker %s is back\n' "$name"
    done
    gone=$left
}

# One live line: requests so far, those that got a 2xx, events relayed, requests running now.
line() {
    curl -fsS --max-time 2 "http://127.0.0.1:$admin_port/metrics" 2>/dev/null | awk '
        /^baton_requests_total\{/ { n += $NF; if ($0 ~ /status="2[0-9][0-9]"/) ok += $NF }
        /^baton_events_total/ { events += $NF }
        /^baton_live_requests/ { live += $NF }
        END { printf "requests %d   2xx %d   live %d   events %d", n, ok, live, events }'
}
while kill -0 "$gateway_pid" 2>/dev/null; do
    now=$(date +%s)
    look_after_workers || break
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
tail -n 5 "$dir"/*.log >&2
exit 1
