/* forward.h - an object of a hand-off reply that becomes a member of the leg made from it, once it is as it must be. Private to
 * core/script.
 *
 * Owner: what a leg function has said lies in its leg's arena, or in a template.
 * Life:  said by edit.forward, done once the function, or the template, has made its edits.
 * Flow:  the object is found, each rule held to it, its bytes borrowed (copied where members of it are replaced).
 * Cost:  one walk over the object's members; no Lua.
 */
#ifndef BT_SCRIPT_FORWARD_H
#define BT_SCRIPT_FORWARD_H

#include "script/dialect/edits.h"
#include "script/dialect/json_index.h"
#include "script/dialect/leg_view.h"

#define BT_FORWARD_MEMBERS_MAX 16
#define BT_FORWARD_RULES_MAX 24

enum bt_forward_test {
    BT_FORWARD_TRUE,
    BT_FORWARD_TEXT,   /* a string that is not empty */
    BT_FORWARD_NUMBER, /* any */
    BT_FORWARD_ARRAY,  /* any */
    BT_FORWARD_BLOCKS, /* an array with a number, or an array that is not empty, among its elements */
    BT_FORWARD_REQUEST_ID, /* an engine's name for this request: text before our id, or anything where that is empty */
    BT_FORWARD_PROMPT_TOKENS, /* where it is a number and usage tells one: the same */
    BT_FORWARD_TESTS,
    BT_FORWARD_INSTEAD =
        BT_FORWARD_TESTS, /* no test: where the member is this text, value stands for it */
    BT_FORWARD_SET        /* no test: the member is value */
};

typedef struct bt_forward_rule {
    enum bt_forward_test test;
    unsigned member;      /* which of the members */
    bt_str_t text, value; /* value: JSON */
} bt_forward_rule_t;

typedef struct bt_forward {
    bt_str_t key;    /* of the leg's body */
    bt_str_t from;   /* top-level member of the reply; empty: all of it */
    bt_str_t what;   /* begins the reason of a refusal */
    bool recomputes; /* where the reply has none, or null */
    unsigned member_count, count;
    bt_str_t members[BT_FORWARD_MEMBERS_MAX]; /* that rules are about, each once */
    bt_forward_rule_t rules[BT_FORWARD_RULES_MAX];
} bt_forward_t;

typedef struct bt_member {
    bt_str_t key, value; /* value: JSON */
} bt_member_t;

extern const char *const bt_forward_tests[]; /* their names in Lua; NULL ends */

/* The object's bytes with these members replaced, each as often as it stands there; those that it lacks come last. */
bt_str_t bt_forward_splice(bt_arena_t *arena, const bt_json_object_index_t *object,
                           const bt_member_t *members, unsigned count);
/* One piece of memory, by malloc; NULL: there is none. */
bt_forward_t *bt_forward_copy(const bt_forward_t *f);
/* Is this text in one of its own? */
bool bt_forward_mentions(const bt_forward_t *f, bt_str_t text);
/* index: made ready for the leg. Adds the edit; BROKEN: too many edits. */
enum bt_dialect_verdict bt_forward_apply(const bt_forward_t *f, const bt_leg_view_t *leg,
                                         bt_json_index_t *index, bt_edits_t *edits,
                                         bt_str_t *reason_p);

#endif
