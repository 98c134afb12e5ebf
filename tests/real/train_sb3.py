"""Trains Stable-Baselines3's PPO on CartPole, logged to offline W&B and to MLflow: ``train_sb3.py FOLDER PROJECT``.

Arm ``one`` takes a single optimiser step a rollout (``n_epochs=1``, one minibatch), arm ``many`` eight.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import mlflow
import torch
import wandb
from stable_baselines3 import PPO
from stable_baselines3.common.logger import KVWriter
from wandb.integration.sb3 import WandbCallback

STEPS, ENVS, ITERATIONS = 32, 2, 24
ARMS = {"one": {"n_epochs": 1, "batch_size": STEPS * ENVS}, "many": {"n_epochs": 4, "batch_size": STEPS * ENVS // 2}}
SEEDS = (1, 2)


class MlflowWriter(KVWriter):
    """Stable-Baselines3's logger into the active MLflow run."""

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, Any], step: int = 0) -> None:
        numbers = {key: float(value) for key, value in key_values.items() if isinstance(value, int | float)}
        mlflow.log_metrics(numbers, step=step)

    def close(self) -> None:
        pass


def train(folder: Path, project: str, arm: str, seed: int) -> None:
    settings: dict[str, Any] = {"n_steps": STEPS, "learning_rate": 3e-3, "seed": seed, **ARMS[arm]}
    name = f"{arm}-seed{seed}"
    with wandb.init(project=project, name=name, dir=folder, sync_tensorboard=True, config={"env_id": "CartPole-v1"}):
        from stable_baselines3.common.env_util import make_vec_env

        env = make_vec_env("CartPole-v1", n_envs=ENVS, seed=seed)
        model = PPO("MlpPolicy", env, tensorboard_log=str(folder / "tensorboard" / name), device="cpu", **settings)
        with mlflow.start_run(run_name=name):
            mlflow.log_params({"algo": "PPO", "policy_class": "ActorCriticPolicy", "env_id": "CartPole-v1"})
            mlflow.log_params({**settings, "n_envs": ENVS})
            logging = _Logging()
            model.learn(STEPS * ENVS * ITERATIONS, callback=[WandbCallback(), logging.callback()])
        env.close()


class _Logging:
    """Adds the MLflow writer once the trainer has made its logger."""

    def callback(self) -> Any:
        from stable_baselines3.common.callbacks import BaseCallback

        class AddWriter(BaseCallback):
            def _on_training_start(self) -> None:
                self.logger.output_formats.append(MlflowWriter())

            def _on_step(self) -> bool:
                return True

        return AddWriter()


if __name__ == "__main__":
    torch.set_num_threads(1)
    mlflow.set_experiment(sys.argv[2])
    for arm in ARMS:
        for seed in SEEDS:
            train(Path(sys.argv[1]), sys.argv[2], arm, seed)
