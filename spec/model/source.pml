/* source.pml - one receiver's room whose sender is replaced before the first byte: orphaned, or told another source while all is well; for spin.
 *
 * Sender 0 is the first, sender 1 the one that the gateway names then. Each has a link of its own; one of them may be lost, at any moment. The end of a
 * dropped sender goes on draining beside the room (transport/gateway/room_command.c, end.c): the room's release waits for it as for the other.
 * `wire` holds the moves that were posted and are not done: by the sender's network card (push), or with -DPULL by the receiver's copy loop.
 *
 * Proved over all interleavings:
 *   - the receiver's page is not written once it has been released, whoever writes; a sender's is not read once it has been;
 *   - the note of a sender that was dropped ends no room;
 *   - the room ends, on all three sides: no deadlock, and the formula `ends` under weak fairness.
 * Mutants: -DFORGET_DROPPED (release does not wait for the dropped end), -DTRUST_DROPPED (its note counts).
 */
#define NONE 255

mtype = { announce, abort, abort_ack, done, write, note };

chan to_sender0 = [5] of { mtype };
chan to_sender1 = [5] of { mtype };
chan to_receiver0 = [5] of { mtype };
chan to_receiver1 = [5] of { mtype };
chan wire0 = [2] of { mtype };
chan wire1 = [2] of { mtype };
chan notes = [2] of { byte };

bool up[2] = true, is_revoked[2], is_dropped[2], is_announced[2], is_acked[2], is_copied[2];
bool is_held = true; /* the receiver's page is the room's */
bool is_source[2] = true;
byte moving = NONE;
bool is_over, is_good, r_released, s_released[2];

inline tell(channel, i, kind) {
    atomic {
        if
        :: up[i] -> channel ! kind
        :: else -> skip
        fi
    }
}

/* ---- who moves bytes ---- */
proctype mover(byte i; chan wire)
{
end:
    do
    :: atomic {
           wire ? write ->
#ifdef PULL
           if
           :: is_dropped[i] || is_over || moving != NONE && moving != i -> skip
           :: else -> moving = i
           fi
#else
           is_copied[i] = true
#endif
       };
       atomic {
#ifdef PULL
           if
           :: moving == i -> /* of a closed path it delivers nothing, whatever it has read */
               assert(is_held);
               assert(is_source[i] || is_revoked[i]);
               moving = NONE
           :: else -> skip
           fi
#else
           if
           :: is_revoked[i] -> skip /* it ends in an error */
           :: else -> assert(is_held); assert(is_source[i])
           fi;
           is_copied[i] = false
#endif
       }
    :: atomic {
           wire ? note ->
           if
           :: up[i] && !is_revoked[i] -> notes ! i
           :: else -> skip
           fi
       }
    od
}

proctype cut()
{
end:
    if
    :: atomic { up[0] = false }
    :: atomic { up[1] = false }
    :: skip
    fi
}

/* ---- the receiver ---- */
#ifdef PULL
#define R_DRAINED(i) (moving != i)
#define R_QUIET(i) (moving != i)
#else
#define R_DRAINED(i) true
#define R_QUIET(i) (!is_announced[i] || is_acked[i] || !up[i] && is_revoked[i] && !is_copied[i])
#endif

inline r_hear(i, from, to) { /* frames of an end that is over */
    if
    :: from ? abort -> R_DRAINED(i); tell(to, i, abort_ack)
    :: from ? abort_ack -> is_acked[i] = true
    fi
}

inline drop(i, to) {
    atomic { is_dropped[i] = true };
    tell(to, i, abort)
}

