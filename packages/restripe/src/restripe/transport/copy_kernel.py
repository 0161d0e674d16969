"""The kernel that makes many strided copies in one launch: compiled once for a device, launched by address.

torch makes one launch a piece where pieces are strided, in units of one element.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import torch
from cuda.bindings import driver, nvrtc

from restripe.transport.copy_tables import MACROS, THREADS, Piece, tables


class Kernel(NamedTuple):
    """The kernel on a device, and the context that torch uses there."""

    context: Any
    function: Any


def copies(pieces: Sequence[Piece], kernel: Kernel) -> Callable[[Any], None]:
    """A call that makes the copies on the stream whose handle it is given, in no order."""
    context, function = kernel
    launches = []
    for table, blocks in tables(pieces):
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(table))
        launches.append((blocks, ctypes.addressof(arguments), table, arguments))  # these two have to live as long

    def copy(stream: Any) -> None:
        _done(driver.cuCtxPushCurrent(context))  # a thread may have none yet, or another device's
        try:
            for blocks, at, *_ in launches:
                _done(driver.cuLaunchKernel(function, blocks, 1, 1, THREADS, 1, 1, 0, stream, at, 0))
        finally:
            driver.cuCtxPopCurrent()

    return copy


@cache
def loaded(device: torch.device) -> Kernel:
    """The kernel on a device.

    Raises:
        RuntimeError: CUDA's run-time compiler, which torch's builds for CUDA bring, is missing or does not know the device.
    """
    context = _done(driver.cuDevicePrimaryCtxRetain(_done(driver.cuDeviceGet(device.index))))
    _done(driver.cuCtxPushCurrent(context))
    try:
        module = _done(driver.cuModuleLoadData(_compiled(*torch.cuda.get_device_capability(device))))
        return Kernel(context, _done(driver.cuModuleGetFunction(module, b"copy")))
    finally:
        driver.cuCtxPopCurrent()


@cache
def _compiled(major: int, minor: int) -> bytes:
    """Machine code for devices of a compute capability."""
    source = resources.files("restripe.transport").joinpath("copy.cu").read_bytes()
    options = [f"--gpu-architecture=sm_{major}{minor}", *(f"-D{name}={value}" for name, value in MACROS.items())]
    program = _done(nvrtc.nvrtcCreateProgram(source, b"copy.cu", 0, [], []))
    _done(nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options]))
    code = bytearray(_done(nvrtc.nvrtcGetCUBINSize(program)))
    _done(nvrtc.nvrtcGetCUBIN(program, code))
    _done(nvrtc.nvrtcDestroyProgram(program))
    return bytes(code)


def _done(told: tuple[Any, ...]) -> Any:
    """What a call of CUDA's gives beside its result."""
    result, *given = told
    if int(result):
        raise RuntimeError(
            f"expected CUDA to compile and launch restripe's copy kernel, and it told {result!r}; "
            "see whether the driver and torch's CUDA know this GPU"
        )
    return given[0] if given else None
