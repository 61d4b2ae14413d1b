/* process.h - what the running gateway is made of, for the files of core/gateway.
 *
 * Owner: the control loop; an event thread owns its bt_gateway_loop_t while it runs.
 * Life:  as gateway.h.
 * Flow:  gateway.c wires the parts; loop.c runs the event threads, signal.c ends and reloads them.
 * Cost:  nothing per request.
 */
#ifndef BT_GATEWAY_PROCESS_H
#define BT_GATEWAY_PROCESS_H

#include "cluster/roles/role_auto.h"
#include "cluster/roles/role_report.h"
#include "config/config.h"
#include "discovery/kube.h"
#include "discovery/kube_words.h"
#include "fleet/fleet.h"
#include "http/proxy.h"
#include "loop/listener.h"
#include "reload/reload.h"
#include "transfer/registration.h"

#include <sys/un.h>

typedef struct bt_gateway bt_gateway_t;

/* Whose pods a change is about: a --workers-kubernetes by its number. */
typedef struct bt_gateway_kube {
    bt_gateway_t *gateway;
    unsigned source;
} bt_gateway_kube_t;

/* A socket that clients connect to. */
typedef struct bt_gateway_socket {
    int fd;                  /* ours until the listener has it, which closes it then; -1 = closed */
    bt_listener_t *listener; /* NULL before, and once draining */
} bt_gateway_socket_t;

/* One event thread. Its members belong to that thread once it runs. */
typedef struct bt_gateway_loop {
    bt_loop_t loop;
    bt_gateway_t *gateway;
    uv_thread_t thread;
    bool has_thread, has_loop;
    bt_gateway_socket_t *sockets; /* one, but where more sockets are passed than there are loops */
    unsigned socket_count;
    bt_proxy_t
        *proxy; /* connections of proxies that have not said whose they are; NULL = none do */
    bt_server_t *server;
    bt_dispatcher_t *dispatcher;
    bt_store_client_t *store; /* of policies and sessions */
    bt_prefix_ring_t *ring;   /* what its policies put into the prefix index; NULL = not told */
    bt_timer_t idle_check;    /* while draining */
    bt_timer_t tidy;          /* gives free memory back */
    uint64_t idle_since_ms;   /* nothing lives here since; 0 = something does */
    bt_mail_t ping;           /* of the watchdog */
    atomic_bool has_answered; /* it */
} bt_gateway_loop_t;

/* gateway/notify.h */
typedef struct bt_notify {
    int fd; /* -1: nobody is notified */
    struct sockaddr_un addr;
    socklen_t addr_size;
    uint64_t watchdog_ms; /* 0 = none */
    bt_timer_t watchdog;
    bool is_silent; /* a loop does not answer, which is logged */
} bt_notify_t;

enum bt_gateway_state {
    BT_GATEWAY_STARTING,
    BT_GATEWAY_SERVING,
    BT_GATEWAY_DRAINING,
    BT_GATEWAY_STOPPING
};

typedef struct bt_successor bt_successor_t; /* gateway/upgrade.h */

#define BT_GATEWAY_SIGNALS 5 /* that it handles: signal.c */

struct bt_admin;           /* core/admin */
struct bt_gateway_audit;   /* gateway/audit.c */
struct bt_registry_server; /* core/transfer */
struct bt_metaserver;
struct bt_gateway_rollout;      /* gateway/fleet.h */
struct bt_gateway_tls;          /* gateway/tls.h */
struct bt_gateway_workers_file; /* gateway/workers_file.h */
struct bt_gateway_identity;     /* gateway/identity.h */

