"""The clean comparison of the table in CleanRL's vocabulary, with its faults and traps."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import numpy as np

from planted import (
    Fault,
    Runs,
    Trap,
    also,
    attributes,
    each_claim,
    fail,
    loss_check,
    merged,
    metrics,
    settings,
    together,
    warn,
    without,
)
from pth_tracker.losses.kinds import Kind
from pth_tracker.model import Audit
from pth_tracker.runs import RunState
from synthetic import (
    FakeRun,
    Values,
    audit_of,
    change,
    clean_metrics,
    cut,
    make_run,
    with_metrics,
    without_metrics,
)

SEEDS: Final = (1, 2, 3, 4, 5)
ARMS: Final[Mapping[str, Mapping[str, Any]]] = {
    "ppo": {},
    "tight": {"clip_coef": 0.1},
    "greedy": {"ent_coef": 0.0},
}
STEPS: Final = 60
BATCH: Final = 512
"""Steps of the environments an iteration: 4 environments of 128 steps."""
LAST: Final = STEPS * BATCH
RETURN: Final = "charts/episodic_return"
RATE: Final = "charts/learning_rate"
DESIGN: Final[Mapping[str, Any]] = {
    "arms": {arm: {"tag": arm} for arm in ARMS},
    "baseline": "ppo",
    "vary": ["clip_coef", "ent_coef"],
    "metric": {"key": RETURN, "higher_is_better": True, "at": {"mean_over": 8192}},
}
CONFIG: Final[Mapping[str, Any]] = {
    "exp_name": "ppo",
    "seed": 1,
    "torch_deterministic": True,
    "cuda": True,
    "track": True,
    "wandb_project_name": "cleanRL",
    "wandb_entity": None,
    "capture_video": False,
    "env_id": "CartPole-v1",
    "total_timesteps": LAST,
    "learning_rate": 2.5e-4,
    "num_envs": 4,
    "num_steps": 128,
    "anneal_lr": True,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "num_minibatches": 4,
    "update_epochs": 4,
    "norm_adv": True,
    "clip_coef": 0.2,
    "clip_vloss": True,
    "ent_coef": 0.01,
    "vf_coef": 0.5,
    "max_grad_norm": 0.5,
    "target_kl": None,
    "batch_size": BATCH,
    "minibatch_size": 128,
    "num_iterations": STEPS,
}


def named(arm: str, seed: int) -> str:
    """The name that CleanRL gives a run: environment, script, seed, time."""
    return f"CartPole-v1__ppo__{seed}__{1_700_000_000 + 1000 * list(ARMS).index(arm) + 17 * seed}"


PPO, TIGHT, GREEDY = (tuple(named(arm, seed) for seed in SEEDS) for arm in ARMS)


def at_iterations(values: Any) -> dict[int, float]:
    """Values at the end of each iteration, by steps of the environments."""
    listed = np.broadcast_to(np.asarray(values, dtype=np.float64), STEPS)
    return {BATCH * (place + 1): float(value) for place, value in enumerate(listed)}


def returns(name: str, last: float = 450.0, salt: str = "") -> dict[int, float]:
    """Episodic returns of a run that learns CartPole, at the steps at which its episodes ended."""
    rng = np.random.default_rng(zlib.crc32(f"{name}{salt}".encode()))
    steps = np.unique(rng.integers(1, LAST, 150))
    means = 20 + (last - 20) * (1 - np.exp(-steps / 6000))
    drawn = np.clip(np.round(means + rng.normal(0, 20, len(steps))), 8, 500)
    return dict(zip(steps.tolist(), drawn.tolist())) | {LAST: float(round(last))}


def run_of(arm: str, seed: int, name: str = "", number: int | None = None, **changes: Any) -> FakeRun:
    """A healthy run of CleanRL's PPO on CartPole."""
    name = name or named(arm, seed)
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    own: dict[str, Values | None] = dict.fromkeys(clean_metrics("anyone", 1))
    curve = returns(name)
    own |= {
        RATE: at_iterations(2.5e-4 * (1 - np.arange(STEPS) / STEPS)),
        "charts/SPS": at_iterations(rng.integers(900, 1100, STEPS)),
        RETURN: curve,
        "charts/episodic_length": curve,
        "losses/value_loss": at_iterations(rng.uniform(1, 30, STEPS)),
        "losses/policy_loss": at_iterations(rng.normal(-0.005, 0.003, STEPS)),
        "losses/entropy": at_iterations(rng.uniform(0.5, 0.69, STEPS)),
        "losses/old_approx_kl": at_iterations(rng.normal(0.002, 0.001, STEPS)),
        "losses/approx_kl": at_iterations(rng.uniform(0.002, 0.01, STEPS)),
        "losses/clipfrac": at_iterations(rng.uniform(0.01, 0.15, STEPS)),
        "losses/explained_variance": at_iterations(rng.uniform(0, 0.9, STEPS)),
    }
    config = {**CONFIG, **ARMS[arm], "seed": seed, **changes}
    place = list(ARMS).index(arm) * 10 + seed if number is None else number
    return make_run(name, config=config, metrics=own, tags=(arm,), number=place)


