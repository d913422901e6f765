"""The hosts that other tests are made on: really apart, really joined, and gone afterwards."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from namespaces import hosts, reason_not

ROOT = Path(__file__).resolve().parents[2]
REASON = reason_not()
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)

_IDENTITY = "from ftrt.ledger.identity import host_identity as i; print(i().hex())"
_REACH = "import socket, sys; socket.create_connection((sys.argv[1], 9), 0.5)"
_HOLD = "from pathlib import Path; import time; Path('/dev/shm/mine').touch(); time.sleep(60)"


def identity(host) -> str:
    return host.run("env", f"PYTHONPATH={ROOT}", sys.executable, "-c", _IDENTITY).strip()


def reaches(host, name: str) -> bool:
    """Whether packets come through: nobody listens, so the answer is a refusal."""
    done = subprocess.run(
        host.command(sys.executable, "-c", _REACH, name), capture_output=True, text=True, timeout=10
    )
    return "Connection refused" in done.stderr


def test_they_share_a_directory_and_a_bridge_and_nothing_else():
    with hosts(["a", "b"], [ROOT]) as both:
        a, b = both
        assert a.run("hostname").strip() == "a"
        a.run("sh", "-c", f"echo x > /dev/shm/of-a; echo x > /tmp/of-a; echo x > {both.shared}/all")
        assert b.run("sh", "-c", f"ls /dev/shm /tmp/of-* {both.shared}; true").split()[-1] == "all"
        assert not b.run("ls", "/dev/shm") and not Path("/tmp/of-a").exists()
        assert len({identity(a), identity(b), identity(a)}) == 2
        assert reaches(a, "b") and reaches(b, "a")
        a.link(up=False)
        assert not reaches(b, "a")
        a.link(up=True)
        end = time.monotonic() + 5
        while not reaches(b, "a"):
            assert time.monotonic() < end
        ssh = [both.ssh, "-x", "b", "hostname;", "exit", "7"]
        done = subprocess.run(a.command(*ssh), capture_output=True, text=True, timeout=10)
        assert (done.stdout, done.returncode) == ("b\n", 7)


def test_what_is_stored_in_a_mapped_file_is_elsewhere_only_once_it_is_synced():
    store = "import mmap, os, sys, time; f = open(sys.argv[1], 'r+b'); m = mmap.mmap(f.fileno(), 0)"
    store += "; m[0:3] = b'new'; {}; print('stored', flush=True); time.sleep(60)"
    with hosts(["a", "b"], [ROOT], cached=True) as both:
        a, b = both
        for name in ("kept", "lost"):
            (both.outside / name).write_bytes(b"old" + bytes(5000))
        programs = []
        for name, then in (("kept", "os.fdatasync(f.fileno())"), ("lost", "0")):
            words = a.command(sys.executable, "-c", store.format(then), both.shared / name)
            programs.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
            assert programs[-1].stdout.readline() == "stored\n"
        a.run("cmp", "-n", "3", both.shared / "kept", both.shared / "lost")
        assert b.run("head", "-c", "3", both.shared / "kept") == "new"
        assert b.run("head", "-c", "3", both.shared / "lost") == "old"
        a.kill()
        assert b.run("head", "-c", "3", both.shared / "lost") == "old"
        for program in programs:
            program.wait(10)


def test_the_end_of_a_host_ends_all_that_runs_there_and_nothing_stays():
    with hosts(["a"]) as one:
        program = subprocess.Popen(one[0].command(sys.executable, "-c", _HOLD))
        end = time.monotonic() + 5
        while not one[0].run("ls", "/dev/shm"):
            assert time.monotonic() < end
        one[0].kill()
        assert program.wait(5) != 0
        directory = one.shared.parent
    assert not directory.exists()
    assert str(directory) not in Path("/proc/mounts").read_text()
    assert not running(directory)


def test_whoever_makes_them_may_be_killed():
    code = "import sys, time; sys.path.insert(0, sys.argv[1]); from namespaces import hosts\n"
    code += "with hosts(['a', 'b']) as both: print(both.shared.parent, flush=True); time.sleep(60)"
    words = [sys.executable, "-c", code, str(Path(__file__).parent)]
    maker = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    directory = Path(maker.stdout.readline().strip())
    maker.kill()
    maker.wait()
    end = time.monotonic() + 5
    while running(directory):
        assert time.monotonic() < end, running(directory)
        time.sleep(0.02)
    shutil.rmtree(directory)


def running(directory: Path) -> list[str]:
    """Command lines of the processes that name a directory."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = entry.read_text()
        except OSError:
            continue  # gone meanwhile
        if str(directory) in text:
            found.append(text)
    return found
