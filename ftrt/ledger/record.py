"""Epoch records and the job file: JSON that exactly one process can publish."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import uuid
from pathlib import Path

from ..errors import LedgerDamaged, LedgerError
from .kept import KINDS
from .steps import step
from .version import VERSION


def _canonical(record: dict) -> bytes:
    return json.dumps(record, sort_keys=True, separators=(",", ":"), default=_plain).encode()


def _check(record: dict) -> str:
    rest = {key: value for key, value in record.items() if key != "check"}
    return hashlib.sha256(_canonical(rest)).hexdigest()


def _with_check(record: dict) -> bytes:
    """Text of a record that fits its check by construction: one conversion, not three."""
    text = _canonical(record)
    check = hashlib.sha256(text).hexdigest()
    return text[:-1] + b',"check":"' + check.encode() + b'"}\n'


def _fits(text: bytes) -> bool:
    """Whether a record as :func:`_with_check` wrote it has its check."""
    body, _, check = text.rpartition(b',"check":"')
    return hashlib.sha256(body + b"}").hexdigest().encode() + b'"}\n' == check


def _publish(path: Path, record: dict, durable: bool, draft: Draft | None = None) -> bool:
    """Write ``record`` under its final name unless that exists; leaves no other file."""
    text = _with_check({"format": VERSION, **record})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not _link_unnamed(path, text, durable, draft):
            _link_temporary(path, text, durable)
    except FileExistsError:
        return False
    except OSError as error:
        raise LedgerError(f"{path}: cannot be written: {error.strerror}") from error
    if durable:
        sync_directory(path.parent)
        sync_directory(path.parent.parent)  # which may have got the parent just now
    return True


def _write(descriptor: int, text: bytes, durable: bool) -> None:
    with open(descriptor, "wb", closefd=False) as file:
        file.write(text)
    step("record.written")
    if durable:
        os.fsync(descriptor)


class Draft:
    """An unnamed file in wait for the next record, made where there is time."""

    def __init__(self, directory) -> None:
        self._directory = Path(directory) / "epochs"
        self._descriptor: int | None = None

    def get_ready(self) -> None:
        """Make the file unless it is there; where that cannot be, the record tells why."""
        if self._descriptor is None:
            with contextlib.suppress(OSError):
                self._descriptor = _open_unnamed(self._directory)

    def take(self) -> int | None:
        """The descriptor of the file, whose the caller is then; None if there is none."""
        descriptor, self._descriptor = self._descriptor, None
        return descriptor


def _open_unnamed(directory: Path) -> int | None:
    """A file without a name; None where the file system has no such."""
    try:
        return os.open(directory, os.O_TMPFILE | os.O_WRONLY, 0o666)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL):
            return None
        raise


def _link_unnamed(path: Path, text: bytes, durable: bool, draft: Draft | None) -> bool:
    """Write a file that has no name until it is whole; False where file systems have no such."""
    descriptor = draft.take() if draft is not None else None
    if descriptor is None:
        descriptor = _open_unnamed(path.parent)
    if descriptor is None:
        return False
    try:
        _write(descriptor, text, durable)
        # With a dir_fd, which an absolute path ignores, Python calls linkat, which can follow.
        os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor, follow_symlinks=True)
        step("record.linked")
    finally:
        os.close(descriptor)
    return True


def _link_temporary(path: Path, text: bytes, durable: bool) -> None:
    """The same with a temporary name, as NFS needs it."""
    temporary = path.with_name(f".tmp-{uuid.uuid4().hex}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            _write(descriptor, text, durable)
        finally:
            os.close(descriptor)
        os.link(temporary, path)
        step("record.linked")
    finally:
        temporary.unlink(missing_ok=True)


def replace_file(path: Path, record: dict) -> None:
    """Put ``record`` in the place of what is there, on stable storage when this returns."""
    temporary = path.with_name(f".tmp-{uuid.uuid4().hex}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(_with_check({"format": VERSION, **record}))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
        sync_directory(path.parent)
    except OSError as error:
        raise LedgerError(f"{path} cannot be written ({error.strerror})") from error
    finally:
        temporary.unlink(missing_ok=True)


_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
#: File systems that several hosts mount, each with a cache of its own.
_SHARED = (
    *("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "9p", "virtiofs", "afs"),
    *("panfs", "orangefs", "pvfs2", "gfs2", "ocfs2", "wekafs", "daos", "fuse.ceph", "fuse.cephfs"),
    *("fuse.glusterfs", "fuse.sshfs", "fuse.juicefs", "fuse.beegfs", "fuse.daos"),
)


def _plain(value):
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"a record cannot hold {type(value).__name__}")


def sync_directory(path: Path) -> None:
    """Make the names in a directory survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_file(path: Path) -> dict:
    """A file that this module wrote; LedgerDamaged if it is not what was written."""
    try:
        text = path.read_bytes()
        record = json.loads(text)
    except (ValueError, UnicodeDecodeError) as error:
        raise LedgerDamaged(f"{path}: not JSON: {error}") from error
    except OSError as error:
        raise LedgerDamaged(f"{path}: cannot be read: {error.strerror}") from error
    if not isinstance(record, dict) or not isinstance(record.get("format"), int):
        raise LedgerDamaged(f"{path}: has no format number")
    if record["format"] > VERSION:
        raise LedgerDamaged(
            f"{path}: written by a newer ftrt (format {record['format']}, this "
            f"one reads {VERSION}); read it with that version"
        )
    if not _fits(text) and record.get("check") != _check(record):
        raise LedgerDamaged(f"{path}: has a wrong check")
    return record


