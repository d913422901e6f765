"""Makes every Python process of a job tell what it syncs, see power_cut.py.

With POWER_CUTS the power fails before every attempt but the first, and each attempt sees another
boot of the machine. The agent is the first process of an attempt: it cuts, the others wait for it.
"""

import os
import pathlib
import sys
import uuid

if "POWER_SYNCED" in os.environ:
    sys.path.insert(0, os.path.dirname(os.path.dirname(__file__)))
    import power_cut

    _broken = os.environ.get("POWER_EIO", "")

    def _fails(path: str) -> bool:
        """Once in a job, the first sync of the file POWER_EIO in a process POWER_EIO_IN fails."""
        process = "agent" if "ftrt.host.agent" in sys.orig_argv else "rank"
        if not _broken or process != os.environ["POWER_EIO_IN"] or not path.endswith(_broken):
            return False
        try:
            os.close(os.open(os.environ["POWER_SYNCED"] + "/eio", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    power_cut.record(pathlib.Path(os.environ["POWER_SYNCED"]), _fails)

if "POWER_CUTS" in os.environ and "FTRT_ATTEMPT" in os.environ:
    _attempt = int(os.environ["FTRT_ATTEMPT"])
    _boot = str(uuid.UUID(int=_attempt))
    if "ftrt.host.agent" in sys.orig_argv:
        _synced = pathlib.Path(os.environ["POWER_SYNCED"])
        if _attempt > 1:
            power_cut.cut(pathlib.Path(os.environ["FTRT_LEDGER"]), _synced, _attempt)
        (_synced / f"back-{_attempt}").touch()
    _read_text = pathlib.Path.read_text

    def _read_boot(self, *args, **kwargs):
        if str(self) == "/proc/sys/kernel/random/boot_id":
            return _boot
        return _read_text(self, *args, **kwargs)

    pathlib.Path.read_text = _read_boot
