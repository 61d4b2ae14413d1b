#!/bin/sh
# Prometheus over a gateway on this machine, until Ctrl-C. ADMIN_PORT=29000 PROMETHEUS_PORT=9090 examples/observability/run.sh
set -eu
cd "$(dirname "$0")"
command -v prometheus >/dev/null || { echo "run-observed: prometheus is missing; apt install prometheus" >&2; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'exit 130' INT TERM
cp alerts.yml "$folder"
sed "s/127\.0\.0\.1:29000/127.0.0.1:${ADMIN_PORT:-29000}/" prometheus.yml >"$folder/prometheus.yml"
echo "Prometheus: http://127.0.0.1:${PROMETHEUS_PORT:-9090} (Ctrl-C ends it)"
prometheus --config.file="$folder/prometheus.yml" --storage.tsdb.path="$folder/data" \
    --enable-feature=exemplar-storage --web.listen-address="127.0.0.1:${PROMETHEUS_PORT:-9090}" --log.level=warn
