"""The command line says in a sentence what it cannot do."""

from __future__ import annotations

import builtins
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from restripe.analysis.spelling import SpellingError
from restripe.bench import transfers
from restripe.bench.transfers import CallTime
from restripe.cli import app, world_sizes

PAIR = ("explain", "--shape", "4096x2560", "--src", "8:S(0)", "--dst", "2x4:R,S(1)")
HOST = ("--host-ranks", "8")
MODEL = ("--model", "qwen3-4b", "--train", "TP2xDP4", "--generate", "TP4xDP2")


def told(*arguments: str) -> str:
    """What a command prints."""
    outcome = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return outcome.output


def refused(*arguments: str) -> str:
    """The sentence of a command that cannot be done."""
    outcome = CliRunner().invoke(app, arguments)
    assert outcome.exit_code == 2
    assert len(outcome.output.splitlines()) == 1
    return outcome.output


def test_bench_without_two_gpus_times_two_processes_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    text = told("bench", "--rows", "exchange 16 KiB")
    assert text.startswith("2 processes on the CPU, gloo")
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]
    assert [line[0] for line in lines] == ["drop-in", "reshard", "refit"]
    for _, host_us, total_ms, gb_per_s, wrong_bytes in lines:
        assert wrong_bytes == "0"
        assert all(float(figure) > 0 for figure in (host_us, total_ms, gb_per_s))


def test_wrong_bytes_end_bench_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    times = [CallTime("row", call, 1000, 1.0, 1.0, wrong_bytes) for call, wrong_bytes in (("reshard", 0), ("refit", 3))]
    monkeypatch.setattr(transfers, "measure", lambda *_: [times])
    outcome = CliRunner().invoke(app, ["bench"])
    assert outcome.exit_code == 1
    assert "refit" in outcome.output


def test_bench_names_the_rows_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    sentence = refused("bench", "--rows", "1 GiB")
    assert sentence.startswith("no row on 2 ranks is named '1 GiB'; there are ['point 16 KiB', 'point 34 MB'")


def test_bench_ends_when_its_time_is_out() -> None:
    outcome = CliRunner().invoke(app, ["bench", "--rows", "16 KiB", "--limit", "0"])
    assert outcome.exit_code == 2
    assert "time ran out" in outcome.output


def test_bench_plan_needs_no_gpu() -> None:
    times: Sequence[Mapping[str, object]] = json.loads(told("bench", "plan", "--ranks", "2,8", "--json"))
    assert [world["ranks"] for world in times] == [2, 8]
    assert {"plan_ms", "lookup_us"} <= set(times[0])
    assert "us a look-up" in told("bench", "plan", "--ranks", "2")
    with pytest.raises(SpellingError, match=r"expected even sizes of worlds, joined by commas, .* got '64,7'"):
        world_sizes("64,7")


def test_explain_a_pair(tmp_path: Path) -> None:
    text = told(*PAIR, "--messages", "2", "--picture", str(tmp_path / "move.svg"))
    for part in ("8:S(0) on ranks 0-7", "2x4:R,S(1) on ranks 8-15", "striped", "30 more", "fan-out", "times the least"):
        assert part in text
    assert (tmp_path / "move.svg").exists()


def test_a_mesh_and_ranks_can_stand_apart() -> None:
    apart = ("explain", "--shape", "8x4", "--src-mesh", "2x2", "--src", "R,S(0)", "--dst-mesh", "4", "--dst", "S(1)")
    text = told(*apart, "--src-ranks", "4-7", "--dst-ranks", "0-3", "--dtype", "int8")
    assert "2x2:R,S(0) on ranks 4-7" in text
    assert "4:S(1) on ranks 0-3" in text


def test_explain_a_model(tmp_path: Path) -> None:
    text = told("explain", *MODEL, "--picture", str(tmp_path / "model.png"))
    for part in ("gate, up", "4x2:R,S(0)", "sender x", "396", "predicted"):
        assert part in text
    assert (tmp_path / "model.png").exists()


