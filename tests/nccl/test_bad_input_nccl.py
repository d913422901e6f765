"""What the plane between GPUs refuses before anything starts, or does without and says so."""

from __future__ import annotations

import shutil
import subprocess
import sys
from socket import gethostname
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from ftrt.cli import main
from ftrt.errors import UsageError
from ftrt.launch import gpus
from ftrt.transport.nccl import foreign, loading
from ftrt.transport.nccl.capabilities import FEATURES, cuda_note
from ftrt.transport.nccl.fake_device import FakeArray, FakeDevice
from ftrt.transport.nccl.settings import Settings

SETTINGS = ("LIBRARY", "PATH", "MODE", "REGISTER")


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    for name in (*(f"FTRT_NCCL_{s}" for s in SETTINGS), "FTRT_SHARE_GPU", "FTRT_FAKE_GPUS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def refused(tmp_path):
    """``ftrt run --plane nccl``: its one sentence; nothing was made."""
    program = tmp_path / "program.py"
    program.write_text("print('started')")

    def run(*options: str) -> str:
        ledger = tmp_path / "ledger"
        words = ["run", "--plane", "nccl", "--ledger", str(ledger), *options, str(program)]
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 2, result.output
        assert len(result.output.strip().splitlines()) == 1
        assert not ledger.exists()
        return result.output

    return run


@pytest.mark.parametrize(
    "settings, options, says",
    [
        ({"FTRT_FAKE_GPUS": "two"}, ["-n", "2"], "FTRT_FAKE_GPUS=two: a number of GPUs"),
        ({"FTRT_FAKE_GPUS": "-1"}, ["-n", "2"], "FTRT_FAKE_GPUS=-1: a number of GPUs"),
        ({"FTRT_FAKE_GPUS": "0"}, ["-n", "2"], "needs a GPU and this host has none"),
        ({"FTRT_FAKE_GPUS": "2"}, ["-n", "3"], "3 ranks need 3 GPUs and this host has 2"),
        ({"FTRT_NCCL_MODE": "fast"}, ["-n", "2"], "FTRT_NCCL_MODE=fast: one of graph, eager"),
        ({"FTRT_NCCL_REGISTER": "on"}, ["-n", "2"], "FTRT_NCCL_REGISTER=on: one of buffer"),
        ({"FTRT_FAKE_WITHOUT": "wings"}, ["-n", "2"], "FTRT_FAKE_WITHOUT=wings: one of"),
        ({"FTRT_SHARE_GPU": "yes"}, ["-n", "2"], "FTRT_SHARE_GPU=yes: one of 0, 1"),
        ({"FTRT_NCCL_LIBRARY": "rccl"}, ["-n", "2"], "FTRT_NCCL_LIBRARY=rccl: one of fake"),
        ({}, ["-n", "2", "--standby", "9"], "--standby 9: 0 to 8"),
        ({}, ["-n", "2", "--hosts", f"{gethostname()},other"], "--plane nccl is for one host"),
    ],
)
def test_settings_that_cannot_work(refused, monkeypatch, settings, options, says):
    for name, value in {"FTRT_NCCL_LIBRARY": "fake", **settings}.items():
        monkeypatch.setenv(name, value)
    assert says in refused(*options)


@pytest.mark.parametrize("content", [None, b"", b"no library"])
def test_a_named_library_that_does_not_load(refused, monkeypatch, tmp_path, content):
    path = tmp_path / "libnccl.so.2"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv("FTRT_NCCL_PATH", str(path))
    assert f"FTRT_NCCL_PATH={path} does not load" in refused("-n", "2")


# -- a library that was compiled for the test ----------------------------------------------------

_TEXT = 'const char text[] = "NCCL version 2.28.9+cuda%d.0";\n'


@pytest.fixture
def library(tmp_path):
    """Make a libnccl that exports what is asked for and was built for a CUDA."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")

    def make(lacking: set[str], cuda: int = 13, needed=loading._NEEDED) -> str:
        symbols = {f.symbol for name, f in FEATURES.items() if name not in lacking}
        source = [_TEXT % cuda, "int ncclGetVersion(int *v) { *v = 22809; return 0; }"]
        for symbol in sorted(symbols | set(needed) - {"ncclGetVersion"}):
            source.append(f"int {symbol}(void) {{ return 0; }}")
        (tmp_path / "nccl.c").write_text("\n".join(source))
        path = tmp_path / "libnccl.so.2"
        command = ["cc", "-shared", "-fPIC", "-o", path, tmp_path / "nccl.c"]
        subprocess.run(command, check=True, timeout=60)
        return str(path)

    return make


def installed(monkeypatch, driver: int, cupy: int | None = None) -> None:
    """As if CuPy were installed, under a driver."""
    monkeypatch.setattr(gpus.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(gpus.placement, "physical_gpus", lambda: 2)
    monkeypatch.setattr(loading, "driver_version", lambda: driver)
    monkeypatch.setattr(loading, "cuda_of_cupy", lambda: cupy)


def test_a_library_that_is_no_nccl(refused, monkeypatch, library):
    monkeypatch.setenv("FTRT_NCCL_PATH", library(set(), needed=("ncclGetUniqueId",)))
    assert "is no NCCL that can be used, it has no ncclCommInitRank" in refused("-n", "2")


def test_a_library_without_revoke_or_grow_says_what_is_lost(monkeypatch, library):
    path = library({"revoke", "grow"})
    monkeypatch.setenv("FTRT_NCCL_PATH", path)
    installed(monkeypatch, driver=13000)
    found = gpus.check(2, 1)
    assert [line.split(":")[0] for line in found.said] == ["revoke", "grow"]
    assert set(found.said) <= set(gpus.lines(2, 0, found, 1))
    loaded = loading.load()
    assert (loaded.file, loaded.capabilities.version) == (path, 22809)
    assert loaded.capabilities.library == "nccl" and not loaded.capabilities.has("revoke")


@pytest.mark.parametrize(
    "nccl, cupy, driver, says",
    [
        (13, 12, 12080, "NCCL was built for CUDA 13, and the driver has 12.8"),
        (12, 13, 12040, "CuPy was built for CUDA 13, and the driver has 12.4"),
        (13, None, 12040, "pip install 'ftrt[cuda12]'"),
    ],
)
def test_libraries_for_a_later_cuda_than_the_drivers(
    refused, monkeypatch, library, nccl, cupy, driver, says
):
    monkeypatch.setenv("FTRT_NCCL_PATH", library(set(), cuda=nccl))
    installed(monkeypatch, driver, cupy)
    assert says in refused("-n", "2")


def test_libraries_for_an_earlier_cuda_run_and_that_is_said(monkeypatch, library):
    monkeypatch.setenv("FTRT_NCCL_PATH", library(set(), cuda=12))
    installed(monkeypatch, driver=13000, cupy=12)
    (said,) = gpus.check(2, 1).said
    assert said.startswith("CuPy for CUDA 12, NCCL for CUDA 12, and a driver for 13.0")
    assert cuda_note({"CuPy": 13, "NCCL": None}, 13000) is None


def test_a_file_that_says_nothing_of_its_cuda(tmp_path):
    (tmp_path / "empty").touch()
    (tmp_path / "other").write_bytes(b"NCCL version unknown")
    assert [loading.cuda_of(str(tmp_path / n)) for n in ("empty", "other", "none")] == [None] * 3


def test_settings_are_read_once_and_in_one_place():
    found = Settings.of({"FTRT_NCCL_LIBRARY": "fake", "FTRT_FAKE_WITHOUT": "revoke,grow"})
    assert found.fake and found.without == {"revoke", "grow"} and found.fake_gpus is None
    assert Settings.of({}) == Settings()


# -- arrays --------------------------------------------------------------------------------------

tensors = SimpleNamespace(int16="int16", uint8="uint8")


class Tensor:
    """As much of a torch tensor on a GPU as is looked at."""

    def __init__(self, dtype: str, array: np.ndarray, requires_grad: bool = False) -> None:
        self.dtype, self._array, self.requires_grad = dtype, array, requires_grad

    def detach(self) -> Tensor:
        return Tensor(self.dtype, self._array)

    def element_size(self) -> int:
        return self._array.itemsize

    def view(self, dtype: str) -> Tensor:
        return Tensor(f"torch.{dtype}", self._array.view(dtype))

    @property
    def __cuda_array_interface__(self) -> dict:
        if self.requires_grad:
            raise RuntimeError("Can't get __cuda_array_interface__ on Variable that requires grad")
        if self.dtype == "torch.bfloat16":
            raise TypeError("unsupported ScalarType BFloat16")
        return {**self._array.__array_interface__, "version": 3}


Tensor.__module__ = "torch"


@pytest.fixture
def torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", tensors)


def test_a_tensor_that_requires_a_gradient_is_sent_without_its_history(torch):
    value = Tensor("torch.float32", np.arange(6, dtype=np.float32).reshape(2, 3), True)
    taken = FakeDevice(0).array(value)
    assert taken.dtype == np.float32 and np.array_equal(taken.get(), value._array)


@pytest.mark.parametrize("dtype, bits", [("bfloat16", np.uint16), ("float8_e4m3fn", np.uint8)])
def test_a_type_that_only_torch_has_is_sent_as_its_bits(torch, dtype, bits):
    words = np.array([[0x3F80, 0xC000], [0x7F80, 1]]).astype(bits)
    taken = FakeDevice(0).array(Tensor(f"torch.{dtype}", words))
    assert taken.dtype == bits and taken.shape == (2, 2)
    assert np.array_equal(taken.get(), words)


def test_a_type_of_no_usual_size_is_refused(torch):
    with pytest.raises(UsageError, match="view it as bytes"):
        FakeDevice(0).array(Tensor("torch.quint3", np.zeros(3, "V3")))


def test_what_another_library_does_not_hand_over_is_refused():
    def take(_):
        raise BufferError("it lies on a device that is lost")

    with pytest.raises(UsageError, match="cupy.asarray of it"):
        foreign.taken(take, object())


@pytest.mark.parametrize("dtype", ["complex64", "complex128", ">i4", "float16", "bool", "M8[s]"])
def test_dtypes_that_nccl_lacks_travel_as_their_bytes(dtype):
    array = np.arange(4).astype(dtype)
    assert foreign.with_a_name(array) is array
    taken = FakeDevice(0).array(FakeArray(array))
    assert taken.dtype == array.dtype and taken.get().tobytes() == array.tobytes()


def test_arrays_that_are_no_arrays_of_this_gpu():
    device = FakeDevice(1)
    for value in (np.zeros(3), [1, 2], memoryview(b"abc")):
        with pytest.raises(UsageError, match="moves device arrays"):
            device.array(value)
    with pytest.raises(UsageError, match="lies on GPU 0, this rank's is 1"):
        device.array(FakeArray(np.zeros(3), 0))
    sparse = FakeArray(np.arange(12).reshape(3, 4)[:, ::2], 1)
    assert device.array(sparse).get().tolist() == [[0, 2], [4, 6], [8, 10]]
