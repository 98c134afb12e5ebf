"""Trains TRL's GRPO on a tiny model made here, logged to offline W&B and to MLflow: ``train_trl.py FOLDER PROJECT``.

Nothing is downloaded: the model is randomly initialised and the tokenizer knows sixteen words. Arm ``one`` takes a
single optimiser step on each generation, as by default, arm ``two`` iterates twice.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import mlflow
import torch
import wandb
from datasets import Dataset  # type: ignore[import-untyped]
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

STEPS = 14
ARMS = {"one": 1, "two": 2}
SEEDS = (1, 2)
WORDS = ["<pad>", "<eos>", "<unk>", "what", "is", "plus", *map(str, range(10))]


def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    make: Any = PreTrainedTokenizerFast
    made: PreTrainedTokenizerFast = make(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )
    return made


def tiny_model() -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    size: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "max_position_embeddings": 64,
    }
    heads: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 2}
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=len(WORDS), pad_token_id=0, eos_token_id=1, **size, **heads))


def sevens(completions: list[str], **rest: Any) -> list[float | None]:
    """The share of sevens in each response."""
    return [completion.split().count("7") / 4 for completion in completions]


def train(folder: Path, arm: str, seed: int) -> None:
    options = GRPOConfig(
        output_dir=str(folder / "out"),
        run_name=f"{arm}-seed{seed}",
        report_to=["mlflow", "wandb"],
        seed=seed,
        max_steps=STEPS,
        num_iterations=ARMS[arm],
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=4,
        learning_rate=1e-2,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
    )
    prompts = Dataset.from_list([{"prompt": f"what is {a} plus {b}"} for a in range(5) for b in range(5)])
    trainer = GRPOTrainer(
        model=tiny_model(), reward_funcs=sevens, args=options, train_dataset=prompts, processing_class=tokenizer()
    )
    trainer.train()
    wandb.finish()
    mlflow.end_run()


if __name__ == "__main__":
    torch.set_num_threads(1)
    for arm in ARMS:
        for seed in SEEDS:
            train(Path(sys.argv[1]), arm, seed)
