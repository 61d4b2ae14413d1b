/* room.pml - a room's life on both sides of a link: announcing, moving, failing, draining, releasing; for spin.
 *
 * One receiver slot serves ROOMS rooms, one after the other, over the same page; a tag is (slot, epoch), here just the epoch.
 * `wire` holds the moves that were posted and are not done: by the sender's network card (push), or with -DPULL by the receiver's copy loop.
 * Frames and wire are FIFO. The link may be lost once, at any moment; what is in it is lost too.
 *
 * Proved over all interleavings:
 *   - the receiver's page is never written for a room once the receiver has released it, the sender's pages never read once the sender has;
 *   - a frame or a note never acts on another room than the one it was made for;
 *   - states move as transport/agent/room.c's table allows (NEXT_* below: spec/model/check compares the two);
 *   - every room ends, and is released, on both sides: no deadlock, and the formula `ends` under weak fairness.
 * Who moves the bytes itself needs no acknowledgement (PULL: the receiver; its next room may begin while the sender still answers for the last).
 * Each mutant must break one of these: -DRELEASE_BEFORE_ACK, -DACK_BEFORE_DRAIN, -DRELEASE_BEFORE_DRAIN (with -DPULL), -DNO_EPOCH.
 */
#ifndef ROOMS
#define ROOMS 2
#endif
#define WRITES 2 /* of a room, then its note */
#define NONE 255

#define FAILED 0
#define BOOTSTRAPPING 1
#define WAITING_FOR_INPUT 2
#define TRANSFERRING 3
#define SUCCESS 4

/* Bit s of NEXT_from: from -> s is allowed. */
#define NEXT_0 0
#define NEXT_1 5
#define NEXT_2 9
#define NEXT_3 17
#define NEXT_4 0
#define NEXT(from) (from == 0 -> NEXT_0 : (from == 1 -> NEXT_1 : (from == 2 -> NEXT_2 : (from == 3 -> NEXT_3 : NEXT_4))))

mtype = { announce, abort, abort_ack, done, write, note };

chan to_sender = [6] of { mtype, byte }; /* frames: kind, tag */
chan to_receiver = [6] of { mtype, byte };
chan wire = [3] of { mtype, byte };
chan notes = [3] of { byte }; /* what has arrived at the receiver's agent */

bool link_up = true;
bool revoked = false;   /* the receiver has closed its path: nothing of the wire reaches its memory any more */
byte moving = NONE;     /* the tag of the move that is being done */
byte page_of = NONE;    /* whose the receiver's page is; NONE = free */
bool source_of[ROOMS];  /* the sender's pages of this room may be read */
bool refused[ROOMS];    /* the receiver's side takes no more data of this room */
byte r_state, s_state, r_released, s_released;

inline move(state, to) {
    assert((NEXT(state) >> to) & 1);
    state = to
}

inline tell(channel, kind, tag) {
    atomic {
        if
        :: link_up -> channel ! kind, tag
        :: else -> skip
        fi
    }
}

#ifdef NO_EPOCH
#define IS_MINE(tag, mine) true
#else
#define IS_MINE(tag, mine) (tag == mine)
#endif

/* The mover's own side sees that nothing of this tag is left to be done. */
#define IS_CLEAR(tag) (moving != tag && !(wire ?? [write, eval(tag)]) && !(wire ?? [note, eval(tag)]))

/* ---- who moves bytes: one thing at a time, and anything may happen between taking and doing it ---- */
active proctype mover()
{
    byte tag;

end:
    do
    :: atomic {
           wire ? write, tag ->
#ifdef PULL
           if
           :: refused[tag] || page_of != tag -> skip
           :: else -> moving = tag
           fi
#else
           moving = tag
#endif
       };
       atomic {
           if
           :: moving == NONE -> skip
           :: moving != NONE && revoked -> moving = NONE /* it ends in an error */
           :: else ->
               assert(page_of == tag);
               assert(source_of[tag]);
               moving = NONE
           fi
       }
    :: atomic {
           wire ? note, tag ->
           if
           :: link_up && !revoked -> notes ! tag
           :: else -> skip
           fi
       }
    od
}

active proctype cut()
{
end:
    if
    :: atomic { link_up = false }
    :: skip
    fi
}

/* ---- the receiver ---- */

/* An ABORT of the sender's: nothing of that room is taken any more, then the sender may have its pages. */
inline r_answer_abort(tag) {
    refused[tag] = true;
#if defined(PULL) && !defined(ACK_BEFORE_DRAIN)
    moving != tag;
#endif
    tell(to_sender, abort_ack, tag)
}

