"""Compares a result folder of `kvreplay tokens` with golden_tokens.py's values; `make_golden.py --check` runs it."""
import csv
import json
import sys

import numpy as np
from golden_agreement import cuts, head_agreement, spearman, top
from golden_dump import load_layer
from golden_tokens import LOSSES, ORACLES, head_metrics

# (of the head's largest value, relative on tokens above floor, floor as a share of the largest).
# float32 rounds at 6e-8; the square of a change that is 1e-3 of the largest keeps three digits.
TOLERANCES = {np.dtype(np.float64): (1e-9, 1e-6, 1e-12), np.dtype(np.float32): (1e-4, 1e-3, 1e-6)}


class Worst:
    """Largest deviation of a metric in units of its tolerance, and where it was."""

    def __init__(self):
        self.absolute = self.relative = self.units = 0.0
        self.where = ""
        self.heads = 0

    def add(self, absolute, relative, units, where):
        """nan counts as a miss."""
        self.heads += 1
        self.absolute = max(self.absolute, absolute)
        self.relative = max(self.relative, relative)
        if not units <= self.units:
            self.units, self.where = (np.inf if np.isnan(units) else units), where


def compare_tokens(got, want, tolerance):
    """(worst share of the largest, worst relative, worst in units of the tolerance, its position)"""
    of_largest, relative, floor = tolerance
    if not np.isfinite(got).all():
        return np.inf, np.inf, np.inf, int(np.argmin(np.isfinite(got)))
    size, difference = np.abs(want), np.abs(got - want)
    largest = size.max() if size.max() > 0 else 1.0
    counted = size > floor * largest
    share = difference / largest
    rel = np.where(counted, difference / np.where(counted, size, 1.0), 0.0)
    units = np.maximum(share / of_largest, rel / relative)
    return share.max(), rel.max(), units.max(), int(units.argmax())


def edge(x, k, relative):
    """(swaps, positions): how many of the top k could change places if every value moved by `relative`, and which.

    Exact ties do not count: the lower position comes first.
    """
    kth = x[top(x, k)[-1]]
    near = np.abs(x - kth) <= 2 * relative * abs(kth)
    if (x[near] == kth).all():
        return 0, []
    inside = np.zeros(len(x), bool)
    inside[top(x, k)] = True
    return min(np.count_nonzero(near & inside), np.count_nonzero(near & ~inside)), np.flatnonzero(near)


def rank_slack(s, e, tolerance, trials=4):
    """How far Spearman's rho may move when rounding decides the order of near ties, found by adding seeded noise.

    Near ties are not rare: zeroing the key of any token with a negligible weight changes the output by almost the same
    amount. A recomputed output is off by about 1e-16, its square by 1e-32 of the largest; float32 ends at 1e-38.
    """
    relative = tolerance[0]
    smallest = 1e-37 if relative > 1e-6 else 0.0
    generator = np.random.default_rng(0)

    def disturbed(x):
        noise = generator.uniform(-1, 1, (2, len(x)))
        return x * (1 + relative * noise[0]) + max(1e-31 * np.abs(x).max(), smallest) * noise[1]

    def has_near_tie(x):
        x = np.sort(x)
        gap = np.diff(x)
        return ((gap > 0) & (gap <= 2 * relative * np.abs(x[1:]))).any()

    rho = spearman(s, e)
    one_swap = 12 / len(s) ** 2 if has_near_tie(s) or has_near_tie(e) else 0.0  # a few trials may miss a lone pair
    return one_swap + 3 * max(abs(spearman(disturbed(s), disturbed(e)) - rho) for _ in range(trials))


def figure_tolerance(name, s, e, reserve, tolerance):
    """Slack of an agreement figure when scores and errors move within `tolerance`: near ties may swap at the edge of the top k."""
    _, relative, _ = tolerance
    if name == "rel_l1":
        return relative
    if name == "spearman":
        return relative + rank_slack(s, e, tolerance)
    kind, label = name.split("@")
    k = cuts(len(s), reserve)[label]
    swaps, near = edge(s[:len(s) - reserve], k - reserve, relative)
    if kind == "recall":
        return 1e-9 + (swaps + edge(e, k, relative)[0]) / k
    return relative + (swaps * np.ptp(e[near]) / e.sum() if swaps else 0.0)


def read_agreement(path, window):
    """{(layer, kv_head, score, reference, reserve, metric): value} on this window, errors on its rows and oracles on future rows."""
    found = {}
    with open(path, newline="") as file:
        for line in csv.DictReader(file):
            if int(line["window"]) != window:
                continue
            future = line["reference"] in ORACLES or LOSSES.get(line["reference"]) == "future"
            rows = "future" if future else "window"
            key = (int(line["layer"]), int(line["kv_head"]), line["score"], line["reference"], int(line["reserve"]), line["metric"])
            if key not in found or line.get("rows") == rows:
                found[key] = float(line["value"]) if line["value"] else np.nan
    return found


def read_heads(path):
    with open(path, newline="") as file:
        return {(int(line["layer"]), int(line["kv_head"])): line for line in csv.DictReader(file)}


