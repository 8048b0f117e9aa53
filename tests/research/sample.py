"""What the results of the page's commands say: a short text for every mark `sample NAME`, and how they are read. results:
the folder that the commands wrote into."""
from __future__ import annotations

import csv

import numpy as np

from orders import spearman

FOUND = {}


def found(name):
    def keep(function):
        FOUND[name] = function
        return function

    return keep


def rows_of(path, **equal):
    with open(path, newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if all(row[name] == value for name, value in equal.items())]


def evicted(results, folder, metric="output_error", rows="future", **equal):
    """{(policy, semantics, phase, budget, layer): value} without those of single heads; layer '' is the model."""
    wanted = rows_of(results / folder / "evictions.csv", metric=metric, rows=rows, kv_head="", **equal)
    return {(r["policy"], r["semantics"], r["phase"], r["budget"], r["layer"]): float(r["value"]) for r in wanted}


def agreement(results, folder, score, reference, metric, **equal):
    """A value a head."""
    return [float(r["value"]) for r in rows_of(results / folder / "agreement.csv", score=score, reference=reference,
                                               metric=metric, **equal) if r["kv_head"] and r["value"]]


def arrays(results, folder, metric):
    """[layers, heads, l] of one token metric."""
    return np.array([np.load(layer / "tokens" / f"{metric}.npy")
                     for layer in sorted((results / folder).glob("layer_*"))])


def rho(a, b):
    """Spearman's correlation head by head, [layers, heads]."""
    return np.array([[spearman(x, y) for x, y in zip(*layers)] for layers in zip(a, b)])


def short(value):
    return f"{value:.3g}"


def percent(value, digits=0, sign=""):
    return f"{100 * value:{sign}.{digits}f} %"


def listed(pairs):
    return ", ".join(f"`{name}` {value}" for name, value in pairs)


def errors(results, folder, budget, names, **equal):
    """`name` error, ... of the model at one budget."""
    values = evicted(results, folder, layer="", budget=budget, **equal)
    by_name = {policy: value for (policy, *_), value in values.items()}
    return listed((name, short(by_name[name])) for name in names or by_name)


def budgets(results, folder, **equal):
    return rows_of(results / folder / "budgets.csv", **equal)


def divided(results, folder, sigma):
    """`order` by method: the output error of the model."""
    said = {}
    for row in budgets(results, folder, layer="", sigma=sigma):
        said.setdefault(row["order"], []).append(f"{row['method']} {short(float(row['output_error']))}")
    return "; ".join(f"`{order}` {', '.join(methods)}" for order, methods in said.items())
