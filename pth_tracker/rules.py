"""What a rule is: what it needs, how it judges, and what examining one run has to know of the rules in force."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pth_tracker.findings import Finding, Level, Scope


@dataclass(frozen=True)
class Branch:
    """One way for a rule to be judged: all of the groups, any one name of each.

    A name is a quantity, a configuration role, or a fact of the listing or the design (`FACTS`).
    """

    name: str
    groups: tuple[tuple[str, ...], ...]

    def missing(self, available: Iterable[str]) -> tuple[tuple[str, ...], ...]:
        """The groups of which nothing is available; empty: the branch is met."""
        have = set(available)
        return tuple(group for group in self.groups if not have.intersection(group))


FACTS: Final[Mapping[str, str]] = {
    "config": "log the resolved configuration with the run",
    "score": "name the metric with --metric",
    "exact_zeros": "log the clip fraction at full precision: a 0 that was printed with three decimals may be rounded",
    "testable_clip": "nothing can be done: the loss in use has no clip whose fraction could be tested for zero",
    "lag_values": "train longer: lag is told from 3 values of the sampler's KL",
    "enough_updates": "train longer: a clip that never acts is told from 20 updates, where nothing makes the ratio 1",
    "seed_label": "put the seed into the run's name, or the data seed into its configuration",
    "replicate": "log the data seed, put it into the run's name, or name the pairing field with --replicate",
    "declared_vary": "name the field that is meant to vary with --vary or in a design file",
    "read_runs": "audit again once the histories of these runs can be read",
    "two_runs": "train an arm with more than one seed",
    "two_configs": "log the resolved configuration with every run of the arm",
    "arm_configs": "log the resolved configuration with the runs of every arm",
    "common_seed": "run both arms on the same seeds, and score them",
    "comparable_pairs": "name two arms that ran the same task with --arm or in a design file",
    "synchronous": "nothing can be done: an asynchronous trainer assembles batches by completion, so that no seed "
    "orders them",
    "whole_batches": "nothing can be done: resumed runs, and batches from which prompts are filtered, have no order "
    "to compare",
    "shared_identities": "nothing can be done: no two runs share a batch's identity, as where it holds the responses",
    "runs_of_one_seed": "run both arms on one seed",
    "code_versions": "launch from a git checkout, so that the tracker records the commit",
    "exact_rates": "log the learning rate at full precision in both arms, for 10 updates or more",
    "logged_scores": "evaluate on held-out problems, and log the score, in both arms",
    "start_scores": "score both arms before the first update, on items that can be counted or over two seeds",
    "launch_arguments": "let the record hold the launch command, as W&B's metadata or a Hydra folder beside a log do",
    "sampler_windows": "train longer: telling growth from level takes 5 updates with the sampler's KL",
    "refresh_in_quarters": "train longer: the first and the last quarter of the run have to hold a whole refresh "
    "interval of the sampler and 4 updates more each",
    "batch_spread": "log each batch's identity with pth_tracker.BatchLedger(): too few updates differ in prompts, "
    "responses and "
    "scores for a repeat to be told from chance",
    "prompt_spread": "log each batch's identity with pth_tracker.BatchLedger(): the prompt lengths tie too often to "
    "tell batches "
    "apart",
    "replay_marker": "nothing can be done: no line of the log tells of replayed rollouts",
    "common_updates": "log the clip fraction and the share outside its range at the same updates",
    "varied_scores": "train longer: telling advantages from scores takes 10 updates in which the scores vary",
    "evaluations": "evaluate at least 5 times during training: a collapse is told from the curve of the score",
    "training_curve": "log the training score at every update, for 10 updates or more",
    "length_curve": "log the mean response length at every update, for 10 updates or more",
    "truncation_seeds": "log the share of truncated responses, in two arms of two runs or more each",
    "stress_values": "run the baseline twice or more at two settings of the stress axis (named by stress in a design "
    "file), and evaluate it 5 times or more in each run",
    "launched_arms": "train both arms: one of them has no run",
    "common_curve": "score both arms at updates that both reached",
    "evaluation_items": "where the score is a share of evaluated items, name their number in the configuration, as "
    "evaluation_items: the scores do not tell it",
    "claims": "state the claims in a design file, as claims: [{text: ..., expect: {better: ours, than: theirs}}]",
    "testable_claim": "audit the runs that the claim is about, with the metrics that it names",
    "designed_age": 'state the designed age of the data in a design file, as age: {expected: "min(update, 32)"}',
}
"""What a branch may name beside quantities and roles, with what would make it available."""


def branch(name: str, *groups: str | tuple[str, ...]) -> Branch:
    """A branch of needs; a bare name is a group of one.

    >>> branch("measured", "clip_fraction", ("sampler_k3_kl", "sampler_kl")).groups
    (('clip_fraction',), ('sampler_k3_kl', 'sampler_kl'))
    """
    return Branch(name, tuple((group,) if isinstance(group, str) else group for group in groups))


def no_facts(subject: object) -> tuple[str, ...]:
    """The facts of a rule that establishes none of its own."""
    return ()


@dataclass(frozen=True)
class Rule:
    """One rule of a check: what it needs and how it judges. Its documentation is `doc`."""

    slug: str
    check: int
    level: Level
    """The worst level it can give."""
    scope: Scope
    needs: tuple[Branch, ...]
    """Named alternatives; the judge gets the names of those that are met, and is not called where none is."""
    judge: Callable[..., Iterable[Finding]]
    """``judge(subject, met) -> findings``; a subject is a run view, a cell, a pair or the comparison, by `scope`."""
    explains: tuple[str, ...] = ()
    """Slugs of the rules whose findings follow from this one's."""
    blames_runs: bool = True
    """Whether its findings tag runs at all."""
    reads: tuple[str, ...] = ()
    """Quantities that it uses where they are logged and does not need."""
    figures: tuple[str, ...] = ()
    """Quantities of which it reads the figures that examination keeps (`pth_tracker.examine.Reduced`)."""
    facts: Callable[[Any], Iterable[str]] = no_facts
    """Those of `FACTS` that only its own reading of the subject can establish."""

    @property
    def doc(self) -> str:
        """The rule's documentation: the judge's docstring."""
        return self.judge.__doc__ or ""

    @property
    def names(self) -> frozenset[str]:
        """Everything its branches name."""
        return frozenset(name for one in self.needs for group in one.groups for name in group)


