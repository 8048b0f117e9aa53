#!/usr/bin/env python3
"""Judges comparisons.csv of a folder over several dumps: every pair afresh from the dumps' own tables, with NumPy and an own Student
distribution (an incomplete beta function by its continued fraction). Exit 1 on a miss.

    golden_comparisons.py DIR     a finished folder of `kvreplay analyze DUMP DUMP ... --out DIR`
    golden_comparisons.py --selftest
"""
import csv
import itertools
import math
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

ORACLES = {"oracle", "oracle_exact", "oracle_loss", "oracle_importance", "oracle_future", "oracle_next", "lu", "optimal"}
RATIOS = {"output_error", "layer_output_error", "eviction_loss", "relative_reconstruction_error", "mean", "max", "last", "loss"}
COMPARED = {"evictions": ["policy"], "decode": ["policy"], "budgets": ["order", "method"], "channels": ["method"], "agreement": ["score"]}
DIFFERENCES = {"spearman", "recall@10%", "mass@10%", "oracle_recall", "reconstruction_gain", "output_gain"}
FURTHEST = {"spearman": 2, "recall@10%": 1, "mass@10%": 1, "oracle_recall": 1}  # that two values of a figure can lie apart


def incomplete_beta(a, b, x):
    """I_x(a, b) by Lentz's continued fraction."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(b, a, 1 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d or 1e-300)
    fraction = d
    for m in range(1, 500):
        for term in (m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)), -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))):
            d = 1 / ((1 + term * d) or 1e-300)
            c = (1 + term / c) or 1e-300
            fraction *= d * c
        if abs(d * c - 1) < 1e-16:
            break
    return front * fraction


def two_sided_p(t, freedom):
    return incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def quantile(share, freedom):
    low, high = 0.0, 1e9
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if 1 - two_sided_p(middle, freedom) < share else (low, middle)
    return high


def holm(p):
    order = np.argsort(p, kind="stable")
    steps = np.minimum(1, np.asarray(p)[order] * (len(p) - np.arange(len(p))))
    adjusted = np.empty(len(p))
    adjusted[order] = np.maximum.accumulate(steps)
    return adjusted


def pair(left, right, ratio, larger, furthest=np.inf):
    """The row of two items: prompts, mean, low, high, wins, p not adjusted; of two prompts no more than a mean."""
    both = ~np.isnan(left) & ~np.isnan(right)
    a, b = left[both], right[both]
    with np.errstate(divide="ignore", invalid="ignore"):
        apart = np.where(a == b, 0.0, np.log(a / b) if ratio else a - b)
    wins = int(np.sum(a > b if larger else a < b))
    n = len(apart)
    if n < 2 or not np.isfinite(apart).all():
        return n, np.nan, np.nan, np.nan, wins, np.nan
    mean, sd = apart.mean(), apart.std(ddof=1)
    if n < 3:
        return n, mean, np.nan, np.nan, wins, np.nan
    half = quantile(0.95, n - 1) * sd / math.sqrt(n)
    p = two_sided_p(mean / (sd / math.sqrt(n)), n - 1) if sd > 0 else float(mean == 0)
    return n, mean, max(mean - half, -furthest), min(mean + half, furthest), wins, p


def rows_of(path):
    with open(path, newline="") as file:
        yield from csv.DictReader(file)


def values_of(folder, name, table):
    """{(phase, budget, rows, metric): {(item, semantics): value}} of one prompt's model, medians over heads where that is all there is."""
    found = defaultdict(dict)
    heads = defaultdict(list)
    path = folder / name / f"{table}.csv"
    if not path.exists():
        return found
    first = None
    for row in rows_of(path):
        of_head = row["kv_head"] != ""
        if row["layer"] != "" and not of_head:
            continue
        item = ("~".join(row[key] for key in COMPARED[table]), row.get("semantics", ""))
        if table == "budgets":
            metrics = {key: row[key] for key in ("loss", "output_error")}
        else:
            metrics = {row["metric"]: row["value"]}
        for metric, value in metrics.items():
            if metric not in RATIOS | DIFFERENCES or (table == "budgets" and of_head):
                continue
            budget = {"evictions": "budget", "decode": "budget", "budgets": "sigma", "channels": "ratio"}.get(table)
            budget = row[budget] if budget else ""
            if table == "channels" and row["recent"] != "32":
                budget += f" recent {row['recent']}"
            if table == "agreement":
                first = first or (row["window"], row["reserve"])
                if (row["window"], row["reserve"]) != first:
                    continue
                metric = f"{row['reference']}~{metric}"
            place = (row.get("phase", ""), budget, row.get("rows", ""), metric)
            value = float(value) if value else np.nan
            if table in ("agreement", "decode"):
                if of_head and not np.isnan(value):
                    heads[place, item].append(value)
            elif not of_head:
                found[place][item] = value
    for (place, item), values in heads.items():
        found[place][item] = float(np.median(values))
    return found


