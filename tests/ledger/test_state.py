"""Versions of state that become valid with a commit."""

import numpy as np
import pytest
from ledger_support import open_ledger

from ftrt.errors import UsageError
from ftrt.ledger import seal, state, statefmt
from ftrt.ledger.log import CONSUMED


@pytest.fixture
def log(pool):
    return open_ledger(pool).stream(CONSUMED, "a", 1, 0)


@pytest.fixture
def store(pool):
    return state.StateStore(pool.directory, 1, 0)


def valid(pool) -> dict:
    return state.load_valid(pool.directory, 1, 0, seal.close_rank(pool.directory, 1, 0))


@pytest.mark.parametrize(
    "value",
    [
        np.arange(12.0).reshape(3, 4)[:, ::2],
        np.zeros((0, 3), "f4"),
        np.array(5, "i2"),
        np.array(["a", None], object),
        np.array([(1, 2.0)], "i4,f8"),
        np.array(["2020-01-01"], "M8[D]"),
        {"a": [1, None]},
        b"",
        "text",
        3,
    ],
)
def test_values_come_back(value):
    back = statefmt.decode(b"".join(bytes(piece) for piece in statefmt.encode(value)))
    assert type(back) is type(value)
    if isinstance(value, np.ndarray):
        assert back.dtype == value.dtype and back.shape == value.shape
        assert back.flags.writeable
    assert np.array_equal(back, value) if isinstance(value, np.ndarray) else back == value


def test_uncommitted_version_does_not_count(pool, log, store):
    store.put("x", 1, log.next_ref(1))
    log.append(1)
    store.confirm()
    store.put("x", 2, log.next_ref(2))
    assert valid(pool) == {"x": 1}


def test_an_effect_that_was_given_up_is_not_published_by_the_next(pool, log, store):
    # The program's own signal handler raised between the puts and the commit, say.
    for key, seq in (("given up", 1), ("x", 2)):
        ref = log.next_ref(seq)
        store.begin(ref)
        store.put(key, seq, ref)
    store.put("y", 3, ref)
    log.append(2)
    store.confirm()
    assert store.values() == valid(pool) == {"x": 2, "y": 3}


def test_discarded_version_is_not_published_by_another_commit(pool, log, store):
    store.put("x", 1, log.next_ref(1))
    log.append(1)
    store.confirm()
    store.put("x", 2, log.next_ref(2))
    store.discard()
    log.append(2)
    log.append(3)
    assert valid(pool) == {"x": 1}


def test_store_finds_out_what_was_published(pool):
    ledger = open_ledger(pool)
    log = ledger.stream(CONSUMED, "a", 1, 0)
    other = ledger.stream(CONSUMED, "b", 1, 0)
    store = state.StateStore(pool.directory, 1, 0, ledger.published)
    store.put("x", 1, log.next_ref(1))
    log.append(1)
    store.put("x", "never committed", log.next_ref(2))
    store.put("x", 3, other.next_ref(1))
    store.put("y", 4, other.next_ref(1))
    other.append(1)
    log.append(2)
    assert valid(pool) == {"x": 3, "y": 4}


def test_spare_is_reused(pool, log, store):
    for seq in range(1, 200):
        store.put("x", np.full(100, seq), log.next_ref(seq))
        log.append(seq)
        store.confirm()
    assert len(list(pool.directory.glob("*state*"))) == 1
    assert valid(pool)["x"][0] == 199


def test_many_and_growing_keys(pool, log, store):
    for seq in range(1, 20):
        for key in range(seq * 4):
            store.put(f"k{key}", bytes(seq * 3000), log.next_ref(seq))
        log.append(seq)
        store.confirm()
    values = valid(pool)
    assert len(values) == 76 and {len(value) for value in values.values()} == {57_000}


def test_zombie_cannot_touch_the_sealed_version(pool, log, store):
    store.put("x", 1, log.next_ref(1))
    log.append(1)
    seals = seal.close_rank(pool.directory, 1, 0)
    entries = state.entries(pool.directory, 1, 0, seals)
    for value in range(10):
        store.put("x", value, log.next_ref(2))
        store.discard()
    assert state.restore(pool.directory, entries) == {"x": 1}


def test_failed_put_takes_the_others_of_its_effect_along(pool, log, store):
    store.put("x", 1, log.next_ref(1))
    with pytest.raises(TypeError):
        store.put("y", (i for i in ()), log.next_ref(1))
    store.put("z", 2, log.next_ref(1))
    log.append(1)
    assert valid(pool) == {"z": 2}


def test_misuse(log, store):
    for key in ("", "x" * 129):
        with pytest.raises(UsageError):
            store.put(key, 1, log.next_ref(1))
