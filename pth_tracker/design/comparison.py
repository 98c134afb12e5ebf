"""The comparison that an audit judges: runs in arms and cells, and the pairs of arms set against each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pth_tracker.design.expectations import Better
from pth_tracker.design.labels import SeedLabel
from pth_tracker.design.schema import Design
from pth_tracker.model import Basis, DesignInForce
from pth_tracker.runs import Run
from pth_tracker.values import MISSING, Maybe, Value, same_value, show_value, value_key
from pth_tracker.vocabulary.canonicalise import Reading
from pth_tracker.vocabulary.lens import EffectiveSeed

if TYPE_CHECKING:
    from pth_tracker.examine import Examination


@dataclass(frozen=True, order=True)
class CellKey:
    """What runs must share to be attempts or replicates of one thing."""

    framework: str
    task: tuple[str, ...]
    stress: str
    """The stress key's value as text; ``""`` without a stress axis."""
    arm: str


@dataclass(frozen=True)
class Member:
    """One run with its place in the comparison."""

    run: Run
    reading: Reading
    """Its roles; its history is not in here."""
    cell: CellKey
    pair_key: str | None
    """The replicate's identity, as text; None: unknown."""
    label: SeedLabel | None = None
    """The seed in its name."""
    arguments: Mapping[str, SeedLabel] = field(default_factory=dict)
    """The seeds in its launch arguments, by key."""
    result: Examination | None = None
    """What examination found; None before it, or where the run could not be read."""
    counted: bool = True
    why_not: str = ""

    @property
    def key(self) -> str:
        """The run's key."""
        return self.run.key

    @property
    def arm(self) -> str:
        """The arm's name; ``""``: in none."""
        return self.cell.arm

    @property
    def aside(self) -> str:
        """Why no rule judges it; ``""``: it is a training run, or somebody put it into an arm."""
        return "" if self.arm else self.run.aside

    @property
    def seed(self) -> EffectiveSeed:
        """What orders its training data."""
        return self.reading.seed

    @property
    def score(self) -> float | None:
        """Its score by the metric in force."""
        return self.result.score if self.result else None


@dataclass(frozen=True)
class Cell:
    """The runs of one arm on one task at one setting."""

    key: CellKey
    members: tuple[Member, ...]
    comparison: Comparison

    @property
    def subject(self) -> str:
        """The cell as shown to people."""
        return self.comparison.describe(self.key)

    @property
    def counted(self) -> tuple[Member, ...]:
        """Those that comparisons count."""
        return tuple(member for member in self.members if member.counted)


@dataclass(frozen=True)
class Pair:
    """Two arms at one setting of the stress axis, over the tasks that both trained."""

    a: str
    b: str
    """The baseline's arm, or that which a claim holds ``a`` against."""
    stress: str
    cells: tuple[tuple[Cell, Cell], ...]
    """A task each: the cell of ``a`` and that of ``b``."""
    comparison: Comparison

    @property
    def subject(self) -> str:
        """The pair as shown to people."""
        where = f" at {self.comparison.stress_key}={self.stress}" if self.stress else ""
        return f"{self.a} against {self.b}{where}"

    @property
    def members(self) -> tuple[Member, ...]:
        """All members of both arms."""
        return tuple(member for pair in self.cells for cell in pair for member in cell.members)

    def side(self, first: bool) -> tuple[Member, ...]:
        """The counted members of ``a`` (first) or ``b``."""
        return tuple(member for pair in self.cells for member in pair[0 if first else 1].counted)


