"""The spool: what a dead sender leaves to its successor."""

from __future__ import annotations

import numpy as np
import pytest

from ftrt.errors import LedgerError
from ftrt.ledger.spool import Spool
from ftrt.runtime.digests import Digests


def filled(directory, count=5, epoch=1):
    spool = Spool(directory, "a/b", 3, epoch)
    for seq in range(1, count + 1):
        spool.append(seq, np.full((2, seq), seq, np.float32))
    return spool


def test_a_successor_reads_what_was_spooled(tmp_path):
    filled(tmp_path).close()
    later = Spool(tmp_path, "a/b", 3, 4)
    assert later.resume(1) == 6
    again = later.read(4)
    assert again.dtype == np.float32 and again.shape == (2, 4) and (again == 4).all()


def test_streams_and_sources_are_kept_apart(tmp_path):
    filled(tmp_path).close()
    assert Spool(tmp_path, "a/b", 2, 4).resume(1) == 1
    assert Spool(tmp_path, "a", 3, 4).resume(1) == 1


@pytest.mark.parametrize("kind", [Spool, Digests])
def test_a_name_that_goes_on_like_a_file_name_is_another_stream(tmp_path, kind):
    # Both files begin with what a search for stream "a" would look for.
    for name in ("a-r0003-e000001", "a-r0003-e000001-7.bin"):
        other = kind(tmp_path, name, 3, 1)
        if kind is Spool:
            other.append(1, np.arange(3))
        else:
            other.keep(1, np.zeros((1, 3)))
    names = {path.name for path in tmp_path.iterdir()}
    mine = kind(tmp_path, "a", 3, 2)
    assert mine.resume(1) == 1 if kind is Spool else mine.find(1) is None
    mine.free(10)
    assert names < {path.name for path in tmp_path.iterdir()}


def test_a_record_cut_short_does_not_count(tmp_path):
    spool = filled(tmp_path)
    spool.close()
    (path,) = tmp_path.glob("spool-*")
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size - 3)
    later = Spool(tmp_path, "a/b", 3, 4)
    assert later.resume(1) == 5
    with pytest.raises(LedgerError, match="message 5"):
        later.read(5)


def test_freed_space_goes_back_and_the_rest_stays_readable(tmp_path):
    spool = Spool(tmp_path, "a", 0, 1)
    for seq in range(1, 41):
        spool.append(seq, np.full(1 << 15, seq, np.float64))
    before = spool._path.stat().st_blocks
    spool.free(30)
    assert spool._path.stat().st_blocks < before / 2
    spool.close()
    later = Spool(tmp_path, "a", 0, 2)
    assert later.resume(31) == 41
    assert (later.read(31) == 31).all()
    with pytest.raises(LedgerError):
        later.read(30)


def test_empty_and_odd_arrays(tmp_path):
    spool = Spool(tmp_path, "a", 0, 1)
    arrays = [np.empty((0, 3)), np.array(7.5), np.arange(12).reshape(3, 4).T, np.array([True])]
    for seq, array in enumerate(arrays, 1):
        spool.append(seq, array)
    for seq, array in enumerate(arrays, 1):
        again = spool.read(seq)
        assert again.dtype == array.dtype and again.shape == array.shape
        assert np.array_equal(again, array)
