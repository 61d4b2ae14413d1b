/* wait.h - whoever an exchange of the admin listener waits for. Private to core/admin.
 *
 * Owner: embedded in whatever waits.
 * Life:  from the moment in which x->user points to it until its answer has ended, or gone.
 * Flow:  the server's callbacks -> gone, drain.
 * Cost:  a pointer.
 */
#ifndef BT_ADMIN_CALL_WAIT_H
#define BT_ADMIN_CALL_WAIT_H

/* What x->user of the admin listener points to while an answer waits for others. */
struct bt_admin_wait {
    void (*gone)(struct bt_admin_wait *wait);  /* the client left first */
    void (*drain)(struct bt_admin_wait *wait); /* it reads again; NULL = nothing waits for that */
};

#endif
