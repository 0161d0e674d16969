"""The parameters of three models: names, shapes, and the tensor dims that tensor parallelism cuts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from restripe.analysis.spelling import SpellingError


@dataclass(frozen=True)
class Parameter:
    """A tensor of a model.

    Args:
        kind: its class, by which tables group parameters.
        layer: the layer whose pipeline stage holds it.
        split: the tensor dim that tensor parallelism cuts; None: every rank holds the whole tensor.
        ways: the largest number of parts, such as the number of key-value heads; None: one for each TP rank.
        expert: whether dim 0 numbers the experts, which expert parallelism cuts.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    layer: int
    split: int | None = None
    ways: int | None = None
    expert: bool = False
    dtype: torch.dtype = torch.bfloat16


def parameters(model: str) -> list[Parameter]:
    """Return the model's parameters in the order of submission; raise SpellingError for an unknown model."""
    if model not in MODELS:
        raise SpellingError(f"expected a model of {', '.join(MODELS)}, got {model!r}")
    return list(MODELS[model]())


def qwen3_4b() -> Iterator[Parameter]:
    """Yield the 396 tensors of the layers, without the last norm and the embedding, which is also the head."""
    for layer in range(36):
        yield from _attention(layer, hidden=2560, heads=32, groups=8)
        yield from _mlp(layer, "layers.{}", "", hidden=2560, intermediate=9728)


def qwen3_30b_a3b() -> Iterator[Parameter]:
    """Yield the tensors of 48 layers with 128 stacked experts each."""
    yield Parameter("embedding", "embedding, head", (151936, 2048), 0, split=0)
    for layer in range(48):
        yield from _attention(layer, hidden=2048, heads=32, groups=4)
        yield Parameter(f"layers.{layer}.router", "router", (128, 2048), layer)
        yield from _experts(layer, experts=128, hidden=2048, intermediate=768)
    yield Parameter("norm", "norms", (2048,), 47)
    yield Parameter("head", "embedding, head", (151936, 2048), 47, split=0)


def deepseek_v3() -> Iterator[Parameter]:
    """Yield the tensors of 3 dense layers and 58 layers with 256 stacked experts and a shared one.

    All are bfloat16 but the routers' biases, which are float32.
    """
    hidden = 7168
    yield Parameter("embedding", "embedding, head", (129280, hidden), 0, split=0)
    for layer in range(61):
        yield from _latent_attention(layer, hidden)
        if layer < 3:
            yield from _mlp(layer, "layers.{}", "dense ", hidden=hidden, intermediate=18432)
            continue
        yield Parameter(f"layers.{layer}.router", "router", (256, hidden), layer)
        yield Parameter(f"layers.{layer}.router.bias", "router", (256,), layer, dtype=torch.float32)
        yield from _mlp(layer, "layers.{}.shared", "shared ", hidden=hidden, intermediate=2048)
        yield from _experts(layer, experts=256, hidden=hidden, intermediate=2048)
    yield Parameter("norm", "norms", (hidden,), 60)
    yield Parameter("head", "embedding, head", (129280, hidden), 60, split=0)


def _attention(layer: int, hidden: int, heads: int, groups: int, head: int = 128) -> Iterator[Parameter]:
    """Yield grouped-query attention of `groups` key-value heads, its norms, and the layer's two norms."""
    name = f"layers.{layer}"
    yield Parameter(f"{name}.q", "q", (heads * head, hidden), layer, split=0, ways=heads)
    for part in ("k", "v"):
        yield Parameter(f"{name}.{part}", "k, v", (groups * head, hidden), layer, split=0, ways=groups)
    yield Parameter(f"{name}.o", "o", (hidden, heads * head), layer, split=1, ways=heads)
    for norm, size in (("norm", hidden), ("post_norm", hidden), ("q_norm", head), ("k_norm", head)):
        yield Parameter(f"{name}.{norm}", "norms", (size,), layer)


def _latent_attention(layer: int, hidden: int) -> Iterator[Parameter]:
    """Yield multi-head latent attention: down-projections are whole on every rank, up-projections are cut by heads."""
    name = f"layers.{layer}"
    yield Parameter(f"{name}.q_a", "q_a, kv_a", (1536, hidden), layer)
    yield Parameter(f"{name}.q_b", "q_b, kv_b", (24576, 1536), layer, split=0, ways=128)
    yield Parameter(f"{name}.kv_a", "q_a, kv_a", (576, hidden), layer)
    yield Parameter(f"{name}.kv_b", "q_b, kv_b", (32768, 512), layer, split=0, ways=128)
    yield Parameter(f"{name}.o", "o", (hidden, 16384), layer, split=1, ways=128)
    for norm, size in (("norm", hidden), ("post_norm", hidden), ("q_a_norm", 1536), ("kv_a_norm", 512)):
        yield Parameter(f"{name}.{norm}", "norms", (size,), layer)


def _mlp(layer: int, prefix: str, kind: str, hidden: int, intermediate: int) -> Iterator[Parameter]:
    name = prefix.format(layer)
    for part in ("gate", "up"):
        yield Parameter(f"{name}.{part}", f"{kind}gate, up", (intermediate, hidden), layer, split=0)
    yield Parameter(f"{name}.down", f"{kind}down", (hidden, intermediate), layer, split=1)


def _experts(layer: int, experts: int, hidden: int, intermediate: int) -> Iterator[Parameter]:
    name = f"layers.{layer}.experts"
    for part in ("gate", "up"):
        shape = (experts, intermediate, hidden)
        yield Parameter(f"{name}.{part}", "expert gate, up", shape, layer, split=1, expert=True)
    yield Parameter(f"{name}.down", "expert down", (experts, hidden, intermediate), layer, split=2, expert=True)


MODELS: dict[str, Callable[[], Iterator[Parameter]]] = {
    "qwen3-4b": qwen3_4b,
    "qwen3-30b-a3b": qwen3_30b_a3b,
    "deepseek-v3": deepseek_v3,
}
