from __future__ import annotations

import math
import statistics
import tracemalloc

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

from pth_tracker import stats

HUGE = np.finfo(np.float64).max
NAN, INF = math.nan, math.inf


def _sawtooth(updates: int, interval: int, low: float = 1e-3, factor: float = 1.2) -> npt.NDArray[np.float64]:
    """A divergence that grows by ``factor`` an update and falls back to ``low`` at every refresh."""
    return np.asarray(low * factor ** (np.arange(updates) % interval), dtype=np.float64)


def test_window_medians_and_means_by_hand() -> None:
    x = [5.0, 1.0, 4.0, 2.0, 9.0, 9.0]
    assert stats.window_medians(x).tolist() == [4.0, 4.0]
    assert stats.window_medians(x, 2).tolist() == [3.0, 2.5, 3.0, 5.5, 9.0]
    assert stats.window_means(x) == pytest.approx([21 / 5, 25 / 5])
    assert stats.window_medians([1.0], 2).shape == (0,) and stats.window_means([]).shape == (0,)
    assert stats.window_medians([HUGE, HUGE, HUGE / 2], 2).tolist() == [HUGE, pytest.approx(HUGE / 4 * 3)]
    assert stats.window_means([HUGE] * 5).tolist() == [pytest.approx(HUGE)]
    with pytest.raises(ValueError, match="at least one"):
        stats.window_medians(x, 0)
    with pytest.raises(ValueError, match="NaN"):
        stats.window_medians([1.0, NAN])


@pytest.mark.parametrize("width", [1, 2, 3, 4, 7])
def test_window_medians_against_the_standard_library(width: int) -> None:
    x = np.random.default_rng(width).normal(size=20)
    expected = [statistics.median(x[i : i + width]) for i in range(20 - width + 1)]
    assert stats.window_medians(x, width) == pytest.approx(expected)


def test_growth_sees_a_sawtooth_that_first_and_last_do_not() -> None:
    series = _sawtooth(64, 16)
    assert series[0] == series[48]
    grown = stats.growth(series)
    assert grown is not None
    # Medians of windows that straddle a refresh are lower than those after it: sorted 1 1.2 ... the floor is 1.2**2.
    assert grown.smallest == pytest.approx(1e-3 * 1.2**2) and grown.largest == pytest.approx(1e-3 * 1.2**13)
    assert grown.ratio == pytest.approx(1.2**11)


@pytest.mark.parametrize("interval", [3, 4, 8])
def test_a_sawtooth_shorter_than_windows_can_see_grows_within_its_teeth(interval: int) -> None:
    linear = 3e-4 + 2.0 * (np.arange(60) % interval) / (interval - 1)
    windows, teeth = stats.growth(linear), stats.tooth_growth(linear)
    assert windows is not None and windows.ratio < 5 and teeth is not None
    assert (teeth.smallest, teeth.largest) == pytest.approx((3e-4, 3e-4 + 2.0))
    assert stats.lag_measured(linear).measured and not stats.lag_measured(linear, estimator="k1").measured
    gap = np.delete(linear, 2 * interval + 1)  # one update logged nothing
    assert stats.tooth_growth(gap) is not None
    # Not from start to end, not regular, too few teeth, too shallow, not finite.
    assert stats.tooth_growth(np.concatenate([linear, np.full(40, 2.0)])) is None
    assert stats.tooth_growth(np.insert(linear, 32, [1.0, 1.1, 1.2])) is None
    assert stats.tooth_growth(linear[: 4 * interval]) is None
    assert stats.tooth_growth(1.0 + linear) is None and stats.tooth_growth(np.append(linear, NAN)) is None


def test_stationary_noise_has_no_teeth() -> None:
    rng = np.random.default_rng(3)
    found = [stats.tooth_growth(rng.lognormal(-3, rng.uniform(0.3, 1.5), 100)) for _ in range(300)]
    assert not any(found)


