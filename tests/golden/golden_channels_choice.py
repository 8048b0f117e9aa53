"""Which channels each method prunes, computed from its definition in float64. The program is golden_channels.py.

H [d, d]: the interaction matrix of a unit (query heads that share one selection); M [d, d]: the output-space matrix.
A pruned set is bool [d]; its error is the sum of a matrix over it.
"""
import itertools
import math
from typing import NamedTuple

import numpy as np
from golden_evictions_policies import Attention, Unknown, half_up, masked_softmax, visible
from golden_tokens import squared_norm



class Slack(NamedTuple):
    """relative: what two computations of a figure may differ by; rounding: the same, of the terms that a sum cancels."""

    relative: float = 1e-9
    rounding: float = 1e-13

    def of(self, value, size=0.0):
        return self.relative * abs(value) + self.rounding * size


SLACK = {"f64": Slack(), "f32": Slack(1e-4, 1e-6), "tensor": Slack(1e-2, 1e-3)}


def scaled(figure, slack):
    return figure[0], figure[1] * slack.relative / Slack().relative


def slack_of(summary, tolerance):
    slack = SLACK[summary["precision"]]
    return slack._replace(relative=tolerance) if tolerance else slack


# ---------------------------------------------------------------- what a selection depends on


def rope_partners(layer):
    """int32 [d]: the channel that each is rotated with, -1 where none; None without rope in the dump."""
    if layer.inv_freq is None:
        return None
    half, partner = len(layer.inv_freq), np.full(layer.k.shape[2], -1, np.int32)
    j = np.arange(half)
    first, second = (2 * j, 2 * j + 1) if layer.interleaved else (j, j + half)
    partner[first], partner[second] = second, first
    return partner


def protected(norm, limits):
    """bool [d] of key norms [d]; limits [a, b] in percent, or None."""
    found, d = np.zeros(len(norm), bool), len(norm)
    if limits is not None:
        low, high = (max(1, half_up(x * d / 100)) if x else 0 for x in limits)
        count = min(max(int((norm > norm.mean() + norm.std()).sum()), low), high)
        found[np.argsort(-norm, kind="stable")[:count]] = True
    return found


def interaction(q, k):
    """H [d, d] of queries (one [r, d] a query head) and keys [p, d]."""
    return (k.T @ k) * sum(x.T @ x for x in q)