active proctype receiver()
{
    byte who;
    bool is_orphan;

    atomic { run mover(0, wire0); run mover(1, wire1); run cut() };
    is_announced[0] = true;
    tell(to_sender0, 0, announce);
    do
    :: is_over -> break
    :: !is_over ->
        if
        :: atomic { notes ? who ->
               if
#ifndef TRUST_DROPPED
               :: is_dropped[who] -> skip
#endif
               :: else -> assert(!is_dropped[who]); is_over = true; is_good = true
               fi };
           if
           :: is_good && who == 0 -> tell(to_sender0, 0, done)
           :: is_good && who == 1 -> tell(to_sender1, 1, done)
           :: else -> skip
           fi
        :: to_receiver0 ? [abort] && !is_dropped[0] -> /* it has given up */
            is_orphan = true; drop(0, to_sender0); r_hear(0, to_receiver0, to_sender0)
        :: !up[0] && !is_dropped[0] -> is_orphan = true; drop(0, to_sender0)
        :: nempty(to_receiver0) && is_dropped[0] -> r_hear(0, to_receiver0, to_sender0)
        :: !is_announced[1] -> /* SOURCE */
            if
            :: !is_dropped[0] -> drop(0, to_sender0)
            :: else -> skip
            fi;
            is_orphan = false;
            is_announced[1] = true;
            tell(to_sender1, 1, announce)
        :: is_orphan -> is_over = true /* repair_ms */
        :: is_announced[1] && (to_receiver1 ? [abort] || !up[1]) -> is_over = true
        :: is_announced[1] -> is_over = true /* a deadline, the engine's or the gateway's abort */
        fi
    od;
    if
    :: is_good -> skip /* the one that has sent everything is quiet by that */
    :: !is_good && !is_dropped[0] -> drop(0, to_sender0)
    :: else -> skip
    fi;
    if
    :: !is_good && is_announced[1] -> drop(1, to_sender1)
    :: else -> skip
    fi;
    do
#ifdef FORGET_DROPPED
    :: is_good -> break
#endif
    :: (R_QUIET(0) || is_good && !is_dropped[0]) && (R_QUIET(1) || is_good && !is_dropped[1]) -> break
    :: nempty(to_receiver0) -> r_hear(0, to_receiver0, to_sender0)
    :: nempty(to_receiver1) -> r_hear(1, to_receiver1, to_sender1)
    :: nempty(notes) -> notes ? who
    :: atomic { !up[0] && !is_revoked[0] -> is_revoked[0] = true }
    :: atomic { !up[1] && !is_revoked[1] -> is_revoked[1] = true }
    od;
    atomic { is_held = false; r_released = true };

end:
    do
    :: nempty(to_receiver0) -> r_hear(0, to_receiver0, to_sender0)
    :: nempty(to_receiver1) -> r_hear(1, to_receiver1, to_sender1)
    :: notes ? who
    od
}

/* ---- a sender ---- */
#ifdef PULL
#define S_DRAINED(i, wire) true
#else
#define S_DRAINED(i, wire) (!is_copied[i] && empty(wire))
#endif

proctype sender(byte i; chan from; chan to; chan wire)
{
    bool is_known, is_failed, is_success, is_ack_got, is_sent;

    do
    :: is_failed || is_success -> break
    :: else ->
        if
        :: from ? announce -> is_known = true
        :: from ? done -> is_success = true
        :: from ? abort -> is_failed = true; S_DRAINED(i, wire) || is_revoked[i] && !is_copied[i]; tell(to, i, abort_ack)
        :: from ? abort_ack
        :: atomic { is_known && !is_sent -> wire ! write; wire ! note; is_sent = true }
        :: is_failed = true /* a deadline, the hub's abort, its link */
        fi
    od;
    if
    :: is_success || !is_known -> skip
    :: else ->
        tell(to, i, abort);
        do
        :: is_ack_got -> break
        :: !is_ack_got && from ? [abort_ack] -> from ? abort_ack; is_ack_got = true
        :: !is_ack_got && from ? [done] -> from ? done; is_ack_got = true /* it has stopped reading */
        :: !is_ack_got && from ? [abort] -> from ? abort;
            S_DRAINED(i, wire) || is_revoked[i] && !is_copied[i];
            tell(to, i, abort_ack)
        :: !is_ack_got && from ? [announce] -> from ? announce
        :: atomic { !is_ack_got && !up[i] -> is_revoked[i] = true };
            R_DRAINED(i); /* release_ms, or its death: nobody reads here any more */
            is_ack_got = true
        od;
        S_DRAINED(i, wire) || is_revoked[i] && !is_copied[i]
    fi;
    atomic { is_source[i] = false; s_released[i] = true };

end:
    do
    :: from ? announce -> tell(to, i, abort) /* a tomb */; tell(to, i, abort_ack)
    :: from ? abort -> tell(to, i, abort_ack)
    :: from ? abort_ack
    :: from ? done
    od
}

init { atomic { run sender(0, to_sender0, to_receiver0, wire0); run sender(1, to_sender1, to_receiver1, wire1) } }

ltl ends { <> (r_released && s_released[0] && s_released[1]) }
