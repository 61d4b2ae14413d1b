/* options.h - the command line of baton-sim.
 *
 * Owner: the caller of parse; every string is malloc'ed or points into argv.
 * Life:  parse -> fini.
 * Flow:  one table of keys a worker knows (options_worker.c); the help text is printed from it, so it cannot lag behind.
 * Cost:  start-up only.
 */
#ifndef SIM_OPTIONS_H
#define SIM_OPTIONS_H

#include "base/str.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define SIM_KV_RANKS_MAX 8
#define SIM_ENGINE_ID_MAX 64

enum sim_role { SIM_HYBRID, SIM_PREFILL, SIM_DECODE, SIM_ENCODE };
enum sim_ec { SIM_EC_CPU, SIM_EC_STORE }; /* media.c */
enum sim_engine { SIM_VLLM, SIM_SGLANG, SIM_TRTLLM };
enum sim_connector {
    SIM_NONE,
    SIM_NIXL,
    SIM_NIXL_PUSH,
    SIM_SHARED,
    SIM_ASCEND,
    SIM_LAYERWISE,
    SIM_BATON,
    SIM_MOONCAKE,
    SIM_OFFLOADING,
    SIM_P2P_NCCL,
    SIM_MORIIO
};

typedef struct sim_worker_options {
    char name[32];
    enum sim_role role;
    enum sim_engine engine;
    enum sim_connector connector;
    char connector_name[40]; /* as it was typed */
    char model[128];
    char engine_id[SIM_ENGINE_ID_MAX];
    char version[32];
    char host[46];
    unsigned port, bootstrap_port, side_port, count;
    unsigned tp, dp;
    unsigned block_size, blocks, context, answer_tokens;
    double lease_ms, waiting_ms;
    double ttft, ttft_per_token, ttft_per_token2, itl, itl_per_request, transfer_ms, jitter;
    bool role_switch;        /* sglang: --enable-pd-role-switch */
    bool evicts_by_priority; /* sglang: --radix-eviction-policy priority */
    bool scale_out;          /* vllm: --enable-scale-out */
    bool queue;              /* prefills run one after the other */
    bool expired_keep;
    bool by_ids;
    unsigned kv_events, kv_events_replay; /* ports; 0 = none */
    unsigned kv_events_lose;              /* each so manieth batch is lost on its way; 0 = none */
    char registers_at[64]; /* P2pNcclConnector, MoRIIOConnector: HOST:PORT; "" = nowhere */
    bool read_mode;        /* MoRIIOConnector: READ */
    enum sim_ec ec;        /* of an encoder */
    /* BatonConnector */
    char gateway[64], gateway_token[128], gateway_worker[128], kv_token[128];
    unsigned ranks, kv_backends, kv_layers, kv_page_bytes, kv_chunk_pages, kv_dead_ms;
    double kv_bootstrap_ms, kv_stall_ms, kv_release_ms;
    bool kv_private, kv_crc, kv_recompute;
} sim_worker_options_t;

typedef struct sim_options {
    sim_worker_options_t *workers; /* counts already expanded */
    unsigned worker_count;
    const char *ready_file, *model;
    uint64_t seed;
    double time_scale, max_seconds;
    unsigned record, record_body;
    /* --expect */
    bool expect, expect_chat;
    const char *prompt, *system, *ids;
    unsigned max_tokens;
    uint64_t request_seed;
} sim_options_t;

/* 0 = run; 1 = --help was asked for; 2 = wrong, and why (one line) is in error. */
int sim_options_parse(int argc, char **argv, sim_options_t *options_p, char *error,
                      size_t error_size);
void sim_options_fini(sim_options_t *o);
void sim_options_help(FILE *out);
const char *sim_role_name(enum sim_role role);
const char *sim_engine_name(enum sim_engine engine);

#endif
