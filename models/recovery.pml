/* The recovery of one host, ftrt/agree/recovery.py and steps.py: a job's attempt, and the next one, which may
 * begin at any time, also while the first still runs. N ranks and SPARES spares each.
 *
 * Processes die at any point, finish, are suspected; the record may not be writable; the other
 * attempt's record may be found at any time. Checked: a record is created once, after the ledgers
 * of the epoch before were closed; who publishes an epoch has its record, its members and no dead
 * promoted by knowledge; an older attempt publishes nothing after a newer one's record; and every
 * attempt comes to rest: running with all ranks alive, ended, or failed for a reason.
 *
 * A row of the code's transition table is written row(STATE, Event); a test compares the two sets.
 */
#ifndef N
#define N 2
#endif
#ifndef SPARES
#define SPARES 2
#endif
#ifndef CRASHES
#define CRASHES 3
#endif
#ifndef WRONG
#define WRONG 0
#endif
#ifndef TICKS
#define TICKS 0
#endif
#define PROCESSES (N + SPARES)
#define EPOCHS 12
#define bit(a) (1 << (a))
#define in(set, a) (((set) >> (a)) & 1)
#define row(s, e) (state[me] == s)

mtype = { OFF, RUNNING, CLOSING, RECORDING, PUBLISHING, ENDED, FAILED };
mtype = { NOTHING, CREATED, FOUND, UNWRITABLE };

mtype state[2] = OFF;
mtype answer[2] = NOTHING;
byte epoch[2];                      /* of the latest record that it knows */
byte target[2];
byte who[2 * N];                    /* who[attempt * N + rank]: process */
byte plan[2 * N];
byte gone[2];                       /* really dead */
byte dead[2];                       /* known dead */
byte spares[2];
byte finished[2];
bool fresh[2];

byte maker[EPOCHS];                 /* of the record: attempt + 1, 0 while there is none */
byte members[EPOCHS * N];
bit closed[EPOCHS];
byte latest = 1;

byte crashes;
byte asks;
bool unwritable;
bool noise;                         /* one suspicion, taken back */

byte lost, r, p;                    /* scratch */

/* Ranks whose process is known dead and whose work is not complete. */
inline find_lost(me) {
    lost = 0; r = 0;
    do
    :: r < N ->
        if
        :: in(dead[me], who[me * N + r]) && !in(finished[me], r) -> lost = lost | bit(r)
        :: else
        fi;
        r++
    :: else -> break
    od;
    r = 0
}

inline begin_closing(me) {
    state[me] = CLOSING;
    target[me] = epoch[me] + 1
}

/* The lowest spare to the lowest lost rank; FAILED if there are too few. */
inline decide(me) {
    find_lost(me);
    state[me] = RECORDING; r = 0; p = 0;
    do
    :: r < N ->
        plan[me * N + r] = who[me * N + r];
        if
        :: in(lost, r) ->
            do
            :: p < PROCESSES && (!in(spares[me], p) || in(dead[me], p)) -> p++
            :: else -> break
            od;
            if
            :: p < PROCESSES -> plan[me * N + r] = p; p++
            :: else -> state[me] = FAILED
            fi
        :: else
        fi;
        r++
    :: else -> break
    od;
    lost = 0; r = 0; p = 0
}

inline create(me) {
    assert(closed[target[me] - 1]);
    assert(maker[target[me] - 1] <= me + 1);    /* no attempt succeeds a newer one */
    if
    :: maker[target[me]] == 0 ->
        maker[target[me]] = me + 1; latest = target[me]; r = 0;
        do
        :: r < N -> members[target[me] * N + r] = plan[me * N + r]; r++
        :: else -> break
        od;
        r = 0;
        answer[me] = CREATED
    :: else -> answer[me] = FOUND
    fi
}

inline enter(me) {
    epoch[me] = target[me]; target[me] = 0; fresh[me] = false; r = 0;
    do
    :: r < N ->
        who[me * N + r] = plan[me * N + r];
        spares[me] = spares[me] & ~bit(plan[me * N + r]);
        plan[me * N + r] = 0;
        r++
    :: else -> break
    od;
    r = 0;
    state[me] = PUBLISHING
}

/* What the other attempt recorded: an older one is succeeded, a newer one ends us. */
inline found(me) {
    if
    :: maker[epoch[me] + 1] > me + 1 -> state[me] = FAILED; target[me] = 0
    :: else -> epoch[me]++; begin_closing(me)
    fi
}

inline publish_check(me) {
    assert(maker[epoch[me]] == me + 1);
    r = 0;
    do
    :: r < N -> assert(members[epoch[me] * N + r] == who[me * N + r]); r++
    :: else -> break
    od;
    r = 0
}

/* A process of an attempt: dies, is seen dead, finishes. */
#define PROCESS(process) \
    :: atomic { state[me] != OFF && crashes > 0 && !in(gone[me], process) -> \
        crashes--; gone[me] = gone[me] | bit(process) } \
    :: atomic { in(gone[me], process) && !in(dead[me], process) && state[me] != OFF && !fresh_start -> \
        dead[me] = dead[me] | bit(process); \
        if \
        :: row(RUNNING, ProcessDied) -> d_step { find_lost(me); if :: lost != 0 -> begin_closing(me) :: else fi; lost = 0 } \
        :: row(CLOSING, ProcessDied) || row(RECORDING, ProcessDied) || row(PUBLISHING, ProcessDied) \
        :: row(ENDED, ProcessDied) || row(FAILED, ProcessDied) \
        fi }

