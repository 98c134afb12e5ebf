"""Trains a PPO in one file on CartPole, logged under CleanRL's names: ``train_cleanrl.py FOLDER PROJECT``.

Arm ``one`` takes a single optimiser step a rollout (``update_epochs=1``, one minibatch), arm ``many`` eight. It logs to
TensorBoard, to offline W&B by ``sync_tensorboard`` and to MLflow.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import mlflow
import numpy as np
import torch
import wandb
from torch import nn
from torch.distributions import Categorical
from torch.utils.tensorboard.writer import SummaryWriter

UPDATES = 24
ARMS: dict[str, dict[str, Any]] = {
    "one": {"update_epochs": 1, "num_minibatches": 1},
    "many": {"update_epochs": 4, "num_minibatches": 2},
}
SEEDS = (1, 2)


def arguments(arm: str, seed: int) -> dict[str, Any]:
    """What a script's command line resolves to."""
    given = {
        "exp_name": "ppo", "seed": seed, "torch_deterministic": True, "cuda": False, "track": True,
        "wandb_project_name": "cleanRL", "wandb_entity": None, "capture_video": False, "env_id": "CartPole-v1",
        "learning_rate": 3e-3, "num_envs": 2, "num_steps": 32, "gamma": 0.99, "gae_lambda": 0.95, "norm_adv": True,
        "clip_coef": 0.2, "ent_coef": 0.01, "vf_coef": 0.5, "max_grad_norm": 0.5, **ARMS[arm],
    }  # fmt: skip
    batch = given["num_envs"] * given["num_steps"]
    return {
        **given,
        "total_timesteps": batch * UPDATES,
        "batch_size": batch,
        "minibatch_size": batch // given["num_minibatches"],
        "num_iterations": UPDATES,
    }


class Agent(nn.Module):
    """A policy and a value function, two small networks."""

    def __init__(self, observations: int, actions: int) -> None:
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(observations, 32), nn.Tanh(), nn.Linear(32, 1))
        self.actor = nn.Sequential(nn.Linear(observations, 32), nn.Tanh(), nn.Linear(32, actions))

    def policy(self, observations: torch.Tensor) -> Any:
        return Categorical(logits=self.actor(observations))


class Log:
    """One scalar into TensorBoard (and so W&B) and MLflow."""

    def __init__(self, folder: Path) -> None:
        self._writer = SummaryWriter(str(folder))

    def __call__(self, step: int, values: dict[str, float]) -> None:
        for key, value in values.items():
            self._writer.add_scalar(key, value, step)
        mlflow.log_metrics(values, step=step)

    def close(self) -> None:
        self._writer.close()


def collect(
    agent: Agent, envs: Any, start: Any, args: dict[str, Any]
) -> tuple[dict[str, torch.Tensor], Any, list[float]]:
    """One rollout, flat, with advantages and returns; the observations after it; returns of finished episodes."""
    rows: dict[str, list[Any]] = {key: [] for key in ("obs", "action", "logprob", "value", "reward", "done")}
    observation, finished = start, []
    for _ in range(args["num_steps"]):
        now = torch.as_tensor(observation, dtype=torch.float32)
        with torch.no_grad():
            policy = agent.policy(now)
            action = policy.sample()
            value = agent.critic(now).flatten()
        observation, reward, terminated, truncated, info = envs.step(action.numpy())
        done = np.logical_or(terminated, truncated)
        episodes = info.get("episode")
        if episodes is not None:
            finished += [float(r) for r, there in zip(episodes["r"], info["_episode"]) if there]
        for key, entry in zip(rows, (now, action, policy.log_prob(action), value, reward, done)):
            rows[key].append(torch.as_tensor(np.asarray(entry), dtype=torch.float32))
    kept = {key: torch.stack(entries) for key, entries in rows.items()}
    with torch.no_grad():
        following = agent.critic(torch.as_tensor(observation, dtype=torch.float32)).flatten()
    advantages, last = torch.zeros_like(kept["reward"]), torch.zeros_like(following)
    for place in reversed(range(args["num_steps"])):
        alive = 1 - kept["done"][place]
        delta = kept["reward"][place] + args["gamma"] * following * alive - kept["value"][place]
        last = delta + args["gamma"] * args["gae_lambda"] * alive * last
        advantages[place], following = last, kept["value"][place]
    kept |= {"advantage": advantages, "return": advantages + kept["value"]}
    return {key: entry.flatten(0, 1) for key, entry in kept.items()}, observation, finished


