"""One checksum: kernels against the definition, on any length and alignment."""

import numpy as np
import pytest

from ftrt.transport.checksum import BLOCK, checksum, copy_checksum, reference

LENGTHS = [*range(18), BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 7, 1000, 5000]
LENGTHS += [16_383, 16_384, 16_384 + 9 * BLOCK + 13, 65_536]  # copied at several places in turn


def aligned_words(count):
    words = np.zeros(count + 8, np.uint64)
    skip = -words.ctypes.data % 64 // 8
    return words[skip : skip + count]


@pytest.mark.parametrize("length", LENGTHS)
def test_kernels_agree_with_the_definition(length):
    data = np.random.default_rng(length).integers(0, 256, length + 3, dtype=np.uint8)
    for start in (0, 1, 3):
        part = data[start : start + length]
        seed = 11 * length + start
        expected = reference(part.tobytes(), seed)
        assert checksum(part, seed) == expected
        for past_caches in (False, True):
            target = aligned_words(length // 8 + 2)
            target[:] = 2**64 - 1
            assert copy_checksum(target, 0, part, seed, past_caches) == expected
            padded = part.tobytes() + bytes(-length % 8)
            assert target.tobytes()[: len(padded)] == padded
            assert target[-1] == 2**64 - 1


def test_every_bit_and_every_swap_of_words_changes_it():
    data = np.random.default_rng(0).integers(0, 256, 600, dtype=np.uint8)
    clean = checksum(data, 5)
    assert checksum(data, 6) != clean
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        assert checksum(data, 5) != clean
        data[bit // 8] ^= 1 << bit % 8
    words = data.view(np.uint64)
    for i in range(len(words) - 1):
        swapped = words.copy()
        swapped[[i, i + 1]] = swapped[[i + 1, i]]
        assert checksum(swapped.view(np.uint8), 5) != clean
    assert checksum(np.zeros(8, np.uint8), 5) != checksum(np.zeros(16, np.uint8), 5)