class Comparison:
    """All members with the design in force; what rules of a wider scope than one run are judged on."""

    def __init__(
        self,
        members: Sequence[Member],
        design: Design,
        in_force: DesignInForce,
        stress_key: str = "",
        undecided: str = "",
    ) -> None:
        self.members = tuple(members)
        self.design = design
        self.in_force = in_force
        self.stress_key = stress_key
        self.undecided = undecided
        """Why no comparison of arms was recognised; ``""``: one was."""
        self.memo: dict[str, Any] = {}
        """What a check computed once for all pairs; it lives as long as the comparison."""

    def without_aside(self) -> Comparison:
        """The comparison of the training runs alone."""
        kept = [member for member in self.members if not member.aside]
        if len(kept) == len(self.members):
            return self
        return Comparison(kept, self.design, self.in_force, self.stress_key, self.undecided)

    @property
    def arms_declared(self) -> bool:
        """Whether somebody said which runs belong to which arm."""
        return "arms" not in self.in_force.inferred

    @property
    def basis(self) -> Basis:
        """The basis of a finding that rests on the arms."""
        return Basis.DECLARED if self.arms_declared else Basis.INFERRED

    @cached_property
    def by_key(self) -> Mapping[str, Member]:
        """The members by run key."""
        return {member.key: member for member in self.members}

    @cached_property
    def arms(self) -> Mapping[str, tuple[Member, ...]]:
        """The members of each arm, arms in the order of the design."""
        return {
            arm: tuple(self.by_key[key] for key in keys if key in self.by_key)
            for arm, keys in self.in_force.arms.items()
        }

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """The cells of all arms; runs in no arm are in none."""
        found: dict[CellKey, list[Member]] = {}
        for member in self.members:
            if member.arm:
                found.setdefault(member.cell, []).append(member)
        order = {arm: place for place, arm in enumerate(self.in_force.arms)}
        keys = sorted(found, key=lambda key: (order[key.arm], key))
        return tuple(Cell(key, tuple(found[key]), self) for key in keys)

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        """Every other arm against the baseline, and the arms that claims compare.

        At each stress value where both have runs of one framework on one task.
        """
        baseline = self.in_force.baseline
        wanted: dict[tuple[str, str], None] = {}
        if baseline and not self.undecided:
            wanted = {(arm, baseline): None for arm in self.in_force.arms if arm != baseline}
        for a, b in self.claimed:
            if (b, a) not in wanted:
                wanted[a, b] = None
        by_key = {cell.key: cell for cell in self.cells}
        found: dict[tuple[str, str, str], list[tuple[Cell, Cell]]] = {}
        for key, cell in by_key.items():
            for b in (b for a, b in wanted if a == key.arm):
                other = by_key.get(CellKey(key.framework, key.task, key.stress, b))
                if other:
                    found.setdefault((key.arm, b, key.stress), []).append((cell, other))
        return tuple(Pair(a, b, stress, tuple(cells), self) for (a, b, stress), cells in found.items())

    @cached_property
    def claimed(self) -> tuple[tuple[str, str], ...]:
        """The arms that claims compare: the better one, as claimed, first."""
        expected = (claim.expect for claim in self.design.claims)
        return tuple(dict.fromkeys((one.better, one.than) for one in expected if isinstance(one, Better)))

    @cached_property
    def _shown_tasks(self) -> Mapping[str, str]:
        """Each value of a task key as shown: in short, or in full where several would look the same."""
        tasks = {task for member in self.members for task in member.cell.task}
        short = {task: show_value(task) for task in tasks}
        return short if len(set(short.values())) == len(tasks) else {task: task for task in tasks}

    def describe(self, key: CellKey) -> str:
        """A cell as shown to people: arm, task where there are several, stress value."""
        parts = [key.arm]
        if len({cell.key.task for cell in self.cells}) > 1:
            parts += [self._shown_tasks[task] for task in key.task if task]
        if key.stress and self.stress_key:
            parts.append(f"{self.stress_key}={key.stress}")
        return ", ".join(parts)

    def compared_keys(self, members: Iterable[Member]) -> list[str]:
        """The configuration keys that may be a difference of arms, sorted: no bookkeeping, derived or soft ones."""
        keys = {key: member for member in members for key in member.run.config}
        return sorted(key for key, member in keys.items() if not self._aside(member.reading, key))

    def _aside(self, reading: Reading, key: str) -> bool:
        return reading.is_bookkeeping(key) or reading.is_derived(key) or reading.is_soft(key)


def differing_keys(configs: Sequence[Mapping[str, Value]]) -> list[str]:
    """The keys on which the configurations do not all agree, sorted; absence is a value of its own."""
    seen: dict[str, Maybe] = {}
    differing: set[str] = set()
    for place, config in enumerate(configs):
        for key in set(config) | set(seen):
            value = config.get(key, MISSING)
            if key not in seen:
                seen[key] = value if place == 0 else MISSING
            if key not in differing and not same_value(seen[key], value):
                differing.add(key)
    return sorted(differing)


def shown_values(members: Iterable[Member], key: str) -> str:
    """The distinct values of ``key`` over the members as text, in order of appearance."""
    values = {value_key(value): show_value(value) for value in (member.run.get(key) for member in members)}
    return ", ".join(values.values())


def by_pair_key(members: Iterable[Member]) -> dict[str, list[Member]]:
    """The members by their replicate's identity; those without one are left out."""
    found: dict[str, list[Member]] = {}
    for member in members:
        if member.pair_key is not None:
            found.setdefault(member.pair_key, []).append(member)
    return found


def keys_of(members: Iterable[Member]) -> tuple[str, ...]:
    """The members' run keys."""
    return tuple(member.key for member in members)


def side_members(pair: Pair, place: int) -> list[Member]:
    """All members of a pair's first (0) or second (1) arm."""
    return [member for cells in pair.cells for member in cells[place].members]


def iterate_arms(pair: Pair) -> Iterator[tuple[str, tuple[Member, ...]]]:
    """Both arms of a pair with all their members."""
    yield pair.a, tuple(member for cells in pair.cells for member in cells[0].members)
    yield pair.b, tuple(member for cells in pair.cells for member in cells[1].members)
