/* generation.h - the policies that one loop asks, and the older ones that requests still hold.
 *
 * Owner: bt_generations_t, a generation and its VMs belong to one loop; a bundle (texts) is shared by all, by reference count.
 * Life:  begin -> build (on threads, the loop serves on) -> commit or abort. A generation goes when it no longer serves and nobody
 *        pins it; its VMs are closed on a thread.
 * Flow:  the control loop makes a bundle -> every loop builds aside -> when all could, all commit the same number. A request
 *        pins what serves when it first plans and lets go with its first byte.
 * Cost:  pin and unpin are a counter. A VM whose text and parameters have not changed is shared with the generation before.
 */
#ifndef BT_GENERATION_GENERATION_H
#define BT_GENERATION_GENERATION_H

#include "generation/builder.h"
#include "generation/rules.h"
#include "script/policy/policy.h"
#include "script/policy/policy_source.h"

#include <pthread.h>

#define BT_GENERATIONS_MAX 4 /* alive on a loop at once, the one that is being built included */

enum bt_policy_slot { BT_SLOT_BOTH, BT_SLOT_PREFILL, BT_SLOT_DECODE, BT_SLOT_COUNT };
const char *bt_policy_slot_name(
    enum bt_policy_slot slot); /* "policy", "prefill_policy", "decode_policy" */

/* ---- bundle: what a generation is made of; immutable once it is given to a loop ---- */
typedef struct bt_bundle_part {
    bt_policy_source_t *source; /* reference; NULL = nothing asked for */
    bt_value_t *params;         /* own copy; NULL = defaults */
    uint64_t born;              /* number of the generation that brought this text */
    bool is_shadow;
} bt_bundle_part_t;

typedef struct bt_bundle_pool {
    char *name;
    bt_bundle_part_t parts[BT_SLOT_COUNT];
} bt_bundle_pool_t;

typedef struct bt_policy_bundle {
    _Atomic unsigned refs;
    uint64_t number;
    bt_rules_t *rules; /* reference; NULL = none */
    unsigned
        first_variant; /* pools[first_variant + i] is the rules' variant i, under its name, in slot BOTH */
    unsigned pool_count; /* variants included */
    bt_bundle_pool_t pools[];
} bt_policy_bundle_t;

int bt_bundle_new(bt_policy_bundle_t **bundle_p, uint64_t number, unsigned pool_count);
/* Before it is shared. Copies the name. */
int bt_bundle_name(bt_policy_bundle_t *bundle, unsigned pool, const char *name);
/* Takes a reference of its own; params are copied. */
int bt_bundle_put(bt_policy_bundle_t *bundle, unsigned pool, enum bt_policy_slot slot,
                  bt_policy_source_t *source, const bt_value_t *params, uint64_t born);
/* printf: pool, and the names of both. */
#define BT_TWO_ROUTES                                                                              \
    "pool %s: policies %s and %s both have a route hook; only one of a pool's policies may"
bt_policy_bundle_t *bt_bundle_ref(bt_policy_bundle_t *bundle);
void bt_bundle_unref(bt_policy_bundle_t *bundle); /* NULL is fine */

/* ---- generations of a loop ---- */
struct bt_shared_vm; /* a policy that several generations of the loop use */

/* Policies of one pool in one generation. */
struct bt_pool_policies {
    bt_policy_t *both, *prefill, *decode; /* of vms; NULL = not asked for */
    struct bt_shared_vm *vms[BT_SLOT_COUNT];
    const bt_bundle_pool_t *bundle;
};

/* Its policies, each VM once: one that is named twice with the same parameters has one. How many. */
unsigned bt_pool_policies_all(const struct bt_pool_policies *p, bt_policy_t **all);

typedef struct bt_generations bt_generations_t;

/* Policies of one generation that are made at the same time on one loop. */
#define BT_BUILDS_MAX 4
struct bt_draft {
    bt_build_t *build; /* NULL = free */
    unsigned part;
};

typedef struct bt_generation {
    bt_generations_t *owner;
    bt_policy_bundle_t *bundle; /* reference; number and pool_count are its */
    unsigned pins;
    unsigned next; /* while it is built: part that comes next */
    struct bt_draft builds[BT_BUILDS_MAX];
    struct bt_pool_policies pools[];
} bt_generation_t;

struct bt_generations {       /* zeroed is ready for use */
    bt_generation_t *serving; /* NULL before the first commit */
    bt_generation_t *prepared;
    unsigned live;
    bt_builder_t builder;
    /* What a new policy of this pool of the bundle is going to choose from, or NULL. May be NULL. */
    bt_warm_t *(*warm)(void *user, const bt_policy_bundle_t *bundle, unsigned pool);
    void *warm_user;
};

/* From here on cb(user) is called on the loop whenever something of what is built may have ended, and once more, if it has not
 * been replaced, by fini: then there is nothing prepared. cb may be NULL. Without a loop: bt_generations_wait. */
void bt_generations_listen(bt_generations_t *gs, bt_loop_t *loop, void (*cb)(void *user),
                           void *user);

/* BT_E_AGAIN: BT_GENERATIONS_MAX are alive, wait until requests have let go. BT_E_INVAL: another one is being built. */
int bt_generations_begin(bt_generations_t *gs, bt_policy_bundle_t *bundle);
/* Gets threads to work and takes in what they have made: 1 = they are at it, call again when told (listen); 0 = ready to
 * commit. After an error (err: one line) nothing is prepared any more. A shadow that cannot be made is left out. */
int bt_generations_build(bt_generations_t *gs, char *err, size_t err_size);
/* Blocks until calling build again makes sense. */
void bt_generations_wait(bt_generations_t *gs);
void bt_generations_abort(
    bt_generations_t *gs); /* nothing prepared: nothing; waits for no thread */
void bt_generations_commit(bt_generations_t *gs); /* what was built serves from here on */
void bt_generations_fini(bt_generations_t *gs);   /* no pins may be left; joins all threads */

/* NULL while nothing serves. */
bt_generation_t *bt_generation_pin(bt_generations_t *gs);
void bt_generation_unpin(bt_generation_t **g_p); /* sets NULL; NULL already: nothing */
/* index is where it was last time; NULL when this generation has no such pool. */
const struct bt_pool_policies *bt_generation_pool(const bt_generation_t *g, const char *name,
                                                  unsigned index);

/* ---- errors of young generations, from all loops to the control loop ---- */
#define BT_POLICY_ERROR_SLOTS 8

typedef struct bt_policy_errors {
    pthread_mutex_t lock; /* taken when a policy has failed, never otherwise */
    struct {
        uint64_t born;
        unsigned count;
        char last[320];
    } slots[BT_POLICY_ERROR_SLOTS];
} bt_policy_errors_t;

void bt_policy_errors_init(bt_policy_errors_t *e);
void bt_policy_errors_fini(bt_policy_errors_t *e);
void bt_policy_errors_note(bt_policy_errors_t *e, uint64_t born, const char *text);
/* Errors of the policies born in that generation; last gets the newest one's text. */
unsigned bt_policy_errors_count(bt_policy_errors_t *e, uint64_t born, char *last, size_t last_size);

#endif