def test_simulate() -> None:
    assert "every byte once: 14,536,359,936 bytes" in told("simulate", *MODEL)
    found = json.loads(told("simulate", *MODEL, "--json"))
    assert found["all"]["tensors"] == 396
    assert found["all"]["busiest_sender_ratio"] == pytest.approx(1)


#: Six of eight holders are on the first host, six of eight receivers on the second.
HOSTS = ("--src", "8:R", "--src-ranks", "0-5,8-9", "--dst", "8:S(0)", "--dst-ranks", "6-7,10-15")


def test_hosts_come_first_once_they_are_given() -> None:
    text = told("explain", "--shape", "4096x2560", *HOSTS)
    assert "all take turns; 4 of 8 messages stay within a host" in text
    assert "busiest sender 2.62 MB, 1.00 times the least possible" in text
    text = told("explain", "--shape", "4096x2560", *HOSTS, "--host-ranks", "8")
    assert "those on the receiver's host first; 8 of 8 messages stay within a host" in text
    assert "busiest sender 7.86 MB, 3.00 times the least possible" in text


def test_a_model_on_hosts() -> None:
    """Twelve trainers fill one host and half of the next, where four of the generators are."""
    degrees = ("--model", "qwen3-4b", "--train", "DP12", "--generate", "TP4xDP2")
    in_turn, near = (json.loads(told("simulate", *degrees, "--json", *rest))["all"] for rest in ((), HOST))
    assert in_turn["holders"] == {"turns": 396}
    assert near["holders"] == {"near": 396}
    assert 0 < in_turn["messages_within_a_host"] < near["messages_within_a_host"] == near["messages"] / 2
    assert in_turn["busiest_sender_ratio"] < 1.1 < near["busiest_sender_ratio"]
    assert "holders: those on the receiver's host first; 1,584 of 3,168 messages" in told("explain", *degrees, *HOST)


def test_rates_change_the_prediction() -> None:
    def predicted(*rates: str) -> float:
        return float(json.loads(told("simulate", *MODEL, "--json", *rates))["all"]["predicted_ms"]["messages"])

    assert predicted("--network", "4.5") == pytest.approx(10 * predicted(), rel=0.01)
    assert predicted("--host-ranks", "16") < predicted() / 5


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("explain",), "expected a tensor (--shape 4096x2560"),
        ((*PAIR, *MODEL), "expected a tensor (--shape 4096x2560"),
        ((*PAIR, "--dst-ranks", "8-9"), "expected one rank for each place of a mesh of shape (2, 4)"),
        ((*PAIR[:-1], "8:S(2)"), "names tensor dim 2, but the tensor has 2 dims"),
        ((*PAIR, "--link", "0"), "expected a link above 0, got 0.0"),
        ((*PAIR, "--host-ranks", "0"), "expected a host above 0, got 0"),
        ((*PAIR, "--picture", "move.pdf"), "expected a picture's name to end in .svg or .png"),
        (("simulate", *MODEL[:-1], "TP3"), "layers.0.q has 32 heads, which do not spread evenly over TP3"),
    ],
)
def test_what_cannot_be_done(arguments: Sequence[str], sentence: str) -> None:
    assert sentence in refused(*arguments)


def test_pictures_need_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: object) -> object:
        if name == "restripe.analysis.drawing":
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
        return real(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    assert refused(*PAIR, "--picture", "move.svg").endswith(
        "a picture needs matplotlib: pip install 'restripe[plot]'\n"
    )


def test_the_help_shows_each_placement_whole() -> None:
    shown = CliRunner().invoke(app, ["explain", "--help"], terminal_width=400, env={"COLUMNS": "400"}).output
    for placement in ("S(d)", "SS(d,k)", "SG(d,[a,b])"):
        assert placement in shown
