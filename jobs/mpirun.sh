#!/bin/bash
# A fault-tolerant job under mpirun, without a batch system. Copy it, change the first block.
#
#     jobs/mpirun.sh                                  the job below, on this machine
#     HOSTS=a,b,c jobs/mpirun.sh my_program.py ARGS   over hosts that mpirun reaches (ssh), this one
#                                                     among them; or HOSTS=FILE, a name in each line
#
# A rank that dies is replaced by a spare. When spares run out, or a host is lost, all ranks begin
# again from the ledger on the hosts that are left. When that fails too, or this script is told to
# stop for a while (SIGUSR1), it exits with 75: start it again, and it goes on from the ledger.
#
#     until jobs/mpirun.sh; [ $? -ne 75 ]; do sleep 10; done
#
# or let systemd do it: RestartForceExitStatus=75 and Restart=no in the unit.

set -u

RANKS=${RANKS:-4}
SPARES=${SPARES:-1}
RESTARTS=${RESTARTS:-3}
FTRT=${FTRT:-.venv/bin/ftrt}

# One name for all starts of one job, on storage that every host mounts. Remove it to begin anew.
LEDGER=${LEDGER:-$PWD/ledger-mpirun}

# The next start may be after a power failure, or on other hosts: what is acknowledged is synced.
STABLE=${STABLE:-power}

[ $# -gt 0 ] || set -- apps/rollout.py

AGAIN=75 # EX_TEMPFAIL of sysexits.h; 0 to 3 are ftrt's own, 128 and more are signals

# bash runs a trap only between two commands, or in `wait`: the job runs in the background. A signal
# that comes before there is a job is remembered in $why.
why= job=
stop() {
    why=${why:-$1}
    [ -z "$job" ] || kill -TERM "$job" 2>/dev/null
}
trap 'stop again' USR1
trap 'stop end' TERM INT HUP

resume=
[ ! -e "$LEDGER/job.json" ] || resume=--resume
hosts=()
[ -z "${HOSTS:-}" ] || hosts=(--hosts "$HOSTS")

# mpirun is the one that belongs to ftrt's Python; MPIRUN=PATH names a site's own. `ftrt run` gives
# it what a job needs that outlives its ranks, and judges the end by what the ranks recorded: after
# the loss of a host mpirun itself says 0.
"$FTRT" run -n "$RANKS" --spares "$SPARES" --restarts "$RESTARTS" --stable "$STABLE" \
    ${MPIRUN:+--mpirun "$MPIRUN"} "${hosts[@]}" --ledger "$LEDGER" $resume "$@" &
job=$!
[ -z "$why" ] || kill -TERM "$job"

# `wait` returns early when a trap ran: repeated until the job is gone; the last gives its status.
while kill -0 "$job" 2>/dev/null; do
    wait "$job"
done
wait "$job"
status=$?

case $status in
0) exit 0 ;;
1 | 2) exit "$status" ;; # the program's own error, or usage: the next start would end the same way
esac
[ "$why" != end ] || exit "$status"
echo "mpirun.sh: ended with status $status; start it again, and it goes on from $LEDGER" >&2
exit $AGAIN
