"""Clean projects as people leave them in a tracker, the same with planted faults, and what audits make of both.

Every project is audited without a design file. A clean one may fail nothing, and warn only of what rules want said of
it (`Project.wanted`). A planted fault has to be found by its rule on a run that has it, or be explained by a finding
that names a rule as its cause.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final

from llm_fixtures import LAG, UPDATES
from precision_trainers import TRAINERS, Launch, Trainer, words
from pth_tracker.model import Audit
from pth_tracker.runs import RunRef, RunState
from synthetic import START, FakeRun, as_mlflow, audit_of, change, cut

SEEDS: Final = (1, 2, 3)
NAN: Final = float("nan")
ONE_SEED: Final = {"too-few-seeds": "one run a setting: no interval"}
TWO_SEEDS: Final = {"too-few-seeds": "the run that still runs is not counted: two seeds are left"}


@dataclass(frozen=True)
class Project:
    """One project: how it is named, and what was launched in it."""

    trainer: Trainer
    habit: str
    launches: tuple[Launch, ...]
    finish: Callable[[list[FakeRun]], list[FakeRun]] = list
    """What became of the runs: a crash, a store that keeps text."""
    beside: tuple[FakeRun, ...] = ()
    """Runs of other kinds."""
    wanted: Mapping[str, str] = field(default_factory=dict)
    """Rules that warn of it, with the reason why rules want it."""
    named_seeds: bool = False
    """Whether the names say which seed a run has."""
    victim: int = -1
    """The launch in which faults are planted."""

    @property
    def name(self) -> str:
        return f"{self.trainer.framework}: {self.habit}"

    @property
    def runs(self) -> list[FakeRun]:
        built = [run for launch in self.launches for run in self.trainer.build(launch)]
        return [*self.finish(built), *self.beside]

    @property
    def allowed(self) -> set[str]:
        return {*self.wanted, *self.trainer.wanted}


def launches(trainer: Trainer, naming: Callable[[str, int], str], seeds: Sequence[int] = SEEDS, group: bool = False,
             settings: Mapping[str, Any] | None = None) -> tuple[Launch, ...]:  # fmt: skip
    """Two arms over seeds, named by ``naming(arm, seed)``."""
    key, *values = trainer.treatment
    return tuple(
        Launch(
            naming(arm, seed),
            seed,
            {key: value, **(settings or {})},
            attributes={"number": 10 * place + seed, **({"group": arm} if group else {})},
        )
        for place, (arm, value) in enumerate(zip(("base", "ours"), values))
        for seed in seeds
    )


def crashed_and_resumed(runs: list[FakeRun]) -> list[FakeRun]:
    """The runs, the first of them in two segments of one name."""
    first, *rest = runs
    begun = first.source.created or START
    half = max(steps[-1] for steps, _ in first.points.values()) // 2
    before = cut(first, half, created=begun, ended=begun + timedelta(minutes=20), state=RunState.CRASHED)
    ref = RunRef(first.source.ref.project, f"{first.key}-resumed")
    again = {"created": begun + timedelta(minutes=30), "ended": begun + timedelta(minutes=50)}
    return [before, cut(first, 10**9, half + 1, ref=ref, **again), *rest]


def aborted_first(runs: list[FakeRun]) -> list[FakeRun]:
    """The runs, with an attempt at the first one that broke off after three updates."""
    first, *rest = runs
    begun = (first.source.created or START) - timedelta(hours=2)
    ref = RunRef(first.source.ref.project, f"{first.key}-aborted")
    three = sorted({step for steps, _ in first.points.values() for step in steps})[2]
    ended = begun + timedelta(minutes=5)
    return [cut(first, three, ref=ref, created=begun, ended=ended, state=RunState.KILLED), first, *rest]


def still_running(runs: list[FakeRun]) -> list[FakeRun]:
    """The runs, the last of them half done."""
    *rest, last = runs
    half = max(steps[-1] for steps, _ in last.points.values()) // 2
    return [*rest, cut(last, half, state=RunState.RUNNING, ended=None)]


def exit_codes(runs: list[FakeRun]) -> list[FakeRun]:
    """The runs, all of them complete and half of them not finished as their tracker says."""
    return [run for place, one in enumerate(runs) for run in change(
        [one], "*", state=RunState.CRASHED if place % 2 else RunState.FINISHED)]  # fmt: skip


def seeded(arm: str, seed: int) -> str:
    return f"{arm}-seed{seed}"


def made_up(framework: str) -> Callable[[str, int], str]:
    return lambda arm, seed: words(framework, arm, seed)


def _named(trainer: Trainer, habit: str, naming: Callable[[str, int], str], **options: Any) -> Project:
    finish, wanted = options.pop("finish", list), options.pop("wanted", {})
    named = options.pop("named", True) and bool(trainer.seed)
    return Project(trainer, habit, launches(trainer, naming, **options), finish, wanted=wanted, named_seeds=named)


def _exploration(trainer: Trainer, habit: str) -> Project:
    """Single runs, each of several other settings than the ones before."""
    key, first, second = trainer.treatment
    rate, value = trainer.rate
    made = [
        Launch(words(trainer.framework, place), 1, {key: setting, **({rate: value * factor} if rate else {})},
               attributes={"number": place})
        for place, (setting, factor) in enumerate(((first, 1), (second, 2), (first, 3), (second, 5), (first, 8)))
    ]  # fmt: skip
    return Project(trainer, habit, tuple(made), wanted=ONE_SEED)


def _sweep(trainer: Trainer, habit: str) -> Project:
    """A sweep of the learning rate, one run a value."""
    rate, value = trainer.rate
    leaf = rate.rsplit(".", 1)[-1]
    rates = [value * factor for factor in (0.5, 1, 2, 4)]
    made = [Launch(f"{leaf}={own:g}", 1, {rate: own}, attributes={"number": n}) for n, own in enumerate(rates)]
    return Project(trainer, habit, tuple(made), wanted=ONE_SEED)


def _stressed(trainer: Trainer, habit: str) -> Project:
    """Two arms at several lags that are designed."""
    key, values = trainer.stress
    made = [
        replace(one, name=f"{one.name}-lag{value}", settings={**one.settings, key: value},
                attributes={**one.attributes, "number": 100 * place + one.attributes["number"]})
        for place, value in enumerate(values)
        for one in launches(trainer, seeded if trainer.seed else made_up(trainer.framework))
    ]  # fmt: skip
    return Project(trainer, habit, tuple(made), named_seeds=bool(trainer.seed))


def clean_projects() -> list[Project]:
    """Projects of which no rule has anything to say but what it wants said."""
    found: list[Project] = []
    for trainer in TRAINERS.values():
        own = trainer.framework
        if trainer.seed:
            found.append(_named(trainer, "arms over seeds", seeded))
        else:
            found.append(_named(trainer, "arms in groups", made_up(own), group=True))
    pick = TRAINERS
    found += [
        _named(pick["verl"], "made-up names in groups", made_up("verl"), group=True, named=False),
        _named(pick["skyrl"], "made-up names in groups", made_up("skyrl"), group=True, named=False),
        _named(pick["easyr1"], "short seeds", lambda arm, seed: f"{arm}-s{seed}", named=False),
        _named(pick["cleanrl"], "CleanRL's names", lambda arm, seed: f"CartPole-v1__{arm}__{seed}__170000000{seed}"),
        _named(pick["trl_grpo"], "resumed", seeded, finish=crashed_and_resumed),
        _named(pick["roll"], "resumed", seeded, finish=crashed_and_resumed),
        _named(pick["verl"], "aborted first", seeded, finish=aborted_first),
        _named(pick["nemo_rl"], "aborted first", seeded, finish=aborted_first),
        replace(_named(pick["rllm"], "still running", seeded, finish=still_running, wanted=TWO_SEEDS), victim=1),
        _named(pick["open_instruct"], "exit codes", seeded, finish=exit_codes),
        _named(pick["verl"], "text in MLflow", seeded, finish=lambda runs: [as_mlflow(run) for run in runs]),
        _exploration(pick["verl"], "single runs"),
        _exploration(pick["prime_rl"], "single runs"),
        _exploration(pick["ms_swift_grpo"], "single runs"),
        _sweep(pick["trl_grpo"], "a sweep"),
        _sweep(pick["stable_baselines3"], "a sweep"),
        _stressed(pick["areal"], "designed lags"),
        _stressed(pick["open_instruct"], "designed lags"),
        Project(pick["tinker_cookbook"], "one run", (Launch("first try", 1),)),
        Project(pick["slime"], "one run", (Launch(words("slime"), 1),)),
    ]
    evaluated = pick["verl"].build(Launch("base-seed1-eval", 1, attributes={"job_type": "eval", "number": 900}))
    found.append(replace(_named(pick["verl"], "evaluation jobs beside", seeded), beside=tuple(evaluated)))
    mixed: list[FakeRun] = []
    for name in ("unsloth_grpo", "axolotl_grpo"):
        others = _named(pick[name], "", lambda arm, seed: f"{arm}-seed{seed}")
        mixed += [run for one in others.launches for run in pick[name].build(replace(one, name=f"{name}-{one.name}"))]
    found.append(replace(_named(pick["roll"], "three frameworks in one project", seeded), beside=tuple(mixed)))
    return found


CONSEQUENCES: Final[Mapping[str, frozenset[str]]] = {
    # Equal learners read equal batches, and a run that reads another seed's gives its own seed two orders.
    "duplicate-run": frozenset({"shared-data-order", "unstable-data-order"}),
    "shared-data-order": frozenset({"unstable-data-order"}),
    # By its definition, where a baseline collapses at one of several lags
    "collapsed": frozenset({"outside-stable-range"}),
    # Its settings make a single run an arm of its own.
    "idle-clip": frozenset({"too-few-seeds", "no-common-seed", "unpaired-runs", "pooled-ordering"}),
}
"""Rule of a planted fault to the rules that have to find something as well."""


@dataclass(frozen=True)
class Planted:
    """One fault in one project."""

    project: Project
    fault: str
    rule: str
    blamed: tuple[str, ...]
    """Names of the runs that have it: the rule has to blame one of them and nobody else."""

    @property
    def name(self) -> str:
        return f"{self.fault} in {self.project.name}"


def _with(launch: Launch, settings: Mapping[str, Any] | None = None, metrics: Mapping[str, Any] | None = None,
          arguments: tuple[str, ...] = (), **changes: Any) -> Launch:  # fmt: skip
    """The launch with settings and metrics on top of its own."""
    attributes = {**launch.attributes, **({"arguments": arguments} if arguments else {})}
    own = replace(launch, settings={**launch.settings, **(settings or {})}, attributes=attributes)
    return replace(own, metrics={**launch.metrics, **(metrics or {})}, **changes)


def planted(project: Project) -> Iterator[Planted]:
    """The project with each fault that can be planted in it."""
    trainer, made = project.trainer, project.launches
    victim = project.victim % len(made)
    other = made[victim - 1] if len(made) > 1 else made[0]

    def one(
        fault: str, rule: str, places: Sequence[int] = (victim,), twin: tuple[str, ...] = (), **changes: Any
    ) -> Planted:
        changed = [_with(own, **changes) if place in places else own for place, own in enumerate(made)]
        names = (*(changed[place].name for place in places), *twin)
        return Planted(replace(project, launches=tuple(changed)), fault, rule, names)

    twins = (other.name,)
    others = tuple(own.name for own in made if own.seed == other.seed)
    if project.named_seeds and len(made) == 6:
        yield one("a seed that never arrives", "lost-seed", range(3, 6), reached=7)
        yield one("a learner that is another run's", "duplicate-run", twin=twins, like=other.name, order=other.seed)
        if trainer.witness:
            yield one(
                "an order that is another seed's",
                "shared-data-order",
                twin=(made[victim - 1].name, *others),
                order=other.seed,
            )
    if trainer.rate[0]:
        key, value = trainer.rate
        yield one("an override that is lost", "override-lost", arguments=(f"{key}={7 * value:g}",))
        label = f"{key.rsplit('.', 1)[-1]}={7 * value:g}"
        named = label if key in made[victim].settings else f"{label}-{made[victim].name}"
        learnt = made[victim].like or made[victim].name
        yield one("a name that the configuration denies", "label-contradicts-config", name=named, like=learnt)
    if trainer.clip:
        lag = (LAG * 2)[:60] if trainer.framework == "verl" else LAG
        idle = {trainer.clip: 0.0, "harness/sampler_k3_kl": lag}
        places = range(3, 6) if len(made) == 6 else (victim,)
        yield one("a clip that never acts", "idle-clip", places, settings=trainer.idle, metrics=idle)
    if trainer.score and trainer.framework != "prime_rl":
        falls = {step: 0.2 + 0.5 * step / 20 if step <= 20 else 0.05 for step in range(2, UPDATES + 1, 2)}
        yield one("a score that collapses", "collapsed", metrics={trainer.score: falls})
    if trainer.length:
        short = [900.0] * 15 + [9.0] * (UPDATES - 15)
        yield one("responses that vanish", "degenerate-output", metrics={trainer.length: short})
    again = [float(x) for x in (*range(1, UPDATES - 9), *range(1, 11))]
    yield one("batches that come again", "stuck-batch", metrics={"harness/batch_id": again})
    broken = [0.001] * (UPDATES - 3) + [NAN] * 3
    yield one("a sampler that is no number", "sampler-diverged", metrics={"harness/sampler_k3_kl": broken})


@dataclass(frozen=True)
class Result:
    """What an audit made of one project."""

    name: str
    rule: str
    """The rule of the planted fault; ``""`` for a clean project."""
    found: bool
    false: tuple[str, ...]
    """``level rule`` of everything above information that nobody planted, and no rule wants said of the project."""


def loud(report: Audit) -> list[tuple[str, str, set[str]]]:
    """(level, rule, names of the blamed runs) of everything above information that counts."""
    return [
        (str(one.level), one.rule, {report.runs[key].name for key in one.blames if key in report.runs})
        for one in report.findings
        if one.counts and one.level != "info"
    ]


def judge_clean(project: Project) -> Result:
    """A clean project's false alarms."""
    said = [(level, rule) for level, rule, _ in loud(audit_of(project.runs))]
    false = tuple(f"{level} {rule}" for level, rule in said if level == "fail" or rule not in project.allowed)
    return Result(project.name, "", True, false)