@cache
def _clean() -> tuple[FakeRun, ...]:
    return tuple(run_of(arm, seed) for arm in ARMS for seed in SEEDS)


def clean_cleanrl() -> Runs:
    """The clean comparison in CleanRL's vocabulary."""
    return list(_clean())


def audit_cleanrl(runs: Runs, *designs: Mapping[str, Any]) -> Audit:
    """The audit of these runs under the clean comparison's design with others on top."""
    return audit_of(runs, merged(DESIGN, *designs))


def of(arm: str, values: Mapping[str, Values]) -> Any:
    """Other metrics in the runs of one arm."""
    return together(*(metrics(name, values) for name in (named(arm, seed) for seed in SEEDS)))


def with_settings(names: tuple[str, ...], values: Mapping[str, Any]) -> Any:
    """Other settings in these runs."""
    return together(*(settings(name, values) for name in names))


def ending(ends: Mapping[str, float]) -> Any:
    """Runs by name whose returns end elsewhere."""
    return together(*(metrics(name, _curve(returns(name, end))) for name, end in ends.items()))


def _curve(curve: Mapping[int, float]) -> dict[str, Values]:
    return {RETURN: dict(curve), "charts/episodic_length": dict(curve)}


def collapsed(name: str) -> dict[str, Values]:
    """Returns of a run that learned and lost it."""
    curve = returns(name)
    rng = np.random.default_rng(zlib.crc32(name.encode()) + 1)
    return _curve({step: value if step < 0.7 * LAST else float(rng.integers(9, 25)) for step, value in curve.items()})


def trained_alike(runs: Runs) -> Runs:
    """Arm tight trained exactly as ppo did, seed by seed."""
    for seed in SEEDS:
        runs = _copied(runs, named("ppo", seed), named("tight", seed))
    return runs


def _copied(runs: Runs, source: str, target: str) -> Runs:
    (held,) = [run for run in runs if run.name == source]
    (bare,) = [run for run in runs if run.name == target]
    emptied = without_metrics([bare], "*")
    taken = with_metrics(emptied, target, {key: dict(zip(*one)) for key, one in held.points.items()})
    return [taken[0] if run.name == target else run for run in runs]


def fingerprints(order: int) -> dict[str, Values]:
    """Logged identities of the batches of one order."""
    return {"harness/batch_id": at_iterations(np.random.default_rng(order).integers(0, 2**53, STEPS))}


def under_stress(runs: Runs) -> Runs:
    """The comparison at two numbers of environments; ppo collapses with 64 on two seeds."""
    wide = [
        run_of(arm, seed, f"{named(arm, seed)}64", 100 + 10 * place + seed, num_envs=64)
        for place, arm in enumerate(ARMS)
        for seed in SEEDS
    ]
    for seed in (1, 3):
        wide = with_metrics(wide, f"{named('ppo', seed)}64", collapsed(f"{named('ppo', seed)}64"))
    return [*runs, *wide]


