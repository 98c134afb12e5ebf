"""Console logs as verl prints them, release by release, with values that are known.

Written from the grammar of the step line and of the printed configuration, not from our reader: what a log should
yield is worked out beside it while it is written.
"""

from __future__ import annotations

import json
import pprint
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final


@dataclass(frozen=True)
class Release:
    """What a verl release's console output looks like."""

    name: str
    task: str
    rounded: bool
    """``f"{value:.3f}"`` (to 0.4.1) rather than ``pprint.pformat(value)``."""
    numpy2: bool = False
    """NumPy scalars print as ``np.float64(0.0)``."""
    old_colours: bool = False
    first_step: int = 1


RELEASES: Final = {
    release.name: release
    for release in (
        Release("0.1", "main_task", True, old_colours=True, first_step=0),
        Release("0.2", "main_task", True),
        Release("0.3", "TaskRunner", True),
        Release("0.4.1", "TaskRunner", True),
        Release("0.5.0", "TaskRunner", False),
        Release("0.6.1", "TaskRunner", False),
        Release("0.7.1", "TaskRunner", False),
        Release("0.8.0", "TaskRunner", False),
        Release("0.9.1", "TaskRunnerV1", False, numpy2=True),
    )
}


def version_key(name: str) -> tuple[int, ...]:
    """``"0.4.1"`` as ``(0, 4, 1)``."""
    return tuple(int(part) for part in name.split("."))


def config(release: str, **changes: object) -> dict[str, Any]:
    """A resolved configuration with the keys by which the release is known; ``data__seed=3`` sets ``data.seed``."""
    since = version_key(release)
    nested: dict[str, Any] = {
        "actor_rollout_ref": {
            "actor": {
                "clip_ratio": 0.2,
                "entropy_coeff": 0.001,
                "fsdp_config": {"fsdp_size": -1, "param_offload": False, "wrap_policy": {"min_num_params": 0}},
                "grad_clip": 1.0,
                "optim": {"lr": 1e-06, "lr_warmup_steps_ratio": 0.0, "total_training_steps": -1},
                "ppo_epochs": 1,
                "ppo_mini_batch_size": 256,
            },
            "hybrid_engine": True,
            "model": {"external_lib": None, "path": "Qwen/Qwen2.5-0.5B-Instruct", "override_config": {}},
            "rollout": {"n": 5, "name": "vllm", "temperature": 1.0, "top_k": -1},
        },
        "algorithm": {
            "adv_estimator": "grpo",
            "gamma": 1.0,
            "kl_ctrl": {"kl_coef": 0.001, "type": "fixed"},
            "lam": 1.0,
        },
        "critic": {"cliprange_value": 0.5, "model": {"path": "~/models/deepseek-llm-7b-chat"}, "ppo_epochs": 1},
        "data": {
            "chat_template": "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}{% endfor %}",
            "max_prompt_length": 512,
            "train_batch_size": 1024,
            "train_files": ["/data/gsm8k/train.parquet", "/data/math/train.parquet"],
            "val_files": "/data/gsm8k/test.parquet",
        },
        "trainer": {"experiment_name": 'it\'s a "test"', "logger": ["console", "wandb"], "total_epochs": 15},
    }
    if since >= (0, 4):
        nested["actor_rollout_ref"]["actor"]["loss_agg_mode"] = "token-mean"
    if since >= (0, 4, 1):
        nested["actor_rollout_ref"]["rollout"]["calculate_log_probs"] = False
        nested["actor_rollout_ref"]["actor"]["policy_loss"] = {"loss_mode": "vanilla"}
    if (0, 5) <= since < (0, 8):
        nested["trainer"]["use_legacy_worker_impl"] = "auto"
    if since >= (0, 6, 1):
        nested["algorithm"]["rollout_correction"] = {"rollout_is": None, "rollout_is_threshold": 2.0}
        nested["data"]["seed"] = None
        nested["transfer_queue"] = {"enable": False}
    if since >= (0, 8):
        nested["distillation"] = {"enabled": False}
    if since >= (0, 9):
        nested["trainer"]["use_v1"] = True
    for dotted, value in changes.items():
        *path, leaf = dotted.split("__")
        place = nested
        for part in path:
            place = place.setdefault(part, {})
        place[leaf] = value
    return nested


