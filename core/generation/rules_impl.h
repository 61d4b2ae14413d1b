/* rules_impl.h - what rules.c (matching, life) and rules_read.c (the file) share. Private to core/dispatch.
 *
 * Owner: one bt_rules_t; texts belong to its tree, but for what is marked.
 * Life:  as the rules.
 * Flow:  rules_read.c fills, everybody else reads.
 * Cost:  a few hundred bytes a rule.
 */
#ifndef BT_GENERATION_RULES_IMPL_H
#define BT_GENERATION_RULES_IMPL_H

#include "generation/rules.h"

#define BT_RULES_VARIANTS_MAX 256 /* each of them is a VM on every loop */
#define BT_RULE_NAME_MAX 64
#define BT_RULE_WEIGHT_MAX 1000000

/* A list of them means any; count 0 = all. */
struct bt_patterns {
    bt_str_t *items; /* own array, texts of the tree; a '*' at the end is cut off, see is_prefix */
    bool *is_prefix; /* own array */
    unsigned count;
};

enum bt_tristate { BT_EITHER, BT_YES, BT_NO };

struct bt_header_match {
    bt_str_t name;
    enum bt_tristate there;      /* YES, NO: whatever it says */
    struct bt_patterns patterns; /* with EITHER */
};

struct bt_range {
    double min, max;
};

struct bt_rule_cond {
    struct bt_patterns path, model, tenant;
    struct bt_header_match *headers; /* own array */
    unsigned header_count;
    enum bt_tristate stream, session;
    struct bt_range prompt_tokens, n;
    bool is_empty; /* fits all */
};

enum bt_sticky { BT_STICKY_NONE, BT_STICKY_SESSION, BT_STICKY_TENANT, BT_STICKY_HEADER };

struct bt_rule {
    const char *name;
    const bt_value_t *tree;
    struct bt_rule_cond cond;
    bt_rule_target_t *targets; /* own array; none: only a shadow */
    unsigned target_count, total_weight;
    enum bt_sticky sticky;
    bt_str_t sticky_header;
    uint64_t salt;
    bool has_shadow;
    bt_rule_target_t shadow;
    double sample;
    unsigned first_hit; /* of hits: the targets', then the shadow's */
};

struct bt_variant {
    char *name;                     /* own */
    const bt_rule_target_t *target; /* of a rule */
    bool is_shadow;
};

struct bt_rules {
    _Atomic unsigned refs;
    char *path;
    bool is_pushed; /* to the fleet; false = a file of this machine */
    bt_value_t *root;
    struct bt_rule *items;
    unsigned count;
    struct bt_variant *variants;
    unsigned variant_count, variant_cap;
    char **paths; /* of policies, made absolute by where the file lies */
    unsigned path_count, path_cap;
    _Atomic uint64_t *hits;
    unsigned hit_count;
};

/* r: zeroed but for path and root. BT_E_CONFIG, err: one line. What was made so far is in r. */
int bt_rules_read(bt_rules_t *r, char *err, size_t err_size);

#endif
