#!/bin/sh
# check_exports.sh LIBRARY HEADER - does the library export exactly what the header declares?
set -eu
have=$(nm -D --defined-only "$1" | awk '$2 ~ /^[TDBRVWu]$/ { print $3 }' | grep -v '^__\|^_init$\|^_fini$' | sort)
want=$(sed -n 's/^BT_KV_API.*[ *]\(bt_kv_[a-z_]*\)(.*/\1/p' "$2" | sort)
[ -n "$want" ] || { echo "check_exports: no BT_KV_API in $2" >&2; exit 2; }
[ "$have" = "$want" ] || { printf 'exported:\n%s\ndeclared:\n%s\n' "$have" "$want" >&2; exit 1; }