class Check:
    def __init__(self, folder, names, window, first):
        """`first`: whether heads.csv and the arrays are of this window."""
        self.folder, self.names, self.first = folder, names, first
        self.tokens, self.sums, self.figures = {}, {}, {}
        self.misses = []
        self.heads = read_heads(folder / "heads.csv")
        path = folder / "agreement.csv"
        self.agreement = read_agreement(path, window) if path.exists() else {}
        if not self.agreement:
            self.misses.append(f"{path} is missing, or has no row of the window {window}")
        self.reserves = sorted({key[4] for key in self.agreement} or {0})

    def layer(self, index, layer, heads):
        """heads: the metrics of every KV head of the layer."""
        tolerance = self.arrays(index, layer, heads) if self.first else self.tolerance(index)
        if tolerance:
            for g, metrics in enumerate(heads):
                if self.first:
                    self.head_sums(index, g, metrics, tolerance)
                self.head_figures(index, g, metrics, tolerance)

    def tolerance(self, index):
        arrays = sorted((self.folder / f"layer_{index:02d}" / "tokens").glob("*.npy"))
        return TOLERANCES[np.load(arrays[0], mmap_mode="r").dtype]

    def arrays(self, index, layer, heads):
        """Compares layer_XX/tokens/*.npy; returns the tolerance of their type."""
        tolerance = None
        for name in self.names:
            path = self.folder / f"layer_{index:02d}" / "tokens" / f"{name}.npy"
            available = name in heads[0]
            if path.exists() != available:
                self.misses.append(f"{path} {'is missing' if available else 'should be unavailable'}")
            if not (path.exists() and available):
                continue
            got = np.load(path)
            if got.shape != (layer.n_kv, layer.l) or got.dtype not in TOLERANCES:
                self.misses.append(f"{path}: expected float [{layer.n_kv}, {layer.l}], found {got.dtype} {got.shape}")
                continue
            tolerance = TOLERANCES[got.dtype]
            for g, metrics in enumerate(heads):
                absolute, relative, units, p = compare_tokens(got[g].astype(np.float64), metrics[name], tolerance)
                where = f"layer {index} head {g} token {p}"
                self.tokens.setdefault(name, Worst()).add(absolute, relative, units, where)
        return tolerance

    def head_sums(self, index, g, metrics, tolerance):
        line = self.heads.get((index, g), {})
        for name in self.names:
            if name not in metrics:
                continue
            want, scale = metrics[name].sum(), np.abs(metrics[name]).sum() or 1.0
            share = abs(float(line.get(name) or "nan") - want) / scale
            self.sums.setdefault(name, Worst()).add(share, 0.0, share / tolerance[0], f"layer {index} head {g}")

    def head_figures(self, index, g, metrics, tolerance):
        for reserve in self.reserves:
            for score, reference, figures in head_agreement(metrics, reserve):
                if score not in self.names or reference not in self.names:
                    continue
                for name, want in figures.items():
                    got = self.agreement.pop((index, g, score, reference, reserve, name), None)
                    if np.isnan(want) and (got is None or np.isnan(got)):
                        continue
                    where = f"layer {index} head {g} {score} ~ {reference} reserve {reserve}"
                    if got is None:
                        self.misses.append(f"agreement.csv: {where}: {name} is missing")
                        continue
                    slack = figure_tolerance(name, metrics[score], metrics[reference], reserve, tolerance)
                    slack *= max(1.0, abs(want))
                    self.figures.setdefault(name, Worst()).add(abs(got - want), 0.0, abs(got - want) / slack, where)

    def report(self):
        """Prints the tables; True when everything is within tolerance."""
        good = not self.misses
        tables = [("token metric", self.tokens), ("sum over tokens (heads.csv)", self.sums), ("agreement", self.figures)]
        for title, table in tables:
            print(f"\n{title:<28} {'compared':>8} {'worst':>10} {'relative':>10} {'/ tolerance':>12}  where")
            for name, worst in table.items():
                missed = worst.units > 1
                good = good and not missed
                print(f"{name:<28} {worst.heads:>8} {worst.absolute:>10.2e} {worst.relative:>10.2e} {worst.units:>12.3g}"
                      f"  {worst.where}{'  MISS' if missed else ''}")
        for miss in self.misses[:20]:
            print(f"MISS {miss}")
        if len(self.misses) > 20:
            print(f"... and {len(self.misses) - 20} more")
        print("within tolerance" if good else "NOT within tolerance")
        return good


def asked_windows(folder):
    """Those of the run: numbers of rows, "5%" or "all"."""
    return json.loads((folder / "summary.json").read_text())["options"]["tokens"]["window"]


def rows_of(window, layer):
    """The rows that a window comes to, of the queries that the dump holds."""
    share = 100 if window == "all" else float(window[:-1]) if isinstance(window, str) else None
    rows = window if share is None else max(1, int(np.floor(share * layer.l / 100 + 0.5)))
    return len(layer.window_rows(rows))


def check_result(folder, dump, window, layers, prompt_len, names):
    """Every window of the run, or one alone; True when everything is within tolerance."""
    first_layer = load_layer(dump, layers[0], prompt_len)
    all_rows = [rows_of(asked, first_layer) for asked in asked_windows(folder)]
    checked = [rows for rows in all_rows if window is None or rows == rows_of(window, first_layer)]
    good = bool(checked)
    for rows in checked:
        check = Check(folder, names, rows, first=rows == all_rows[0])
        for index in layers:
            layer = load_layer(dump, index, prompt_len)
            check.layer(index, layer, [head_metrics(layer, g, rows) for g in range(layer.n_kv)])
            print(f"window {rows}, layer {index} computed", file=sys.stderr, flush=True)
        print(f"\nwindow {rows}")
        good = check.report() and good
    return good
