"""Files and directories that cannot be used, each with a named reason."""

import json
import os
import resource
import uuid

import numpy as np
import pytest
from ledger_support import mounted, open_ledger, run_child

from ftrt.errors import LedgerDamaged, LedgerError
from ftrt.ledger import audit, h5, layout, record, seal, state
from ftrt.ledger.log import CONSUMED
from ftrt.ledger.segment import Segment


@pytest.fixture
def used(pool):
    log = open_ledger(pool).stream(CONSUMED, "a", 1, 0)
    log.append_seqs(np.arange(1, 100, 2, dtype=np.uint64))
    return pool.directory / "e000001-r0000-s000.h5"


def flip(path, offset: int, bit: int = 0) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))


def offsets(path) -> list[int]:
    user = np.fromfile(path, layout.USER, 1)[0]
    return [int(offset) for offset in user["offsets"]]


@pytest.mark.parametrize("length", [0, 100, 5000, 20_000])
def test_truncated(used, length):
    os.truncate(used, length)
    with pytest.raises(LedgerDamaged, match=f"{used.name}: truncated to {length}"):
        Segment(used)


def test_newer_version_of_the_file(used):
    user = np.fromfile(used, layout.USER, 1)
    user["version"] = layout.VERSION + 1
    user["check"] = layout.fields_check(user[0], layout.USER_FIELDS)
    with open(used, "r+b") as file:
        file.write(user.tobytes())
    with pytest.raises(LedgerDamaged, match="newer ftrt"):
        Segment(used)


def test_not_a_ledger_file(tmp_path):
    path = tmp_path / "e000001-r0000-s000.h5"
    path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(2000))
    with pytest.raises(LedgerDamaged, match="not a file of this ledger"):
        Segment(path)


def test_blank_is_not_a_ledger(tmp_path):
    h5.create_segment_file(tmp_path / "x.h5", 1)
    with pytest.raises(LedgerDamaged, match="never filled"):
        Segment(tmp_path / "x.h5")


@pytest.mark.parametrize(
    "dataset, byte", [(0, 9), (0, 30), (1, 17), (1, 106), (1, 98), (3, 3), (3, 13), (3, 39), (2, 0)]
)
@pytest.mark.parametrize("bit", [0, 5])
def test_flipped_bit_is_found_in_a_live_ledger(used, dataset, byte, bit):
    flip(used, offsets(used)[dataset] + byte, bit)
    with pytest.raises(LedgerDamaged, match=used.name):
        seal.read_streams(Segment(used))


def test_flipped_entry_that_was_read_beforehand_is_sealed_as_it_was(pool):
    ledger = open_ledger(pool)
    ledger.stream(CONSUMED, "a", 1, 0).append(1)
    closer = seal.RankCloser(pool.directory, 1, 0)
    closer.map()
    path = pool.directory / "e000001-r0000-s000.h5"
    at = offsets(path)[1] + layout.byte_of(layout.STREAM, "source")
    flip(path, at)
    assert closer.close()[0]["streams"][0]["source"] == 1
    with pytest.raises(LedgerDamaged, match="entry of stream 0"):
        seal.close_rank(pool.directory, 1, 0)


def test_flipped_bits_with_right_checks_do_not_fit_the_seal(used):
    [sealed] = seal.close_rank(used.parent, 1, 0)
    word = int(layout.run_word(777, 1, 0))
    with open(used, "r+b") as file:
        file.seek(offsets(used)[3] + 16)
        file.write(word.to_bytes(8, "little"))
    with pytest.raises(LedgerDamaged, match="differs from its seal"):
        seal.decode(used.parent, dict(sealed))


def test_other_job(used):
    with pytest.raises(LedgerDamaged, match="belongs to job"):
        Segment(used).check_job(str(uuid.uuid4()))
    (used.parent / "job.json").unlink()
    record.create_job(used.parent, {"job": str(uuid.uuid4())})
    with pytest.raises(LedgerDamaged, match="belongs to job"):
        audit.audit(used.parent)


def test_damaged_record(tmp_path):
    record.create_record(tmp_path, {"epoch": 3, "parent": 2})
    path = record.record_path(tmp_path, 3)
    text = path.read_text()
    for bad, reason in (
        (text.replace('"parent":2', '"parent":1'), "wrong check"),
        (text[:-9], "not JSON"),
        ("[]", "no format"),
        ("", "not JSON"),
        (json.dumps({"format": 99}), "newer ftrt"),
    ):
        path.write_text(bad)
        with pytest.raises(LedgerDamaged, match=reason):
            record.read_record(tmp_path, 3)
    with pytest.raises(LedgerDamaged, match="000009.json"):
        record.read_record(tmp_path, 9)


def test_first_record_wins(tmp_path):
    assert record.create_record(tmp_path, {"epoch": 1, "by": "a"})
    assert not record.create_record(tmp_path, {"epoch": 1, "by": "b"})
    assert record.read_record(tmp_path, 1)["by"] == "a"
    assert os.listdir(tmp_path / "epochs") == ["000001.json"]


def test_directory_in_use(tmp_path):
    handle = record.lock_directory(tmp_path)
    with pytest.raises(LedgerError, match=f"in use by a running job .pid {os.getpid()}"):
        record.lock_directory(tmp_path)
    handle.close()
    record.lock_directory(tmp_path).close()


def test_directory_of_another_job(tmp_path):
    record.create_job(tmp_path, {"job": "a"})
    record.check_directory(tmp_path, "a")
    with pytest.raises(LedgerError, match="job a; go on with that job with --resume"):
        record.check_directory(tmp_path, "b")


def test_directory_of_a_newer_version(tmp_path):
    (tmp_path / "job.json").write_text(json.dumps({"format": layout.VERSION + 1, "job": "a"}))
    with pytest.raises(LedgerDamaged, match="newer ftrt .*; read it with that version"):
        record.check_directory(tmp_path)


def test_read_only_directory(tmp_path):
    os.chmod(tmp_path, 0o500)

    def work():
        if os.getuid() == 0:
            os.setuid(65534)
        with pytest.raises(LedgerError, match="read-only|cannot be used"):
            record.check_directory(tmp_path)

    assert run_child(work) == 0


@pytest.fixture
def small_disk(tmp_path):
    with mounted(tmp_path, "size=64k"):
        yield tmp_path


def test_full_disk(small_disk):
    for make in (h5.create_segment_file, h5.create_state_file):
        with pytest.raises(LedgerError, match="no space left"):
            make(small_disk / "x.h5", 1 << 18)
    with pytest.raises(LedgerError, match="is full; free"):
        record.check_directory(small_disk)
    assert os.listdir(small_disk) == []


def test_file_size_limit(tmp_path):
    def work():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        with pytest.raises(LedgerError, match="no space left"):
            h5.create_segment_file(tmp_path / "x.h5", 64)

    assert run_child(work) == 0
    assert os.listdir(tmp_path) == []


def test_damaged_state(pool):
    ledger = open_ledger(pool)
    log = ledger.stream(CONSUMED, "a", 1, 0)
    store = state.StateStore(pool.directory, 1, 0, ledger.published)
    store.put("x", np.arange(100), log.next_ref(1))
    log.append(1)
    seals = seal.close_rank(pool.directory, 1, 0)
    entries = state.entries(pool.directory, 1, 0, seals)
    path = pool.directory / entries[0]["file"]
    flip(path, offsets(path)[1] + 100)
    with pytest.raises(LedgerDamaged, match="'x' has a wrong checksum"):
        state.restore(pool.directory, entries)
    path.unlink()
    with pytest.raises(LedgerDamaged, match="is missing"):
        state.restore(pool.directory, entries)
