"""The kernel's compilation, loading and launch; CUDA's bindings are not there on the CPU, so their calls are recorded instead."""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

from restripe.transport.copy_tables import COPIES, THREADS, Table
from restripe.transport.protocol import AddressCopy

COPY = AddressCopy(4096, 8192, (8, 64), (64, 1), (128, 1))
ANSWERS = {
    "cuDeviceGet": 3,
    "cuDevicePrimaryCtxRetain": "context",
    "cuModuleLoadData": "module",
    "cuModuleGetFunction": "function",
    "nvrtcCreateProgram": "program",
    "nvrtcGetCUBINSize": 5,
}


class Bindings(ModuleType):
    """A module whose calls are recorded; those of a name in `failing` return an error."""

    def __init__(self, name: str, log: list[Any], failing: set[str]) -> None:
        super().__init__(name)
        self.log, self.failing = log, failing

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*arguments: Any) -> tuple[Any, ...]:
            self.log.append((name, *arguments))
            if name == "nvrtcGetCUBIN":
                arguments[1][:] = b"cubin"
            return (1 if name in self.failing else 0, *([ANSWERS[name]] if name in ANSWERS else ()))

        return call


@pytest.fixture
def log() -> list[Any]:
    return []


@pytest.fixture
def failing() -> set[str]:
    return set()


@pytest.fixture
def module(log: list[Any], failing: set[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """restripe's module over bindings that record their calls."""
    package: Any = ModuleType("cuda.bindings")
    package.driver, package.nvrtc = (Bindings(name, log, failing) for name in ("driver", "nvrtc"))
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", package)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, device.index))
    monkeypatch.delitem(sys.modules, "restripe.transport.copy_kernel", raising=False)
    yield importlib.import_module("restripe.transport.copy_kernel")
    del sys.modules["restripe.transport.copy_kernel"]


def arguments_of(log: list[Any], name: str) -> list[Any]:
    """Return the arguments of each call of a name."""
    return [call[1:] for call in log if call[0] == name]


def test_the_kernel_is_compiled_for_the_device_and_loaded_there_once(module: Any, log: list[Any]) -> None:
    kernel, again = (module.load_kernel(torch.device("cuda", 3)) for _ in range(2))
    assert kernel is again
    assert kernel == ("context", "function")
    ((program, count, options),) = arguments_of(log, "nvrtcCompileProgram")
    assert (program, count) == ("program", len(options))
    assert {b"--gpu-architecture=sm_93", b"-DTHREADS=%d" % THREADS, b"-DCOPIES=%d" % COPIES, b"-DEACH_16=2"} <= set(
        options
    )
    ((source, *_),) = arguments_of(log, "nvrtcCreateProgram")
    assert b"void __launch_bounds__(THREADS, 2048 / THREADS) copy(" in source
    assert arguments_of(log, "cuDeviceGet") == [(3,)]
    assert arguments_of(log, "cuModuleLoadData") == [(b"cubin",)]
    assert [call[0] for call in log if "Current" in call[0]] == ["cuCtxPushCurrent", "cuCtxPopCurrent"]


def test_devices_of_one_capability_share_machine_code(
    module: Any, log: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    for index in (0, 1):
        module.load_kernel(torch.device("cuda", index))
    assert len(arguments_of(log, "nvrtcCompileProgram")) == 1
    assert len(arguments_of(log, "cuModuleLoadData")) == 2


@pytest.mark.parametrize("name", ["nvrtcCompileProgram", "cuModuleLoadData"])
def test_a_device_that_cannot_have_the_kernel_is_refused(
    module: Any, log: list[Any], failing: set[str], name: str
) -> None:
    failing.add(name)
    with pytest.raises(RuntimeError, match="returned 1; see whether the driver"):
        module.load_kernel(torch.device("cuda", 0))
    assert log[-1] == ("cuCtxPopCurrent",)


def test_copies_are_launched_in_the_device_s_context_on_the_stream_of_a_handle(module: Any, log: list[Any]) -> None:
    copy = module.prepare_copies([COPY] * (COPIES + 1), module.Kernel("context", "function"))
    assert not log
    for stream in (77, 0):
        log.clear()
        copy(stream)
        assert [call[0] for call in log] == ["cuCtxPushCurrent", *["cuLaunchKernel"] * 2, "cuCtxPopCurrent"]
        assert log[0] == ("cuCtxPushCurrent", "context")
        for count, (function, *sizes, shared, handle, arguments, extra) in zip(
            (COPIES, 1), arguments_of(log, "cuLaunchKernel"), strict=True
        ):
            assert (function, sizes) == ("function", [count, 1, 1, THREADS, 1, 1])
            assert (shared, handle, extra) == (0, stream, 0)
            table = Table.from_address(ctypes.c_void_p.from_address(arguments).value or 0)
            assert table.count == count
            assert {(entry.into, entry.out_of, entry.units, entry.unit) for entry in table.copies[:count]} == {
                (4096, 8192, 32, 16)
            }


def test_a_launch_that_fails_raises_and_leaves_the_caller_s_context(
    module: Any, log: list[Any], failing: set[str]
) -> None:
    failing.add("cuLaunchKernel")
    with pytest.raises(RuntimeError, match="returned 1; see whether the driver"):
        module.prepare_copies([COPY], module.Kernel("context", "function"))(0)
    assert log[-1] == ("cuCtxPopCurrent",)