def test_growth_at_the_ends() -> None:
    assert stats.growth([1.0] * 4) is None
    flat, from_zero, to_infinity, nothing_finite = (
        stats.growth(x) for x in ([0.0] * 6, [0.0] * 5 + [1e-320] * 5, [1.0] * 5 + [NAN] * 3, [NAN] * 5)
    )
    assert flat is not None and flat.ratio == 1.0
    assert from_zero is not None and from_zero.ratio == INF
    assert to_infinity is not None and (to_infinity.smallest, to_infinity.ratio) == (1.0, INF)
    assert nothing_finite is not None and nothing_finite.ratio == 1.0
    signs = stats.growth([-1.0] * 5 + [-20.0] * 5)
    assert signs is not None and (signs.smallest, signs.largest) == (1.0, 20.0)
    extreme = stats.growth([5e-324] * 5 + [HUGE] * 5)
    assert extreme is not None and extreme.ratio == INF


def test_lag_needs_three_or_five_percent_of_updates() -> None:
    for updates, needed in ((20, 3), (60, 3), (100, 5), (101, 6)):
        for above in (needed - 1, needed):
            series = np.full(updates, 0.001)
            series[:above] = 0.06
            assert stats.lag_measured(series, declared=True).measured is (above >= needed)
    exact = stats.lag_measured([0.05] * 20, declared=True)
    assert exact.above == 0 and not exact.measured  # above, not at


def test_lag_needs_growth_or_a_declaration() -> None:
    constant = np.full(50, 0.2)
    assert not stats.lag_measured(constant).measured
    assert stats.lag_measured(constant, declared=True).measured
    rising = np.linspace(0.02, 0.2, 50)
    grown = stats.lag_measured(rising)
    assert grown.growth is not None and grown.growth.ratio > 5 and grown.measured
    assert not stats.lag_measured(rising / 10).measured  # grows, and stays below the tolerance
    slow = np.linspace(0.05, 0.2, 50)
    assert not stats.lag_measured(slow).measured


def test_lag_by_values_that_are_not_finite() -> None:
    series = np.full(100, 0.001)
    series[50] = NAN
    assert not stats.lag_measured(series, declared=True).measured
    series[51] = INF
    twice = stats.lag_measured(series, declared=True)
    assert (twice.nonfinite, twice.above) == (2, 2) and twice.measured
    assert not stats.lag_measured(series).measured  # two of five never move a median
    assert not stats.lag_measured([], declared=True).measured


def test_lag_in_nats_by_estimator() -> None:
    assert stats.lag_in_nats([0.1, -0.2, NAN], "k3") == pytest.approx([0.1, -0.2, NAN], nan_ok=True)
    assert stats.lag_in_nats([0.4, 0.2], "abs") == pytest.approx([0.08, 0.02])
    assert stats.lag_in_nats([1, -1, 1, -1, 1, -6], "k1") == pytest.approx([0.2, 1.2])
    with pytest.raises(ValueError, match="no conversion from the estimator 'k9'"):
        stats.lag_in_nats([0.1], "k9")  # type: ignore[arg-type]


def test_signed_noise_is_no_lag_and_a_mean_log_ratio_is_converted() -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.06, 200)
    assert np.count_nonzero(np.abs(noise) > 0.05) > 50
    k1 = stats.lag_measured(np.clip(noise, -0.06, 0.06) * np.where(np.arange(200) % 2, 1, -1), estimator="k1")
    assert k1.updates == 196
    wide = stats.lag_measured(np.full(50, 0.3), estimator="abs", declared=True)  # 0.3^2 / 2 = 0.045 nats
    wider = stats.lag_measured(np.full(50, 0.33), estimator="abs", declared=True)  # 0.054 nats
    assert not wide.measured and wider.measured
    alternating = stats.lag_measured(np.tile([0.4, -0.4], 50), estimator="k1", declared=True)
    assert alternating.above == alternating.updates  # a window of five keeps a fifth of 0.4, 0.08
    balanced = stats.lag_measured(np.tile([0.2, -0.2], 50), estimator="k1", declared=True)
    assert balanced.above == 0 and not balanced.measured


