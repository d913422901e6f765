/* The agreement of ftrt/agree/agreement.py: N agents, one epoch, one exclusive record.
 *
 * Agents crash at any point (up to CRASHES of them), detectors are wrong up to WRONG times and become
 * right in the end, messages come in any order. What a crashed agent had sent may be lost; what it
 * had asked of the storage may still be done. Checked: whoever adopts has the record's members,
 * whoever is not in it is fenced, only who reported is in it, and every living agent comes to an end.
 *
 * A row of the code's transition table is written row(PHASE, Event); a test compares the two sets.
 * Reports only grow, so those under way from one agent to another are kept as one set.
 */
#ifndef N
#define N 3
#endif
#ifndef CRASHES
#define CRASHES (N - 1)
#endif
#ifndef WRONG
#define WRONG 1
#endif
#ifndef TICKS
#define TICKS 1
#endif
#define NONE 15
#define ALL ((1 << N) - 1)
#define bit(a) (1 << (a))
#define in(set, a) (((set) >> (a)) & 1)
#define row(p, e) (phase[me] == p)
/* To send to one who is crashed, or to tell one who knows, changes nothing. */
#define listens(a) (!crashed[a] && !settled(a))
#define settled(a) (phase[a] == ADOPTED || phase[a] == FENCED)

mtype = { IDLE, GATHERING, RECORDING, ADOPTED, FENCED };

mtype phase[N] = IDLE;
byte have[N];                   /* who has contributed, as far as an agent knows */
byte dead[N];                   /* whom it holds for dead */
byte told_to[N] = NONE;
byte told[N];
byte wanted[N];                 /* members of the record that it asked for; 0 if it has not */
byte report[N * N];             /* report[to * N + from] */
bit call[N * N];
bit announce[N * N];
byte ticks[N];
bool crashed[N];

byte members;                   /* of the record; 0 while there is none */
byte agreed;                    /* what the first one adopted */
byte crashes;
byte wrong;
byte peeks;                     /* how often an agent finds the record on storage by itself */
byte starter;

/* Whether a message waits for `me`, or somebody has crashed. */
#if N == 3
#define pending(me) (report[me*N] || report[me*N+1] || report[me*N+2] || call[me*N] || call[me*N+1] || call[me*N+2] || announce[me*N] || announce[me*N+1] || announce[me*N+2])
#define somebody (crashed[0] || crashed[1] || crashed[2])
#else
#define pending(me) (report[me*N] || report[me*N+1] || report[me*N+2] || report[me*N+3] || call[me*N] || call[me*N+1] || call[me*N+2] || call[me*N+3] || announce[me*N] || announce[me*N+1] || announce[me*N+2] || announce[me*N+3])
#define somebody (crashed[0] || crashed[1] || crashed[2] || crashed[3])
#endif
#define touched(me) (pending(me) || somebody)

inline lose_from(me) {
    x = 0;
    do
    :: x < N -> report[x * N + me] = 0; call[x * N + me] = 0; announce[x * N + me] = 0; x++
    :: else -> break
    od;
    x = 0
}

inline lose_to(me) {
    x = 0;
    do
    :: x < N -> report[me * N + x] = 0; call[me * N + x] = 0; announce[me * N + x] = 0; x++
    :: else -> break
    od;
    x = 0
}

/* Scratch of atomic steps, 0 outside of them. */
byte live, place, count, up, below, left, right, left_below, right_below, x, y;

/* The tree over those that `me` believes alive. */
inline look_at_tree(me) {
    live = (ALL & ~dead[me]) | bit(me);
    count = 0; place = 0; x = 0;
    do
    :: x < N -> if :: in(live, x) -> if :: x == me -> place = count :: else fi; count++ :: else fi; x++
    :: else -> break
    od;
    up = NONE; left = NONE; right = NONE; below = 0; left_below = 0; right_below = 0;
    x = 0; count = 0;
    do
    :: x < N ->
        if
        :: in(live, x) ->
            if
            :: place > 0 && count == (place - 1) / 2 -> up = x
            :: count == 2 * place + 1 -> left = x
            :: count == 2 * place + 2 -> right = x
            :: else
            fi;
            y = count;
            do
            :: y > 2 * place + 2 -> y = (y - 1) / 2
            :: else -> break
            od;
            if :: y == 2 * place + 1 -> left_below = left_below | bit(x) :: else fi;
            if :: y == 2 * place + 2 -> right_below = right_below | bit(x) :: else fi;
            count++
        :: else
        fi;
        x++
    :: else -> break
    od;
    below = bit(me) | left_below | right_below
}

