#!/bin/sh
# deps.sh [check|install|list] [run|check|test|lint|rdma|all] - what the project needs from the system, in one place.
#
#   check    names what is missing; exit 1 if anything is
#   install  installs what is missing by apt, as root or by sudo; exit 2 where it cannot (the default)
#   list     prints every package of the set
# The sets grow: run, check (= run and what `make check` needs), test (= check and the other specs'
# tools), lint (= test and the linters, clang, libFuzzer). Beside them stands rdma: libibverbs and
# the emulated machine of spec/tools/rdma-vm; what needs it is left out or skipped without. all =
# lint and rdma.
#
# A package counts as there when what we want from it works, whoever installed it. Each need is one line of
# `needs`: how to see it, then its Debian package (12 and 13; where the names differ, package_for decides).
set -u

action=${1:-install}
set_name=${2:-all}

needs() {
    cat <<'END'
run  has_command cc                      gcc
run  has_headers                         libc6-dev
run  has_command make                    make
run  has_command cmake                   cmake
run  has_command ninja                   ninja-build
run  has_command pkg-config              pkg-config
run  has_command curl                    curl
run  has_module libuv                    libuv1-dev
run  has_module luajit                   libluajit-5.1-dev
run  has_llhttp                          llhttp
run  has_module libxxhash                libxxhash-dev
run  has_module openssl                  libssl-dev
run  has_module hiredis                  libhiredis-dev
run  has_module libcares                 libc-ares-dev
run  has_module libnghttp2               libnghttp2-dev
run  has_module libcurl                  libcurl4-openssl-dev
run  has_module libzmq                   libzmq3-dev
run  has_msgpack                         msgpack
run  has_command luajit                  luajit
run  has_command busted                  lua-busted
run  has_module cmocka                   libcmocka-dev
run  has_module jansson                  libjansson-dev
check has_lua cjson                      lua-cjson
check has_lua socket                     lua-socket
check has_lua lyaml                      lua-yaml
check has_command openssl                openssl
check has_command redis-server           redis-server
check has_command mandoc                 mandoc
test has_command h2load                  nghttp2-client
test has_command spin                    spin
test has_command strace                  strace
test has_command valgrind                valgrind
test has_command python3                 python3
test has_command chromium                 chromium
test has_python uvicorn                  python3-uvicorn
test has_python httptools                python3-httptools
lint has_command luacheck                lua-check
lint has_command clang                   clang
lint has_command clang-format            clang-format
lint has_command clang-tidy              clang-tidy
lint has_fuzzer                          libclang-rt-dev
rdma has_module libibverbs               libibverbs-dev
rdma has_file /usr/lib/*/libibverbs/librxe-*.so ibverbs-providers
rdma has_command ibv_devinfo             ibverbs-utils
rdma has_command ib_write_bw             perftest
rdma has_command rdma                    iproute2
rdma has_file /usr/lib/udev/rules.d/60-rdma-persistent-naming.rules rdma-core
rdma has_command qemu-system-x86_64      qemu-system-x86
rdma has_command busybox                 busybox-static
rdma has_command cpio                    cpio
rdma has_command xz                      xz-utils
rdma has_tool modprobe                   kmod
END
}

has_command() { command -v "$1" >/dev/null 2>&1; }
has_tool() { has_command "$1" || [ -x "/usr/sbin/$1" ] || [ -x "/sbin/$1" ]; }
has_file() { ls $1 >/dev/null 2>&1; } # a pattern
has_headers() { has_command cc && echo '#include <stdlib.h>' | cc -E - >/dev/null 2>&1; }
has_module() { pkg-config --exists "$1" 2>/dev/null; }
has_msgpack() { has_module msgpack-c || has_module msgpack; }
has_python() { python3 -c "import $1" 2>/dev/null || /usr/bin/python3 -c "import $1" 2>/dev/null; }
has_lua() { luajit -e "require '$1'" >/dev/null 2>&1; }
has_llhttp() {
    [ -e /usr/include/llhttp.h ] || [ -e /usr/local/include/llhttp.h ] || [ -e /usr/share/llhttp/llhttp.c ]
}
has_fuzzer() {
    has_command clang && ls "$(clang -print-resource-dir)"/lib/*/libclang_rt.fuzzer* >/dev/null 2>&1
}

