from dataclasses import replace

import numpy as np
import pytest

from pth_tracker.demo.losses import ppo_clip
from pth_tracker.demo.optimiser import clip_gradient, learning_rate, make_optimiser
from pth_tracker.demo.policy import (
    FEATURES,
    base_weights,
    chosen,
    gradient,
    log_softmax,
    response_features,
    sample,
)
from pth_tracker.demo.settings import Settings, default_config, read_settings
from pth_tracker.demo.tasks import EOS, VOCABULARY, Ints, load_problems, score


@pytest.fixture(scope="module")
def settings() -> Settings:
    return read_settings(default_config())


TRAIN, HELD_OUT, _ = load_problems(64, 200)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_gradient_of_the_clipped_loss_is_its_finite_difference(settings: Settings, temperature: float) -> None:
    rng = np.random.default_rng(3)
    sampler = base_weights()
    learner = sampler + rng.normal(0, 0.3, sampler.shape)
    problems = TRAIN[np.arange(12)]
    responses, mask, recorded = sample(sampler, problems, rng, temperature, 64)
    features = response_features(problems, responses)
    advantages, weights = rng.normal(size=12), rng.uniform(0.2, 2.0, mask.shape)

    def loss(at: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
        new = chosen(log_softmax(at, features, temperature), responses, mask)
        return ppo_clip(recorded, new, advantages, mask, weights, settings).value

    spread = log_softmax(learner, features, temperature)
    result = ppo_clip(recorded, chosen(spread, responses, mask), advantages, mask, weights, settings)
    assert result.metrics["actor/pg_clipfrac"] > 0  # part of the tokens are clipped, part are not
    written_out = gradient(features, spread, responses, result.slope, temperature)
    used = np.argwhere(np.abs(written_out) > 1e-6)
    assert len(used) > 100
    h = 1e-6
    for place in used[rng.choice(len(used), 40, replace=False)]:
        step = np.zeros((FEATURES, VOCABULARY))
        step[tuple(place)] = h
        difference = (loss(learner + step) - loss(learner - step)) / (2 * h)
        assert difference == pytest.approx(written_out[tuple(place)], rel=1e-4, abs=1e-8)


def test_the_sampler_records_exactly_the_log_probabilities_of_what_it_drew() -> None:
    responses, mask, recorded = sample(base_weights(), TRAIN, np.random.default_rng(1), 1.0, 64)
    features = response_features(TRAIN, responses)
    again = chosen(log_softmax(base_weights(), features, 1.0), responses, mask)
    assert np.array_equal(again, recorded)


def test_a_response_ends_at_its_first_end_token_or_at_the_limit() -> None:
    responses, mask, _ = sample(base_weights(), TRAIN, np.random.default_rng(2), 1.0, 4)
    for tokens, inside in zip(responses, mask, strict=True):
        ends = np.flatnonzero(tokens == EOS)
        length = min(ends[0] + 1 if len(ends) else 4, 4)
        assert inside.tolist() == [i < length for i in range(len(tokens))]


def test_tokens_are_drawn_with_their_probabilities() -> None:
    many = TRAIN[np.zeros(20_000, dtype=np.int64)]
    responses, _, _ = sample(base_weights(), many, np.random.default_rng(4), 1.5, 1)
    spread = np.exp(log_softmax(base_weights(), response_features(TRAIN[:1], np.zeros((1, 1), dtype=np.int64)), 1.5))
    shares = np.bincount(responses[:, 0], minlength=VOCABULARY) / 20_000
    assert shares == pytest.approx(spread[0, 0], abs=5 * np.sqrt(0.25 / 20_000))


def test_greedy_decoding_takes_the_most_probable_token() -> None:
    responses, mask, _ = sample(base_weights(), HELD_OUT, None, 1.0, 64)
    best: Ints = log_softmax(base_weights(), response_features(HELD_OUT, responses), 1.0).argmax(axis=-1)
    assert np.array_equal(best[mask], responses[mask])


def test_the_base_policy_is_neither_ignorant_nor_good() -> None:
    responses, mask, _ = sample(base_weights(), HELD_OUT, None, 1.0, 64)
    assert 0.1 < score(HELD_OUT, responses, mask).mean() < 0.6


def test_adamw_s_first_step_is_the_rate_in_the_gradient_s_direction(settings: Settings) -> None:
    step = make_optimiser(replace(settings, weight_decay=0.5))
    after = step(np.array([1.0, 1.0]), np.array([3.0, -0.01]), 0.1)
    # Bias correction makes the first step sign(g); the decay takes rate * 0.5 of the weight.
    assert after == pytest.approx([1 - 0.05 - 0.1, 1 - 0.05 + 0.1], abs=1e-6)
    again = step(after, np.array([0.0, 0.0]), 0.1)
    # Second step with no gradient: mean 0.09 g / 0.19, square 0.000999 g^2 / 0.001999.
    move = 0.1 * (0.09 / 0.19) / np.sqrt(0.000999 / 0.001999)
    assert again == pytest.approx(after * 0.95 - np.array([move, -move]), abs=1e-6)


def test_sgd_and_gradient_clipping(settings: Settings) -> None:
    step = make_optimiser(replace(settings, optimizer="SGD"))
    assert step(np.array([1.0]), np.array([2.0]), 0.1) == pytest.approx([0.8])
    clipped, norm = clip_gradient(np.array([3.0, 4.0]), 1.0)
    assert norm == 5.0
    assert clipped == pytest.approx([0.6, 0.8], rel=1e-6)
    assert clip_gradient(np.array([0.3, 0.4]), 1.0)[0].tolist() == [0.3, 0.4]


def test_the_rate_warms_up_and_then_stays(settings: Settings) -> None:
    assert {learning_rate(update, settings) for update in range(50)} == {settings.lr}
    warm = replace(settings, lr=0.8, warmup_steps=4)
    assert [learning_rate(update, warm) for update in range(6)] == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 0.8])
    by_ratio = replace(settings, lr=0.8, warmup_ratio=0.05, max_updates=80)
    assert [learning_rate(update, by_ratio) for update in (2, 4)] == pytest.approx([0.4, 0.8])