def test_lag_without_a_conversion_is_growth_alone() -> None:
    assert stats.lag_measured([0.01] * 10 + [0.06] * 10, tolerance=None).measured
    assert not stats.lag_measured([0.5] * 20, tolerance=None, declared=True).measured
    for bad in (0.0, -0.1, NAN):
        with pytest.raises(ValueError, match="tolerance"):
            stats.lag_measured([0.1], tolerance=bad)


@pytest.mark.parametrize("interval", [8, 16, 25])
def test_refresh_interval_is_read_off(interval: int) -> None:
    assert stats.refresh_interval(_sawtooth(200, interval)) == pytest.approx(interval, abs=2)
    rng = np.random.default_rng(interval)
    noisy = _sawtooth(200, interval, factor=1.4) * rng.lognormal(0, 0.1, 200)
    assert stats.refresh_interval(noisy) == pytest.approx(interval, abs=2)


def test_refresh_interval_is_never_understated() -> None:
    assert stats.refresh_interval(_sawtooth(100, 64)) == pytest.approx(64, abs=2)
    assert stats.refresh_interval(np.linspace(0.1, 3, 100)) is None
    assert stats.refresh_interval([0.0] * 100) is None
    spike = np.full(100, 0.01)
    spike[40] = 5.0
    assert stats.refresh_interval(spike) is None
    assert stats.refresh_interval([1.0] * 5) is None


def test_divergence_by_growth_of_the_floor() -> None:
    rising = np.geomspace(1e-4, 1.0, 100)
    found = stats.sampler_divergence(rising)
    # The floor of a quarter of a rising series is the median of its first five, its third value.
    assert found.first == pytest.approx(rising[2]) and found.last == pytest.approx(rising[77])
    assert found.judged and found.diverged
    assert not stats.sampler_divergence(rising / 1000).diverged  # ends at 1e-3, below 0.01
    assert not stats.sampler_divergence(np.geomspace(0.02, 0.1, 100)).diverged
    # The first quarter counts as at least 1e-4: from nothing to 0.0009 is less than tenfold.
    quiet = stats.sampler_divergence([0.0] * 50 + [0.011] * 50)
    assert quiet.ratio == pytest.approx(110) and quiet.diverged


def test_a_sawtooth_that_returns_to_its_floor_is_no_divergence() -> None:
    for interval in (4, 8, 16, 20):
        found = stats.sampler_divergence(_sawtooth(100, interval, factor=1.5))
        assert found.judged and not found.diverged
    # Interval 64 of 100 updates: the floor of the last quarter lies far above that of the first, and it is lag.
    cut = _sawtooth(100, 64, factor=1.3)
    unjudged = stats.sampler_divergence(cut)
    assert unjudged.ratio is not None and unjudged.ratio > 10
    assert not unjudged.judged and not unjudged.diverged
    declared = stats.sampler_divergence(cut, interval=64)
    assert not declared.judged and not declared.diverged
    assert stats.sampler_divergence(cut, interval=1).diverged


def test_divergence_by_values_that_are_not_finite() -> None:
    assert not stats.sampler_divergence([0.001] * 99 + [NAN]).diverged
    broken = stats.sampler_divergence([0.001] * 97 + [NAN, 0.001, INF])
    assert broken.nonfinite == 2 and broken.judged and broken.diverged
    short = stats.sampler_divergence([0.001] * 19)
    assert not short.judged and short.first is None
    assert stats.sampler_divergence([NAN, NAN]).diverged
    assert not stats.sampler_divergence([]).judged


