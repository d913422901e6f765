"""Links that are delayed, lossy or cut: a job in a network namespace whose link we own.

All of MPI's TCP goes over the loopback link of that namespace. Where the kernel has ``netem`` it
delays and drops packets; elsewhere a token bucket does, by a low rate or by a short queue.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
from types import TracebackType

from ftrt.errors import FtrtError

_LINK = "lo"
_LIMIT_S = 10.0
#: What a link suffers, by netem and by a token bucket.
NETEM = {
    "cut": "netem loss 100%",
    "delay": "netem delay 40ms 20ms",
    "loss": "netem loss 20%",
}
BUCKET = {
    "cut": "tbf rate 8bit burst 1600 limit 1600",
    "delay": "tbf rate 4mbit burst 16kb limit 4mb",
    "loss": "tbf rate 200mbit burst 70kb limit 1600",
}
#: Variables with which MPI takes the link.
SETTINGS = {"OMPI_MCA_btl_tcp_if_include": _LINK, "OMPI_MCA_btl": "self,tcp"}


class Namespace:
    """A network namespace, for as long as it is entered.

    Attributes
    ----------
    prefix : list of str
        The command that runs another one inside.
    done : list of str
        What the link suffered so far.
    """

    def __init__(self) -> None:
        self._holder: subprocess.Popen[bytes] | None = None
        self.done: list[str] = []

    def __enter__(self) -> Namespace:
        command = ["unshare", "--net", "sh", "-c", f"ip link set {_LINK} up && echo && sleep 86400"]
        self._holder = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
        assert self._holder.stdout is not None
        if not self._holder.stdout.readline():
            self.__exit__(None, None, None)
            raise FtrtError("a network namespace cannot be made here")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._holder is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._holder.pid, signal.SIGKILL)
            self._holder.wait()
            if self._holder.stdout is not None:
                self._holder.stdout.close()

    @property
    def prefix(self) -> list[str]:
        assert self._holder is not None
        return ["nsenter", "--net", f"--target={self._holder.pid}"]

    def impair(self, seed: int) -> None:
        """Begin to delay, drop or cut, which one and how by the seed."""
        kind = random.Random(seed).choice(sorted(NETEM))
        for how in (NETEM, BUCKET):
            if not self._tc(f"qdisc replace dev {_LINK} root {how[kind]}"):
                continue
            self.done.append(how[kind])
            return
        raise FtrtError("neither netem nor a token bucket can be set on a link here")

    def heal(self) -> None:
        """The link is as it was."""
        self._tc(f"qdisc del dev {_LINK} root")

    def _tc(self, arguments: str) -> bool:
        ended = subprocess.run(
            [*self.prefix, "tc", *arguments.split()],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LIMIT_S,
        )
        return ended.returncode == 0


def reason_without_links() -> str:
    """Why no link can be impaired here, empty if one can."""
    missing = [name for name in ("unshare", "nsenter", "ip", "tc") if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not installed: links are impaired in a network namespace"
    try:
        with Namespace() as namespace:
            namespace.impair(0)
            namespace.heal()
    except (FtrtError, OSError, subprocess.TimeoutExpired) as error:
        return f"no link of a network namespace can be impaired ({error}): it takes root"
    return ""
