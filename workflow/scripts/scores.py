"""Statistics of a study: means over seeds, their intervals, what can be told apart, and how luck grows with tries.

Everything is deterministic: the same scores give the same numbers. SciPy does what it has.
"""

import math
import statistics
from collections.abc import Mapping, Sequence

FEW = 8  # below so many seeds a bootstrap is too narrow, and Student's t is used
LEAST_PAIRS = 6  # with fewer pairs no sign test can reach p = 0.05: the least is 2 / 2**pairs
LEVEL = 0.95


def is_finite(value: object) -> bool:
    """Say whether a value is a finite number; true and false are none."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # a whole number beyond what a float holds
        return False


def spread(values: Sequence[object]) -> tuple[float | None, float | None]:
    """Return mean and sample standard deviation; None for both unless all are finite numbers.

    The deviation is None for a single value.
    """
    if not values or not all(map(is_finite, values)):
        return None, None
    try:
        return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None
    except OverflowError:  # their sum, or a square, is beyond what a float holds
        return None, None


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return a 95 % confidence interval of the mean over seeds; None for a single value, or where one is not finite.

    From 8 values on, the percentile bootstrap (Efron, 1979) with 9,999 resamples and a fixed seed; below that
    Student's t, since a bootstrap of so few values gives little more than their range.
    """
    mean, deviation = spread(values)
    if mean is None or deviation is None:
        return None
    if not deviation:
        return mean, mean
    if len(values) < FEW:
        from scipy.special import stdtrit  # scipy.stats takes a second to import

        half = float(stdtrit(len(values) - 1, (1 + LEVEL) / 2)) * deviation / math.sqrt(len(values))
        return mean - half, mean + half
    from scipy import stats

    found = stats.bootstrap((values,), _mean, confidence_level=LEVEL, method="percentile", rng=0)
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def _mean(values, axis=-1):
    return values.mean(axis=axis)


def p_value(one: Mapping[int, float], other: Mapping[int, float]) -> float | None:
    """Return the two-sided p of two combinations' mean difference being chance, paired over the seeds they share.

    The exact sign-flip permutation test (Fisher, 1935), with 9,999 random flips above 13 pairs. None with fewer
    than 6 pairs, which can't reach 0.05 whatever the scores.

    Args:
        one, other: seed → score.
    """
    pairs = [one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())]
    if len(pairs) < LEAST_PAIRS:
        return None
    if not any(pairs):
        return 1.0
    from scipy import stats

    largest = max(map(abs, pairs))
    pairs = [difference / largest for difference in pairs]  # of any size, see _mean_of
    flips = math.inf if len(pairs) <= 13 else 9999
    test = stats.permutation_test((pairs,), _mean_of, permutation_type="samples", n_resamples=flips, rng=0)
    return float(test.pvalue)


def _mean_of(values, axis=-1):
    # Rounded: flips that give the same mean must not differ by the order of a sum.
    return values.mean(axis=axis).round(14)


def expected_best(
    scores: Sequence[float], mode: str, tries: Sequence[int], unbiased: bool = True
) -> list[float]:
    """Return the expected best score of n combinations tried, for every n in `tries`.

    Over the sorted scores v₁ ≤ … ≤ v_N: without replacement U(n) = Σ vᵢ C(i−1, n−1) / C(N, n), which is unbiased
    (Tang et al., 2020); with replacement V(n) = Σ vᵢ [(i/N)ⁿ − ((i−1)/N)ⁿ] (Dodge et al., 2019).

    Args:
        scores: one per combination.
        mode: "max" or "min".
        tries: from 1 to the number of scores.
    """
    import numpy as np
    from scipy.special import gammaln

    sign = 1.0 if mode == "max" else -1.0
    v = np.sort(sign * np.asarray(scores, dtype=float))
    count = len(v)
    i = np.arange(1, count + 1)
    found = []
    for n in tries:
        if unbiased:
            chosen = i >= n
            k = i[chosen]
            ways = gammaln(k) - gammaln(n) - gammaln(k - n + 1)
            every = gammaln(count + 1) - gammaln(n + 1) - gammaln(count - n + 1)
            weights = np.zeros(count)
            weights[chosen] = np.exp(ways - every)
            weights /= weights.sum()  # to the last digits
        else:
            weights = (i / count) ** n - ((i - 1) / count) ** n
        found.append(float(sign * (weights @ v)))
    return found


def effects(
    combinations: Sequence[Mapping[str, object]], scores: Sequence[float], mode: str
) -> list[dict[str, object]]:
    """Return each varied hyperparameter's values with the mean and the best score of their combinations.

    Returns:
        Dictionaries of `hyperparameter`, `value` (absent ones are None), `combinations`, `mean`, `best`, in the
        order of names, and of numbers by size.
    """
    best = max if mode == "max" else min
    rows = []
    for name, values in varied(combinations).items():
        groups: dict[str, list[float]] = {}
        first: dict[str, object] = {}
        for combination, score in zip(combinations, scores, strict=True):
            key = repr(combination.get(name))
            groups.setdefault(key, []).append(score)
            first.setdefault(key, combination.get(name))
        for value in values:
            of_value = groups.get(repr(value), [])
            if of_value:
                rows.append(
                    {
                        "hyperparameter": name,
                        "value": value,
                        "combinations": len(of_value),
                        "mean": statistics.fmean(of_value),
                        "best": best(of_value),
                    }
                )
    return rows


def varied(combinations: Sequence[Mapping[str, object]]) -> dict[str, list]:
    """Return the hyperparameters with more than one value: name → values, numbers by size; absence is None."""
    found = {}
    for name in sorted({name for combination in combinations for name in combination}):
        values = list({repr(v): v for v in (c.get(name) for c in combinations)}.values())
        if len(values) > 1:
            found[name] = sorted(values, key=_order)
    return found


def _order(value: object) -> tuple:
    if value is None:
        return 0, 0, ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return 1, value, ""
    return 2, 0, str(value)


def edges(combinations: Sequence[Mapping[str, object]], best: Mapping[str, object]) -> dict[str, str]:
    """Say, per hyperparameter, whether the best combination has the least or greatest number that was tried."""
    found = {}
    for name, values in varied(combinations).items():
        numbers = [v for v in values if _order(v)[0] == 1]
        value = best.get(name)
        if len(numbers) < 2 or _order(value)[0] != 1:
            continue
        if value == numbers[0] or value == numbers[-1]:
            which, way = ("least", "lower") if value == numbers[0] else ("greatest", "higher")
            found[name] = f"{value} is the {which} value tried: try {way} ones"
    return found