struct bt_gateway {
    bt_config_t *config;       /* of the start; parts of it are borrowed everywhere */
    bt_config_t *fleet_config; /* the last one taken: its pools complete workers that come later */
    int argc;                  /* to read it all again on SIGHUP */
    const char *const *argv;
    enum bt_gateway_state state; /* control loop only */
    int exit_code;
    bool end_asked; /* a signal came while STARTING */
    unsigned port, admin_port, transfer_port, registry_port,
        metaserver_port; /* as bound; 0 = not listening */
    /* control loop */
    bt_loop_t control;
    bt_registry_t *registry;
    bt_monitor_t *monitor;
    bt_role_switches_t *role_switches;
    bt_advisor_t *advisor;
    bt_role_auto_t *role_auto;       /* NULL = no --role-switch-auto */
    bt_role_reports_t *role_reports; /* NULL = --role-check-secs 0, or no checks */
    struct bt_gateway_audit *audit;  /* NULL = no --audit-log */
    int admin_fd;                    /* bound and listening; attach_admin hands it on */
    int admin_listen_fd;             /* the same, whoever has it: a successor gets it */
    struct bt_admin *admin;
    struct bt_transfer *transfer;               /* NULL = no --transfer-port */
    struct bt_registry_server *registry_server; /* NULL = no --registry-port */
    struct bt_metaserver *metaserver;           /* NULL = no --metaserver-port */
    char metaserver_url[400];                   /* as decode workers are told */
    struct bt_gateway_kv *kv;                   /* KV events; NULL = no worker publishes any */
    struct bt_kv_subscriber *kv_subscriber;     /* likewise, for who shows them */
    bt_registration_t *registration;            /* NULL = no port where engines register */
    unsigned registration_ports[BT_REGISTRATION_KINDS];
    void (*transfer_done)(void *gateway);
    unsigned transfer_closing; /* parts that have not closed */
    int transfer_fd, registry_fd,
        metaserver_fd;        /* bound and listening until they are handed on, else -1 */
    bt_store_t *store;        /* always there; shared by --redis-url */
    bt_fleet_t *fleet;        /* NULL = the store is this process's own */
    struct bt_quotas *quotas; /* what limits count, and policies take from */
    bt_limits_t *limits;
    struct bt_trace_exporter *traces; /* NULL = no --trace-endpoint */
    char *replica;                    /* our name among the replicas */
    void (*share_done)(void *gateway);
    char apply_error[256]; /* why the last reload's workers were not taken; "" = they were */
    bt_reload_t *reload;
    bt_reload_loop_t *reload_loops;      /* by loop */
    struct bt_gateway_rollout *rollouts; /* of policies to all replicas; NULL = the store is ours */
    struct bt_gateway_identity *identity; /* NULL = nobody is asked */
    struct bt_gateway_tls *tls;
    struct bt_tls_server *client_tls, *admin_tls;             /* its own; NULL = plain */
    struct bt_gateway_workers_file *workers_file;             /* NULL = no --workers-file */
    bt_dns_t *dns;                                            /* --workers-dns */
    bt_kube_options_t kube_options[BT_CONFIG_KUBERNETES_MAX]; /* --workers-kubernetes */
    bt_kube_t *kubes[BT_CONFIG_KUBERNETES_MAX];
    bt_gateway_kube_t kube_users[BT_CONFIG_KUBERNETES_MAX]; /* what their changes come with */
    bt_kube_words_t *kube_words; /* NULL: there is one, and it agrees with itself */
    unsigned kube_count;
    uv_signal_t signals[BT_GATEWAY_SIGNALS];
    bt_timer_t grace;   /* end of the drain */
    bt_timer_t startup; /* waits for the first usable topology */
    bt_notify_t notify;
    char *program;             /* the file that this process runs; NULL = unknown */
    bt_successor_t *successor; /* starting; NULL = none */
    bool is_replaced;          /* by it: what it has is left alone */
    bool is_listening;         /* not from the start: bt_gateway_listens_late */
    unsigned listening_loops;
    uint64_t start_ms;
    bool seen_usable;
    unsigned idle_loops, quiet_loops, running_loops;
    bool has_control, has_shared;
    /* event threads */
    bt_gateway_loop_t *loops;
    unsigned loop_count;
    bt_loop_group_t group;
    bt_budget_t *budget, *admin_budget; /* of connections: clients' and workers', the operator's */
    bt_dispatch_shared_t shared;
    bt_unfinished_t *unfinished;   /* client requests of which bytes are missing */
    bt_dispatcher_t **dispatchers; /* by loop; what shared.dispatchers points to */
};

/* gateway/loop.c: event threads */
int bt_gateway_loop_open(bt_gateway_loop_t *el, bt_gateway_t *g, unsigned index, char *err,
                         size_t err_size);
/* Its thread runs, and listens if it shall; if not, bt_gateway_loop_listen has it do so later. */
int bt_gateway_loop_start(bt_gateway_loop_t *el, bool is_listening);
void bt_gateway_loop_listen(bt_gateway_loop_t *el);    /* from the control loop */
void bt_gateway_on_listening(bt_gateway_t *g, int rc); /* a loop listens now, or cannot */
void bt_gateway_loop_drain(bt_gateway_loop_t *el);     /* from the control loop */
void bt_gateway_loop_stop(bt_gateway_loop_t *el);      /* likewise: cuts and cancels all */
void bt_gateway_loop_close(
    bt_gateway_loop_t *el); /* ends the thread if there is one; all loops must be quiet */
void bt_gateway_loop_publish(bt_gateway_loop_t *el, bt_workers_t *workers);
/* gateway/audit.c: what is changed without a request. All of it does nothing without --audit-log. */
int bt_gateway_audit_open(bt_gateway_t *g, char *err, size_t err_size);
struct bt_audit *bt_gateway_audit_start(bt_gateway_t *g); /* once all of the state is there */
void bt_gateway_audit_reopen(bt_gateway_t *g);
void bt_gateway_audit_close(bt_gateway_t *g);
void bt_gateway_audit_refused(bt_gateway_t *g, const char *why); /* a SIGHUP */
/* Keys from a file: what is ended by bt_audit_end. */
struct bt_audit_change;
void bt_gateway_audit_keys(bt_gateway_t *g, const char *from, struct bt_audit_change *change);
void bt_gateway_audit_note(void *gateway, const bt_reload_note_t *note);
/* gateway/signal.c: signals, drain, reload */
int bt_gateway_signals_start(bt_gateway_t *g);
void bt_gateway_signals_stop(bt_gateway_t *g);
void bt_gateway_replaced(bt_gateway_t *g, int pid); /* another process serves: drain */
void bt_gateway_on_idle(bt_gateway_t *g);           /* a loop has drained */
void bt_gateway_on_quiet(bt_gateway_t *g);          /* a loop has let go of everything */
void bt_gateway_stop(bt_gateway_t *g); /* ends all loops now; run returns when they have */
/* Takes config; the one before goes, unless it is the first. */
void bt_gateway_set_fleet_config(bt_gateway_t *g, bt_config_t *config);
void bt_gateway_grace_over(bt_timer_t *timer);
void bt_gateway_reload(bt_gateway_t *g);
/* The end of a reload: workers and settings. Takes wanted. */
void bt_gateway_apply_config(bt_gateway_t *g, bt_config_t *wanted);

#endif
