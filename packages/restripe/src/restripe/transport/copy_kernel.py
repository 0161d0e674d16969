"""The kernel that makes many strided copies in one launch: compiled once for a device, launched by address.

torch makes one launch a copy where copies are strided, one element at once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import torch
from cuda.bindings import driver, nvrtc

from restripe.transport.copy_tables import MACROS, THREADS, copy_tables
from restripe.transport.protocol import AddressCopy, Enqueue


class Kernel(NamedTuple):
    """The kernel on a device, and the context that torch uses there."""

    context: Any
    function: Any


def prepare_copies(copies: Sequence[AddressCopy], kernel: Kernel) -> Enqueue:
    """Return a call that makes the copies on the stream whose handle it is given, in no order."""
    context, function = kernel
    launches = []
    for table, blocks in copy_tables(copies):
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(table))
        launches.append((blocks, ctypes.addressof(arguments), table, arguments))  # the last two have to live as long

    def launch(stream: int | None) -> None:
        _checked(driver.cuCtxPushCurrent(context))  # a thread may have none yet, or another device's
        try:
            for blocks, address, *_ in launches:
                _checked(driver.cuLaunchKernel(function, blocks, 1, 1, THREADS, 1, 1, 0, stream, address, 0))
        finally:
            driver.cuCtxPopCurrent()

    return launch


@cache
def load_kernel(device: torch.device) -> Kernel:
    """Return the kernel on a device.

    Raises:
        RuntimeError: CUDA's run-time compiler, which torch's builds for CUDA bring, is missing or does not know the device.
    """
    context = _checked(driver.cuDevicePrimaryCtxRetain(_checked(driver.cuDeviceGet(device.index))))
    _checked(driver.cuCtxPushCurrent(context))
    try:
        module = _checked(driver.cuModuleLoadData(_compile(*torch.cuda.get_device_capability(device))))
        return Kernel(context, _checked(driver.cuModuleGetFunction(module, b"copy")))
    finally:
        driver.cuCtxPopCurrent()


@cache
def _compile(major: int, minor: int) -> bytes:
    """Return machine code for devices of a compute capability."""
    source = resources.files("restripe.transport").joinpath("copy.cu").read_bytes()
    options = [f"--gpu-architecture=sm_{major}{minor}", *(f"-D{name}={value}" for name, value in MACROS.items())]
    program = _checked(nvrtc.nvrtcCreateProgram(source, b"copy.cu", 0, [], []))
    _checked(nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options]))
    code = bytearray(_checked(nvrtc.nvrtcGetCUBINSize(program)))
    _checked(nvrtc.nvrtcGetCUBIN(program, code))
    _checked(nvrtc.nvrtcDestroyProgram(program))
    return bytes(code)


def _checked(answer: tuple[Any, ...]) -> Any:
    """Return what a call of CUDA's gives beside its result code, or raise where that is an error."""
    result, *values = answer
    if int(result):
        raise RuntimeError(
            f"expected CUDA to compile and launch restripe's copy kernel, and it returned {result!r}; "
            "see whether the driver and torch's CUDA know this GPU"
        )
    return values[0] if values else None