def judge_planted(fault: Planted) -> Result:
    """Whether a planted fault is found on the runs that have it, and what else is said that nothing explains."""
    report = audit_of(fault.project.runs)
    said = loud(report)
    blamed = {name for _, rule, names in said if rule == fault.rule for name in names}
    explained = any(one.rule == fault.rule and one.because_of for one in report.findings)
    found = explained or bool(blamed.intersection(fault.blamed))
    expected = {fault.rule, *fault.project.allowed, *CONSEQUENCES.get(fault.rule, ())}
    others = tuple(f"{level} {rule}" for level, rule, _ in said if rule not in expected)
    innocent = () if blamed <= set(fault.blamed) else (f"blames {fault.rule}",)
    return Result(fault.name, fault.rule, found, (*others, *innocent))


def table(clean: Sequence[Result], faults: Sequence[Result]) -> str:
    """The confusion table as Markdown: planted and found faults, and false alarms in clean and in faulty projects."""
    alarms, besides = (
        Counter(entry.split(" ", 1)[1] for result in results for entry in result.false) for results in (clean, faults)
    )
    sown = Counter(result.rule for result in faults)
    reaped = Counter(result.rule for result in faults if result.found)
    lines = [
        "| rule | planted | found | missed | false alarms, clean projects | false alarms, faulty projects |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for rule in sorted({*sown, *alarms, *besides}):
        numbers = (sown[rule], reaped[rule], sown[rule] - reaped[rule], alarms[rule], besides[rule])
        lines.append(f"| {rule} | {' | '.join(map(str, numbers))} |")
    totals = [sum(one.values()) for one in (sown, reaped, sown - reaped, alarms, besides)]
    return "\n".join([*lines, f"| **all** | {' | '.join(map(str, totals))} |"])


def page(clean: Sequence[Result], faults: Sequence[Result]) -> str:
    """The page of the documentation."""
    frameworks = sorted({result.name.split(":")[0] for result in clean})
    habits = sorted({result.name.split(": ", 1)[1] for result in clean})
    wanted = {
        f"{rule}: {why}"
        for project in clean_projects()
        for rule, why in {**project.wanted, **project.trainer.wanted}.items()
    }
    lines = [
        "# Precision",
        "",
        "<!-- Written by `make bench` (benchmarks/precision.py): do not edit. -->",
        "",
        f"{len(clean)} clean synthetic projects of {len(frameworks)} frameworks, audited without a design file, and "
        f"the same projects with {len(faults)} faults planted one at a time. A clean project may fail nothing and warn "
        "only of what the rules want said of it. A fault counts as found when its rule blames a run that has it, or "
        "another finding explains it; blame on any other run, and any other failure or warning, is a false alarm.",
        "",
        table(clean, faults),
        "",
        "The projects are made by hand in the frameworks' own names and are no sample of the world: the table shows "
        "that no habit of naming, grouping or resuming sets a rule off, and nothing about rates in the field.",
        "",
        f"Frameworks: {', '.join(frameworks)}.",
        "",
        f"Habits: {', '.join(habits)}.",
        "",
        "Warnings that the rules want of clean projects:",
        "",
        *(f"- {entry}" for entry in sorted(wanted)),
        "",
    ]
    return "\n".join(lines)