def output_interaction(layer, heads, rows, cols, m):
    """M [d, d] of a unit: what pruning channels of the first m of the key positions `cols` does to the outputs, linearised."""
    total = np.zeros((layer.k.shape[2],) * 2)
    for h in heads:
        attention = Attention(layer, h, rows, cols)
        slope = 1 - (attention.z / layer.cap) ** 2 if layer.cap else np.ones_like(attention.z)
        k = layer.k[h // layer.group, cols[:m]]
        for r, i in enumerate(rows):
            difference = attention.differences(r, r + 1)[0][0, :m]  # v_p - o_i
            weight = layer.scale * attention.a[r, :m] * slope[r, :m]
            change = -layer.q[h, i - layer.first_row][:, None] * ((weight[:, None] * k).T @ difference)
            total += change @ change.T
    return total


# ---------------------------------------------------------------- greedy and exchange


class Greedy:
    """Takes the cheapest of `blocks` (lists of channels) per channel, until none is left or, with `given`, along that order.

    order: channels; ties, wrong: steps of `given` that took another block than the cheapest, within rounding and beyond it.
    """

    def __init__(self, matrix, blocks, slack, given=None):
        within = lambda x: np.array([x[np.ix_(b, b)].sum() for b in blocks])  # noqa: E731
        across = lambda x, b: np.array([x[np.ix_(other, b)].sum() for other in blocks])  # noqa: E731
        cost, terms, size = within(matrix), within(np.abs(matrix)), np.array([len(b) for b in blocks])
        left, starts = np.ones(len(blocks), bool), {b[0]: n for n, b in enumerate(blocks)}
        self.order, self.ties, self.wrong = [], 0, 0
        while left.any():
            share = np.where(left, cost / size, np.inf) if len(blocks) else np.zeros(0)
            best = pick = int(share.argmin())
            if given is not None:
                pick = starts.get(int(given[len(self.order)]), -1)
                if pick < 0 or not left[pick] or list(given[len(self.order) :][: size[pick]]) != list(blocks[pick]):
                    self.wrong += 1
                    return
            if pick != best:
                near = share[pick] - share[best] <= slack.of(share[best], terms[best] + terms[pick]) and share[pick] != share[best]
                self.ties, self.wrong = self.ties + near, self.wrong + (not near)
            left[pick] = False
            self.order += list(blocks[pick])
            cost += 2 * across(matrix, blocks[pick])
            terms += 2 * across(np.abs(matrix), blocks[pick])


def swap_changes(matrix, pruned, usable):
    """(change of the error [pruned, kept], pruned channels, usable kept channels) of every single swap."""
    out, come = np.flatnonzero(pruned), np.flatnonzero(~pruned & usable)
    with_set, own = matrix[:, pruned].sum(axis=1), np.diag(matrix)
    return (own - 2 * with_set)[out][:, None] + (own + 2 * with_set)[come] - 2 * matrix[np.ix_(out, come)], out, come


def exchange(matrix, pruned, usable, slack):
    """(bool [d], whether some choice was within rounding): best swaps until none lowers the error."""
    pruned, doubtful = pruned.copy(), False
    floor = 1e-15 * np.abs(matrix[np.ix_(pruned, pruned)]).sum()
    while True:
        change, out, come = swap_changes(matrix, pruned, usable)
        if change.size == 0 or change.min() >= -floor:
            return pruned, doubtful or bool(change.size and (np.abs(change) <= slack.rounding * np.trace(matrix)).any())
        best = int(change.argmin())  # the first: lower pruned, then lower kept channel
        close = change <= change.min() + slack.of(change.min(), floor)
        doubtful |= bool((change[close] != change.min()).any())
        pruned[out[best // len(come)]], pruned[come[best % len(come)]] = False, True


def error_of(matrix, pruned):
    return matrix[np.ix_(pruned, pruned)].sum()


# ---------------------------------------------------------------- the methods


class Problem:
    """What one unit's selections depend on. k [p, d]: the keys that scores look at; m: of `cols`, those that lose channels."""

    def __init__(self, layer, heads, rows, k, cols, m, slack, limits=None):
        self.layer, self.heads, self.rows, self.cols, self.m, self.slack = layer, heads, rows, cols, m, slack
        self.H = interaction([layer.q[h, np.asarray(rows) - layer.first_row] for h in heads], k)
        self.norms = squared_norm(k.T)
        self.usable = ~protected(np.sqrt(self.norms), limits)
        self.kept_orders, self.kept_output = {}, None

    @property
    def M(self):
        if self.kept_output is None:
            self.kept_output = output_interaction(self.layer, self.heads, self.rows, self.cols, self.m)
        return self.kept_output

    def blocks(self, name):
        partner = np.full(len(self.norms), -1)
        if name == "rope_pairs":
            partner = rope_partners(self.layer)
            if partner is None:
                raise Unknown("rope_pairs without rope")
        blocks = [[c] if partner[c] < 0 else [c, int(partner[c])] for c in range(len(partner)) if partner[c] < 0 or c < partner[c]]
        return [b for b in blocks if self.usable[b].all()]

    def matrix(self, name):
        if name == "output":
            return self.M
        return {"magnitude": np.diag(self.norms), "think": np.diag(np.diag(self.H))}.get(name, self.H)

    def order(self, name, given=None):
        """Greedy; one that is `given` and right takes the place of this problem's own."""
        if given is not None:
            found = Greedy(self.matrix(name), self.blocks(name), self.slack, given)
            if not found.wrong:
                self.kept_orders[name] = found.order
            return found
        if name not in self.kept_orders:
            self.kept_orders[name] = Greedy(self.matrix(name), self.blocks(name), self.slack).order
        return self.kept_orders[name]

    def first(self, name, count):
        """bool [d]: blocks in greedy order while they fit."""
        sizes = {b[0]: len(b) for b in self.blocks(name)}
        order, taken, pruned = self.order(name), 0, np.zeros(len(self.norms), bool)
        while taken < len(order) and taken + sizes[order[taken]] <= count:
            taken += sizes[order[taken]]
        pruned[order[:taken]] = True
        return pruned

    def start(self, method, count):
        """(set, matrix) that a method's exchange begins with."""
        base, _, start = method.partition("+")
        if base == "output":
            return self.first("output", count), self.M
        return self.select(start or "iap", count)[0], self.H

    def select(self, method, count):
        """(bool [d], whether another set is as right)"""
        base, count = method.partition("+")[0], min(count, int(self.usable.sum()))
        if base in ("exchange", "output"):
            start, matrix = self.start(method, count)
            return exchange(matrix, start, self.usable, self.slack)
        if method == "convex":
            raise Unknown("the best set that the relaxation's points lead to")
        return self.first(method, count), False

    def smallest(self, count):
        """The best set of all: for few channels."""
        choices = np.flatnonzero(self.usable)
        pruned = np.zeros(len(self.norms), bool)
        pruned[list(min(itertools.combinations(choices, count), key=lambda s: self.H[np.ix_(s, s)].sum()))] = True
        return pruned


def channels_pruned(ratio, d, semantics):
    return math.floor(ratio * d + 1e-9) if semantics == "paper" else int(d * ratio)


def outputs(layer, h, rows, cols, k, v):
    """[r, d_v] of query head h over a cache of keys [c, d] and values [c, d_v] at the positions `cols`."""
    z = layer.scale * layer.q[h, np.asarray(rows) - layer.first_row] @ k.T
    z = layer.cap * np.tanh(z / layer.cap) if layer.cap else z
    return masked_softmax(z, visible(layer, rows, cols), None if layer.sinks is None else layer.sinks[h]) @ v


def row_sets(layer, window):
    rows = {"window": np.array(layer.window_rows(min(window, layer.l))), "future": np.array(layer.future_rows())}
    return {name: x for name, x in rows.items() if len(x)}


def through_output(layer, x):
    """The sum of squares of [n_q, r, d_v] after W_O."""
    return squared_norm(sum(y @ w for y, w in zip(x, layer.wo))).sum()
