"""ftrt installed by somebody else, used by who may write neither there nor at home."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import ftrt
from ftrt.kernel_cache import find_place_for_kernels

NOBODY = 65534
ROOT = Path(ftrt.__file__).parents[1]

as_somebody = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


@pytest.fixture
def closed(tmp_path):
    """A directory that only root may look into, below one that all may."""
    path = tmp_path / "closed"
    path.mkdir(mode=0o700)
    (path / "job.json").write_text("{}")
    for parent in (tmp_path, *tmp_path.parents[:3]):
        parent.chmod(0o755)
    return path


def _open_to_all(path):
    path = Path(os.path.realpath(path))
    return path.exists() and all(p.stat().st_mode & 0o001 for p in (path, *path.parents))


def _interpreter():
    """This one, or the system's of the same version where this one lies in somebody's home."""
    system = f"/usr/bin/python{sys.version_info[0]}.{sys.version_info[1]}"
    return next(filter(_open_to_all, (sys.executable, system)), None)


def _ftrt(*words, tmp):
    libraries = [str(ROOT), *(path for path in sys.path if path.endswith("site-packages"))]
    env = {**os.environ, "HOME": "/root", "TMPDIR": str(tmp), "PYTHONPATH": ":".join(libraries)}
    env.pop("NUMBA_CACHE_DIR", None)
    env.pop("XDG_CACHE_HOME", None)
    code = "from ftrt.cli import main; main(prog_name='ftrt')"

    def become():
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)

    return subprocess.run(
        [_interpreter(), "-c", code, *map(str, words)],
        env=env,
        cwd="/",
        preexec_fn=become,
        capture_output=True,
        text=True,
        timeout=120,
    )


@as_somebody
@pytest.mark.parametrize(
    "words",
    [
        ["audit", "{closed}/x"],
        ["top", "{closed}/x"],
        ["trace", "{closed}/x"],
        ["report", "{closed}/x"],
        ["grow", "{closed}/x", "1"],
        ["run", "-n", "2", "--ledger", "{tmp}/l", "{closed}/program.py"],
        ["run", "-n", "2", "--ledger", "{tmp}/l", "--hosts", "{closed}/hosts", "{here}"],
        ["run", "-n", "2", "--ledger", "{tmp}/l", "--json", "{closed}/x.json", "{here}"],
    ],
    ids=lambda words: f"{words[0]} {words[-2].strip('-') if words[0] == 'run' else ''}".strip(),
)
def test_what_is_closed_to_this_user_is_one_sentence(closed, tmp_path, words):
    if _interpreter() is None or not _open_to_all(ROOT):
        pytest.skip("this Python, or the package, is closed to others")
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    tmp.chmod(0o777)
    (tmp / "here.py").write_text("")
    places = {"closed": closed, "tmp": tmp, "here": tmp / "here.py"}
    done = _ftrt(*(word.format(**places) for word in words), tmp=tmp)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert str(closed) in done.stderr and "may" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp / "l").exists()


def test_the_package_and_then_the_home_come_first(monkeypatch, tmp_path):
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    find_place_for_kernels(str(tmp_path))
    assert "NUMBA_CACHE_DIR" not in os.environ
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "not" / "yet"))
    find_place_for_kernels("/proc")
    assert "NUMBA_CACHE_DIR" not in os.environ


def test_a_directory_that_others_can_write_to_is_not_used(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_CACHE_DIR", "")
    monkeypatch.setattr("os.access", lambda path, mode: False)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    find_place_for_kernels("/proc")
    place = tmp_path / f"ftrt-kernels-{os.geteuid()}"
    assert os.environ["NUMBA_CACHE_DIR"] == str(place)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    place.chmod(0o777)
    monkeypatch.setenv("NUMBA_CACHE_DIR", "")
    find_place_for_kernels("/proc")
    assert os.environ["NUMBA_CACHE_DIR"] == ""