inline forget_tree() {
    live = 0; place = 0; count = 0; up = 0; below = 0; left = 0; right = 0;
    left_below = 0; right_below = 0; x = 0; y = 0
}

/* Send up, or ask for the record, as soon as all below have contributed. */
inline advance(me) {
    look_at_tree(me);
    if
    :: (below & ~have[me]) != 0
    :: else ->
        if
        :: up == NONE ->
            phase[me] = RECORDING;
            wanted[me] = live & have[me];
            assert((wanted[me] & ~have[me]) == 0)
        :: up != NONE && (told_to[me] != up || told[me] != have[me]) ->
            told_to[me] = up; told[me] = have[me];
            if :: !crashed[up] -> report[up * N + me] = report[up * N + me] | have[me] :: else fi
        :: else
        fi
    fi
}

inline call_in(me) {
    if :: phase[me] != IDLE && left != NONE && !crashed[left] && (left_below & ~have[me]) != 0 -> call[left * N + me] = 1 :: else fi;
    if :: phase[me] != IDLE && right != NONE && !crashed[right] && (right_below & ~have[me]) != 0 -> call[right * N + me] = 1 :: else fi
}

inline spread(me, but) {
    look_at_tree(me);
    if :: up != NONE && up != but && listens(up) -> announce[up * N + me] = 1 :: else fi;
    if :: left != NONE && left != but && listens(left) -> announce[left * N + me] = 1 :: else fi;
    if :: right != NONE && right != but && listens(right) -> announce[right * N + me] = 1 :: else fi;
    forget_tree()
}

inline adopt(me, source) {
    assert(members != 0);                   /* nobody hears of a record that does not exist */
    assert(agreed == 0 || agreed == members);   /* uniform: also with who crashed since */
    agreed = members;
    if
    :: in(members, me) -> phase[me] = ADOPTED
    :: else -> phase[me] = FENCED
    fi;
    told_to[me] = NONE; told[me] = 0; have[me] = 0;     /* they mean nothing any more */
    spread(me, source)
}

/* What an agent may get from `other`, or hear about it: each an option of its loop. */
#define FROM(other) \
    :: atomic { !crashed[me] && phase[me] != IDLE && other != me && !in(dead[me], other) && (crashed[other] || wrong > 0) -> \
        if :: crashed[other] :: else -> wrong-- fi; \
        dead[me] = dead[me] | bit(other); \
        if \
        :: row(GATHERING, Died) -> d_step { advance(me); call_in(me); forget_tree() } \
        :: row(RECORDING, Died) \
        :: row(ADOPTED, Died) || row(FENCED, Died) -> d_step { spread(me, NONE) } \
        fi } \
    :: atomic { !crashed[me] && phase[me] != IDLE && in(dead[me], other) && !crashed[other] -> \
        dead[me] = dead[me] & ~bit(other); \
        if \
        :: row(GATHERING, Cleared) -> d_step { advance(me); call_in(me); forget_tree() } \
        :: row(RECORDING, Cleared) \
        :: row(ADOPTED, Cleared) || row(FENCED, Cleared) -> d_step { spread(me, NONE) } \
        fi } \
    :: atomic { !crashed[me] && phase[me] != IDLE && report[me * N + other] != 0 -> \
        if \
        :: row(GATHERING, Report) -> d_step { have[me] = have[me] | report[me * N + other]; advance(me); forget_tree() } \
        :: row(RECORDING, Report) -> have[me] = have[me] | report[me * N + other] \
        :: row(ADOPTED, Report) || row(FENCED, Report) -> if :: listens(other) -> announce[other * N + me] = 1 :: else fi \
        fi; \
        report[me * N + other] = 0 } \
    :: atomic { !crashed[me] && phase[me] != IDLE && call[me * N + other] -> \
        if \
        :: row(GATHERING, Call) || row(RECORDING, Call) \
        :: row(ADOPTED, Call) || row(FENCED, Call) -> if :: listens(other) -> announce[other * N + me] = 1 :: else fi \
        fi; \
        call[me * N + other] = 0 } \
    :: atomic { !crashed[me] && phase[me] != IDLE && announce[me * N + other] -> \
        announce[me * N + other] = 0; \
        if \
        :: row(GATHERING, Announce) || row(RECORDING, Announce) -> d_step { adopt(me, other) } \
        :: row(ADOPTED, Announce) || row(FENCED, Announce) -> assert(members != 0) \
        fi }