active proctype receiver()
{
    byte e = 0, tag;
    bool acked;

    do
    :: e == ROOMS -> break
    :: else ->
        atomic {
            page_of = e;
            acked = false;
            r_state = BOOTSTRAPPING
        };
        tell(to_sender, announce, e);
        atomic { move(r_state, WAITING_FOR_INPUT) };

        do
        :: r_state == SUCCESS || r_state == FAILED -> break
        :: r_state == WAITING_FOR_INPUT && nempty(notes) ->
            atomic {
                notes ? tag;
                if
                :: IS_MINE(tag, e) ->
                    assert(tag == e);
                    move(r_state, TRANSFERRING);
                    move(r_state, SUCCESS);
                    tell(to_sender, done, e)
                :: else -> skip
                fi
            }
        :: r_state == WAITING_FOR_INPUT && to_receiver ? [abort, _] ->
            to_receiver ? abort, tag;
            atomic {
                if
                :: IS_MINE(tag, e) ->
                    assert(tag == e);
                    move(r_state, FAILED)
                :: else -> skip
                fi
            };
            r_answer_abort(tag)
        :: r_state == WAITING_FOR_INPUT && to_receiver ? [abort_ack, _] -> to_receiver ? abort_ack, tag
        :: atomic { r_state == WAITING_FOR_INPUT -> move(r_state, FAILED) } /* a deadline, the engine's abort, a lost link */
        od;

        if
        :: r_state == SUCCESS -> skip /* its note came behind all writes */
        :: else ->
            refused[e] = true;
            tell(to_sender, abort, e);
#if !defined(PULL) && !defined(RELEASE_BEFORE_ACK)
            do
            :: acked -> break
            :: !acked && to_receiver ? [abort_ack, _] ->
                atomic {
                    to_receiver ? abort_ack, tag;
                    if
                    :: IS_MINE(tag, e) ->
                        assert(tag == e);
                        acked = true
                    :: else -> skip
                    fi
                }
            :: !acked && to_receiver ? [abort, _] ->
                to_receiver ? abort, tag;
                r_answer_abort(tag)
            :: !acked && nempty(notes) -> notes ? tag /* came with the failure */
            :: atomic { !acked && !link_up -> revoked = true }; /* the path is closed, what is under way ends in errors */
                moving == NONE;
                acked = true
            od;
#endif
#if defined(PULL) && !defined(RELEASE_BEFORE_DRAIN)
            moving != e /* nobody else writes here: a sender that stands still is not waited for */
#endif
        fi;
        atomic {
            refused[e] = true;
            page_of = NONE;
            r_released++;
            e++
        }
    od;

end:
    do
    :: to_receiver ? abort, tag -> r_answer_abort(tag)
    :: to_receiver ? abort_ack, tag
    :: notes ? tag
    od
}

/* ---- the sender ---- */

inline s_answer_abort(tag) {
#if !defined(PULL) && !defined(ACK_BEFORE_DRAIN)
    IS_CLEAR(tag) || revoked && moving == NONE;
#endif
    tell(to_receiver, abort_ack, tag)
}

active proctype sender()
{
    byte e = 0, tag, sent;
    bool acked;

    do
    :: e == ROOMS -> break
    :: else ->
        atomic {
            s_state = BOOTSTRAPPING;
            source_of[e] = true;
            sent = 0;
            acked = false
        };
        do
        :: s_state == SUCCESS || s_state == FAILED -> break
        :: else ->
            if
            :: atomic { to_sender ? announce, tag ->
                   if
                   :: IS_MINE(tag, e) && s_state == BOOTSTRAPPING ->
                       assert(tag == e);
                       move(s_state, WAITING_FOR_INPUT)
                   :: else -> skip
                   fi
               }
            :: to_sender ? abort, tag ->
               atomic {
                   if
                   :: IS_MINE(tag, e) ->
                       assert(tag == e);
                       move(s_state, FAILED)
                   :: else -> skip
                   fi
               };
               s_answer_abort(tag)
            :: atomic { to_sender ? done, tag ->
                   if
                   :: IS_MINE(tag, e) && sent == WRITES + 1 ->
                       assert(tag == e);
                       move(s_state, SUCCESS)
                   :: else -> skip
                   fi
               }
            :: to_sender ? abort_ack, tag
            :: atomic { s_state == WAITING_FOR_INPUT && nfull(wire) -> move(s_state, TRANSFERRING);
                   wire ! write, e;
                   sent++ }
            :: atomic { s_state == TRANSFERRING && sent < WRITES && nfull(wire) -> wire ! write, e;
                   sent++ }
            :: atomic { s_state == TRANSFERRING && sent == WRITES && nfull(wire) -> wire ! note, e;
                   sent++ }
            :: atomic { s_state != SUCCESS && s_state != FAILED -> move(s_state, FAILED) } /* deadline, abort, lost link */
            fi
        od;

        if
        :: s_state == SUCCESS -> skip
        :: else ->
            tell(to_receiver, abort, e);
#if !defined(PULL) || !defined(RELEASE_BEFORE_ACK)
            do
            :: acked -> break
            :: !acked && to_sender ? [abort_ack, _] ->
                atomic {
                    to_sender ? abort_ack, tag;
                    if
                    :: IS_MINE(tag, e) ->
                        assert(tag == e);
                        acked = true
                    :: else -> skip
                    fi
                }
            :: !acked && to_sender ? [abort, _] ->
                to_sender ? abort, tag;
                s_answer_abort(tag)
            :: !acked && to_sender ? [announce, _] -> to_sender ? announce, tag
            :: !acked && to_sender ? [done, _] -> to_sender ? done, tag
            :: atomic { !acked && !link_up -> revoked = true }; /* release_ms, or the peer's death: the path is closed */
                moving == NONE;
                acked = true
            od;
#endif
#ifndef PULL
            IS_CLEAR(e) || revoked && moving == NONE
#endif
        fi;
        atomic {
            source_of[e] = false;
            s_released++;
            e++
        }
    od;

end:
    do
    :: to_sender ? abort, tag -> s_answer_abort(tag)
    :: to_sender ? abort_ack, tag
    :: to_sender ? announce, tag
    :: to_sender ? done, tag
    od
}

ltl ends { <> (r_released == ROOMS && s_released == ROOMS) }
