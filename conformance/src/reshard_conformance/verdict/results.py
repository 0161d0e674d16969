"""The result of a run of the suite, and the verdicts that follow from it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from reshard_conformance.contract import Claims, Level, Profile
from reshard_conformance.generate.coverage import Coverage, CoverageClass
from reshard_conformance.verdict.requirements import Requirement, requirements
from reshard_conformance.verdict.waivers import Waiver

__all__ = ["Failure", "Result", "Tally", "Verdict"]


@dataclass(frozen=True)
class Failure:
    """A script that failed, shrunk, as lines of JSON.

    again: it failed each time that it was played; if not, earlier scripts contributed to the failure.
    classes: the coverage classes of its cases.
    advisory: it concerns requirements of strength SHOULD only, and does not prevent a certificate.
    """

    world: str
    prop: str
    profile: Profile
    verdict: str
    faults: tuple[str, ...]
    script: tuple[str, ...]
    seed: int
    fresh: bool
    again: bool
    classes: frozenset[str] = frozenset()
    advisory: bool = False
    waiver: Waiver | None = None

    @property
    def file(self) -> str:
        """The name of its case file: a digest of its content."""
        digest = hashlib.sha256("\n".join(self.script).encode()).hexdigest()[:12]
        return f"seq_{digest}.jsonl" if len(self.script) > 1 else f"{digest}.json"

    @property
    def kind(self) -> tuple[str, str]:
        """The property, and the first fault without numbers and bytes; equal for two failures of one defect."""
        text = re.sub(r"\b[0-9a-f]{2,}\b|\d+", "#", self.faults[0] if self.faults else self.verdict)
        text = re.sub(r"ranks? #|\(?#,?( #)*\)?", "#", re.sub(r"#(, #)+", "#", text))
        return self.prop, re.sub(r"(#[^,:]*)(, \1)+", r"\1", text)


@dataclass
class Tally:
    """The counts of one property in one world: scripts in all, cases by coverage class, searches that failed.

    requirements: the ids that the property shows, each with the coverage classes that it needs. floors: the floors of
    the coverage classes apply to it. reached: the claimed level has such cases.
    """

    world: str
    prop: str
    profile: Profile
    requirements: Mapping[str, tuple[str, ...]]
    coverage: Coverage
    floors: bool = False
    reached: bool = True
    scripts: int = 0
    failed: int = 0

    @property
    def classes(self) -> tuple[CoverageClass, ...]:
        """The coverage classes that apply to it."""
        return self.coverage.classes_of(self.profile)

    def admits(self, requirement: str) -> bool:
        """Return True if it can show the requirement at its level and in worlds of its sizes."""
        admitted = {kind.name for kind in self.classes}
        needed = self.requirements.get(requirement)
        return self.reached and needed is not None and admitted.issuperset(needed)

    def shows(self, requirement: str) -> bool:
        """Return True if it has drawn the cases that show the requirement."""
        drawn = all(self.coverage.counts[name] for name in self.requirements[requirement])
        return self.admits(requirement) and drawn and self.scripts > 0

    @property
    def floor_faults(self) -> list[str]:
        """One sentence for each coverage class under its floor."""
        if not self.floors or not self.scripts:
            return []
        return [
            f"{self.world} drew {self.coverage.share(kind):.1%} of class {kind.name!r}, under its floor {kind.floor:.0%}"
            for kind in self.classes
            if self.coverage.share(kind) < kind.floor
        ]


@dataclass(frozen=True)
class Verdict:
    """The verdict on one requirement.

    verdict: passed, failed, waived, not run, not claimed, planned, not shown here (no world of the run can show it), or
    out of reach (of the claimed level or of the world sizes).
    """

    requirement: Requirement
    verdict: str
    scripts: int = 0


@dataclass
class Result:
    """A run of the suite for one implementation.

    profiles: the claimed ones to judge. worlds: the world sizes by world. seed: of the fresh part.
    layouts, fresh: the distinct layouts of the fixed and of the fresh part, by world. in_lockstep: those on which golden
    ran beside the implementation. dtypes: that were moved, by world. versions: of each rank's libraries and device, by
    world and rank. stopped: the run ended early, after many failures.
    """

    implementation: str
    version: str
    claims: Claims
    profiles: tuple[Profile, ...]
    worlds: Mapping[str, tuple[int, ...]]
    effort: str
    seed: int
    tallies: dict[tuple[str, str], Tally] = field(default_factory=dict)
    layouts: dict[str, set[bytes]] = field(default_factory=dict)
    fresh: dict[str, set[bytes]] = field(default_factory=dict)
    in_lockstep: dict[str, set[bytes]] = field(default_factory=dict)
    dtypes: dict[str, set[str]] = field(default_factory=dict)
    versions: dict[str, dict[int, Mapping[str, str]]] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    stopped: bool = False
    seconds: float = 0.0

    @property
    def shown(self) -> tuple[Profile, ...]:
        """The profiles that some world of the run can show; a certificate is for these."""
        here = {tally.profile for tally in self.tallies.values()}
        return tuple(profile for profile in self.profiles if profile in here)

    @property
    def rank_versions(self) -> dict[str, str]:
        """The versions that ranks ran on, by names of ranks; ranks with equal versions share an entry."""
        by_ranks: dict[str, str] = {}
        for world, ranks in self.versions.items():
            ranks_of: dict[str, list[int]] = {}
            for rank, versions in sorted(ranks.items()):
                ranks_of.setdefault(", ".join(f"{name} {value}" for name, value in versions.items()), []).append(rank)
            by_ranks |= {f"{world} ranks {', '.join(map(str, members))}": text for text, members in ranks_of.items()}
        return by_ranks

    @property
    def open(self) -> list[Failure]:
        """The failures that prevent a certificate."""
        return [failure for failure in self.failures if failure.waiver is None and not failure.advisory]

    @property
    def verdicts(self) -> list[Verdict]:
        """The verdicts on all requirements that a profile of the suite shows."""
        return [self.verdict(entry) for entry in requirements() if entry.profile is not None]

    def verdict(self, entry: Requirement) -> Verdict:
        """Return the verdict on one requirement."""
        tallies = [tally for tally in self.tallies.values() if entry.id in tally.requirements]
        scripts = sum(tally.scripts for tally in tallies if tally.shows(entry.id))
        return Verdict(entry, self.judge_requirement(entry, tallies), scripts)

    def judge_requirement(self, entry: Requirement, tallies: list[Tally]) -> str:
        if entry.planned:
            return "planned"
        if entry.profile not in self.claims.profiles:
            return "not claimed"
        props = {tally.prop for tally in tallies if tally.admits(entry.id)}
        needed = {name for tally in tallies for name in tally.requirements[entry.id]}
        failures = [failure for failure in self.failures if failure.prop in props and needed <= failure.classes]
        if failures:
            return "waived" if all(failure.waiver for failure in failures) else "failed"
        if not tallies and entry.profile in self.profiles:
            return "not shown here"
        if tallies and not props:
            return "out of reach"
        return "passed" if any(tally.shows(entry.id) for tally in tallies) else "not run"

    @property
    def problems(self) -> list[str]:
        """The reasons why there is no certificate; empty when there is one."""
        reasons = [count_failures(self.open)] if self.open else []
        reasons += ["stopped early"] if self.stopped else []
        if not self.profiles:
            reasons.append("no profile is claimed")
        if self.profiles and not self.shown:
            reasons.append(f"{', '.join(self.worlds)}: none of these worlds shows any of the profiles")
        for profile in self.profiles:
            own_tallies = [tally for tally in self.tallies.values() if tally.profile is profile]
            ran = {tally.world for tally in own_tallies if tally.scripts}
            planned = dict.fromkeys(tally.world for tally in own_tallies)
            idle = [world for world in planned if world not in ran and not self.stopped]
            reasons += [f"{profile.value}: nothing was run in {world}" for world in idle]
        if not reasons:
            verdicts = [verdict for verdict in self.verdicts if verdict.requirement.profile in self.profiles]
            missing = [verdict.requirement.id for verdict in verdicts if verdict.verdict == "not run"]
            reasons += [f"{', '.join(missing)}: not run"] if missing else []
            reasons += [sentence for tally in self.tallies.values() for sentence in tally.floor_faults]
        return reasons

    @property
    def exit_code(self) -> int:
        """0 for a certificate, else 1."""
        return 1 if self.problems else 0

    @property
    def badge(self) -> str:
        """The certified level and profiles, such as "core L3, efficient"; below L3 without core, which is L3."""
        core = "core L3" if self.claims.level is Level.L3 else f"level {self.claims.level.name}"
        return ", ".join(core if profile is Profile.CORE else profile.value for profile in self.shown)

    @property
    def line(self) -> str:
        """The last line of a run."""
        subject = f"{self.implementation} {self.version}"
        if self.problems:
            return f"not certified: {subject}: {'; '.join(self.problems)}"
        counts = {world: len(self.layouts.get(world, ())) for world in self.worlds}
        parts = ", ".join(f"{world} {number}" for world, number in counts.items())
        number = sum(failure.waiver is not None for failure in self.failures)
        waived = f", {number} waived" if number else ""
        return f"certified: {subject} {self.badge} over {sum(counts.values())} layouts ({parts}), 0 failures{waived}"


def count_failures(failures: Sequence[Failure]) -> str:
    """Return the number of failures, and of those that refuse what is claimed, in words."""
    unsupported = sum(failure.verdict == "unsupported" for failure in failures)
    number = "1 failure" if len(failures) == 1 else f"{len(failures)} failures"
    return f"{number} ({unsupported} unsupported)" if unsupported else number
