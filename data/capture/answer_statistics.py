"""What many answers say together: accuracies, pairs of policies, and how well a figure foresees that an answer flips.

Samples are the unit: intervals are over them. Needs NumPy.
"""
from __future__ import annotations

import math
from typing import NamedTuple, Sequence

import numpy as np

Z = 1.959963984540054  # of 95 %
RESAMPLES = 2000


def wilson(right: int, count: int) -> tuple[float, float]:
    """The interval of 95 % of an accuracy (Wilson 1927)."""
    if count == 0:
        return 0.0, 1.0
    share, z2 = right / count, Z * Z / count
    middle, half = share + z2 / 2, Z * math.sqrt(share * (1 - share) / count + z2 / (4 * count))
    return max((middle - half) / (1 + z2), 0.0), min((middle + half) / (1 + z2), 1.0)


def mcnemar(only_a: int, only_b: int) -> float:
    """The two-sided p of McNemar's exact test: of samples that only one of two answers rightly."""
    n, fewer = only_a + only_b, min(only_a, only_b)
    tail = sum(math.comb(n, k) for k in range(fewer + 1)) / 2**n
    return min(2 * tail, 1.0)


def holm(ps: Sequence[float]) -> list[float]:
    """Every p of a family of tests, corrected for their number (Holm 1979): below 0.05 the family errs in at most one of twenty."""
    found, largest = [0.0] * len(ps), 0.0
    for rank, i in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        largest = max(largest, min((len(ps) - rank) * ps[i], 1.0))
        found[i] = largest
    return found


def auc(figure: Sequence[float], flips: Sequence[bool]) -> float:
    """The chance that a figure is larger of an answer that flips than of one that does not; ties count half. No value (nan)
    without both."""
    figure, flips = np.asarray(figure, float), np.asarray(flips, bool)
    flipped, stayed = figure[flips], np.sort(figure[~flips])
    if not len(flipped) or not len(stayed):
        return math.nan
    below = np.searchsorted(stayed, flipped, "left") + np.searchsorted(stayed, flipped, "right")
    return float(below.mean() / 2 / len(stayed))


def auc_interval(figure: Sequence[float], flips: Sequence[bool], samples: Sequence[object],
                 base: Sequence[float] | None = None) -> tuple[float, float, float]:
    """The AUC, or what it is above that of another figure, and its interval of 95 % by a bootstrap of whole samples, each with all its
    cases. Samples are many, and an AUC is no mean: Student's t over prompts is not for it."""
    figures = [np.asarray(some, float) for some in (figure, base) if some is not None]
    flips = np.asarray(flips, bool)
    _, sample = np.unique(np.asarray(samples, str), return_inverse=True)
    cases = [np.flatnonzero(sample == s) for s in range(sample.max() + 1)]

    def value(some):
        first, *other = (auc(each[some], flips[some]) for each in figures)
        return first - other[0] if other else first

    draws = np.random.default_rng(0).integers(0, len(cases), (RESAMPLES, len(cases)))
    found = [value(np.concatenate([cases[s] for s in draw])) for draw in draws]
    low, high = np.nanquantile(found, (0.025, 0.975)) if np.isfinite(found).any() else (math.nan, math.nan)
    return value(np.arange(len(flips))), float(low), float(high)


class Bin(NamedTuple):
    """Cases whose figure lies from `low` to below `high`."""

    low: float
    high: float
    right: int
    count: int

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.right, self.count)


def curve(figure: Sequence[float], right: Sequence[bool], edges: Sequence[float]) -> list[Bin]:
    """How many answers are right by what a figure says."""
    figure, right = np.asarray(figure, float), np.asarray(right, bool)
    inside = [(figure >= low) & (figure < high) for low, high in zip(edges, edges[1:])]
    return [Bin(low, high, int(right[some].sum()), int(some.sum())) for low, high, some in zip(edges, edges[1:], inside)]


def safe_below(figure: Sequence[float], right: Sequence[bool]) -> tuple[float, int]:
    """The largest value below which no answer flips, and how many cases lie below it."""
    figure, right = np.asarray(figure, float), np.asarray(right, bool)
    least = figure[~right].min() if (~right).any() else math.inf
    return float(least), int((figure < least).sum())
