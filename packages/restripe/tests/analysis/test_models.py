"""The models have the sizes that they are published with."""

from __future__ import annotations

from math import prod

import pytest

from restripe.analysis.models import MODELS, parameters
from restripe.analysis.spelling import SpellingError


def elements(model: str) -> int:
    return sum(prod(parameter.shape) for parameter in parameters(model))


def test_the_dense_model_is_that_of_the_benchmark() -> None:
    assert len(parameters("qwen3-4b")) == 396
    assert 2 * elements("qwen3-4b") == 7_267_018_752


def test_the_models_with_experts() -> None:
    assert elements("qwen3-30b-a3b") == 30_532_122_624
    assert elements("deepseek-v3") == 671_026_419_200
    assert sum(parameter.expert for parameter in parameters("deepseek-v3")) == 3 * 58


@pytest.mark.parametrize("model", MODELS)
def test_parameters_fit_together(model: str) -> None:
    tensors = parameters(model)
    assert len({parameter.name for parameter in tensors}) == len(tensors)
    assert all(parameter.split is None or parameter.split < len(parameter.shape) for parameter in tensors)
    assert len({(parameter.kind, parameter.split, parameter.expert) for parameter in tensors}) == len(
        {parameter.kind for parameter in tensors}
    )


def test_a_model_that_is_not_known() -> None:
    with pytest.raises(SpellingError, match="expected a model of qwen3-4b, qwen3-30b-a3b, deepseek-v3, got 'gpt'"):
        parameters("gpt")
