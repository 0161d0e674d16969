"""The commands: what they print, their last lines and exit codes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest
from typer.testing import CliRunner

from reshard_conformance.case.files import Case, Clear, Fault, Side, load, packaged_files, save
from reshard_conformance.cli import app
from reshard_conformance.contract import Profile
from reshard_conformance.mutants import device_hunt
from reshard_conformance.mutants.sim_hunt import MUTANTS
from reshard_conformance.profiles import PROPERTIES
from reshard_conformance.run.replay import needed_profiles
from reshard_conformance.verdict.requirements import requirements

GOOD = Case(2, (4, 6), "float32", Side((0,), ("S(0)",)), Side((1,), ("S(1)",)), name="good")
UNEVEN = Case(2, (3,), "float32", Side((0, 1), ("S(0)",)), Side((1,), ("R",)), name="uneven")
ABSENT = Case(
    2, (4,), "int8", Side((0,), ("R",)), Side((1,), ("R",)), "error:missing", fault=Fault("src", (0,), "absent")
)


class Result(Protocol):
    """What is left of a command."""

    @property
    def output(self) -> str: ...
    @property
    def exit_code(self) -> int: ...


Invoke = Callable[..., Result]


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Invoke:
    """Runs a command in an empty folder, with little to play."""
    few = {"exact": (1, 6, 40), "strided": (1, 5, 20), "segmented": (1, 5, 20)}
    few |= dict.fromkeys(("models", "submissions", "soak"), (0, 0, 0))
    monkeypatch.setattr("reshard_conformance.run.plan.AMOUNTS", {"sim": few})
    monkeypatch.setattr("reshard_conformance.run.plan.DEFAULT_AMOUNTS", {"sim": (1, 1, 8)})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*filter(None, sys.path)])  # a command adds its folder

    def run(*arguments: str | Path) -> Result:
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return run


def last(result: Result) -> str:
    return result.output.rstrip("\n").rsplit("\n", 1)[-1]


def test_an_adapter_may_lie_in_the_current_folder(invoke: Invoke, tmp_path: Path) -> None:
    save(tmp_path / "good.json", [GOOD])
    Path("adapter_here.py").write_text(
        "from reshard_conformance.implementations.golden import Golden\nmine = Golden()\n"
    )
    assert last(invoke("replay", "good.json", "--implementation", "adapter_here:mine")) == "1 passed, 0 failed"


def test_run_ends_with_the_certified_line(invoke: Invoke) -> None:
    result = invoke("run", "--implementation", "golden", "--jobs", "1", "--seed", "5")
    form = r"certified: golden 0\.1\.0 core L3, strided, segmented over (\d+) layouts \(sim \1\), 0 failures"
    assert re.fullmatch(form, last(result))
    assert result.exit_code == 0
    assert "--seed 5 for the fresh part" in result.output
    assert "torch 2." in result.output
    assert "an empty shard" in result.output
    assert not Path("reshard-failures").exists()


def test_run_without_a_terminal_tells_of_progress_in_plain_lines(invoke: Invoke) -> None:
    result = invoke("run", "--implementation", "golden", "--jobs", "1")
    assert re.search(
        r"^\d+ of \d+ parts, \d+ layouts, [\d.]+ a second, 0 failed \(sim, core/\S+, 1 to 8 ranks\)$",
        result.output,
        re.MULTILINE,
    )


def test_run_prints_a_fresh_seed_that_can_be_given_again(invoke: Invoke) -> None:
    one, other = (invoke("run", "--implementation", "golden", "--jobs", "1") for _ in range(2))
    seeds = [re.search(r"--seed (\d+) for", result.output) for result in (one, other)]
    assert seeds[0] is not None
    assert seeds[1] is not None
    assert seeds[0][1] != seeds[1][1]


def test_run_leaves_failing_cases_that_replay(invoke: Invoke, plugins: str) -> None:
    result = invoke("run", "--implementation", "strange:rounding", "--jobs", "1")
    assert result.exit_code == 1
    assert last(result).startswith("not certified: rounding 0: ")
    command = re.search(
        r"^  reshard-conformance (replay reshard-failures/\S+\.json .*--property exact)$", result.output, re.MULTILINE
    )
    assert command is not None
    again = invoke(*command[1].split())
    assert last(again) == "0 passed, 1 failed"
    assert again.exit_code == 1
    good = invoke(*command[1].replace("strange:rounding", "golden").split())
    assert last(good) == "1 passed, 0 failed"


def test_run_writes_a_report_that_verifies(invoke: Invoke, tmp_path: Path) -> None:
    assert invoke("run", "--implementation", "golden", "--jobs", "1", "--report", "there").exit_code == 0
    assert {path.name for path in Path("there").iterdir()} == {"report.json", "junit.xml", "index.html"}
    assert last(invoke("verify", "there")) == "whole report"
    content = json.loads(Path("there/report.json").read_text(encoding="utf-8"))
    content["exit_code"] = 1
    Path("there/report.json").write_text(json.dumps(content), encoding="utf-8")
    broken = invoke("verify", "there")
    assert broken.exit_code == 1
    assert last(broken) == "broken report"


def test_a_waiver_that_excuses_nothing_is_told(invoke: Invoke, tmp_path: Path) -> None:
    waiver = (
        'requirement = "RS-EXACT-1"\nfault = "x"\nbug = "https://example.org/1"\nexpires = 2999-01-01\nreason = "y"'
    )
    (tmp_path / "waivers.toml").write_text(f"[[waiver]]\n{waiver}\n", encoding="utf-8")
    result = invoke("run", "--implementation", "golden", "--jobs", "1", "--waivers", "waivers.toml")
    assert "waiver for RS-EXACT-1 (https://example.org/1) excuses nothing: remove it" in result.output
    assert result.exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("run",), "no implementation is named: type --implementation NAME"),
        (("run", "--implementation", "nobody"), "implementation 'nobody' is not known"),
        (("run", "--implementation", "golden", "--world", "moon"), "world 'moon' is not known"),
        (("run", "--implementation", "golden", "--profiles", "core,speed"), "profile 'speed' is not known"),
        (("run", "--implementation", "golden", "--profiles", "batch"), "profile 'batch' is not claimed"),
        (("run", "--implementation", "golden", "--world-size", "0"), "world 'sim' has 1 to 64 ranks"),
        (("run", "--implementation", "golden", "--effort", "heroic"), "heroic"),
        (("run", "--implementation", "golden", "--waivers", "nowhere.toml"), "nowhere.toml: expected"),
        (("replay", "nowhere.json", "--implementation", "golden"), "nowhere.json"),
        (("replay", "--implementation", "golden", "--property", "speed"), "property 'speed' is not known"),
        (("new", "My Package"), "expected a name of a Python package"),
        (("mutants", "nobody"), "'nobody' is no mutant"),
        (("dance",), "dance"),
    ],
)
def test_what_is_asked_for_wrongly_is_exit_code_2(invoke: Invoke, arguments: tuple[str, ...], text: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert text in " ".join(result.output.split())


def test_replay_counts_and_tells_what_is_not_claimed(invoke: Invoke) -> None:
    result = invoke("replay", "--implementation", "golden")
    scripts = [script for path in packaged_files() for script in load(path)]
    missing = sum(len(script) for script in scripts if Profile.AGREEMENT in needed_profiles(script))
    assert f"not claimed (agreement): {missing}: " in result.output
    assert re.fullmatch(r"\d+ passed, 0 failed", last(result))
    assert result.exit_code == 0


def test_replay_fails_where_a_case_does(invoke: Invoke, plugins: str, tmp_path: Path) -> None:
    save(tmp_path / "seq_both.jsonl", [GOOD, Clear(), UNEVEN])
    result = invoke("replay", "seq_both.jsonl", "--implementation", "toy_reshard:implementation")
    assert last(result) == "2 passed, 1 failed"
    assert result.exit_code == 1
    assert "failed: uneven" in result.output


def test_replay_of_nothing_is_a_failure(invoke: Invoke, tmp_path: Path) -> None:
    save(tmp_path / "absent.json", [ABSENT])
    result = invoke("replay", "absent.json", "--implementation", "golden")
    assert "not claimed (agreement): 1" in result.output
    assert last(result) == "0 passed, 0 failed"
    assert result.exit_code == 1


@pytest.mark.parametrize("options", [(), ("--property", "exact")])
def test_replay_without_a_case_says_where_it_looked(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: tuple[str, ...]
) -> None:
    monkeypatch.setattr("reshard_conformance.run.replay.packaged_files", tuple)
    (tmp_path / "empty.jsonl").write_text("", encoding="utf-8")
    for arguments, place in (((), "data/cases; name a"), (("empty.jsonl",), "looked in empty.jsonl; name a")):
        result = invoke("replay", *arguments, "--implementation", "golden", *options)
        assert result.exit_code == 2
        assert place in " ".join(result.output.split())
        assert "passed" not in result.output


def test_a_malformed_case_names_file_field_and_what_was_expected(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text('{"format": 1, "world_size": 2}', encoding="utf-8")
    result = invoke("replay", "bad.json", "--implementation", "golden")
    assert result.exit_code == 2
    assert result.output.startswith("bad.json: field 'shape': expected ")


def test_list_names_implementations_properties_and_requirements(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    output = invoke("list").output
    assert "reshard_conformance.implementations.golden:implementation" in output
    assert all(f" {name} " in output for name in PROPERTIES)
    assert all(f" {entry.id} " in output for entry in requirements())


def test_new_writes_an_adapter_that_runs(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    result = invoke("new", "mine")
    assert result.exit_code == 0
    assert "reshard-conformance run --implementation mine" in last(result)
    assert 'mine = "mine:implementation"' in Path("mine/pyproject.toml").read_text(encoding="utf-8")
    monkeypatch.syspath_prepend("mine/src")
    replayed = invoke("replay", "--implementation", "mine:implementation")
    assert replayed.exit_code == 0
    assert invoke("new", "mine").exit_code == 2


def test_mutants_are_hunted_by_name(invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    result = invoke("mutants", "lazy", "writer", "--report", tmp_path)
    assert last(result) == "2 killed, 0 survived"
    assert result.exit_code == 0
    assert MUTANTS["writer"].__doc__ is not None
    assert MUTANTS["writer"].__doc__ in result.output
    assert len(list(tmp_path.glob("*.json"))) == 2


def test_the_package_runs_as_a_module() -> None:
    command = (sys.executable, "-m", "reshard_conformance", "--help")
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "reshard-conformance [OPTIONS] COMMAND" in done.stdout


def test_breaks_of_devices_need_a_device(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    result = invoke("mutants", "--world", "nccl")
    assert result.exit_code == 2
    assert "world 'nccl' needs a GPU" in result.output


def test_a_break_that_survives_is_told(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    few = tuple(target for target in device_hunt.TARGETS if target.mutant.name in {"writer", "quiet"})
    harmless = device_hunt.Target(device_hunt.Unrecorded, "exact", 2)
    for targets, line, code in ((few, "2 caught, 0 not", 0), ((*few, harmless), "2 caught, 1 not", 1)):
        monkeypatch.setattr(device_hunt, "TARGETS", targets)
        monkeypatch.setattr(device_hunt, "EXAMPLES", 10)
        result = invoke("mutants", "--world", "gloo", "--report", "there")
        assert result.output.splitlines()[-1] == line
        assert result.exit_code == code
        assert len(list(Path("there").iterdir())) == 2