proctype agent(byte me) {
    end: do
    /* It begins by itself, by a message, or by the death of another: its ledgers are closed. */
    :: atomic { !crashed[me] && phase[me] == IDLE && (starter == me || touched(me)) ->
        d_step { phase[me] = GATHERING; have[me] = bit(me); advance(me); call_in(me); forget_tree() } }

    /* -- Tick ------------------------------------------------------------------------------ */
    :: atomic { !crashed[me] && row(GATHERING, Tick) && ticks[me] > 0 ->
        d_step { ticks[me]--; told_to[me] = NONE; told[me] = 0; advance(me); call_in(me); forget_tree() } }
    :: atomic { !crashed[me] && row(RECORDING, Tick) && ticks[me] > 0 -> ticks[me]-- }
    :: atomic { !crashed[me] && (row(ADOPTED, Tick) || row(FENCED, Tick)) && ticks[me] > 0 ->
        d_step { ticks[me]--; spread(me, NONE) } }

    /* -- what comes from and about each of the others ------------------------------------------ */
    FROM(0) FROM(1) FROM(2)
#if N > 3
    FROM(3)
#endif

    /* -- the storage: it does what was asked, also for who has crashed since ------------------- */
    :: atomic { wanted[me] != 0 ->
        if
        :: members == 0 ->
            members = wanted[me];
            if
            :: crashed[me]
            :: !crashed[me] && row(RECORDING, RecordCreated) -> d_step { adopt(me, NONE) }
            :: !crashed[me] && row(ADOPTED, RecordCreated)
            fi
        :: members != 0 ->
            if
            :: crashed[me]
            :: !crashed[me] && row(RECORDING, RecordFound) -> d_step { adopt(me, NONE) }
            :: !crashed[me] && (row(ADOPTED, RecordFound) || row(FENCED, RecordFound))
            fi
        :: crashed[me]                      /* or it was never asked */
        fi;
        wanted[me] = 0 }
    :: atomic { !crashed[me] && row(GATHERING, RecordFound) && members != 0 && peeks > 0 ->
        peeks--; d_step { adopt(me, NONE) } }

    /* -- a crash ------------------------------------------------------------------------------- */
    :: atomic { !crashed[me] && crashes > 0 ->
        crashes--; crashed[me] = true;
        if :: skip :: d_step { lose_from(me) } fi;
        d_step { lose_to(me) } }
    od
}

init {
    atomic {
        /* Faults may come; an end must be reached without them too. */
        if :: peeks = 0 :: peeks = 1 fi;
        do :: crashes < CRASHES -> crashes++ :: break od;
        do :: wrong < WRONG -> wrong++ :: break od;
        if :: TICKS > 0 -> ticks[0] = TICKS; ticks[1] = TICKS; ticks[N - 1] = TICKS :: skip fi;
        if :: starter = 0 :: starter = 1 :: starter = N - 1 fi;
        run agent(0); run agent(1); run agent(2);
#if N > 3
        run agent(3);
#endif
        skip
    }
    timeout;
    d_step {
        x = 0;
        do
        :: x < N -> assert(crashed[x] || settled(x)); x++
        :: else -> break
        od;
        x = 0
    }
}