def test_equal_as_printed() -> None:
    a = np.array([0.1234567, 12.5554321, 500.0])
    for places in (3, 5):
        assert stats.equal_series(a, a.round(places), decimals_b=places)
        assert stats.equal_series(a.round(places), a, decimals_a=places)
    assert stats.equal_series(a.round(3), a.round(5), decimals_a=3, decimals_b=5)
    assert not stats.equal_series(a, a.round(3), decimals_b=5)
    # One number can print as 0.123 or as 0.124, never as both.
    assert not stats.equal_series([0.123], [0.124], decimals_a=3, decimals_b=3)
    assert stats.equal_series([0.123], [0.1235], decimals_a=3)
    assert not stats.equal_series([0.123], [0.12351], decimals_a=3)
    # 0.1234996 prints as 0.123 and as 0.12350.
    assert stats.equal_series([0.123], [0.12350], decimals_a=3, decimals_b=5)
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 5000, 20_000)
    assert stats.equal_series(x.round(3), x.round(4), decimals_a=3, decimals_b=4)
    logged = x.astype(np.float32).astype(np.float64)
    assert stats.equal_series(logged, logged.round(3), decimals_b=3)


def test_equal_within_two_float32_ulp_of_the_largest() -> None:
    for value in (1.0, 1.5, 3.0e-5, 123456.0):
        ulp = float(np.spacing(np.float32(value)))
        assert stats.equal_series([value, 0.0], [value + 2 * ulp, 0.0])
        assert not stats.equal_series([value, 0.0], [value + 3 * ulp, 0.0])
        assert stats.equal_series([value, 0.0], [value, 2 * ulp])  # of the largest, whichever point differs
    x = np.random.default_rng(1).normal(size=1000)
    assert stats.equal_series(x, x.astype(np.float32))


def test_equality_at_extremes() -> None:
    assert stats.equal_series([HUGE, 1.0], [HUGE, 1.0])
    assert not stats.equal_series([HUGE], [-HUGE])
    assert not stats.equal_series([HUGE], [HUGE * (1 - 1e-6)])
    assert stats.equal_series([5e-324], [0.0])
    assert stats.equal_series([NAN, INF, -INF], [NAN, INF, -INF])
    points = stats.equal_points([NAN, INF, 1.0, INF, 0.0], [1.0, -INF, INF, INF, 0.0])
    assert points.tolist() == [False, False, False, True, True]
    with pytest.raises(ValueError, match=r"\(1,\) and \(2,\)"):
        stats.equal_series([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="at least 1"):
        stats.equal_series([], [])


def test_response_length_that_falls_and_stays() -> None:
    fallen = np.concatenate((np.full(30, 970.0), np.linspace(970, 9, 20), np.full(50, 9.0)))
    assert stats.falls_and_stays(fallen) is True
    recovered = fallen.copy()
    recovered[-1] = 900.0
    assert stats.falls_and_stays(recovered) is False
    assert stats.falls_and_stays(np.linspace(1000, 201, 100)) is False
    assert stats.falls_and_stays([100.0] * 5 + [1.0] * 4) is None
    assert stats.falls_and_stays([100.0] * 5 + [1.0] * 5) is True
    with pytest.raises(ValueError, match="nan"):
        stats.falls_and_stays([NAN] * 20)


@pytest.mark.parametrize("width", [2_000, 2_001])
def test_wide_windows_are_the_same_medians_in_little_memory(width: int) -> None:
    rng = np.random.default_rng(5)
    noisy = np.round(rng.normal(size=30_000), 2)
    noisy[rng.random(30_000) < 0.4] = INF
    for values in (noisy, rng.normal(size=30_000), np.zeros(30_000)):
        # pandas takes infinity for missing; a number above all others keeps its rank.
        finite = np.where(np.isinf(values), 1e6, values)
        expected = pd.Series(finite).rolling(width).median().to_numpy()[width - 1 :]
        tracemalloc.start()
        found = stats.window_medians(values, width)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 40 * values.nbytes, "not every window by itself"
        np.testing.assert_allclose(found[expected < 1e5], expected[expected < 1e5], rtol=1e-12, atol=1e-15)
        assert np.isinf(found[expected > 1e5]).all()
