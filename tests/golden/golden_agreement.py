"""How well a score agrees with an exact error: rank correlation, recall and mass of the top tokens."""
import numpy as np
from golden_tokens import EXACT, LOSSES, ORACLES, SCORES

# Their unit is the squared change of the output, so a difference of two of them means something.
SQUARED_CHANGE = {"value", "key", "joint", "oracle_next", "oracle_future", *EXACT}


def mid_ranks(x):
    """Ranks from 0; equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    first = np.cumsum(counts) - counts
    return (first + (counts - 1) / 2)[inverse]


def spearman(s, e):
    a, b = mid_ranks(s), mid_ranks(e)
    a, b = a - a.mean(), b - b.mean()
    norm = np.sqrt((a @ a) * (b @ b))
    return a @ b / norm if norm > 0 else np.nan


def top(x, k):
    """Positions of the k largest; among equals the lower position comes first."""
    return np.argsort(-x, kind="stable")[:k]


def top_with_reserve(x, k, reserve):
    """The last `reserve` positions, and of the others the k - reserve largest."""
    last = len(x) - reserve
    return np.concatenate([np.arange(last, len(x)), top(x[:last], k - reserve)])


def cuts(n, reserve=0):
    """{label: k}: 40 and 1, 5, 10, 20 % of n, without those above n and those that hold no more than what is reserved."""
    ks = {"40": 40}
    for percent in (1, 5, 10, 20):
        ks[f"{percent}%"] = max(1, (2 * percent * n + 100) // 200)  # floor(x n / 100 + 1/2)
    return {label: k for label, k in ks.items() if reserve < k <= n}


def agreement(s, e, same_unit, reserve=0):
    """{metric: value}; the last `reserve` tokens are among those that the score finds, whatever it says of them. nan where a figure is undefined (no error at all, or all ranks equal)."""
    whole = e.sum()
    figures = {}
    if same_unit:
        figures["rel_l1"] = np.abs(s - e).sum() / whole if whole > 0 else np.nan
    figures["spearman"] = spearman(s, e)
    found = {label: (k, top_with_reserve(s, k, reserve)) for label, k in cuts(len(s), reserve).items()}
    for label, (k, tokens) in found.items():
        figures[f"recall@{label}"] = len(np.intersect1d(tokens, top(e, k))) / k
    for label, (k, tokens) in found.items():
        figures[f"mass@{label}"] = e[tokens].sum() / whole if whole > 0 else np.nan
    return figures


def head_agreement(metrics, reserve):
    """Yields (score, reference, {metric: value}) for every pair of one KV head."""
    for score in SCORES:
        for reference in [*EXACT, *ORACLES, *LOSSES]:
            if score in metrics and reference in metrics:
                same_unit = score in SQUARED_CHANGE and reference in SQUARED_CHANGE
                yield score, reference, agreement(metrics[score], metrics[reference], same_unit, reserve)
