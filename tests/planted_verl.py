"""The faults and traps of the table in verl's vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import numpy as np

from planted import (
    CLIP_HIGH,
    HIGHER,
    PPO,
    TIS,
    WEIGHTS,
    Fault,
    Runs,
    Trap,
    also,
    attributes,
    copied,
    each_claim,
    ending_at,
    fail,
    frozen,
    lengthened,
    loss_check,
    metrics,
    read_order,
    resumed,
    score_curve,
    settings,
    together,
    warn,
    without,
)
from pth_tracker.losses.kinds import Kind
from pth_tracker.runs import RunState
from synthetic import (
    ACTOR,
    ARMS,
    CLIP,
    K3,
    LR,
    ONE_STEP,
    SCORE,
    SEEDS,
    TEST_ITEMS,
    UPDATES,
    Values,
    as_mlflow,
    change,
    comparison,
    cut,
    idle,
    make_run,
    sawtooth,
    with_config,
    with_metrics,
    without_metrics,
)

ROLLOUT: Final = "actor_rollout_ref.rollout"
EVERY: Final = (*PPO, *HIGHER, *TIS)
LENGTHS: Final = ("prompt_length/*", "response_length/*")
BATCH: Final = (*LENGTHS, "critic/score/*")
MARGIN: Final = {"tie_margin": 0.02}


def _rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


LETTERS: Final = "abcde"


def unnamed(runs: Runs) -> Runs:
    """The runs under names that say no seed."""
    for run in list(runs):
        arm, seed = run.name.split("-seed")
        runs = change(runs, run.name, name=f"{arm}-{LETTERS[SEEDS.index(int(seed))]}")
    return runs


def drifting() -> list[float]:
    """A sampler's KL that leaves its floor for good in the second half of a run."""
    return [4e-4] * (UPDATES // 2) + [4e-4 * 1.3**update for update in range(UPDATES // 2)]


def risen_and_fallen(peak: float = 0.74, end: float = 0.1) -> dict[int, float]:
    """Scores of a run that collapses after two thirds of its updates."""
    steps = range(0, UPDATES + 1, 5)
    raw = {step: 0.36 + (peak - 0.36) * min(1.0, step / 30) if step <= 40 else end for step in steps}
    return {step: round(value * TEST_ITEMS) / TEST_ITEMS for step, value in raw.items()}


def started_at(start: float) -> dict[int, float]:
    """Scores that start from ``start`` at update 0 and end where the clean ones do."""
    return {
        step: round((start + (0.74 - start) * step / UPDATES) * TEST_ITEMS) / TEST_ITEMS
        for step in range(0, UPDATES + 1, 5)
    }


def slightly_better(runs: Runs) -> Runs:
    """Arm tis half a point above ppo on every seed: below what 1,319 items resolve."""
    curves = {run.name: score_curve(run) for run in runs}
    for number, seed in enumerate(SEEDS):
        end = curves[f"ppo-seed{seed}"][UPDATES]
        runs = ending_at({f"tis-seed{seed}": end + (6 + number % 2) / TEST_ITEMS})(runs)
    return runs


def unpaired_above(runs: Runs) -> Runs:
    """All runs of tis above all of ppo, on three common seeds whose differences hold 0."""
    ends = {41: 0.60, 42: 0.605, 43: 0.62, 44: 0.625, 45: 0.615}
    above = {43: 0.63, 44: 0.64, 45: 0.80}
    named = {f"ppo-seed{seed}": end for seed, end in ends.items()} | {f"tis-seed{seed}": e for seed, e in above.items()}
    return ending_at(named)(without("tis-seed41", "tis-seed42")(runs))


def equal_training(runs: Runs) -> Runs:
    """Arm tis trained exactly as ppo did, seed by seed."""
    for seed in SEEDS:
        runs = copied(f"ppo-seed{seed}", f"tis-seed{seed}")(runs)
    return runs


def no_witness(runs: Runs) -> Runs:
    """Runs that log nothing that depends on the batch alone."""
    return without_metrics(runs, "prompt_length/*")


def under_stress(collapsed: tuple[int, ...]) -> Any:
    """The comparison at two refresh intervals of the sampler; ppo collapses at the longer one on these seeds."""

    def plant(runs: Runs) -> Runs:
        lagging = [
            make_run(f"{arm}-lag-seed{seed}", {**arms, "trainer.sync_interval": 64}, seed, number=100 + number)
            for number, (arm, arms, seed) in enumerate((a, s, seed) for a, s in ARMS.items() for seed in SEEDS)
        ]
        for seed in collapsed:
            lagging = with_metrics(lagging, f"ppo-lag-seed{seed}", {SCORE: risen_and_fallen()})
        return [*with_config(runs, "*", {"trainer.sync_interval": 1}), *lagging]

    return plant


STRESS: Final = {"stress": {"key": "trainer.sync_interval"}}
LAGGING: Final = tuple(f"ppo-lag-seed{seed}" for seed in SEEDS)


def staleness_logged(wrong: str) -> Any:
    """All runs log the designed age of their data, ``wrong`` one that stays 0."""
    ages = [min(update, 8) for update in range(UPDATES)]
    return together(metrics("*", {"harness/data_age": ages}), metrics(wrong, {"harness/data_age": 0.0}))


def shorter(runs: Runs) -> Runs:
    """Arm tis trains for 90 updates and ends ahead; at the 60 updates of the others it is level with them."""

    def late(step: int) -> float:
        return 0.36 + 0.36 * min(1.0, step / 50) + (0.12 * (step - 60) / 30 if step > 60 else 0.0)

    return lengthened("tis-*", 90, late)(lengthened("ppo-*", UPDATES, late)(runs))


VERL: Final = (
    Fault("idle clip", metrics("ppo-*", idle()), (fail("idle-clip", *PPO),)),
    Fault(
        "idle clip behind a high first update without a learning rate",
        metrics("ppo-*", idle(**{CLIP: [0.4, *[0.0] * (UPDATES - 1)], LR: [0.0, *[2e-6] * (UPDATES - 1)]})),
        # The rate of the first update differs between the arms as well, on less than 5% of the updates.
        (fail("idle-clip", *PPO),),
    ),
    Fault(
        "clip ranges compared under a ratio of 1",
        together(settings("*", ONE_STEP), metrics("*", {CLIP: 0.0, "actor/ppo_kl": 0.0})),
        (fail("clip-range-cannot-act", *HIGHER),),
    ),
    Fault(
        "engine and trainer disagree",
        metrics("tis-*", {K3: _rng(1).uniform(0.1, 0.2, UPDATES)}),
        (warn("sampler-mismatch", *TIS),),
    ),
    Fault("the sampler drifts away", metrics("ppo-seed43", {K3: drifting()}), (warn("sampler-diverged", PPO[2]),)),
    Fault(
        "a clip that misses the lag",
        metrics("ppo-*", {"harness/outside_sampler_range": 0.3, CLIP: 0.004, K3: sawtooth(16, 2.0)}),
        (warn("clip-misses-lag", *PPO),),
    ),
    Fault(
        "an idle clip that lets the sampler run away",
        together(
            metrics("ppo-*", idle(**{"harness/outside_sampler_range": 0.3})),
            metrics("ppo-seed43", {K3: drifting()}),
        ),
        (fail("idle-clip", *PPO),),
        explains=("sampler-diverged", "clip-misses-lag"),
    ),
    Fault(
        "the seed is lost",
        settings("tis-*", {"data.seed": None}),
        (fail("lost-seed", *TIS),),
        explains=("no-common-seed", "shared-data-order"),
    ),
    Fault(
        "all seeds become one",
        settings("tis-*", {"data.seed": 42}),
        (fail("lost-seed", *TIS),),
        explains=("repeated-attempts", "shared-data-order", "too-few-seeds"),
    ),
    Fault(
        "all seeds become one, and nothing is declared",
        settings("tis-*", {"data.seed": 42}),
        # The run named after that seed has lost nothing.
        (fail("lost-seed", *(name for name in TIS if name != "tis-seed42")),),
        inferred=True,
        explains=("repeated-attempts", "shared-data-order", "too-few-seeds"),
    ),
    Fault(
        "a seed lost on the way from the command line",
        together(
            settings("tis-*", {"data.seed": None}),
            attributes("tis-seed42", arguments=("data.seed=42",)),
        ),
        (fail("lost-seed", *TIS),),
        explains=("override-lost", "no-common-seed", "shared-data-order"),
    ),
    Fault(
        "one order for all",
        together(
            lambda runs: [
                run
                for seed in SEEDS
                for run in with_config(runs, f"*-seed{seed}", {f"{ROLLOUT}.seed": seed})
                if run.name.endswith(str(seed))
            ],
            settings("*", {"data.seed": None}),
        ),
        (warn("one-data-order", *EVERY),),
        {"replicate": [f"{ROLLOUT}.seed"]},
    ),
    Fault(
        "a setting is lost",
        attributes("tis-seed42", arguments=(f"{ACTOR}.optim.lr=4e-6",)),
        (fail("override-lost", TIS[1]),),
    ),
    Fault(
        "a tag denies the configuration",
        attributes("tis-seed44", tags=("lr4e-6",)),
        (warn("label-contradicts-config", TIS[3]),),
    ),
    Fault(
        "seeds act in one arm alone, and no name says so",
        together(unnamed, settings("tis-*", {"data.seed": None})),
        (fail("lost-seed", *(f"tis-{letter}" for letter in LETTERS)),),
        explains=("no-common-seed",),
    ),
    Fault(
        "a seed ran twice in a declared arm",  # lost-seed (b): two runs of a declared arm share the effective seed
        also(make_run("tis-again-seed43", ARMS["tis"], 43, number=900)),
        (fail("lost-seed", TIS[2], "tis-again-seed43"),),
        explains=("repeated-attempts",),
    ),
    Fault(
        "a seed ran twice",
        also(make_run("tis-again-seed43", ARMS["tis"], 43, number=900)),
        (warn("repeated-attempts", TIS[2], "tis-again-seed43"),),
        inferred=True,
    ),
    Fault(
        "two seeds read one order",
        read_order("*-seed43", 42),
        (fail("shared-data-order", *(f"{arm}-seed{seed}" for arm in ARMS for seed in (42, 43))),),
    ),
    Fault("one run read another order", read_order("tis-seed43", "elsewhere"), (warn("unstable-data-order", TIS[2]),)),
    Fault(
        "another temperature after a resume",
        resumed("tis-seed44", 30, {f"{ROLLOUT}.temperature": 0.7}),
        # The arm's other runs kept the temperature: what the resume changed drifts within the arm as well.
        (fail("resume-changes-run", TIS[3]), warn("drift-within-arm", TIS[3])),
    ),
    Fault(
        "a treatment that was never applied",
        settings("tis-*", {WEIGHTS: None}),
        (fail("vary-not-applied", *HIGHER, *TIS),),
    ),
    Fault(
        "another difference",
        settings("tis-*", {f"{ACTOR}.entropy_coeff": 0.001}),
        (warn("undeclared-difference"),),
    ),
    Fault(
        "one run of another setting",
        settings("ppo-seed45", {f"{ACTOR}.grad_clip": 0.5}),
        (warn("drift-within-arm", PPO[4]),),
    ),
    Fault(
        "other code",
        together(attributes("*", commit="a" * 40), attributes("tis-*", commit="b" * 40)),
        (warn("code-differs"),),
    ),
    Fault(
        "another schedule",
        metrics("tis-*", {LR: [2e-6 * (1 - 0.5 * update / UPDATES) for update in range(UPDATES)]}),
        (warn("schedule-differs", *TIS),),
    ),
    Fault(
        "another score",
        lambda runs: without_metrics(
            with_metrics(runs, "tis-*", {SCORE.replace("@1", "@16"): started_at(0.36)}), SCORE, glob="tis-*"
        ),
        (fail("score-not-comparable", *TIS),),
    ),
    Fault(
        "another evaluation",
        settings("tis-*", {f"{ROLLOUT}.val_kwargs.temperature": 0.6}),
        (warn("score-not-comparable", *TIS),),
        {"vary": [f"{ROLLOUT}.val_kwargs.temperature"]},
    ),
    Fault("another start", metrics("tis-*", {SCORE: started_at(0.5)}), (fail("start-differs", *TIS),)),
    Fault(
        "one run under two seeds",
        together(no_witness, copied("ppo-seed44", "ppo-seed45")),
        (fail("duplicate-run", *PPO[3:]),),
    ),
    Fault(
        "one run under two seeds, its prompts as well",
        copied("ppo-seed44", "ppo-seed45"),
        # A copied log reads one order under two seeds, which is not that of its seed in the other arms.
        (
            fail("duplicate-run", *PPO[3:]),
            fail("shared-data-order", *(f"{arm}-seed44" for arm in ARMS), PPO[4]),
            warn("unstable-data-order", PPO[4]),
        ),
    ),
    Fault("a treatment that does nothing", equal_training, (fail("inert-treatment", *TIS),)),
    Fault(
        "a stuck queue",
        frozen("ppo-seed43", 11, 33, *BATCH),
        (fail("stuck-batch", PPO[2]),),
        explains=("unstable-data-order",),
    ),
    Fault(
        "a stuck queue that makes its run collapse",
        together(frozen("ppo-seed43", 11, 33, *BATCH), metrics("ppo-seed43", {SCORE: risen_and_fallen()})),
        (fail("stuck-batch", PPO[2]),),
        explains=("unstable-data-order", "collapsed"),
    ),
    Fault(
        "a stuck queue by its identities",
        metrics("tis-seed41", {"harness/batch_id": [max(0, update - 32) for update in range(UPDATES)]}),
        (fail("stuck-batch", TIS[0]),),
    ),
    Fault(
        "an age off its design",
        staleness_logged("tis-seed42"),
        (fail("age-off-design", TIS[1]),),
        {"age": {"expected": "min(update, 8)"}},
    ),
    Fault(
        "a rogue normaliser",
        metrics("tis-*", loss_check(Kind.SEQUENCE_FACTOR, 0.7, 1.4)),
        (fail("rogue-normaliser", *TIS),),
    ),
    Fault(
        "another loss",
        metrics("tis-*", loss_check(Kind.SIGN, -1.0, -1.0)),
        (fail("loss-differs", *TIS),),
    ),
    Fault(
        "another normaliser in effect",
        together(
            settings("*", {f"{ACTOR}.loss_agg_mode": "token-mean"}),
            settings("tis-*", {f"{ACTOR}.policy_loss.loss_mode": "gspo"}),
        ),
        (warn("normaliser-differs", *TIS),),
        {"vary": [f"{ACTOR}.policy_loss.loss_mode"]},
    ),
    Fault(
        "a rogue normaliser that the configuration tells as well",
        together(
            settings("*", {f"{ACTOR}.loss_agg_mode": "token-mean"}),
            settings("tis-*", {f"{ACTOR}.policy_loss.loss_mode": "gspo"}),
            metrics("tis-*", loss_check(Kind.SEQUENCE_FACTOR, 0.7, 1.4)),
        ),
        (fail("rogue-normaliser", *TIS),),
        {"vary": [f"{ACTOR}.policy_loss.loss_mode"]},
        explains=("normaliser-differs",),
    ),
    Fault(
        "no group",
        metrics("tis-*", {"critic/advantages/max": 1.0, "critic/advantages/min": 0.0}),
        (fail("no-group", *TIS),),
    ),
    Fault("a collapse", metrics("ppo-seed41", {SCORE: risen_and_fallen()}), (warn("collapsed", PPO[0]),)),
    Fault(
        "responses of nine tokens",
        metrics(
            "tis-seed45",
            {
                "response_length/mean": [970.0 - u if u < 30 else 9.0 + 0.1 * (u % 7) for u in range(UPDATES)],
                "response_length/max": [1000.0 - u if u < 30 else 20.0 + u % 5 for u in range(UPDATES)],
                "response_length/min": [100.0 - u if u < 30 else 3.0 + u % 3 for u in range(UPDATES)],
            },
        ),
        (warn("degenerate-output", TIS[4]),),
    ),
    Fault(
        "responses cut off in one arm",
        metrics("tis-*", {"response_length/clip_ratio": [0.002 * update for update in range(UPDATES)]}),
        (warn("degenerate-output", *TIS),),
    ),
    Fault(
        "compared where the baseline collapses",
        under_stress((41, 43)),
        (
            warn("collapsed", LAGGING[0], LAGGING[2]),
            warn("outside-stable-range", LAGGING[0], LAGGING[2]),
            warn("outside-stable-range", LAGGING[0], LAGGING[2]),
        ),
        STRESS,
    ),
    Fault("two seeds in one arm", without("tis-seed4[345]"), (warn("too-few-seeds"),)),
    Fault("one seed in one arm", without("tis-seed4[2345]"), (warn("too-few-seeds"),)),
    Fault(
        "no common seed",
        lambda runs: [*without("tis-*")(runs), *comparison({"tis": ARMS["tis"]}, (51, 52, 53, 54, 55))],
        (warn("no-common-seed", *PPO, *(f"tis-seed{seed}" for seed in range(51, 56))),),
    ),
    Fault(
        "no common seed where pairing is required",
        lambda runs: [*without("tis-*")(runs), *comparison({"tis": ARMS["tis"]}, (51, 52, 53, 54, 55))],
        (fail("no-common-seed", *PPO, *(f"tis-seed{seed}" for seed in range(51, 56))),),
        {"pairing": "required"},
    ),
    Fault(
        "seeds of one arm alone on both sides",
        lambda runs: [*without("tis-seed4[12]")(runs), *comparison({"tis": ARMS["tis"]}, (46, 47))],
        (warn("unpaired-runs"),),
    ),
    Fault(
        "a seed that crashed in one arm",
        lambda runs: [cut(run, 20, state=RunState.CRASHED) if run.name == "tis-seed45" else run for run in runs],
        (warn("runs-dropped-unevenly"),),
    ),
    Fault(
        "a claim that leaves out a run",
        lambda runs: runs,
        (fail("runs-dropped-unevenly"),),
        {
            "arms": {arm: {"name": f"{arm}-*"} for arm in ("ppo", "clip-higher")}
            | {"tis": {"name": "tis-seed4[1234]"}},
            **each_claim("TIS is stable", stable="tis"),
        },
    ),
    Fault("another budget", shorter, (warn("unequal-budget"),)),
    Fault("below what the test set resolves", slightly_better, (warn("below-eval-noise"),)),
    Fault("an ordering of pooled runs", unpaired_above, (warn("pooled-ordering"),)),
    Fault(
        "a claim that the runs contradict",
        metrics("ppo-seed41", {SCORE: risen_and_fallen()}),
        (warn("collapsed", PPO[0]), fail("claim-contradicted")),
        each_claim("PPO is stable", stable="ppo"),
    ),
    Fault(
        "a claim on runs that are not what they seem",
        metrics("ppo-*", idle()),
        (fail("idle-clip", *PPO), fail("claim-undermined")),
        each_claim("PPO is stable", stable="ppo"),
    ),
)

COMBINED: Final = (
    "idle clip",
    "the seed is lost",
    "a stuck queue",
    "a rogue normaliser",
    "a collapse",
    "another difference",
    "one run of another setting",
    "no group",
)
"""Faults that are planted in pairs, and all at once: no two change one metric of one run."""

NOT_IN_VERL: Final[Mapping[str, str]] = {
    "ratio-one-by-construction": "information at most: the trap of on-policy training shows it",
    "paired-difference": "information at most: every comparison with a score shows it",
    "claim-supported": "information at most: the trap of a claim that holds shows it",
}
"""Rules without a row in verl's vocabulary, and why."""


def staged(runs: Runs) -> Runs:
    """Stage 2 of runs whose data seeds are 1 to 5: a name ends in -s2 without meaning a seed."""
    made: Runs = []
    for arm, own in ARMS.items():
        for seed in range(1, 6):
            for stage, rate in ((1, 2e-6), (2, 1e-6)):
                name = f"{arm}-{LETTERS[seed - 1]}-s{stage}"
                made.append(make_run(name, {**own, f"{ACTOR}.optim.lr": rate}, seed, number=len(made)))
    return [run for run in made if run.name.endswith("-s2")]


def both_stages(runs: Runs) -> Runs:
    """Both stages of one recipe, each seed on its own."""
    made: Runs = []
    for stage, rate in ((1, 2e-6), (2, 1e-6)):
        for seed in (1, 2, 3):
            name = f"math-{LETTERS[seed]}-s{stage}"
            made.append(make_run(name, {f"{ACTOR}.optim.lr": rate}, seed, number=len(made)))
    return made


def exploratory(runs: Runs) -> Runs:
    """Single runs, each of another setting in many fields."""
    tried: list[dict[str, Any]] = [
        {f"{ACTOR}.optim.lr": 1e-6, f"{ROLLOUT}.temperature": 0.6},
        {f"{ACTOR}.optim.lr": 5e-6, f"{ACTOR}.entropy_coeff": 0.01, f"{ROLLOUT}.n": 4},
        {f"{ACTOR}.clip_ratio": 0.1, f"{ACTOR}.kl_loss_coef": 0.01, f"{ROLLOUT}.temperature": 1.2},
        {WEIGHTS: "token", f"{ACTOR}.grad_clip": 0.5, "algorithm.gamma": 0.99},
        {"algorithm.adv_estimator": "rloo", f"{ACTOR}.optim.lr": 3e-6},
    ]
    return [make_run(f"try-{number}", own, number + 1, number=number) for number, own in enumerate(tried)]


def converged(runs: Runs) -> Runs:
    """From update 20 on every answer is right and the rounded lengths come again."""
    for place, run in enumerate(runs):
        own = _rng(place)
        late = np.arange(UPDATES) >= 20
        values: dict[str, Values] = {}
        for key, settled in (
            ("critic/score/mean", np.ones(UPDATES)),
            ("critic/rewards/mean", np.ones(UPDATES)),
            ("critic/score/min", np.ones(UPDATES)),
            ("response_length/mean", 230.0 + own.integers(0, 3, UPDATES)),
            ("response_length/max", np.full(UPDATES, 400.0)),
            ("response_length/min", np.full(UPDATES, 80.0)),
            ("critic/advantages/max", np.zeros(UPDATES)),
            ("critic/advantages/min", np.zeros(UPDATES)),
        ):
            values[key] = np.where(late, settled, np.asarray(run.points[key][1]))
        (changed,) = with_metrics([run], "*", values)
        runs[place] = replace(changed, decimals=dict.fromkeys((*values, "prompt_length/mean"), 0))
    return runs


def random_orders(runs: Runs) -> Runs:
    """Every run reads an order of its own, as where prompts are filtered or batches assembled by completion."""
    for run in list(runs):
        runs = read_order(run.name, f"own of {run.name}")(runs)
    return runs


def epochs(runs: Runs) -> Runs:
    """An epoch has 20 batches, so that the prompts come again in each."""
    for run in list(runs):
        again = {key: np.tile(np.asarray(run.points[key][1][:20]), 3) for key in run.points if "prompt_length" in key}
        runs = with_metrics(runs, run.name, {**again, "training/epoch": [u // 20 for u in range(UPDATES)]})
    return runs


def starts_scattered(runs: Runs) -> Runs:
    """Sampled evaluations before the first update, each with the noise of 1,319 items."""
    for place, run in enumerate(runs):
        start = _rng(100 + place).binomial(TEST_ITEMS, 0.36) / TEST_ITEMS
        runs = with_metrics(runs, run.name, {SCORE: {**score_curve(run), 0: start}})
    return runs


def restarted(runs: Runs) -> Runs:
    """A run that broke off at update 30 and was started over under its name."""
    (run,) = [run for run in runs if run.name == "tis-seed44"]
    created = run.source.created
    assert created is not None
    earlier = created - timedelta(minutes=40)
    first = cut(
        make_run("tis-seed44", ARMS["tis"], 44, number=13),
        30,
        state=RunState.CRASHED,
        created=earlier,
        ended=earlier + timedelta(minutes=30),
        ref=replace(run.source.ref, run_id="first-attempt"),
    )
    return [*runs, first]


def clearly_better(seeds: tuple[int, ...] = SEEDS) -> Any:
    """Arm tis 5 points above ppo on every seed."""

    def plant(runs: Runs) -> Runs:
        for number, seed in enumerate(seeds):
            (base,) = [run for run in runs if run.name == f"ppo-seed{seed}"]
            end = score_curve(base)[UPDATES] + 0.05 + 0.002 * number
            runs = ending_at({f"tis-seed{seed}": end})(runs)
        return runs

    return plant


def tied(runs: Runs) -> Runs:
    """Arm tis within two items of ppo on every seed, either way."""
    for number, seed in enumerate(SEEDS):
        (base,) = [run for run in runs if run.name == f"ppo-seed{seed}"]
        runs = ending_at({f"tis-seed{seed}": score_curve(base)[UPDATES] + (number - 2) / TEST_ITEMS})(runs)
    return runs


def spiked(runs: Runs) -> Runs:
    """One evaluation goes wrong, and the next does not."""
    (run,) = [run for run in runs if run.name == "ppo-seed41"]
    return with_metrics(runs, run.name, {SCORE: {**score_curve(run), 35: 0.05}})


def every_commit(runs: Runs) -> Runs:
    """Every launch is made from a commit of its own."""
    for place, run in enumerate(list(runs)):
        runs = change(runs, run.name, commit=f"{place:040x}")
    return runs


def told_otherwise(runs: Runs) -> Runs:
    """Arguments that spell the resolved values in other ways, and one key twice."""
    rate = f"{ACTOR}.optim.lr"
    runs = with_config(runs, "*", {rate: 2e-6})
    for run in list(runs):
        seed = run.name.rsplit("seed", 1)[1]
        given = (f"{rate}=4e-6", f"+{rate}=0.000002", f"data.seed='{seed}'", "data.train_batch_size=64")
        runs = change(runs, run.name, arguments=given)
    return runs


def unlogged(runs: Runs) -> Runs:
    """A finished run of the name and settings of another that logged nothing."""
    return [*runs, *without_metrics([make_run("tis-seed45", ARMS["tis"], 45, number=901, run_id="empty")], "*")]


def text_seeds(runs: Runs) -> Runs:
    """Seeds that one arm's launch wrote as text."""
    for seed in SEEDS:
        (run,) = [run for run in runs if run.name == f"tis-seed{seed}"]
        config: Mapping[str, Any] = run.source.config
        runs = change(runs, run.name, config={**config, "data": {**config["data"], "seed": str(seed)}})
    return runs


def shifted_prompts(runs: Runs) -> Runs:
    """One arm's prompt template is 11 tokens longer."""
    for run in [run for run in runs if run.name.startswith("tis")]:
        longer = {key: np.asarray(held[1]) + 11 for key, held in run.points.items() if key.startswith("prompt_length")}
        runs = with_metrics(runs, run.name, longer)
    return runs


OWN_IDENTITIES: Final = together(
    *(
        metrics(name, {"harness/batch_id": _rng(200 + place).integers(0, 2**53, UPDATES).astype(np.float64)})
        for place, name in enumerate(EVERY)
    )
)
CONSTANT: Final = {step: 0.5 for step in range(0, UPDATES + 1, 5)}
NOTHING: Final[Mapping[str, Values]] = {
    **dict.fromkeys((f"critic/score/{end}" for end in ("mean", "max", "min")), 0.0),
    **dict.fromkeys(("critic/rewards/mean", "critic/advantages/max", "critic/advantages/min"), 0.0),
    SCORE: dict.fromkeys(range(0, UPDATES + 1, 5), 0.0),
}
TRAPS: Final = (
    Trap("nothing is declared", lambda runs: runs, None, ("paired-difference",)),
    Trap("MLflow's names and text", lambda runs: [as_mlflow(run) for run in runs], {"vary": ()}),
    Trap(
        "on-policy training with a clip fraction of 0",
        together(
            settings("*", {**ONE_STEP, CLIP_HIGH: 0.2}),
            settings("clip-higher-*", {f"{ACTOR}.entropy_coeff": 0.001}),
            metrics("*", {CLIP: 0.0, "actor/ppo_kl": 0.0}),
        ),
        {"vary": (f"{ACTOR}.entropy_coeff", WEIGHTS)},
        ("ratio-one-by-construction",),
        ("idle-clip", "clip-range-cannot-act"),
    ),
    Trap(
        "a high first update at a learning rate of 0",
        together(
            *(
                metrics(
                    name,
                    {
                        LR: [0.0, *[2e-6] * (UPDATES - 1)],
                        CLIP: [0.4, *_rng(place).uniform(0.001, 0.02, UPDATES - 1)],
                        K3: [3.0, *[4e-4] * (UPDATES - 1)],
                        "actor/grad_norm": [40.0, *_rng(place).uniform(0.1, 0.6, UPDATES - 1)],
                    },
                )
                for place, name in enumerate(EVERY)
            )
        ),
        passes=("idle-clip", "sampler-diverged", "sampler-mismatch", "schedule-differs"),
    ),
    Trap("-s2 for stage 2", staged, passes=("lost-seed",)),
    Trap("both stages of a recipe", both_stages, None, passes=("lost-seed",)),
    Trap("a key given twice, the last one in effect", told_otherwise, passes=("override-lost", "lost-seed")),
    Trap(
        "groups made by n_agent",
        settings("*", {f"{ROLLOUT}.n": 1, f"{ROLLOUT}.n_agent": 8}),
        passes=("no-group",),
    ),
    Trap(
        "groups made by n_agent, told by the configuration alone",
        together(
            settings("*", {f"{ROLLOUT}.n": 1, f"{ROLLOUT}.n_agent": 8}),
            lambda runs: without_metrics(runs, "critic/advantages/*"),
        ),
        passes=("no-group",),
    ),
    Trap("a baseline with more seeds", without("tis-seed4[45]"), says=("unpaired-runs",)),
    Trap("exploratory single runs", exploratory, None),
    Trap("commits that change between all launches", every_commit, says=("code-differs",)),
    Trap("a tie", tied, MARGIN, ("paired-difference", "below-eval-noise")),
    Trap("a converged policy whose rounded metrics repeat", converged),
    Trap("equal accuracies", metrics("*", {SCORE: CONSTANT}), passes=("duplicate-run", "inert-treatment", "collapsed")),
    Trap("returns that are all zero", metrics("*", NOTHING), passes=("duplicate-run", "inert-treatment")),
    Trap(
        "responses at their length limit",
        metrics(
            "*",
            {
                **dict.fromkeys((f"response_length/{end}" for end in ("mean", "max", "min")), 512.0),
                "response_length/clip_ratio": 1.0,
            },
        ),
        passes=("degenerate-output",),
    ),
    Trap("a spike that recovers", spiked, passes=("collapsed",)),
    Trap(
        "a saw-tooth of the sampler's KL",
        metrics("*", {K3: sawtooth(8, 2.0), "rollout_corr/kl": sawtooth(8, 1.0)}),
        passes=("idle-clip", "sampler-diverged", "sampler-mismatch"),
    ),
    Trap(
        "a declared lag",
        together(settings("*", {"trainer.sync_interval": 8}), metrics("*", {K3: sawtooth(8, 2.0)})),
        passes=("idle-clip", "sampler-diverged", "sampler-mismatch"),
    ),
    Trap(
        "zeros of three printed decimals",
        lambda runs: [
            replace(run, decimals={CLIP: 3, LR: 3}) for run in with_metrics(runs, "ppo-*", idle(**{LR: 0.0}))
        ],
    ),
    Trap(
        "weights after truncation show no lag",
        together(
            lambda runs: without_metrics(runs, "rollout_corr/*"),
            metrics("ppo-*", {CLIP: 0.0, "rollout_corr/rollout_is_mean": [1 - 0.01 * u for u in range(UPDATES)]}),
        ),
    ),
    Trap(
        "a loss without a clip",
        together(settings("*", {f"{ACTOR}.policy_loss.loss_mode": "gpg"}), metrics("*", idle())),
    ),
    Trap("finished work in runs that did not exit well", attributes("tis-*", state=RunState.CRASHED)),
    Trap("a finished run that logged nothing", unlogged),
    Trap(
        "an attempt that broke off",
        also(cut(make_run("tis-early-seed43", ARMS["tis"], 43, number=902), 20, state=RunState.CRASHED)),
        passes=("lost-seed", "repeated-attempts", "runs-dropped-unevenly"),
    ),
    Trap(
        "a run that is still running",
        lambda runs: [cut(run, 20, state=RunState.RUNNING) if run.name == "tis-seed45" else run for run in runs],
    ),
    Trap(
        "a seed that crashed in all arms",
        lambda runs: [cut(run, 20, state=RunState.CRASHED) if run.name.endswith("45") else run for run in runs],
        passes=("runs-dropped-unevenly",),
    ),
    Trap(
        "prompts that a filter leaves out",
        together(settings("*", {"algorithm.filter_groups.enable": True}), random_orders),
    ),
    Trap(
        "batches assembled by completion",
        together(settings("*", {"async_training.staleness_threshold": 0.5}), random_orders),
    ),
    Trap("identities that hold the responses", OWN_IDENTITIES, passes=("unstable-data-order", "stuck-batch")),
    Trap("several epochs", epochs, passes=("stuck-batch", "unstable-data-order")),
    Trap("a run that goes on as it was", resumed("tis-seed44", 30, {}), passes=("resume-changes-run",)),
    Trap("a restart", restarted, passes=("resume-changes-run", "lost-seed", "repeated-attempts")),
    Trap(
        "bookkeeping and soft settings",
        lambda runs: [
            one
            for run in runs
            for one in with_config(
                [run], "*", {"trainer.experiment_name": run.name, "trainer.save_freq": len(run.name)}
            )
        ],
        passes=("undeclared-difference", "drift-within-arm"),
    ),
    Trap(
        "learning rates of three printed decimals",
        lambda runs: [
            replace(run, decimals={LR: 3})
            for run in with_metrics(runs, "tis-*", {LR: [0.001 * (u % 2) for u in range(UPDATES)]})
        ],
    ),
    Trap("starts within the evaluation's noise", starts_scattered, passes=("start-differs",)),
    Trap(
        "one value that is not finite",
        metrics("*", {K3: [4e-4] * 30 + [float("nan")] + [4e-4] * 29}),
        passes=("sampler-diverged", "sampler-mismatch"),
    ),
    Trap(
        "a longer arm and the same verdict",
        together(
            lengthened("tis-*", 90, lambda step: 0.36 + 0.36 * min(1.0, step / 50)),
            lengthened("ppo-*", UPDATES, lambda step: 0.36 + 0.36 * min(1.0, step / 50)),
        ),
        passes=("unequal-budget",),
    ),
    Trap("an arm that is better", clearly_better(), says=("paired-difference",), passes=("below-eval-noise",)),
    Trap(
        "a clear difference with seeds of one arm alone",
        together(without("tis-seed4[45]"), clearly_better((41, 42, 43))),
        says=("unpaired-runs",),
        passes=("pooled-ordering",),
    ),
    Trap(
        "a normaliser that is the treatment",
        settings("tis-*", {f"{ACTOR}.loss_agg_mode": "seq-mean-token-mean"}),
        {"vary": [f"{ACTOR}.loss_agg_mode"]},
        passes=("normaliser-differs",),
    ),
    Trap(
        "an uncorrected baseline on purpose",
        metrics("ppo-*", idle()),
        {"ignore": [{"rule": "idle-clip", "arms": ["ppo"], "reason": "the uncorrected baseline, on purpose"}]},
    ),
    Trap(
        "labels that round, count and abbreviate",
        together(
            settings("*", {f"{ACTOR}.optim.lr": 2e-6, f"{ACTOR}.kl_loss_coef": 0.001}),
            attributes("*", tags=("lr2e-6", "run_2", "beta2", "v0.7.1"), group="kl_loss_coef0.001"),
        ),
        passes=("label-contradicts-config",),
    ),
    Trap(
        "names that count runs",
        lambda runs: [
            change([run], "*", name=f"PPO_{run.name.split('-seed')[0]}_log_{place % 5}")[0]
            for place, run in enumerate(runs)
        ],
        {"arms": {arm: {"name": f"PPO_{arm}_*"} for arm in ARMS}},
        passes=("lost-seed",),
    ),
    Trap("seeds as text", text_seeds, passes=("lost-seed",)),
    Trap(
        "a comparison inside the stable range", under_stress(()), STRESS, passes=("outside-stable-range", "collapsed")
    ),
    Trap("a fall over four evaluations", metrics("*", {SCORE: {0: 0.36, 20: 0.74, 40: 0.3, 60: 0.1}})),
    Trap("a claim that holds", lambda runs: runs, each_claim("TIS is stable", stable="tis"), ("claim-supported",)),
    Trap("another prompt template", shifted_prompts, passes=("shared-data-order", "unstable-data-order")),
)