def is_oracle(item):
    return any(part in ORACLES for part in item.replace("+", "~").split("~"))


def expected_rows(folder):
    names = [row["name"] for row in rows_of(folder / "dumps.csv")]
    rows = {}
    for table in COMPARED:
        prompts = [values_of(folder, name, table) for name in names]
        for prompt, name in zip(prompts, names):  # budgets divided by the profile of the others
            for place, items in values_of(folder / "leave_one_out", name, table).items():
                prompt[place].update(items)
        for place in {place for prompt in prompts for place in prompt}:
            if table == "evictions" and not place[1]:  # the whole prompt in a format: no budget, no pair
                continue
            metric = place[3].split("~")[-1]
            items = list(dict.fromkeys(item for prompt in prompts for item in prompt.get(place, {})))
            values = {item: np.array([prompt.get(place, {}).get(item, np.nan) for prompt in prompts]) for item in items}
            asked = defaultdict(list)
            for a, b in itertools.combinations(items, 2):
                if a[0] != b[0] and a[1] != b[1]:
                    continue
                row = pair(values[a], values[b], metric in RATIOS, metric in DIFFERENCES, FURTHEST.get(metric, np.inf))
                semantics = a[1] if a[1] == b[1] else f"{a[1]}/{b[1]}"
                asked[is_oracle(a[0]) or is_oracle(b[0])].append(((table, a[0], b[0], semantics, *place), row))
            for family in asked.values():
                known = [i for i, (_, row) in enumerate(family) if not math.isnan(row[5])]
                adjusted = dict(zip(known, holm([family[i][1][5] for i in known]))) if known else {}
                for i, (key, row) in enumerate(family):
                    if row[0] >= 2:
                        rows[key] = (*row[:5], adjusted.get(i, np.nan), metric in RATIOS)
    return rows


def check(folder):
    expected = expected_rows(folder)
    misses, seen, worst = [], set(), 0.0
    for row in rows_of(folder / "comparisons.csv"):
        key = tuple(row[name] for name in ("table", "left", "right", "semantics", "phase", "budget", "rows", "metric"))
        if key in seen or key not in expected:
            misses.append(f"{key}: {'twice' if key in seen else 'not expected'}")
            continue
        seen.add(key)
        prompts, mean, low, high, wins, p, ratio = expected[key]
        got = {name: float(row[name]) if row[name] else np.nan for name in ("log_ratio", "difference", "low", "high", "p")}
        want = {"log_ratio": mean if ratio else np.nan, "difference": np.nan if ratio else mean, "low": low, "high": high, "p": p}
        if int(row["prompts"]) != prompts or int(row["wins"]) != wins:
            misses.append(f"{key}: prompts and wins {row['prompts']}, {row['wins']}, expected {prompts}, {wins}")
        for name in want:
            if math.isnan(want[name]) != math.isnan(got[name]):
                misses.append(f"{key}: {name} {got[name]}, expected {want[name]}")
            elif not math.isnan(want[name]):
                off = abs(got[name] - want[name]) / max(1, abs(want[name]))
                worst = max(worst, off)
                if off > 1e-9:
                    misses.append(f"{key}: {name} {got[name]}, expected {want[name]}")
    misses += [f"{key}: missing" for key in expected.keys() - seen]
    for miss in misses[:20]:
        print(miss)
    print(f"{folder}: {len(seen)} pairs, {len(misses)} misses, at most {worst:.1e} off")
    return not misses and len(seen) > 0


def selftest():
    assert abs(quantile(0.95, 5) - 2.5705818356363) < 1e-9
    assert abs(two_sided_p(2.5705818356363, 5) - 0.05) < 1e-12
    assert abs(two_sided_p(1, 1) - 0.5) < 1e-12
    assert np.allclose(holm([0.01, 0.04, 0.03]), [0.03, 0.06, 0.06])
    n, mean, low, high, wins, p = pair(np.array([1.0, 2, 4, np.nan]), np.array([2.0, 2, 2, 1]), True, False)
    assert (n, wins) == (3, 1) and abs(mean) < 1e-15 and abs(low + high) < 1e-12 and abs(p - 1) < 1e-9
    two = pair(np.array([1.0, 2]), np.array([1.0, 1]), False, True)
    assert two[1] == 0.5 and np.isnan([two[2], two[3], two[5]]).all()
    assert pair(np.array([1, 0.2, 0.9]), np.array([0, 0, 0.9]), False, True, 1)[3] == 1
    assert is_oracle("snapkv~lu") and is_oracle("oracle_exact") and not is_oracle("snapkv~ada")
    print("selftest: ok")


if __name__ == "__main__":
    if sys.argv[1:] == ["--selftest"]:
        selftest()
    else:
        sys.exit(0 if all([check(Path(folder)) for folder in sys.argv[1:]]) else 1)
