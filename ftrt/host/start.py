"""Starts the agent of a host: by the launcher or, without one, by the first process of the job.

Imports nothing that takes time: the agent begins while mpirun does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

from ftrt.host.words import job_directory
from ftrt.runtime.config import Config
from ftrt.runtime.events import EventLog, recorded_failure


def start_agent(config: Config, environment: Mapping[str, str]) -> subprocess.Popen:
    """Start this host's agent; it ends by itself once its ranks are gone.

    Parameters
    ----------
    config : Config
        What ``environment`` says.
    environment : mapping
        Where the agent reads its configuration; what belongs to MPI is left out.
    """
    config.run_directory.mkdir(parents=True, exist_ok=True)
    name = f"agent-{config.host}.log" if config.host else "agent.log"
    log = open(config.run_directory / name, "ab")  # noqa: SIM115 (the child keeps it)
    agent = subprocess.Popen(
        [sys.executable, "-m", "ftrt.host.agent"],
        env={
            name: value
            for name, value in environment.items()
            if not name.startswith(("OMPI_", "PMIX_", "PMI_", "PRTE_"))
        },
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
        pass_fds=[fd for fd in (config.lock_fd, config.head_fd) if fd is not None],
    )
    log.close()
    if config.lock_fd is not None:
        os.close(config.lock_fd)
    return agent


def failure_before_the_board(agent: subprocess.Popen | None, config: Config) -> str | None:
    """Why there will be no board, None if there may still be one.

    Whoever started the agent passes it, and tells for everybody that it ended without a word.
    """
    reason = recorded_failure(config.ledger / "run", config.attempt)
    board = job_directory(config.job, config.attempt) / "board"
    if reason is None and agent is not None and agent.poll() and not board.exists():
        reason = (
            f"the host agent ended with status {agent.returncode} before it had begun; its last "
            f"words are in {config.run_directory / 'agent.log'}"
        )
        EventLog(config.ledger / "run", config.attempt).write("failed", reason=reason)
    return reason
