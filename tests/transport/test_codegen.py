"""The generated code really has the atomic accesses: LLVM may drop or move plain ones."""

import platform
import re

import pytest
from numba import njit

from ftrt.transport import slots


def fresh(kernel):
    """The kernel compiled anew: code from the cache cannot be inspected."""
    return njit(kernel.nopython_signatures[:1])(kernel.py_func)


def llvm(kernel):
    return next(iter(fresh(kernel).inspect_llvm().values()))


def test_publish_clears_fences_writes_and_publishes():
    text = llvm(slots.publish)
    stores = [m.start() for m in re.finditer(r"store atomic i64 [^\n]* release, align 8", text)]
    assert len(stores) >= 2
    assert re.match(r"store atomic i64 0,", text[stores[0] :]), "the clear is there, and first"
    fences = [m.start() for m in re.finditer(r"fence seq_cst", text)]
    assert any(stores[0] < fence < stores[1] for fence in fences)
    assert any(fence > stores[-1] for fence in fences)
    assert "!nontemporal" in text


def test_verify_loads_the_publish_word_twice():
    text = llvm(slots.verify)
    assert len(re.findall(r"load atomic i64, [^\n]* acquire, align 8", text)) >= 2


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names x86 instructions")
def test_publish_on_x86_streams_and_fences():
    text = next(iter(fresh(slots.publish).inspect_asm().values()))
    assert re.search(r"v?movnt", text)
    assert re.search(r"mfence|lock\s+or", text)
