# Thin front of CMake: every target is a line or two that could be typed by hand.

JOBS ?= $(shell nproc)
# Specs wait nine tenths of their time: for each other's processes, for time-outs.
TEST_JOBS ?= $(shell echo $$((3 * $(JOBS))))
FUZZ_SECS ?= 600
PREFIX ?= /usr/local
# Minutes of load, models that run none of our code, and a browser beside it.
NOT_SANITIZED := '^(soak|model|browser)$$'
# Of the rest, what measures, and what has one thread and takes long.
NOT_TSAN := '^(soak|model|bench|one_thread|browser)$$'
# Old ThreadSanitizer runtimes need the classic address layout; where the kernel lets us ask for it, we do.
FIXED_LAYOUT := $(shell setarch -R true 2>/dev/null && echo setarch -R)

# Names what a target lacks, before time is lost on it.
define needs
	@spec/tools/deps.sh check $(1)
endef

define configure
	@cmake --preset $(1) --log-level=WARNING >/dev/null
endef

.DEFAULT_GOAL := help
.PHONY: help build all install deb package-check systemd-check test check conformance faults mutants lint format api asan tsan fuzz coverage bench soak run run-fleet run-vllm run-sglang run-events deps clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  \1\t/p' $(MAKEFILE_LIST) | expand -t 16

build: ## build/release: baton, baton-sim, libbaton_kv.so
	$(call configure,release)
	@cmake --build --preset release -j $(JOBS) --target programs

all: all-release

# Everything of one preset, specs included.
all-%:
	$(call configure,$*)
	@cmake --build --preset $* -j $(JOBS)

# Built for PREFIX; staged below DESTDIR where that is given.
install: ## programs, manual pages, units, libbaton_kv: PREFIX=/usr/local DESTDIR=
	@cmake --preset package -DCMAKE_INSTALL_PREFIX=$(PREFIX) -DBT_DEBIAN=OFF --log-level=WARNING >/dev/null
	@cmake --build --preset package -j $(JOBS) --target programs
	@DESTDIR=$(DESTDIR) cmake --install build/package --strip

deb: ## Debian packages in build/package: baton, libbaton-kv0, libbaton-kv-dev
	@cmake --preset package -DCMAKE_INSTALL_PREFIX=/usr -DBT_DEBIAN=ON --log-level=WARNING >/dev/null
	@cmake --build --preset package -j $(JOBS) --target programs
	@cd build/package && umask 022 && cpack -G DEB

package-check: deb ## the packages in a fresh Debian: lintian, install, first answer, remove, purge (root, mmdebstrap)
	@packaging/check build/package || [ $$? -eq 77 ]

systemd-check: deb ## the packages under a real systemd, in an emulated machine (root, mmdebstrap, QEMU; minutes)
	@packaging/systemd_check build/package || [ $$? -eq 77 ]

test: ## every spec
	$(call needs,test)
	@$(MAKE) --no-print-directory all
	@ctest --preset release -j $(TEST_JOBS)

check: ## the loop of editing: unit, policy and tool specs, and the gateway's main paths (a minute)
	$(call needs,check)
	@$(MAKE) --no-print-directory all
	@ctest --preset release -j $(TEST_JOBS) -L '^(unit|policy|tools|quick)$$'

conformance: all ## every dialect x endpoint x streamed x list and n, as a table
	@ctest --preset release -V -R '^gateway/conformance$$'

faults: all ## every dialect x leg x phase x fault, as a table: status, who is blamed, how long the client waits
	@BATON_FAULTS_MARGIN_MS=50 ctest --preset release -V -R '^gateway/faults_matrix$$'

mutants: ## do the specs notice? small edits to a copy of the sources, and the specs nearest to each
	@spec/tools/mutants

lint: ## include rules, circles, sizes, layout, luacheck, clang-tidy, a build with -Werror
	$(call needs,lint)
	$(call configure,werror)
	@cmake --build --preset werror -j $(JOBS)
	@spec/tools/lint build/werror

format: ## lay out C in place
	@tool=$$(spec/tools/lint --tool clang-format) && \
		find core transport examples spec cmake -name '*.[ch]' ! -path 'spec/tools/fixtures/*' | xargs $$tool -i

api: ## the author's reference, types for editors and luacheck's list, from lua/baton/api.lua
	@luajit spec/tools/gen_api

asan: ## every spec under AddressSanitizer and UndefinedBehaviorSanitizer
	$(call needs,test)
	@$(MAKE) --no-print-directory all-asan
	@ctest --preset asan -j $(TEST_JOBS) -LE $(NOT_SANITIZED)

tsan: ## every spec that has threads to show under ThreadSanitizer
	$(call needs,test)
	@$(MAKE) --no-print-directory all-tsan
	@$(FIXED_LAYOUT) ctest --preset tsan -j $(TEST_JOBS) -LE $(NOT_TSAN)

fuzz: ## libFuzzer over every target, FUZZ_SECS=600 shared among them
	$(call configure,fuzz)
	@cmake --build --preset fuzz -j $(JOBS) --target fuzzers
	@spec/tools/fuzz build/fuzz $(FUZZ_SECS)

coverage: ## every spec with gcov counters in build/coverage
	$(call configure,coverage)
	@cmake --build --preset coverage -j $(JOBS)
	@ctest --preset coverage -j $(JOBS) -LE $(NOT_SANITIZED)

bench: build ## the figures for the record
	@spec/bench/compare
	@spec/bench/compare_tls
	@build/release/bin/bench_policy
	@build/release/bin/bench_kvindex
	@build/release/bin/bench_queue
	@build/release/bin/bench_store
	@spec/bench/fleet_prefix

soak: all ## 1,000 reloads under load, ten minutes of hostile clients, 100,000 streams of HTTP/2, a million transfer rooms; the figures are printed
	@BATON_SOAK=1 ctest --preset release -V -R '^gateway/((reload|hostile)_soak|http2_memory)$$'
	@build/release/bin/bench_kv_soak --rooms 1000000 --crc
	@for b in tcp shm; do build/release/bin/bench_kv_soak --backend $$b --rooms 10000 --restarts 5 || exit 1; done

run: build ## gateway, 2 prefill and 2 decode simulated workers
	@examples/run/run.sh

run-fleet: build ## two gateways that act as one through a Redis, over 2 prefill and 2 decode simulated workers
	@examples/fleet/run.sh

run-observed: ## Prometheus over the gateway that ./run has started
	@examples/observability/run.sh

run-vllm: build ## the same over real vLLM engines on this CPU (6.3 GB of disk)
	@examples/run/run-vllm.sh

run-sglang: build ## the same over real SGLang engines on this CPU
	@examples/run/run-sglang.sh

run-events: build ## what KV events predict, beside what real engines on this CPU say they had (ENGINE=vllm|sglang|pair|sim)
	@examples/run/run-events.sh $(or $(ENGINE),vllm)

deps: ## install every package the targets above need
	@spec/tools/deps.sh install all

clean: ## remove build/
	@rm -rf build
