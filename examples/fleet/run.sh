#!/bin/sh
# Two gateways that act as one through a Redis of their own, over two prefill and two decode simulated workers; Ctrl-C ends all of it.
#   PORT=30000 ADMIN_PORT=29000 REDIS_PORT=16379 examples/fleet/run.sh     # the second gateway has the next port of each
set -eu
cd "$(dirname "$0")/../.."

bin=${BATON_BUILD_DIR:-build/release}
port=${PORT:-30000}
admin_port=${ADMIN_PORT:-29000}
redis_port=${REDIS_PORT:-16379}
port_b=$((port + 1)) admin_port_b=$((admin_port + 1))
dir=$(mktemp -d)
redis_pid= sim_pid= a_pid= b_pid=

end() { # pid
    [ -n "$1" ] || return 0
    kill "$1" 2>/dev/null || true
    wait "$1" 2>/dev/null || true
}
finish() {
    trap - EXIT INT TERM
    for pid in "$a_pid" "$b_pid" "$sim_pid" "$redis_pid"; do
        end "$pid"
    done
    rm -rf "$dir"
    echo
    echo "stopped"
    exit "${1:-0}"
}
trap 'finish 0' INT TERM
trap 'finish $?' EXIT

redis=$(command -v redis-server || command -v valkey-server) || {
    echo "examples/fleet needs a Redis: apt install redis-server (or valkey-server)" >&2
    exit 2
}

# Waits until a file says something or the process that should write it has ended (its log then says why).
wait_for() { # pattern file pid log what
    tries=0
    until grep -qs "$1" "$2"; do
        if ! kill -0 "$3" 2>/dev/null; then
            echo "$5 ended at start:" >&2
            cat "$4" >&2
            exit 1
        fi
        tries=$((tries + 1))
        if [ "$tries" -gt 300 ]; then
            echo "$5 was not ready within 30 s; see $4" >&2
            exit 1
        fi
        sleep 0.1
    done
}

# The first port from $redis_port on that nobody has: a server that finds its port taken ends at once.
start_redis() {
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        : >"$dir/redis.log"
        "$redis" --port "$redis_port" --bind 127.0.0.1 --dir "$dir" --save "" --appendonly no >"$dir/redis.log" 2>&1 &
        redis_pid=$!
        until grep -q "Ready to accept connections" "$dir/redis.log"; do
            kill -0 "$redis_pid" 2>/dev/null || break
            sleep 0.05
        done
        kill -0 "$redis_pid" 2>/dev/null && return 0
        wait "$redis_pid" 2>/dev/null || true
        redis_pid=
        redis_port=$((redis_port + 1))
    done
    echo "no redis-server could be started:" >&2
    cat "$dir/redis.log" >&2
    exit 1
}
start_redis
echo "a Redis on port $redis_port"

"$bin/baton-sim" --ready-file "$dir/sim.ready" --model demo \
    --worker "role=prefill,engine=vllm,connector=NixlConnector,count=2,ttft=40,ttft_per_token=0.05" \
    --worker "role=decode,engine=vllm,connector=NixlConnector,count=2,itl=20,answer_tokens=64" >"$dir/sim.log" 2>&1 &
sim_pid=$!
wait_for . "$dir/sim.ready" "$sim_pid" "$dir/sim.log" baton-sim
echo "2 prefill and 2 decode simulated workers"

# "worker p0 prefill http://127.0.0.1:4711 bootstrap=4712"
flags=$(awk '$1 == "worker" && $3 == "prefill" { split($5, b, "="); printf "--prefill %s%s ", $4, (b[2] + 0 > 0) ? " " b[2] : "" }
             $1 == "worker" && $3 == "decode" { printf "--decode %s ", $4 }' "$dir/sim.log")
decode=$(awk '$1 == "worker" && $3 == "decode" { print $4; exit }' "$dir/sim.log")

gateway() { # name port admin-port
    # shellcheck disable=SC2086
    "$bin/baton" run --host 127.0.0.1 --port "$2" --prometheus-port "$3" --vllm-pd-disaggregation $flags \
        --policy spread_decode --policy-dir examples/custom_policy \
        --redis-url "redis://127.0.0.1:$redis_port" --replica-name "$1" \
        --no-access-log --ready-file "$dir/$1.ready" >"$dir/$1.log" 2>&1 &
}
gateway a "$port" "$admin_port"
a_pid=$!
wait_for . "$dir/a.ready" "$a_pid" "$dir/a.log" "gateway a"
gateway b "$port_b" "$admin_port_b"
b_pid=$!
wait_for . "$dir/b.ready" "$b_pid" "$dir/b.log" "gateway b"
for log in a b; do
    eval "pid=\$${log}_pid"
    wait_for "usable workers" "$dir/$log.log" "$pid" "$dir/$log.log" "gateway $log"
done

cat <<TEXT

ready: gateway a on port $port (admin $admin_port, pid $a_pid), gateway b on port $port_b (admin $admin_port_b, pid $b_pid).
In another terminal:

  curl -i http://127.0.0.1:$port_b/v1/completions -H 'Content-Type: application/json' \\
    -d '{"model":"demo","prompt":"hello","max_tokens":8}'
  $bin/baton fleet status --admin http://127.0.0.1:$admin_port
  kill -9 $b_pid                                        # and look again: its load is gone, a serves on

  What else to try: examples/fleet/README.md; a decode worker to drain or remove: $decode

Ctrl-C ends all.

TEXT

# A gateway may be killed: that is one of the things to try.
while kill -0 "$sim_pid" 2>/dev/null && kill -0 "$redis_pid" 2>/dev/null; do
    for name in a b; do
        eval "pid=\$${name}_pid"
        if [ -n "$pid" ] && ! kill -0 "$pid" 2>/dev/null; then
            wait "$pid" 2>/dev/null || true
            echo "gateway $name has ended"
            eval "${name}_pid="
        fi
    done
    [ -n "$a_pid$b_pid" ] || break
    sleep 1
done
echo "nothing is left that could serve:" >&2
tail -n 5 "$dir"/*.log >&2
exit 1