@dataclass(frozen=True)
class Plan:
    """What examining one run needs to know of the audit: frozen and picklable, never the design itself."""

    rules: tuple[str, ...]
    """Slugs of the rules of run scope to judge."""
    quantities: tuple[str, ...]
    """What to read: the union of the rules' needs and what the report shows."""
    metric: str = ""
    """The score's raw name as the design writes it."""
    higher_is_better: bool = True
    at: str | int = "last"
    """``last``, ``best``, or the length in updates of the window over which the score is averaged."""
    kl_tolerance: float = 0.05
    """Nats per token above which a sampler counts as lagging."""
    stress: str = ""
    """The configuration key of the design's stress axis, which declares a lag where its name is that of one."""
    age: str = ""
    """The designed age of each update's data, an expression over ``update``; ``""``: none is designed."""
    batch_uses: int = 1
    """Updates that may train on one batch by design."""
    benchmarks: tuple[tuple[str, float], ...] = ()
    """Scores of one checkpoint whose mean is the score, each with the scale that divides it; empty: `metric` alone."""
    metrics: tuple[str, ...] = ()
    """Raw metrics beside the quantities of which claims want figures."""
    figures: tuple[str, ...] = ()
    """Quantities of which claims or rules want figures."""
    collapses: bool = True
    """Whether any rule asks which curves collapsed."""
    vocabularies: tuple[Path, ...] = ()
    """The user's own vocabulary files."""
