"""Check 7: every sentence of a paper's claims against the runs, after all other rules are settled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from pth_tracker.checks.claim_tests import Tested, select_members, try_expectation
from pth_tracker.design.comparison import Comparison, keys_of
from pth_tracker.design.schema import Claim
from pth_tracker.model import Basis, Coverage, Finding, Level, Rule, Scope, branch

SHOWN: Final = 72
"""Characters of a claim that a title or subject shows."""
_REPLICATES: Final = ("better", "stable", "value")
_ALL: Final = ("better", "stable", "value", "quantity")

UNDERMINES: Final[Mapping[str, tuple[str, ...]]] = {
    "idle-clip": ("better", "stable", "value"),
    "clip-range-cannot-act": ("better",),
    "lost-seed": (*_REPLICATES, "only_differ_in"),
    "override-lost": (*_ALL, "only_differ_in"),
    "shared-data-order": _REPLICATES,
    "resume-changes-run": (*_ALL, "only_differ_in"),
    "vary-not-applied": ("better", "only_differ_in"),
    "score-not-comparable": ("better",),
    "start-differs": ("better",),
    "duplicate-run": _ALL,
    "inert-treatment": ("better", "only_differ_in"),
    "stuck-batch": _ALL,
    "age-off-design": _ALL,
    "rogue-normaliser": (*_ALL, "only_differ_in"),
    "loss-differs": (*_ALL, "only_differ_in"),
    "no-group": (*_ALL, "only_differ_in"),
    "no-common-seed": ("better",),
}
"""Rule to the kinds of claim that a failure of it undermines, where it blames runs on which the claim rests."""


@dataclass(frozen=True, eq=False)
class ClaimView:
    """One claim with everything that the audit has settled: what the rules of claims are judged on."""

    claim: Claim
    comparison: Comparison
    findings: tuple[Finding, ...]
    """As they count, those of claims apart."""
    coverage: tuple[Coverage, ...]

    @property
    def subject(self) -> str:
        """The claim as shown to people."""
        return f'claim "{self.shown}"'

    @property
    def shown(self) -> str:
        """The claim's text, cut where it is long."""
        text = " ".join(self.claim.text.split())
        return text if len(text) <= SHOWN else text[: SHOWN - 3].rstrip() + "..."

    @cached_property
    def tested(self) -> Tested:
        """What testing the claim's expectation gave."""
        return try_expectation(self.claim.expect, self.comparison, self.findings, self.coverage)

    @cached_property
    def undermining(self) -> tuple[Finding, ...]:
        """The failures that touch this kind of claim and blame runs on which it rests."""
        keys, kind = set(keys_of(self.tested.runs)), self.claim.expect.kind
        return tuple(
            finding
            for finding in self.findings
            if finding.counts
            and finding.level is Level.FAIL
            and kind in UNDERMINES.get(finding.rule, ())
            and keys.intersection(finding.blames)
        )

    def finding(self, level: Level, title: str, detail: str, remedy: str = "", **evidence: Any) -> Finding:
        """A finding on this claim, its text beside the evidence."""
        own = {"claim": self.claim.text, "expects": self.claim.expect.kind, **self.tested.evidence, **evidence}
        return Finding(
            7,
            level,
            f'{title}: "{self.shown}"',
            detail,
            own,
            basis=Basis.DECLARED,
            runs=keys_of(self.tested.runs),
            arms=tuple(dict.fromkeys(member.arm for member in self.tested.runs if member.arm)),
            remedy=remedy,
        )

    @property
    def concerned(self) -> tuple[str, ...]:
        """Keys of the runs on which the claim rests, or that it would rest on."""
        expect = self.claim.expect
        return keys_of(self.tested.runs or select_members(self.comparison, expect.named_arms, expect.conditions))


def _facts(view: ClaimView) -> tuple[str, ...]:
    return ("claims", "testable_claim") if view.tested.holds is not None else ("claims",)