def update(
    agent: Agent, optimiser: torch.optim.Optimizer, batch: dict[str, torch.Tensor], args: dict[str, Any]
) -> dict[str, float]:
    """The optimiser steps on one rollout, and what CleanRL logs of them."""
    order, clipped, logged = np.arange(args["batch_size"]), [], {}
    for _ in range(args["update_epochs"]):
        np.random.shuffle(order)
        for start in range(0, args["batch_size"], args["minibatch_size"]):
            part = {key: values[order[start : start + args["minibatch_size"]]] for key, values in batch.items()}
            policy = agent.policy(part["obs"])
            logratio = policy.log_prob(part["action"]) - part["logprob"]
            ratio = logratio.exp()
            advantage = part["advantage"]
            if args["norm_adv"]:
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            clamped = ratio.clamp(1 - args["clip_coef"], 1 + args["clip_coef"])
            policy_loss = torch.max(-advantage * ratio, -advantage * clamped).mean()
            value_loss = 0.5 * (agent.critic(part["obs"]).flatten() - part["return"]).square().mean()
            entropy = policy.entropy().mean()
            optimiser.zero_grad()
            (policy_loss - args["ent_coef"] * entropy + args["vf_coef"] * value_loss).backward()
            nn.utils.clip_grad_norm_(agent.parameters(), args["max_grad_norm"])
            optimiser.step()
            clipped.append(float(((ratio - 1).abs() > args["clip_coef"]).float().mean()))
            logged = {
                "losses/value_loss": value_loss.item(),
                "losses/policy_loss": policy_loss.item(),
                "losses/entropy": entropy.item(),
                "losses/old_approx_kl": (-logratio).mean().item(),
                "losses/approx_kl": ((ratio - 1) - logratio).mean().item(),
            }
    return {**logged, "losses/clipfrac": float(np.mean(clipped))}


def train(folder: Path, project: str, arm: str, seed: int) -> None:
    args = arguments(arm, seed)
    name = f"{args['env_id']}__{arm}__{seed}__{int(time.time())}"
    np.random.seed(seed)
    torch.manual_seed(seed)
    with (
        wandb.init(project=project, name=name, dir=folder, sync_tensorboard=True, config=args),
        mlflow.start_run(run_name=name),
    ):
        mlflow.log_params(args)
        log = Log(folder / "tensorboard" / name)
        envs = gym.wrappers.vector.RecordEpisodeStatistics(gym.make_vec(args["env_id"], num_envs=args["num_envs"]))
        observation, _ = envs.reset(seed=seed)
        agent = Agent(4, 2)
        optimiser = torch.optim.Adam(agent.parameters(), lr=args["learning_rate"], eps=1e-5)
        for iteration in range(1, args["num_iterations"] + 1):
            step = iteration * args["batch_size"]
            batch, observation, finished = collect(agent, envs, observation, args)
            values = update(agent, optimiser, batch, args)
            if finished:
                values["charts/episodic_return"] = float(np.mean(finished))
            log(step, {**values, "charts/learning_rate": args["learning_rate"], "charts/SPS": 1000.0})
        log.close()
        envs.close()


if __name__ == "__main__":
    torch.set_num_threads(1)
    mlflow.set_experiment(sys.argv[2])
    for arm in ARMS:
        for seed in SEEDS:
            train(Path(sys.argv[1]), sys.argv[2], arm, seed)
