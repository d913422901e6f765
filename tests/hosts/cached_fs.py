"""A file system with a cache of its own in each host, as network file systems have one.

``cached_fs.py BACKING MOUNTPOINT`` shows the directory BACKING at MOUNTPOINT, through the kernel's
FUSE interface. Names, sizes and what is written by a call are everywhere at once. What is stored
into a mapped file stays in the pages of the host that stored it until it is synced there, or a
process that mapped the file ends; another host sees it when it opens the file after that. When this
process is killed, what was not synced is gone: that is what the death of the host means for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import stat
import struct
import sys

_IN = struct.Struct("<IIQQIIIHH")
_OUT = struct.Struct("<IiQ")
_ATTR = struct.Struct("<QQQQQQIIIIIIIIII")
_MOST_WRITE = 1 << 20
_BIG_WRITES, _MAX_PAGES, _ATOMIC_TRUNC = 1 << 5, 1 << 22, 1 << 3
_ROOT = 1
# At an open the pages are kept, unless another host wrote; at a close nothing is written.
_KEEP_PAGES, _NO_FLUSH = 1 << 1, 1 << 5
_LATER_ENTRY = b"\0" * 24  # names and attributes are asked for each time


class Failed(Exception):
    """Answers a request with an error number."""

    def __init__(self, number: int) -> None:
        super().__init__(os.strerror(number))
        self.number = number


class Files:
    """The files that the kernel knows, each held by a descriptor, whatever its name is now."""

    def __init__(self, backing: str) -> None:
        root = os.open(backing, os.O_PATH)
        self._held = {_ROOT: root}
        self._lookups = {_ROOT: 1}
        self._by_inode = {self._key(os.fstat(root)): _ROOT}
        self._last = _ROOT

    @staticmethod
    def _key(status: os.stat_result) -> tuple[int, int]:
        return status.st_dev, status.st_ino

    def path(self, node: int) -> str:
        """A path that leads to the file itself."""
        return f"/proc/self/fd/{self._held[node]}"

    def at(self, node: int) -> int:
        """The descriptor of a directory, for calls that take one."""
        return self._held[node]

    def status(self, node: int) -> os.stat_result:
        return os.fstat(self._held[node])

    def look_up(self, parent: int, name: bytes) -> tuple[int, os.stat_result]:
        """The number of a file by its name; counted, until it is forgotten."""
        held = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=self.at(parent))
        status = os.fstat(held)
        node = self._by_inode.get(self._key(status))
        if node is None:
            self._last += 1
            node = self._last
            self._held[node], self._lookups[node] = held, 0
            self._by_inode[self._key(status)] = node
        else:
            os.close(held)
        self._lookups[node] += 1
        return node, status

    def forget(self, node: int, count: int) -> None:
        if node == _ROOT or node not in self._held:
            return
        self._lookups[node] -= count
        if self._lookups[node] <= 0:
            held = self._held.pop(node)
            self._by_inode.pop(self._key(os.fstat(held)), None)
            del self._lookups[node]
            os.close(held)


class Server:
    """Answers the kernel's requests one by one."""

    def __init__(self, backing: str, device: int) -> None:
        self._files, self._device = Files(backing), device
        self._written: dict[int, int] = {}  # when a file was last written, as far as we know
        self._listed: dict[int, list[tuple[int, int, bytes]]] = {}
        self._calls = {
            1: self._lookup,
            3: self._getattr,
            4: self._setattr,
            5: self._readlink,
            6: self._symlink,
            9: self._mkdir,
            10: self._unlink,
            11: self._rmdir,
            12: self._rename,
            13: self._link,
            14: self._open,
            15: self._read,
            16: self._write,
            17: self._statfs,
            18: self._release,
            20: self._fsync,
            25: self._nothing,
            26: self._init,
            27: self._opendir,
            28: self._readdir,
            29: self._releasedir,
            30: self._fsyncdir,
            34: self._nothing,
            35: self._create,
            43: self._fallocate,
            45: self._rename2,
        }

    def run(self) -> None:
        """Serve until it is unmounted."""
        while True:
            try:
                request = os.read(self._device, _MOST_WRITE + 4096)
            except InterruptedError:
                continue
            except OSError as error:
                if error.errno in (errno.ENODEV, errno.ENOTCONN):
                    return
                if error.errno in (errno.ENOENT, errno.EAGAIN):
                    continue
                raise
            self._answer(request)

    def _answer(self, request: bytes) -> None:
        _, code, unique, node, *_ = _IN.unpack_from(request)
        body = request[_IN.size :]
        if code == 2:
            self._files.forget(node, struct.unpack_from("<Q", body)[0])
            return
        if code == 42:
            (count,) = struct.unpack_from("<I", body)
            for at in range(count):
                self._files.forget(*struct.unpack_from("<QQ", body, 8 + 16 * at))
            return
        if code in (36, 38):  # an interruption comes too late, the end needs no answer
            return
        number, answer = 0, b""
        try:
            call = self._calls.get(code)
            if call is None:
                raise Failed(errno.ENOSYS)
            answer = call(node, body)
        except Failed as failed:
            number = failed.number
        except OSError as error:
            number = error.errno or errno.EIO
        with contextlib.suppress(FileNotFoundError):  # whoever asked has gone
            os.write(self._device, _OUT.pack(_OUT.size + len(answer), -number, unique) + answer)

    # -- names and attributes ------------------------------------------------------------------

    def _init(self, node: int, body: bytes) -> bytes:
        _, minor, readahead, _ = struct.unpack_from("<IIII", body)
        flags = _BIG_WRITES | _MAX_PAGES | _ATOMIC_TRUNC
        head = struct.pack("<IIII", 7, min(minor, 31), readahead, flags)
        return head + struct.pack("<HHIIHHI7I", 12, 9, _MOST_WRITE, 1, 256, 0, 0, *[0] * 7)

    @staticmethod
    def _attributes(status: os.stat_result) -> bytes:
        times = (status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns)
        return _ATTR.pack(
            *(status.st_ino, status.st_size, status.st_blocks),
            *(t // 10**9 for t in times),
            *(t % 10**9 for t in times),
            *(status.st_mode, status.st_nlink, status.st_uid, status.st_gid, 0, 4096, 0),
        )

    def _entry(self, parent: int, name: bytes) -> bytes:
        node, status = self._files.look_up(parent, name)
        return struct.pack("<QQ", node, 0) + _LATER_ENTRY + self._attributes(status)

    def _lookup(self, node: int, body: bytes) -> bytes:
        return self._entry(node, _names(body)[0])

    def _getattr(self, node: int, body: bytes) -> bytes:
        return bytes(16) + self._attributes(self._files.status(node))

    def _setattr(self, node: int, body: bytes) -> bytes:
        valid, _, _, size, _, *_ = struct.unpack_from("<IIQQQ", body)
        mode, _, uid, gid, _ = struct.unpack_from("<IIIII", body, 68)
        path = self._files.path(node)
        if valid & 1:
            os.chmod(path, stat.S_IMODE(mode))
        if valid & 6:
            os.chown(path, uid if valid & 2 else -1, gid if valid & 4 else -1)
        if valid & 8:
            os.truncate(path, size)
        if valid & 48:
            os.utime(path)
        return self._getattr(node, b"")

    def _readlink(self, node: int, body: bytes) -> bytes:
        return os.readlink(b"", dir_fd=self._files.at(node))

    def _symlink(self, node: int, body: bytes) -> bytes:
        name, target = _names(body)
        os.symlink(target, name, dir_fd=self._files.at(node))
        return self._entry(node, name)

    def _mkdir(self, node: int, body: bytes) -> bytes:
        (mode,) = struct.unpack_from("<I", body)
        (name,) = _names(body[8:])
        os.mkdir(name, mode, dir_fd=self._files.at(node))
        return self._entry(node, name)

    def _unlink(self, node: int, body: bytes) -> bytes:
        os.unlink(_names(body)[0], dir_fd=self._files.at(node))
        return b""

    def _rmdir(self, node: int, body: bytes) -> bytes:
        os.rmdir(_names(body)[0], dir_fd=self._files.at(node))
        return b""

    def _rename(self, node: int, body: bytes, skip: int = 8) -> bytes:
        (target,) = struct.unpack_from("<Q", body)
        old, new = _names(body[skip:])
        os.rename(old, new, src_dir_fd=self._files.at(node), dst_dir_fd=self._files.at(target))
        return b""

    def _rename2(self, node: int, body: bytes) -> bytes:
        if struct.unpack_from("<I", body, 8)[0]:
            raise Failed(errno.EINVAL)
        return self._rename(node, body, 16)

    def _link(self, node: int, body: bytes) -> bytes:
        (old,) = struct.unpack_from("<Q", body)
        (name,) = _names(body[8:])
        source, at = self._files.at(old), self._files.at(node)
        # With a descriptor beside it, Python follows the link that the path is.
        os.link(self._files.path(old), name, src_dir_fd=source, dst_dir_fd=at, follow_symlinks=True)
        return self._entry(node, name)

    # -- contents ------------------------------------------------------------------------------

    def _open(self, node: int, body: bytes) -> bytes:
        (flags,) = struct.unpack_from("<I", body)
        flags &= ~(os.O_NOFOLLOW | os.O_CREAT | os.O_EXCL | os.O_APPEND)
        if flags & os.O_ACCMODE == os.O_WRONLY:  # the kernel may read a page to change a part of it
            flags = flags & ~os.O_ACCMODE | os.O_RDWR
        handle = os.open(self._files.path(node), flags)
        changed = os.fstat(handle).st_mtime_ns
        keep = _KEEP_PAGES if self._written.get(node) == changed else 0
        self._written[node] = changed
        return struct.pack("<QII", handle, keep | _NO_FLUSH, 0)

    def _create(self, node: int, body: bytes) -> bytes:
        flags, mode = struct.unpack_from("<II", body)
        (name,) = _names(body[16:])
        flags = flags & ~(os.O_ACCMODE | os.O_APPEND) | os.O_RDWR | os.O_CREAT
        handle = os.open(name, flags, mode, dir_fd=self._files.at(node))
        return self._entry(node, name) + struct.pack("<QII", handle, _NO_FLUSH, 0)

    def _read(self, node: int, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", body)
        return os.pread(handle, size, offset)

    def _write(self, node: int, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", body)
        done = os.pwrite(handle, body[40 : 40 + size], offset)
        self._written[node] = os.fstat(handle).st_mtime_ns
        return struct.pack("<II", done, 0)

    def _fallocate(self, node: int, body: bytes) -> bytes:
        handle, offset, length, mode = struct.unpack_from("<QQQI", body)
        if mode:
            raise Failed(errno.EOPNOTSUPP)
        os.posix_fallocate(handle, offset, length)
        self._written[node] = os.fstat(handle).st_mtime_ns
        return b""

    def _fsync(self, node: int, body: bytes) -> bytes:
        return b""  # by now the kernel has written the pages; what is in BACKING all hosts see

    def _release(self, node: int, body: bytes) -> bytes:
        os.close(struct.unpack_from("<Q", body)[0])
        return b""

    def _statfs(self, node: int, body: bytes) -> bytes:
        found = os.statvfs(self._files.path(node))
        counts = (found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree)
        return struct.pack("<5Q4I6I", *counts, found.f_bsize, 255, found.f_frsize, 0, *[0] * 6)

    def _nothing(self, node: int, body: bytes) -> bytes:
        return b""

    # -- directories ---------------------------------------------------------------------------

    def _opendir(self, node: int, body: bytes) -> bytes:
        handle = os.open(self._files.path(node), os.O_RDONLY | os.O_DIRECTORY)
        entries = [(1, stat.S_IFDIR, b"."), (1, stat.S_IFDIR, b"..")]
        with os.scandir(self._files.path(node)) as found:
            for entry in found:
                kind = stat.S_IFDIR if entry.is_dir(follow_symlinks=False) else stat.S_IFREG
                kind = stat.S_IFLNK if entry.is_symlink() else kind
                entries.append((entry.inode(), kind, os.fsencode(entry.name)))
        self._listed[handle] = entries
        return struct.pack("<QII", handle, 0, 0)

    def _readdir(self, node: int, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", body)
        answer = b""
        for at, (inode, kind, name) in enumerate(self._listed[handle]):
            if at < offset:
                continue
            entry = struct.pack("<QQII", inode, at + 1, len(name), kind >> 12) + name
            entry += bytes(-len(entry) % 8)
            if len(answer) + len(entry) > size:
                break
            answer += entry
        return answer

    def _releasedir(self, node: int, body: bytes) -> bytes:
        (handle,) = struct.unpack_from("<Q", body)
        self._listed.pop(handle, None)
        os.close(handle)
        return b""

    def _fsyncdir(self, node: int, body: bytes) -> bytes:
        return b""


def _names(body: bytes) -> list[bytes]:
    return body.split(b"\0")[:-1]


def mount(backing: str, mountpoint: str) -> int:
    """Mount it; the descriptor by which the kernel asks."""
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
    libc = ctypes.CDLL(None, use_errno=True)
    words = (b"cached", os.fsencode(mountpoint), b"fuse", 0, options.encode())
    if libc.mount(*words):
        number = ctypes.get_errno()
        raise OSError(number, f"mount on {mountpoint}: {os.strerror(number)}, from {backing}")
    return device


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    opened = mount(sys.argv[1], sys.argv[2])
    print("mounted", flush=True)
    Server(sys.argv[1], opened).run()