def record_path(directory, epoch: int) -> Path:
    """Where the record of ``epoch`` lies."""
    return Path(directory) / "epochs" / f"{epoch:06d}.json"


def create_record(
    directory, record: dict, durable: bool = False, draft: Draft | None = None
) -> bool:
    """Publish the record of ``record["epoch"]``; False if somebody else's exists.

    Parameters
    ----------
    directory : path
    record : dict
        Must have ``epoch``; ``format`` and ``check`` are added.
    durable : bool
        On stable storage before it is visible, and everything that it refers to before that: for
        the power class.
    draft : Draft, optional
        A file made beforehand, which saves the time to make one.
    """
    if durable:
        _sync_content(Path(directory), record)
    return _publish(record_path(directory, record["epoch"]), record, durable, draft)


def _sync_content(directory: Path, record: dict) -> None:
    """Sync what a record seals and where its states lie, what senders keep, its epoch's ledgers."""
    names = {sealed["file"] for sealed in record.get("seals", ())}
    names |= {entry["file"] for states in record.get("states", {}).values() for entry in states}
    names |= {path.name for path in directory.glob(f"e{record['epoch']:06d}-*.h5")}
    kept = {path.name for kind in KINDS for path in directory.glob(f"{kind}-*.bin")}
    name = ""
    try:
        for name in kept:  # before what their receivers consumed counts as durable
            with contextlib.suppress(FileNotFoundError):  # its sender has freed it just now
                sync_path(directory / name)
        for name in sorted(names):
            sync_path(directory / name)
        name = "."
        sync_directory(directory)
    except OSError as error:
        raise LedgerError(f"{directory / name}: cannot be synced: {error.strerror}") from error