def metrics(release: str, step: int, seed: int = 0) -> dict[str, float | int]:
    """What one update logs: plausible keys of the release, values from a generator of their own."""
    draw = random.Random(f"{release} {step} {seed}")
    since = version_key(release)
    row: dict[str, float | int] = {}
    if since >= (0, 3):
        for key in ("min", "max", "minmax_diff", "balanced_min", "balanced_max", "mean"):
            row[f"global_seqlen/{key}"] = draw.randrange(20_000, 90_000)
    entropy = "actor/entropy" if since >= (0, 4, 1) else "actor/entropy_loss"
    row |= {
        entropy: draw.uniform(0, 2),
        "actor/pg_loss": draw.gauss(0, 0.02),
        "actor/pg_clipfrac": draw.choice([0.0, draw.uniform(0, 0.004)]),
        "actor/ppo_kl": draw.gauss(0, 1e-4),
        "actor/grad_norm": draw.uniform(0, 3),
        "actor/lr": 1e-06,
    }
    if since >= (0, 6, 1):
        row |= {"rollout_corr/kl": draw.gauss(0, 1e-3), "rollout_corr/k3_kl": draw.uniform(0, 1e-3)}
    for name in ("score", "rewards", "advantages", "returns"):
        row |= {f"critic/{name}/mean": draw.uniform(-1, 1), f"critic/{name}/max": 1.0, f"critic/{name}/min": -1.0}
    for name in ("response_length", "prompt_length"):
        low, high = draw.randrange(10, 99), draw.randrange(300, 1024)
        row |= {f"{name}/mean": draw.uniform(low, high), f"{name}/max": float(high), f"{name}/min": float(low)}
        row[f"{name}/clip_ratio"] = draw.uniform(0, 0.2)
    timing = "timing_s" if since >= (0, 2) else "timing"
    row |= {f"{timing}/{part}": draw.uniform(0.01, 30) for part in ("gen", "ref", "adv", "update_actor", "step")}
    if since >= (0, 4):
        row |= {"training/global_step": step, "training/epoch": step // 30}
    row |= {"perf/total_num_tokens": draw.randrange(10**5), "perf/throughput": draw.uniform(100, 2000)}
    return row


def printed(release: Release, key: str, value: float) -> str:
    """A value as the release prints it."""
    if release.rounded:
        return f"{value:.3f}"
    # What came from np.mean is a NumPy scalar, the rest is plain Python.
    from_numpy = key.startswith(("actor/", "val-", "rollout_corr/")) and isinstance(value, float)
    return f"np.float64({value!r})" if release.numpy2 and from_numpy else repr(value)


def read_back(release: Release, value: float) -> float:
    """The value that a reader can know from the printed one."""
    return float(f"{value:.3f}") if release.rounded else float(value)


def step_line(release: Release, step: int, row: Mapping[str, float]) -> str:
    """One call of the console logger."""
    return f"step:{step} - " + " - ".join(f"{key}:{printed(release, key, value)}" for key, value in row.items())


def prefix(task: str, pid: int, style: str, ip: str = "") -> str:
    """Ray's prefix: ``new``, ``old``, ``plain`` (no colours) or ``none``."""
    inner = f"({task} pid={pid}, ip={ip})" if ip else f"({task} pid={pid})"
    return {
        "new": f"\x1b[36m{inner}\x1b[0m ",
        "old": f"\x1b[2m\x1b[36m{inner}\x1b[0m ",
        "plain": f"{inner} ",
        "none": "",
    }[style]


def config_lines(nested: Mapping[str, Any]) -> list[str]:
    """The configuration as ``pprint`` prints it."""
    return pprint.pformat(nested).split("\n")


@dataclass
class Log:
    """A log and what it holds."""

    lines: list[str] = field(default_factory=list)
    points: dict[str, dict[int, float]] = field(default_factory=dict)
    """Metric, step, value as a reader can know it; the later of two counts."""
    config: dict[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    def write(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.text().encode())
        return path

    def take(self, release: Release, step: int, row: Mapping[str, float]) -> str:
        """Takes down what a line holds and gives the line."""
        for key, value in row.items():
            self.points.setdefault(key, {})[step] = read_back(release, value)
        return step_line(release, step, row)


CHATTER: Final = (
    "(WorkerDict pid=9001) NCCL version 2.21.5+cuda12.4",
    "\x1b[36m(WorkerDict pid=9002)\x1b[0m   'rope_theta': 1000000.0,",
    "\x1b[33m(raylet)\x1b[0m [2025-01-10 21:40:29] file_system_monitor.cc:111: /tmp/ray is over 95% full",
    "(WorkerDict pid=9003) wrap_policy: functools.partial(<function f at 0x7>) [repeated 7x across cluster]",
    "",
)
"""Lines of other processes; the second looks like a piece of a configuration."""


def make_log(
    release_name: str,
    steps: Iterable[int] | int = 10,
    *,
    style: str | None = None,
    pid: int = 4711,
    ip: str = "",
    seed: int = 0,
    chatter: bool = True,
    with_config: bool = True,
    rollout_text: Sequence[str] = (),
    **changes: object,
) -> Log:
    """A whole log of one release: start-up, configuration, then one line an update between all the others."""
    release = RELEASES[release_name]
    style = style or ("old" if release.old_colours else "new")
    head = prefix(release.task, pid, style, ip)
    draw = random.Random(f"chatter {release_name} {seed}")
    log = Log(config=config(release_name, **changes) if with_config else {})
    log.lines.append("2025-01-10 21:40:29,298\tINFO worker.py:1752 -- Started a local Ray instance.")
    if with_config:
        for line in config_lines(log.config):
            log.lines.append(head + line)
            if chatter and draw.random() < 0.2:
                log.lines.append(draw.choice(CHATTER))
    log.lines.append(f"{head}Using LocalLogger is deprecated. The constructor API will change ")
    numbers = range(release.first_step, release.first_step + steps) if isinstance(steps, int) else steps
    for step in numbers:
        log.lines += [head + line for line in rollout_text]
        log.lines.append(head + log.take(release, step, metrics(release_name, step, seed)))
        if chatter:
            log.lines += [head, f"Training Progress:  16%|█▌        | {step}/435 [04:25<21:45,  3.58s/it]"]
            log.lines.append(draw.choice(CHATTER))
    return log


def jsonl(rows: Iterable[tuple[int, Mapping[str, object]]]) -> str:
    """verl's file logger."""
    return "".join(json.dumps({"step": step, "data": dict(row)}) + "\n" for step, row in rows)
