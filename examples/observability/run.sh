#!/bin/sh
# Prometheus over a gateway on this machine, until Ctrl-C. ADMIN_PORT=29000 PROMETHEUS_PORT=9090 examples/observability/run.sh
set -eu
cd "$(dirname "$0")"
command -v prometheus >/dev/null || { echo "run-observed: prometheus is missing; apt install prometheus" >&2; exit 1; }
gateway=127.0.0.1:${ADMIN_PORT:-29000}
address=127.0.0.1:${PROMETHEUS_PORT:-9090}
folder=$(mktemp -d)
pid=

finish() { # status; whoever ends this ends Prometheus too, and its data goes when it has
    trap - EXIT INT TERM HUP
    if [ -n "$pid" ]; then
        kill "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    fi
    rm -rf "$folder"
    exit "$1"
}
trap 'finish $?' EXIT
trap 'finish 130' INT TERM HUP

cp alerts.yml "$folder"
sed "s/127\.0\.0\.1:29000/$gateway/" prometheus.yml >"$folder/prometheus.yml"
prometheus --config.file="$folder/prometheus.yml" --storage.tsdb.path="$folder/data" \
    --enable-feature=exemplar-storage --web.listen-address="$address" --log.level=warn &
pid=$!
echo "Prometheus: http://$address (Ctrl-C ends it); it scrapes http://$gateway/metrics, which ./run starts"
status=0
wait "$pid" || status=$?
pid=
exit "$status"