WIDE: Final = tuple(f"{named('ppo', seed)}64" for seed in (1, 3))


def longer(runs: Runs) -> Runs:
    """Arm greedy trained for half as long again, and is ahead only then."""
    for seed in SEEDS:
        base = {step: value for step, value in returns(named("ppo", seed)).items()}
        level = {step: value + (seed % 3) for step, value in base.items()}
        late = {LAST + BATCH * place: 495.0 + place % 3 for place in range(1, 31)}
        runs = with_metrics(runs, named("greedy", seed), _curve(level | late))
    return runs


def rescored(runs: Runs) -> Runs:
    """Arm greedy evaluated after training instead of scored while it trained."""
    for name in GREEDY:
        curve = returns(name)
        runs = without_metrics(runs, RETURN, glob=name)
        runs = with_metrics(
            runs, name, {"eval/episodic_return": {place: value for place, value in enumerate(curve.values())}}
        )
    return runs


CLEANRL: Final = (
    Fault(
        "clip ranges compared under a ratio of 1",
        settings("*", {"update_epochs": 1, "num_minibatches": 1, "minibatch_size": 512}),
        (fail("clip-range-cannot-act", *TIGHT),),
    ),
    Fault(
        "the seed is lost",
        with_settings(GREEDY, {"seed": 1}),
        (fail("lost-seed", *GREEDY),),
        explains=("repeated-attempts", "too-few-seeds"),
    ),
    Fault(
        "a seed ran twice",
        also(run_of("greedy", 3, "CartPole-v1__ppo__3__1699999999", 99)),
        (warn("repeated-attempts", GREEDY[2], "CartPole-v1__ppo__3__1699999999"),),
        inferred=True,
    ),
    Fault(
        "a setting is lost",
        attributes(GREEDY[1], arguments=("--learning-rate", "1e-3", "--track")),
        (fail("override-lost", GREEDY[1]),),
    ),
    Fault(
        "a tag denies the configuration",
        attributes(GREEDY[3], tags=("greedy", "gamma0.95")),
        (warn("label-contradicts-config", GREEDY[3]),),
    ),
    Fault(
        "two seeds read one order",
        together(metrics(GREEDY[1], fingerprints(7)), metrics(GREEDY[2], fingerprints(7))),
        (fail("shared-data-order", GREEDY[1], GREEDY[2]),),
    ),
    Fault(
        "a treatment that was never applied",
        with_settings(GREEDY, {"ent_coef": 0.01}),
        (fail("vary-not-applied", *TIGHT, *GREEDY),),
    ),
    Fault("another difference", with_settings(GREEDY, {"gamma": 0.98}), (warn("undeclared-difference"),)),
    Fault("one run of another setting", settings(PPO[4], {"vf_coef": 1.0}), (warn("drift-within-arm", PPO[4]),)),
    Fault(
        "other code",
        together(attributes("*", commit="a" * 40), *(attributes(name, commit="b" * 40) for name in GREEDY)),
        (warn("code-differs"),),
    ),
    Fault("another schedule", of("greedy", {RATE: at_iterations(2.5e-4)}), (warn("schedule-differs", *GREEDY),)),
    Fault(
        "another score",
        rescored,
        (fail("score-not-comparable", *GREEDY),),
    ),
    Fault(
        "one run under two seeds",
        lambda runs: _copied(runs, PPO[3], PPO[4]),
        (fail("duplicate-run", *PPO[3:]),),
    ),
    Fault("a treatment that does nothing", trained_alike, (fail("inert-treatment", *TIGHT),)),
    Fault(
        "a stuck queue by its identities",
        metrics(GREEDY[0], {"harness/batch_id": at_iterations([max(0, place - 32) for place in range(STEPS)])}),
        (fail("stuck-batch", GREEDY[0]),),
    ),
    Fault(
        "an age off its design",
        together(
            metrics("*", {"harness/data_age": at_iterations(1.0)}),
            metrics(GREEDY[1], {"harness/data_age": at_iterations(3.0)}),
        ),
        (fail("age-off-design", GREEDY[1]),),
        {"age": {"expected": "1"}},
    ),
    Fault(
        "a rogue normaliser",
        of("greedy", loss_check(Kind.SEQUENCE_FACTOR, 0.7, 1.4)),
        (fail("rogue-normaliser", *GREEDY),),
    ),
    Fault("another loss", of("greedy", loss_check(Kind.SIGN, -1.0, -1.0)), (fail("loss-differs", *GREEDY),)),
    Fault("a collapse", lambda runs: with_metrics(runs, PPO[0], collapsed(PPO[0])), (warn("collapsed", PPO[0]),)),
    Fault(
        "compared where the baseline collapses",
        under_stress,
        (warn("collapsed", *WIDE), warn("outside-stable-range", *WIDE), warn("outside-stable-range", *WIDE)),
        {"stress": {"key": "num_envs"}},
    ),
    Fault("two seeds in one arm", without(*GREEDY[2:]), (warn("too-few-seeds"),)),
    Fault(
        "no common seed",
        lambda runs: [*without(*GREEDY)(runs), *(run_of("greedy", seed) for seed in range(6, 11))],
        (warn("no-common-seed", *PPO, *(named("greedy", seed) for seed in range(6, 11))),),
    ),
    Fault(
        "seeds of one arm alone on both sides",
        lambda runs: [*without(*GREEDY[:2])(runs), run_of("greedy", 6), run_of("greedy", 7)],
        (warn("unpaired-runs"),),
    ),
    Fault(
        "a seed that crashed in one arm",
        lambda runs: [cut(run, LAST // 3, state=RunState.CRASHED) if run.name == GREEDY[4] else run for run in runs],
        (warn("runs-dropped-unevenly"),),
    ),
    Fault("another budget", longer, (warn("unequal-budget"),)),
    Fault(
        "an ordering of pooled runs",
        together(
            without(*GREEDY[:2]),
            ending({name: 380.0 + place for place, name in enumerate(PPO)}),
            ending(dict(zip(GREEDY[2:], (420.0, 425.0, 490.0)))),
        ),
        (warn("pooled-ordering"),),
    ),
    Fault(
        "a claim that the runs contradict",
        lambda runs: with_metrics(runs, PPO[0], collapsed(PPO[0])),
        (warn("collapsed", PPO[0]), fail("claim-contradicted")),
        each_claim("PPO is stable", stable="ppo"),
    ),
    Fault(
        "a claim on runs that are not what they seem",
        with_settings(GREEDY, {"seed": 1}),
        (fail("lost-seed", *GREEDY), fail("claim-undermined")),
        each_claim("Without an entropy bonus it is stable", stable="greedy"),
        explains=("repeated-attempts", "too-few-seeds"),
    ),
)


COMBINED: Final = (
    "the seed is lost",
    "a stuck queue by its identities",
    "a rogue normaliser",
    "a collapse",
    "another difference",
    "one run of another setting",
)
"""Faults that are planted in pairs, and all at once: no two change one metric of one run."""

NOT_IN_CLEANRL: Final[Mapping[str, str]] = {
    "idle-clip": "pi_old is the sampler's: the log-probabilities are stored while the rollout is collected",
    "ratio-one-by-construction": "information at most: the row of clip ranges under a ratio of 1 shows it",
    "sampler-mismatch": "the policy that samples is the one that learns",
    "sampler-diverged": "the policy that samples is the one that learns",
    "clip-misses-lag": "the policy that samples is the one that learns",
    "one-data-order": "the scripts seed everything: no run is without a seed that acts",
    "unstable-data-order": "the policy samples the batches: their order follows from no seed alone",
    "resume-changes-run": "the scripts resume no run, and each launch has a name of its own",
    "start-differs": "nothing is evaluated before the first step",
    "normaliser-differs": "the scripts have one normaliser, the mean over the minibatch",
    "no-group": "PPO's advantages are formed in no group",
    "degenerate-output": "the length of an episode is the task's",
    "below-eval-noise": "returns are no rates on items that could be counted",
    "paired-difference": "information at most: every comparison with a score shows it",
    "claim-supported": "information at most",
}
"""Rules without a row in CleanRL's vocabulary, and why."""


def exploratory(runs: Runs) -> Runs:
    """Single runs, each of another setting in many fields."""
    tried: list[dict[str, Any]] = [
        {"learning_rate": 1e-3, "num_envs": 8, "gamma": 0.98},
        {"learning_rate": 3e-4, "num_steps": 256, "gae_lambda": 0.9},
        {"clip_coef": 0.1, "vf_coef": 1.0, "update_epochs": 10},
        {"ent_coef": 0.0, "max_grad_norm": 1.0, "anneal_lr": False},
    ]
    return [run_of("ppo", n + 1, f"CartPole-v1__ppo__{n + 1}__17001{n:05d}", n, **own) for n, own in enumerate(tried)]


def every_commit(runs: Runs) -> Runs:
    """Every launch is made from a commit of its own."""
    for place, run in enumerate(list(runs)):
        runs = change(runs, run.name, commit=f"{place:040x}")
    return runs


def scored(value: float) -> Any:
    """All returns of all runs are one number."""

    def plant(runs: Runs) -> Runs:
        for run in list(runs):
            curve = dict.fromkeys(run.points[RETURN][0], value)
            runs = with_metrics(runs, run.name, _curve(curve))
        return runs

    return plant


def own_batches(runs: Runs) -> Runs:
    """Each run logs the identities of the batches that its own policy sampled."""
    for place, run in enumerate(list(runs)):
        runs = with_metrics(runs, run.name, fingerprints(place))
    return runs


def spiked(runs: Runs) -> Runs:
    """A few bad episodes in the middle of a run."""
    steps, values = next(run for run in runs if run.name == PPO[0]).points[RETURN]
    held = {step: 10.0 if 0.5 * LAST < step < 0.53 * LAST else value for step, value in zip(steps, values)}
    return with_metrics(runs, PPO[0], _curve(held))


CLEANRL_TRAPS: Final = (
    Trap("nothing is declared", lambda runs: runs, None, ("paired-difference",)),
    Trap("exploratory single runs", exploratory, None),
    Trap("a baseline with more seeds", without(*GREEDY[3:]), says=("unpaired-runs",)),
    Trap("commits that change between all launches", every_commit, says=("code-differs",)),
    Trap("returns that are all zero", scored(0.0), passes=("duplicate-run", "inert-treatment")),
    Trap("returns that are all at the limit of the task", scored(500.0), passes=("duplicate-run", "collapsed")),
    Trap("batches that the policy sampled", own_batches, passes=("stuck-batch", "shared-data-order")),
    Trap("a spike that recovers", spiked, passes=("collapsed",)),
    Trap(
        "one update a batch",
        together(
            settings("*", {"update_epochs": 1, "num_minibatches": 1, "minibatch_size": 512, "clip_coef": 0.2}),
            together(*(settings(name, {"gae_lambda": 0.9}) for name in TIGHT)),
            metrics("*", {"losses/clipfrac": at_iterations(0.0)}),
        ),
        {"vary": ("ent_coef", "gae_lambda")},
        ("ratio-one-by-construction",),
        ("clip-range-cannot-act",),
    ),
    Trap("a rate given twice", attributes("*", arguments=("--learning-rate", "1e-3", "--learning-rate", "2.5e-4"))),
    Trap(
        "an attempt that broke off",
        also(cut(run_of("greedy", 3, "CartPole-v1__ppo__3__1699999999", 99), LAST // 4, state=RunState.CRASHED)),
        passes=("lost-seed", "repeated-attempts", "runs-dropped-unevenly"),
    ),
)
"""What looks like a fault in CleanRL's vocabulary and is none."""
