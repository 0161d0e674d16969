"""What a run of the suite found, and the verdicts that follow from it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from reshard_conformance.contract import Claims, Level, Profile
from reshard_conformance.coverage import Class, Coverage
from reshard_conformance.requirements import Requirement, requirements
from reshard_conformance.waivers import Waiver

__all__ = ["Failure", "Result", "Tally", "Verdict"]


@dataclass(frozen=True)
class Failure:
    """A script that failed, as lines of JSON, made as small as it would go.

    again: whether it failed each time that it was played; if not, what ran before it had a part in it.
    classes: the coverage classes of its cases. advisory: whether it is against requirements of strength SHOULD only, and does not stand against a certificate.
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
        """The name of its case file: a digest of what is in it."""
        digest = hashlib.sha256("\n".join(self.script).encode()).hexdigest()[:12]
        return f"seq_{digest}.jsonl" if len(self.script) > 1 else f"{digest}.json"

    @property
    def kind(self) -> tuple[str, str]:
        """What two findings of one defect have in common: the property, and the first fault without numbers and bytes."""
        text = re.sub(r"\b[0-9a-f]{2,}\b|\d+", "#", self.faults[0] if self.faults else self.verdict)
        text = re.sub(r"ranks? #|\(?#,?( #)*\)?", "#", re.sub(r"#(, #)+", "#", text))
        return self.prop, re.sub(r"(#[^,:]*)(, \1)+", r"\1", text)


@dataclass
class Tally:
    """What one property played in one world: scripts in all, cases by coverage class, searches that failed.

    requirements: the ids that the property shows, each with the coverage classes that it needs. floors: whether those
    of the coverage classes hold for it. reached: whether the claimed level has such cases at all.
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
    def classes(self) -> tuple[Class, ...]:
        """The coverage classes that count for it."""
        return self.coverage.of(self.profile)

    def admits(self, requirement: str) -> bool:
        """Whether it can show the requirement at its level and in worlds of its sizes."""
        admitted = {kind.name for kind in self.classes}
        needed = self.requirements.get(requirement)
        return self.reached and needed is not None and admitted.issuperset(needed)

    def shows(self, requirement: str) -> bool:
        """Whether it has drawn what shows the requirement."""
        drawn = all(self.coverage.counts[name] for name in self.requirements[requirement])
        return self.admits(requirement) and drawn and self.scripts > 0

    @property
    def under(self) -> list[str]:
        """A sentence for each coverage class under its floor."""
        if not self.floors or not self.scripts:
            return []
        return [
            f"{self.world} drew {self.coverage.share(kind):.1%} of class {kind.name!r}, under its floor {kind.floor:.0%}"
            for kind in self.classes
            if self.coverage.share(kind) < kind.floor
        ]


@dataclass(frozen=True)
class Verdict:
    """The word on one requirement.

    passed, failed, waived, not run, not claimed, planned, not shown here (no world of the run can show it), or out of reach
    (of the claimed level or of the world sizes).
    """

    requirement: Requirement
    verdict: str
    scripts: int = 0


@dataclass
class Result:
    """A run of the suite for one implementation.

    profiles: the claimed ones that were asked for. worlds: the world sizes by name of the world. seed: of the fresh
    part. layouts, fresh: the distinct layouts of the fixed and of the fresh part, by world; beside: those on which golden
    played along. dtypes: those that were moved, by world. versions: what the ranks ran on, by world and rank. stopped: whether the run ended early, after many
    failures.
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
    beside: dict[str, set[bytes]] = field(default_factory=dict)
    dtypes: dict[str, set[str]] = field(default_factory=dict)
    versions: dict[str, dict[int, Mapping[str, str]]] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    stopped: bool = False
    seconds: float = 0.0

    @property
    def shown(self) -> tuple[Profile, ...]:
        """Those of the profiles that some world of the run can show; a certificate is for these."""
        here = {tally.profile for tally in self.tallies.values()}
        return tuple(profile for profile in self.profiles if profile in here)

    @property
    def ground(self) -> dict[str, str]:
        """What the ranks of each world ran on, those alike together."""
        found: dict[str, str] = {}
        for world, ranks in self.versions.items():
            alike: dict[str, list[int]] = {}
            for rank, versions in sorted(ranks.items()):
                alike.setdefault(", ".join(f"{name} {value}" for name, value in versions.items()), []).append(rank)
            found |= {f"{world} ranks {', '.join(map(str, members))}": text for text, members in alike.items()}
        return found

    @property
    def open(self) -> list[Failure]:
        """The failures that stand against a certificate."""
        return [failure for failure in self.failures if failure.waiver is None and not failure.advisory]

    @property
    def verdicts(self) -> list[Verdict]:
        """One verdict a requirement that the suite is to show."""
        return [self.verdict(entry) for entry in requirements() if entry.profile is not None]

    def verdict(self, entry: Requirement) -> Verdict:
        """The verdict on one requirement."""
        tallies = [tally for tally in self.tallies.values() if entry.id in tally.requirements]
        scripts = sum(tally.scripts for tally in tallies if tally.shows(entry.id))
        return Verdict(entry, self.word(entry, tallies), scripts)

    def word(self, entry: Requirement, tallies: list[Tally]) -> str:
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
        """Why there is no certificate; empty when there is one."""
        found = [failures(self.open)] if self.open else []
        found += ["stopped early"] if self.stopped else []
        if not self.profiles:
            found.append("no profile is claimed")
        if self.profiles and not self.shown:
            found.append(f"{', '.join(self.worlds)}: none of these worlds shows any of the profiles")
        for profile in self.profiles:
            mine = [tally for tally in self.tallies.values() if tally.profile is profile]
            ran = {tally.world for tally in mine if tally.scripts}
            here = dict.fromkeys(tally.world for tally in mine)
            idle = [world for world in here if world not in ran and not self.stopped]
            found += [f"{profile.value}: nothing was run in {world}" for world in idle]
        if not found:
            verdicts = [verdict for verdict in self.verdicts if verdict.requirement.profile in self.profiles]
            missing = [verdict.requirement.id for verdict in verdicts if verdict.verdict == "not run"]
            found += [f"{', '.join(missing)}: not run"] if missing else []
            found += [sentence for tally in self.tallies.values() for sentence in tally.under]
        return found

    @property
    def exit_code(self) -> int:
        """0 for a certificate, else 1."""
        return 1 if self.problems else 0

    @property
    def badge(self) -> str:
        """What was earned in a few words, such as "core L3, efficient"; below L3 the level alone, as core is L3."""
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


def failures(found: Sequence[Failure]) -> str:
    """How many there are, and how many of them are refusals of what is claimed."""
    unsupported = sum(failure.verdict == "unsupported" for failure in found)
    number = "1 failure" if len(found) == 1 else f"{len(found)} failures"
    return f"{number} ({unsupported} unsupported)" if unsupported else number