def sync_path(path: Path) -> None:
    """Make the content of a file survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def read_record(directory, epoch: int) -> dict:
    """Record of an epoch.

    Raises
    ------
    LedgerDamaged
        It is missing, of a newer format, or does not fit its check.
    """
    record = read_file(record_path(directory, epoch))
    if record.get("epoch") != epoch:
        path = record_path(directory, epoch)
        raise LedgerDamaged(f"{path}: is the record of epoch {record.get('epoch')}")
    return record


def epochs(directory) -> list[int]:
    """Epochs that have a record, ascending."""
    stems = (path.stem for path in (Path(directory) / "epochs").glob("*.json"))
    return sorted(int(stem) for stem in stems if stem.isdigit())


def latest_epoch(directory) -> int | None:
    """Highest epoch that has a record."""
    return max(epochs(directory), default=None)


def create_job(directory, job: dict) -> bool:
    """Write ``job.json``; must have ``job`` (UUID). False if there is one already."""
    return _publish(Path(directory) / "job.json", job, job.get("stable", "process") != "process")


def read_job(directory) -> dict:
    """The job that a ledger directory belongs to."""
    return read_file(Path(directory) / "job.json")


def lock_directory(directory):
    """Lock a ledger directory for one launcher; keep the handle open as long as it runs.

    Raises
    ------
    LedgerError
        Another launcher holds it.
    """
    path = Path(directory) / "lock"
    try:
        handle = open(path, "a+", encoding="ascii")  # noqa: SIM115 - the lock lasts as long
    except OSError as error:
        raise LedgerError(f"{directory}: cannot be locked: {error.strerror}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        handle.seek(0)
        owner = handle.read().strip() or "unknown"
        handle.close()
        raise LedgerError(f"{directory}: in use by a running job (pid {owner})") from error
    handle.truncate(0)
    handle.write(f"{os.getpid()}\n")
    handle.flush()
    return handle


def check_directory(
    directory,
    job: str | None = None,
    need_bytes: int = 1 << 20,
    stable: str = "process",
    seen_elsewhere: bool = False,
) -> None:
    """Raise LedgerError, with what to do, unless the directory can hold this job's ledger.

    Parameters
    ----------
    directory : path
        Made if it does not exist.
    job : str, optional
        UUID of the job that wants it; another job's directory is refused.
    need_bytes : int
        Space that must be free.
    stable : str
        Class that the job wants; one that the file system cannot give is refused.
    seen_elsewhere : bool
        Other hosts were seen to read there what this one wrote.
    """
    directory = Path(directory)
    if stable == "power" and (kind := file_system(directory)) in _IN_MEMORY:
        raise LedgerError(
            f"{directory}: is in memory ({kind}), which no power cut leaves; choose a directory on "
            "a disk, or --stable process"
        )
    if stable == "host" and not seen_elsewhere:
        kind = file_system(directory) or "of an unknown type"
        if kind not in _SHARED:
            raise LedgerError(
                f"{directory}: other hosts do not see it, as far as its file system ({kind}) "
                "tells; choose a directory on a network file system, name the job's hosts with "
                "--hosts, or choose --stable process or power"
            )
    probe = directory / f".probe-{uuid.uuid4().hex}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with open(probe, "xb") as file:
            os.posix_fallocate(file.fileno(), 0, need_bytes)
    except OSError as error:
        raise LedgerError(_unusable(directory, error, need_bytes)) from error
    finally:
        with contextlib.suppress(OSError):  # it may never have been made; that is being raised
            probe.unlink(missing_ok=True)
    if not (directory / "job.json").exists():
        if epochs(directory) or any(directory.glob("e[0-9]*-r*.h5")):
            raise LedgerError(
                f"{directory}: holds ledger files of a job whose job.json is missing; choose "
                "another directory"
            )
    else:
        found = read_job(directory).get("job")
        if job is not None and found != job:
            raise LedgerError(
                f"{directory}: holds the ledger of job {found}; go on with that job with "
                "--resume, choose another directory, or remove it if it is no longer needed"
            )


def file_system(directory: Path) -> str:
    """Type of the file system that a directory lies on, empty where the kernel does not tell."""
    kind, depth, path = "", -1, directory.resolve()
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            fields, _, rest = line.partition(" - ")
            mount = Path(fields.split()[4].replace("\\040", " "))
            # Of mounts on one place the last covers the others.
            if (mount == path or mount in path.parents) and len(mount.parts) >= depth:
                kind, depth = rest.split()[0], len(mount.parts)
    return kind


def stable_classes(directory: Path) -> list[str]:
    """Classes of ``--stable`` that the file system of a directory can give."""
    kind = file_system(directory)
    named = {"process": True, "host": kind in _SHARED, "power": kind not in _IN_MEMORY}
    return [name for name, given in named.items() if given]


def _unusable(directory: Path, error: OSError, need_bytes: int) -> str:
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return f"{directory}: is read-only for this user; choose a directory you can write to"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return (
            f"{directory}: is full; free at least {need_bytes >> 20} MiB or choose another "
            "directory"
        )
    return f"{directory}: cannot be used as a ledger directory: {error.strerror}; choose another"
