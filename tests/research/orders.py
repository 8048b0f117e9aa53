"""Orders of policies within a model, a prompt and a budget: the cases, and what is compared."""
from __future__ import annotations

import csv
from collections import defaultdict
from itertools import combinations

import numpy as np

COMBINED = {"loss_layer, loss_step": ("loss_layer", "loss_step"),  # their geometric mean
            "output_error, loss_step": ("output_error", "loss_step")}
FIGURES = ("output_error", "layer_output_error", "residual_error", "eviction_loss", "loss_row", "loss_head",
           "loss_layer", "loss_step", "loss_step8", "loss_step32", "loss_joint", *COMBINED)
IN_NATS = tuple(name for name in FIGURES if name.startswith("loss_"))
SAMPLES = {"loss_step8": ("loss_step8@6", "loss_step8@12", "loss_step8"),
           "loss_joint": ("loss_joint@6", "loss_joint@12", "loss_joint")}
# They look at the decoding steps.
FORESEE = ("oracle", "oracle_exact", "score:oracle_loss", "snapkv~lu", "snapkv~optimal")
# They keep the most recent tokens in every head.
RECENT = ("streaming", "h2o", "h2o+value", "h2o+key", "h2o+joint", "h2o+caote", "h2o+exact_loss", "snapkv",
          "snapkv+value", "snapkv+joint", "snapkv+caote", "snapkv+exact_loss")
# What is chosen by gradients, beside what is not; and budgets divided, beside even ones.
METHODS = (("h2o+exact_loss", "h2o"), ("h2o+exact_loss", "h2o+caote"), ("snapkv+exact_loss", "snapkv"),
           ("snapkv+exact_loss", "snapkv+caote"), ("snapkv+exact_loss", "h2o"), ("greedy_exact", "snapkv"),
           ("snapkv~pyramid", "snapkv"), ("snapkv~ada", "snapkv"), ("snapkv~lu", "snapkv"))
BUDGETS = ("0.5", "0.8", "0.9")
BINS = ((1, 1.1), (1.1, 1.2), (1.2, 1.5), (1.5, 2), (2, 4), (4, np.inf))
CLEAR = 1.5  # of two true KL: the larger over the smaller
RANGE = (0.005, 0.2)  # nats
TRUE = ("true_kl", "true_kl_median", "true_dnll")


class Cases:
    """One model's: an array a column, and for every prompt and budget the rows that are there."""

    def __init__(self, rows, model):
        rows = [row for row in rows if row["model"] == model]
        self.model = model
        self.prompts = list(dict.fromkeys(row["prompt"] for row in rows))
        self.policy = [row["policy"] for row in rows]
        names = dict.fromkeys((*FIGURES, *sum(SAMPLES.values(), ()), "dnll", *TRUE)) - COMBINED.keys()
        self.values = {name: np.array([float(row[name]) for row in rows]) for name in names}
        for name, both in COMBINED.items():
            self.values[name] = np.sqrt(self.values[both[0]] * self.values[both[1]])
        groups = defaultdict(list)
        for i, row in enumerate(rows):
            groups[row["prompt"], row["budget"]].append(i)
        self.groups = groups

    def inside(self):
        """Where predictions are held against the true KL."""
        return (self.values["true_kl"] >= RANGE[0]) & (self.values["true_kl"] <= RANGE[1])

    def only(self, rows, keep):
        return np.array([i for i in rows if keep(self.policy[i])], int)


def ranks(x):
    """Ties at their mean rank."""
    _, inverse, count = np.unique(x, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[inverse]


def spearman(x, y):
    x, y = ranks(x), ranks(y)
    return float(np.corrcoef(x, y)[0, 1]) if x.std() and y.std() else np.nan


def pairs(cases, prompt):
    """Of every two cases at one budget of a prompt that differ in truth: their rows."""
    for budget in BUDGETS:
        for i, j in combinations(cases.groups.get((prompt, budget), ()), 2):
            if cases.values["true_kl"][i] != cases.values["true_kl"][j]:
                yield i, j


def orders(cases):
    """Of every figure, prompt by prompt: how many times the larger of a pair is the smaller, by the figure and by true
    KL, whether both order it alike, and the pair's rows."""
    found = {}
    log = {name: np.log(np.maximum(values, 1e-300)) for name, values in cases.values.items() if "dnll" not in name}
    for prompt in cases.prompts:
        i, j = np.array(list(pairs(cases, prompt))).T
        truth = log["true_kl"][i] - log["true_kl"][j]
        for figure in log:
            said = log[figure][i] - log[figure][j]
            found.setdefault(figure, []).append((np.exp(abs(said)), np.exp(abs(truth)), said * truth > 0, i, j))
    return found


def clear(of_figure, least=CLEAR, some=lambda i, j: True):
    """By prompt: the pairs in the right order of those clearly apart in truth, and all of these. some: of which."""
    return [(right[inside].sum(), inside.sum())
            for _, truth, right, i, j in of_figure for inside in [(truth >= least) & some(i, j)]]


def read(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
