"""The communicator of a group: the one that it brings, or one of restripe's own."""

from __future__ import annotations

import sys
from datetime import timedelta
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from restripe.errors import LayoutError
from restripe.transport import connect
from restripe.transport.gloo import GlooCommunicator

TIMEOUT = timedelta(seconds=30)


class Wrapped:
    """Stands for NCCL's communicator, whose module needs a GPU's libraries."""

    def __init__(self, handle: object) -> None:
        self.handle = handle

    @classmethod
    def meet(cls, *arguments: object) -> Wrapped:
        return cls(arguments)


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("restripe.transport.nccl")
    module.NcclCommunicator = Wrapped
    monkeypatch.setitem(sys.modules, "restripe.transport.nccl", module)


@pytest.mark.requirement("RS-UPSTREAM-3")
def test_the_communicator_that_a_group_brings_is_taken_as_it_is() -> None:
    group = SimpleNamespace(nccl_communicator=None, communicator=object())
    assert connect.brought_attribute(group) == "communicator"
    assert connect.connect(group, 3) is group.communicator


@pytest.mark.requirement("RS-UPSTREAM-3")
@pytest.mark.usefixtures("nccl")
def test_nccl4py_s_communicator_comes_first_and_is_wrapped() -> None:
    group = SimpleNamespace(nccl_communicator=object(), communicator=object())
    assert connect.brought_attribute(group) == "nccl_communicator"
    made: Any = connect.connect(group, 0)
    assert isinstance(made, Wrapped)
    assert made.handle is group.nccl_communicator


@pytest.mark.usefixtures("nccl")
def test_ranks_meet_over_gloo_on_the_cpu_and_over_nccl_on_a_gpu() -> None:
    store, gpu = HashStore(), torch.device("cuda", 1)
    made = connect.meet(store, "here", 0, 1, torch.device("cpu"), TIMEOUT)
    assert isinstance(made, GlooCommunicator)
    assert made.exchange(b"alone") == [b"alone"]
    made.destroy()
    other: Any = connect.meet(store, "there", 0, 1, gpu, TIMEOUT)
    assert other.handle == (store, "there", 0, 1, gpu)


@pytest.mark.parametrize("stranger", [SimpleNamespace(rank=0), None, 3])
def test_a_group_that_brings_no_communicator_is_refused(stranger: object) -> None:
    with pytest.raises(LayoutError, match=r"object with an \.nccl_communicator or a \.communicator, got"):
        connect.brought_attribute(stranger)


def test_a_process_group_without_gloo_and_nccl_is_refused() -> None:
    bare = dist.ProcessGroup(HashStore(), 0, 1)
    assert connect.brought_attribute(bare) is None
    with pytest.raises(LayoutError, match="neither NCCL nor gloo"):
        connect._device_and_timeout(bare)