package_for() {
    case $1 in
    llhttp) if is_available libllhttp-dev; then echo libllhttp-dev; else echo node-llhttp; fi ;;
    msgpack) if is_available libmsgpack-c-dev; then echo libmsgpack-c-dev; else echo libmsgpack-dev; fi ;;
    *) echo "$1" ;;
    esac
}

is_available() {
    has_command apt-cache && apt-cache policy "$1" 2>/dev/null | grep -q 'Candidate: [0-9]'
}

in_set() {
    case $set_name in
    run) [ "$1" = run ] ;;
    check) [ "$1" = run ] || [ "$1" = check ] ;;
    test) [ "$1" != lint ] && [ "$1" != rdma ] ;;
    lint) [ "$1" != rdma ] ;;
    rdma) [ "$1" = rdma ] ;;
    all) true ;;
    esac
}

# Prints the packages of the set; with "missing" only those whose need is not met.
packages() {
    needs | while read -r group probe rest; do
        # The last word is the package, what stands before it is the probe's argument.
        package=${rest##* }
        argument=${rest%% *}
        in_set "$group" || continue
        if [ "$1" = missing ] && "$probe" "$argument"; then
            continue
        fi
        package_for "$package"
    done
}

one_line() {
    # shellcheck disable=SC2086 # words, on one line
    echo $1
}

# Runs a step quietly; its output is shown only when it fails.
step() {
    title=$1
    shift
    printf '%s\n' "$title"
    log=$(mktemp)
    if "$@" >"$log" 2>&1 </dev/null; then
        rm -f "$log"
        return 0
    fi
    echo "deps.sh: this failed: $*" >&2
    tail -n 20 "$log" >&2
    rm -f "$log"
    return 1
}

# How to become root: an empty word, sudo, or nothing at all.
find_root() {
    has_command apt-get || return 1
    if [ "$(id -u)" -eq 0 ]; then
        as_root=
    elif has_command sudo && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then
        as_root=sudo
        sudo -v || return 1
    else
        return 1
    fi
}

apt() {
    # shellcheck disable=SC2086 # empty or one word
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 "$@"
}

cannot_install() {
    echo "missing packages: $(one_line "$missing")" >&2
    echo "install them as root: apt-get install $(one_line "$missing")" >&2
    exit 2
}

install_missing() {
    missing=$(packages missing)
    [ -n "$missing" ] || return 0
    find_root || cannot_install
    step "set-up: reading the package lists" apt update || exit 2
    missing=$(packages missing) # names may depend on what the lists offer
    # shellcheck disable=SC2086 # words
    step "set-up: installing $(one_line "$missing")" apt install --no-install-recommends $missing || exit 2
    missing=$(packages missing)
    [ -z "$missing" ] || cannot_install
}

# What no Debian package has, for one spec: it is pending without.
install_axe() {
    case $set_name in test | all) ;; *) return 0 ;; esac
    top=$(dirname "$0")/../..
    [ ! -e "$top/build/npm/node_modules/axe-core/axe.min.js" ] || return 0
    mkdir -p "$top/build/npm"
    # A node from elsewhere may not let Debian's npm in.
    has_command npm || { find_root && step "set-up: installing npm" apt install --no-install-recommends npm; } || true
    step "set-up: axe-core from npm" timeout 120 npm install --silent --no-audit --no-fund --prefix "$top/build/npm" axe-core@4.14.1 ||
        echo "deps.sh: going on without axe-core: the dashboard's accessibility is not checked" >&2
}

case $set_name in
run | check | test | lint | rdma | all) ;;
*) echo "deps.sh: unknown set \"$set_name\" (run, check, test, lint, rdma, all)" >&2; exit 2 ;;
esac

case $action in
list) packages all ;;
check)
    missing=$(packages missing)
    [ -z "$missing" ] || { echo "missing: $(one_line "$missing"); as root: spec/tools/deps.sh install $set_name"; exit 1; }
    ;;
install) install_missing && install_axe ;;
*) echo "usage: deps.sh [check|install|list] [run|check|test|lint|rdma|all]" >&2; exit 2 ;;
esac
