"""Where compiled kernels are kept when neither the package nor the home can be written to."""

from __future__ import annotations

import os
import stat
import tempfile

_SETTING = "NUMBA_CACHE_DIR"


def find_place_for_kernels(package: str) -> None:
    """Name a directory of this user for numba where it would find none and raise.

    numba keeps kernels beside their source, else below ``$XDG_CACHE_HOME`` or ``~/.cache``. On a
    node where the package belongs to somebody else and the home is read-only or not mounted there
    is neither, and importing a cached kernel fails. Processes of one user share the directory.

    Parameters
    ----------
    package : str
        Directory of the package.
    """
    if os.environ.get(_SETTING) or os.access(package, os.W_OK):
        return
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if _can_make(home):
        return
    place = os.path.join(tempfile.gettempdir(), f"ftrt-kernels-{os.geteuid()}")
    try:
        os.mkdir(place, 0o700)
    except FileExistsError:
        pass
    except OSError:
        return
    # What is loaded from there is executed: somebody else's directory is not used.
    found = os.lstat(place)
    mine = found.st_uid == os.geteuid() and not found.st_mode & 0o022
    if stat.S_ISDIR(found.st_mode) and mine:
        os.environ[_SETTING] = place


def _can_make(path: str) -> bool:
    """Whether the directory is or can be made."""
    while not os.path.lexists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return os.access(path, os.W_OK | os.X_OK)