def judge_contradicted(view: ClaimView, met: frozenset[str]) -> Iterator[Finding]:
    """The runs say otherwise than a claim.

    What it does: tests what the design's claims expect of the runs, each on the runs that it speaks of.

    Why it matters: a sentence outlives the runs that it was written from.

    How it decides, by the key of ``expect``:

    - ``better: A, than: B``: the paired verdict is A is better. Contradicted where the mean difference is against it,
      smaller than ``at_least``, or the verdict is a tie; an undecided comparison is not judged. With ``every_seed``,
      A is ahead on every seed (by ``at_least``) and no test is asked for; where seeds of either arm have no partner,
      and none contradicts, it is not judged.
    - ``stable: A``: no run of A has collapsed (see collapsed), by ``max_drop`` where it is given.
    - ``only_differ_in: [...]``: the arms' configurations differ in these fields, and in no other that is neither
      seed, replicate, task, stress, bookkeeping, derived nor soft.
    - ``quantity: Q`` with ``above``, ``below`` or ``between``: ``reduced`` (last, first, mean, median, min or max) of
      every counted run, or of their mean with ``over: mean``.
    - ``value: A`` with the same bounds: the score of every counted run of A, or their mean.
    - ``no_finding: [...]``: none of these rules found anything above information on the runs.

    ``where`` keeps to the runs with these configuration values; without it, a claim has to hold at every setting of
    the stress axis. What cannot be tested is not judged, and the reason is given.

    Example: "ours beats TIS on every seed" where TIS is ahead on seed 43.

    Remedy: change the sentence.

    Configuration: ``claims`` in the design.

    References: T. Pan, Probe the Harness, arXiv 2610.02911, check 7.
    """
    if view.tested.holds is not False:
        return
    also = sorted({finding.rule for finding in view.undermining})
    more = f" The runs it rests on are blamed by {', '.join(also)} as well." if also else ""
    yield view.finding(
        Level.FAIL, "the runs contradict", view.tested.why + more, "change the sentence, or run what it says"
    )


def judge_undermined(view: ClaimView, met: frozenset[str]) -> Iterator[Finding]:
    """A claim holds on runs that are not what they seem.

    What it does: looks for failures of other rules on the runs that a claim rests on.

    Why it matters: numbers that bear a sentence out prove nothing where the harness made them.

    How it decides: a finding that counts, of level fail, blames one of the runs, and its rule touches this kind of
    claim:

    - better: idle-clip, clip-range-cannot-act, lost-seed, override-lost, shared-data-order, resume-changes-run,
      vary-not-applied, score-not-comparable, start-differs, duplicate-run, inert-treatment, stuck-batch,
      age-off-design, rogue-normaliser, loss-differs, no-group, no-common-seed
    - stable, value: idle-clip, lost-seed, override-lost, shared-data-order, resume-changes-run, duplicate-run,
      stuck-batch, age-off-design, rogue-normaliser, loss-differs, no-group
    - quantity: override-lost, resume-changes-run, duplicate-run, stuck-batch, age-off-design, rogue-normaliser,
      loss-differs, no-group
    - only_differ_in: lost-seed, override-lost, resume-changes-run, vary-not-applied, inert-treatment,
      rogue-normaliser, loss-differs, no-group
    - no_finding: none

    Warnings and information never undermine, nor does a finding that the design ignores with a reason.

    Example: "TIS beats GRPO" where GRPO's clip never acted.

    Remedy: repair what the other finding names, and run again.

    Configuration: ``claims`` and ``ignore`` in the design.

    References: T. Pan, Probe the Harness, arXiv 2610.02911, check 7.
    """
    if view.tested.holds is not True or not view.undermining:
        return
    rules = sorted({finding.rule for finding in view.undermining})
    reasons = " ".join(f"{finding.rule}: {finding.title}." for finding in view.undermining)
    yield view.finding(
        Level.FAIL,
        f"{', '.join(rules)} undermine{'s' if len(rules) == 1 else ''}",
        f"{view.tested.why} {reasons}",
        "repair what the other finding names, and run again",
        undermined_by=rules,
    )


def judge_supported(view: ClaimView, met: frozenset[str]) -> Iterator[Finding]:
    """The runs bear a claim out.

    What it does: says which claims were tested and hold, with the numbers.

    Why it matters: a claim of which nothing is said might not have been tested.

    How it decides: what the claim expects holds, and no failure undermines it.

    Example: "TIS is stable" with three of three runs that did not collapse.

    Remedy: none is needed.

    Configuration: ``claims`` in the design.

    References: T. Pan, Probe the Harness, arXiv 2610.02911, check 7.
    """
    if view.tested.holds is True and not view.undermining:
        yield view.finding(Level.INFO, "supported", view.tested.why)


_NEEDS: Final = (branch("tested", "claims", "testable_claim"),)
RULES: Final = (
    Rule("claim-contradicted", 7, Level.FAIL, Scope.CLAIM, _NEEDS, judge_contradicted, blames_runs=False, facts=_facts),
    Rule("claim-undermined", 7, Level.FAIL, Scope.CLAIM, _NEEDS, judge_undermined, blames_runs=False, facts=_facts),
    Rule("claim-supported", 7, Level.INFO, Scope.CLAIM, _NEEDS, judge_supported, blames_runs=False, facts=_facts),
)