#define RANK(rank) \
    :: atomic { !in(gone[me], who[me * N + rank]) && !in(finished[me], rank) && epoch[me] > 0 && !fresh[me] && state[me] != OFF && maker[epoch[me]] == me + 1 -> \
        finished[me] = finished[me] | bit(rank); \
        if \
        :: row(RUNNING, ProcessFinished) || row(CLOSING, ProcessFinished) -> \
            if :: finished[me] == bit(N) - 1 -> state[me] = ENDED; target[me] = 0 :: else fi \
        :: row(RECORDING, ProcessFinished) || row(PUBLISHING, ProcessFinished) \
        :: row(ENDED, ProcessFinished) || row(FAILED, ProcessFinished) \
        fi }

proctype host(byte me) {
    bool fresh_start = (me == 1);
    end: do
    /* -- the next attempt, from the latest record; its core is new, or that of one that failed - */
    :: atomic { me == 1 && state[me] == OFF -> epoch[me] = latest;
        if :: state[me] = RUNNING :: state[me] = FAILED fi }
    :: atomic { fresh_start && state[me] != OFF && (row(RUNNING, Restarted) || row(FAILED, Restarted)) ->
        fresh_start = false; fresh[me] = true; spares[me] = (bit(PROCESSES) - 1) & ~(bit(N) - 1);
        d_step { r = 0; do :: r < N -> who[me * N + r] = r; r++ :: else -> break od; r = 0 };
        begin_closing(me) }

    PROCESS(0) PROCESS(1) PROCESS(2) PROCESS(3)
    RANK(0) RANK(1)

    /* -- suspicions change nothing -------------------------------------------------------------- */
    :: atomic { noise && !fresh_start && (row(RUNNING, Suspected) || row(CLOSING, Suspected) || row(RECORDING, Suspected) || row(PUBLISHING, Suspected) || row(ENDED, Suspected) || row(FAILED, Suspected)) -> noise = false;
        assert(row(RUNNING, Cleared) || row(CLOSING, Cleared) || row(RECORDING, Cleared) || row(PUBLISHING, Cleared) || row(ENDED, Cleared) || row(FAILED, Cleared)) }

    /* -- somebody asks for a successor ------------------------------------------------------------ */
    :: atomic { asks > 0 && !fresh_start && state[me] != OFF -> asks--;
        if
        :: row(RUNNING, CloseAsked) -> begin_closing(me)
        :: row(CLOSING, CloseAsked) || row(RECORDING, CloseAsked) || row(PUBLISHING, CloseAsked)
        :: row(ENDED, CloseAsked) || row(FAILED, CloseAsked)
        fi }

    /* -- the ledgers are closed and read; an answer may come late, too ------------------------------ */
    :: atomic { row(CLOSING, LedgersClosed) && target[me] == epoch[me] + 1 ->
        closed[epoch[me]] = 1; d_step { decide(me) };
        if
        :: asks > 0 && (row(RUNNING, LedgersClosed) || row(RECORDING, LedgersClosed) || row(PUBLISHING, LedgersClosed) || row(ENDED, LedgersClosed) || row(FAILED, LedgersClosed)) -> asks--
        :: skip
        fi }

    /* -- the record ----------------------------------------------------------------------------------- */
    :: atomic { state[me] == RECORDING && answer[me] == NOTHING ->
        if
        :: unwritable -> unwritable = false; answer[me] = UNWRITABLE
        :: d_step { create(me) }
        fi }
    :: atomic { answer[me] == CREATED && row(RECORDING, RecordCreated) -> answer[me] = NOTHING;
        d_step { enter(me) } }
    :: atomic { answer[me] == UNWRITABLE && row(RECORDING, RecordFailed) -> answer[me] = NOTHING;
        state[me] = FAILED; target[me] = 0 }
    :: atomic { answer[me] == FOUND && row(RECORDING, RecordFound) -> answer[me] = NOTHING; found(me) }
    :: atomic { !fresh_start && (row(RUNNING, RecordFound) || row(CLOSING, RecordFound)) && maker[epoch[me] + 1] > me + 1 ->
        found(me) }

    /* -- everybody can see the epoch ------------------------------------------------------------------- */
    :: atomic { row(PUBLISHING, EpochPublished) ->
        d_step {
            publish_check(me);
            find_lost(me);
            if
            :: lost != 0 -> begin_closing(me)
            :: else -> if :: finished[me] == bit(N) - 1 -> state[me] = ENDED :: else -> state[me] = RUNNING fi
            fi;
            lost = 0
        } }
    od
}

init {
    atomic {
        do :: crashes < CRASHES -> crashes++ :: break od;
        if :: asks = 0 :: asks = 1 fi;
        if :: unwritable = true :: skip fi;
        if :: noise = true :: skip fi;
        state[0] = RUNNING; epoch[0] = 1; maker[1] = 1;
        spares[0] = (bit(PROCESSES) - 1) & ~(bit(N) - 1);
        d_step { r = 0; do :: r < N -> who[r] = r; members[N + r] = r; r++ :: else -> break od; r = 0 };
        run host(0);
        if :: run host(1) :: skip fi                /* there may be no second attempt */
    }
    timeout;
    d_step {
        p = 0;
        do
        :: p < 2 ->
            assert(state[p] == OFF || state[p] == RUNNING || state[p] == ENDED || state[p] == FAILED);
            if
            :: state[p] == RUNNING ->
                find_lost(p); assert(lost == 0 && (gone[p] & ~dead[p]) == 0); lost = 0
            :: else
            fi;
            p++
        :: else -> break
        od;
        p = 0
    }
}
