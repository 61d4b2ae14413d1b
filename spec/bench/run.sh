#!/bin/bash
# run.sh [SECONDS] - what a request costs the gateway, beside single-hop proxies measured in the same run.
#
# Gateway alone on one core; zero-work workers (2 prefill, 2 decode) and the load on another. CPU time by /proc over
# the counted window. Three rounds, all systems in turn in each, medians. Figures are printed, never asserted: absolute
# ones belong to the machine, ratios travel. nginx and HAProxy are one hop (one worker exchange a request, Baton has two).
set -eu
cd "$(dirname "$0")/../.."

build=${BATON_BUILD:-build/release}
seconds=${1:-4}
rounds=3
gateway_cpu=$(($(nproc) > 1 ? 1 : 0))

for program in taskset curl; do
    command -v $program >/dev/null || { echo "bench: $program not found (Debian packages util-linux, curl)" >&2; exit 1; }
done
cmake --build "$build" --target programs bench_tools >/dev/null
bin=$build/bin
dir=$(mktemp -d)
mock=
system=

finish() {
    for pid in $system $mock; do
        kill "$pid" 2>/dev/null || true
    done
    rm -rf "$dir"
}
trap finish EXIT
trap 'exit 130' INT TERM

until_true() { # COMMAND...: 10 s at most
    for _ in $(seq 200); do
        "$@" && return
        sleep 0.05
    done
    echo "bench: gave up on: $*" >&2
    cat "$dir"/*.err >&2
    exit 1
}

# ---- workers ----

taskset -c 0 "$bin/bench_mock" 2 2 >"$dir/mock.out" &
mock=$!
until_true grep -qs ready "$dir/mock.out"
prefills=$(sed -n 's/^prefill //p' "$dir/mock.out")
decodes=$(sed -n 's/^decode //p' "$dir/mock.out")

# ---- systems: each start_* sets `port` (its own) and `pids` (whose CPU counts) ----

is_ready() { curl -sf -m 2 -o /dev/null "http://127.0.0.1:$1/$2"; }

start_baton() { # FLAG PORT-WORD POLICY [more flags]
    local args=() p word=$2
    for p in $prefills; do
        [ "$2" = none ] || word=$p # the prefill port answers as its bootstrap server, too
        args+=(--prefill "http://127.0.0.1:$p" "$word")
    done
    for p in $decodes; do
        args+=(--decode "http://127.0.0.1:$p")
    done
    rm -f "$dir/ready"
    taskset -c $gateway_cpu "$build/baton" run --port 0 --admin-port 0 --loops 1 --policy "$3" --ready-file "$dir/ready" \
        "$1" "${args[@]}" "${@:4}" 2>"$dir/baton.err" &
    system=$!
    until_true test -s "$dir/ready"
    port=$(sed -n 's/.*"port": *\([0-9]*\).*/\1/p' "$dir/ready")
    pids=$system
    until_true is_ready "$port" readiness
}


start_nginx() {
    port=$("$bin/bench_mock" free)
    {
        echo "worker_processes 1; daemon off; pid $dir/nginx.pid; error_log $dir/nginx.err;"
        echo "events { worker_connections 4096; }"
        echo "http { access_log off; client_max_body_size 0; client_body_buffer_size 1m; keepalive_requests 1000000000;"
        for part in client_body proxy fastcgi uwsgi scgi; do
            echo "${part}_temp_path $dir/nginx_$part;"
        done
        echo "upstream decode { keepalive 256; keepalive_requests 1000000000;"
        for p in $decodes; do
            echo "server 127.0.0.1:$p;"
        done
        echo "} server { listen 127.0.0.1:$port; location / { proxy_pass http://decode; proxy_http_version 1.1;"
        echo "proxy_set_header Connection ''; proxy_buffering off; } } }"
    } >"$dir/nginx.conf"
    taskset -c $gateway_cpu nginx -e "$dir/nginx.err" -c "$dir/nginx.conf" 2>>"$dir/nginx.err" &
    system=$!
    until_true is_ready "$port" health
    pids=$(cat /proc/$system/task/$system/children | tr ' ' ',')
}

start_haproxy() {
    port=$("$bin/bench_mock" free)
    {
        printf 'global\n nbthread 1\n maxconn 8192\ndefaults\n mode http\n timeout connect 3s\n timeout client 60s\n'
        printf ' timeout server 60s\nlisten bench\n bind 127.0.0.1:%s\n balance roundrobin\n http-reuse always\n' "$port"
        for p in $decodes; do
            printf ' server d%s 127.0.0.1:%s\n' "$p" "$p"
        done
    } >"$dir/haproxy.cfg"
    taskset -c $gateway_cpu haproxy -db -f "$dir/haproxy.cfg" 2>"$dir/haproxy.err" &
    system=$!
    until_true is_ready "$port" health
    pids=$system
}

start() {
    case $1 in
    nginx) start_nginx ;;
    haproxy) start_haproxy ;;
    baton-nixl) start_baton --vllm-pd-disaggregation none round_robin --no-access-log ;;
    baton-nixl-log) start_baton --vllm-pd-disaggregation none round_robin ;;
    baton-sglang) start_baton --pd-disaggregation bootstrap round_robin --no-access-log ;;
    esac
}

stop() {
    kill "$system"
    wait "$system" 2>/dev/null || true
    system=
}

# ---- rounds ----

systems="nginx baton-nixl baton-sglang baton-nixl-log"
command -v nginx >/dev/null || { echo "bench: nginx not found (Debian package nginx-light): no ratios" >&2; systems=${systems#nginx }; }
! command -v haproxy >/dev/null || systems="haproxy $systems"

measure() { # SYSTEM CASE CONNECTIONS BYTES KIND
    local line
    line=$(taskset -c 0 "$bin/bench_load" "$port" "$pids" "$3" "$seconds" "$4" "$5") ||
        { echo "bench: $1 $2 had errors: $line" >&2; failed=1; }
    echo "$1 $2 $line" >>"$dir/results"
}

failed=0
for round in $(seq $rounds); do
    for name in $systems; do
        start "$name"
        measure "$name" json-1k 32 1024 json
        measure "$name" stream-1k 32 1024 stream
        measure "$name" stream-220k 32 225280 stream
        stop
    done
    echo "round $round of $rounds done" >&2
done

LC_ALL=C sort -k2,2 -k1,1 -k4,4n "$dir/results" | awk '
{ key = $1 " " $2; rate[key, ++count[key]] = $3; cpu[key, count[key]] = $4; errors[key] += $6
  if (count[key] == 1) order[++keys] = key }
function median(list, key, n,    i, j, t, v) {
    for (i = 1; i <= n; i++) v[i] = list[key, i]
    for (i = 1; i <= n; i++) for (j = i + 1; j <= n; j++) if (v[j] < v[i]) { t = v[i]; v[i] = v[j]; v[j] = t }
    return v[int((n + 1) / 2)]
}
END {
    printf "%-15s %-12s %9s %15s %7s %15s\n", "system", "case", "req/s", "CPU us/request", "errors", "ratio to nginx"
    for (i = 1; i <= keys; i++) {
        key = order[i]
        split(key, part, " ")
        base = "nginx " part[2]
        us = median(cpu, key, count[key])
        ratio = count[base] ? sprintf("%.2f", us / median(cpu, base, count[base])) : "-"
        printf "%-15s %-12s %9.0f %15.1f %7d %15s\n", part[1], part[2], median(rate, key, count[key]), us, errors[key], ratio
    }
}'
exit $failed
