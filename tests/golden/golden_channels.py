#!/usr/bin/env python3
"""Judges `kvreplay channels` and compressed `kvreplay evict` results: everything again in float64, from the definitions.

  golden_channels.py --check DIR... [--dump DUMP] [--layers LIST] [--tolerance X]   exit 1 on a miss
  golden_channels.py --selftest                                                     the definitions in plain loops

The options are those in DIR's summary.json. A pruning order is replayed step by step, and every choice must be the cheapest one
left within rounding; a set that differs otherwise is a tie where its error is the same. Figures are computed for the sets in DIR.
golden_channels_choice.py holds the methods, golden_channels_cache.py compressed caches, golden_channels_test.py the self-test.

Letters: n_q query heads, n_kv KV heads, l prompt positions, d head dimension, d_v that of values; h a query head, g its KV head.
A *unit* is the list of query heads that share one selection: a group, or a single head under the official semantics.
"""
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import itertools
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
from golden_channels_cache import check_compressed
from golden_channels_choice import Problem, channels_pruned, error_of, exchange, interaction, outputs, rope_partners, row_sets
from golden_channels_choice import scaled, slack_of, swap_changes, through_output
from golden_dump import SAMPLE, layer_folders, layer_list, load_layer
from golden_evictions import Report, ELEMENT_BYTES, read_lines, with_tolerance
from golden_evictions_policies import Attention, Unknown

GREEDY = ("magnitude", "think", "iap", "output", "rope_pairs")  # methods with an order


# ---------------------------------------------------------------- a layer of `kvreplay channels`


class Sums(NamedTuple):
    """Over the units of a scope: the reconstruction error, its terms' sizes, ||Q K^T||^2; ||o' - o||^2, ||o||^2."""

    error: float
    terms: float
    whole: float
    change: float
    output: float

    def figures(self, slack):
        """{metric: (value, tolerance)}"""
        tolerance, whole = slack.of(self.error, self.terms), self.whole or np.nan
        return {
            "reconstruction_error": (self.error, tolerance),
            "relative_reconstruction_error": (self.error / whole, tolerance / whole + slack.rounding * self.error / whole),
            "output_error": scaled(with_tolerance(self.change / self.output if self.output else np.nan), slack),
        }


def expected_figures(sums, think, slack):
    """{metric: (value, tolerance)} of a scope; think: its Sums for the method `think`, or None."""
    found = sums.figures(slack)
    for metric, of in (("reconstruction_gain", "reconstruction_error"), ("output_gain", "output_error")):
        if think is not None:
            (e, e_slack), (t, t_slack) = found[of], think.figures(slack)[of]
            gain = (t - e) / t if t > 0 else 0.0 if e == t else np.nan
            found[metric] = gain, (e_slack + t_slack * e / t) / t + slack.rounding if t > 0 else 0.0
    return found


class Settings:
    def __init__(self, summary, tolerance):
        given = summary["options"]["channels"]
        self.methods, self.ratios, self.window, self.protect = (given.get(x) for x in ("methods", "ratios", "window", "protect"))
        semantics = given["semantics"]
        self.semantics = semantics if isinstance(semantics, str) else semantics[0]
        self.recent = 0 if self.semantics == "kvpress" else given["recent"]
        self.slack = slack_of(summary, tolerance)


class ChannelsCheck:
    """Compares what a result folder holds of one layer. sums: {(method, ratio, rows): [Sums of every unit]}"""

    def __init__(self, report, folder, layer, index, settings, width):
        """width: bytes of a number of keys and of values"""
        self.report, self.layer, self.index, self.settings, self.slack = report, layer, index, settings, settings.slack
        self.width, self.held = width, {}  # (method, ratio): bytes of every unit
        self.folder = folder / f"layer_{index:02d}" / "channels"
        alone = settings.semantics == "official"
        self.units = [[h] for h in range(layer.n_q)] if alone else [list(layer.heads_of(g)) for g in range(layer.n_kv)]
        self.of_head = [[u for u, unit in enumerate(self.units) if unit[0] // layer.group == g] for g in range(layer.n_kv)]
        self.m = max(layer.l - settings.recent, 0)
        self.rows = row_sets(layer, settings.window)
        cols = np.arange(layer.l if layer.causal else layer.T)
        scored = layer.l if alone else self.m
        rows = self.rows.get("window", np.zeros(0, int))
        keys = [layer.k[unit[0] // layer.group, :scored] for unit in self.units]
        self.problems = [Problem(layer, u, rows, k, cols, self.m, self.slack, settings.protect) for u, k in zip(self.units, keys)]
        every = np.arange(layer.T)
        self.full = {
            name: np.stack([Attention(layer, h, rows, every).o for h in range(layer.n_q)]) for name, rows in self.rows.items()
        }
        self.sums, self.through, self.pruned = {}, {}, {}

    def array(self, name):
        path = self.folder / f"{name}.npy"
        self.report.add("file", float(path.exists()), 1.0, 0.0, f"layer {self.index}: no {path.name}")
        return np.load(path) if path.exists() else None

    def compare(self, name, want, tolerance, dtype=None):
        got = self.array(name)
        if got is None:
            return
        where = f"layer {self.index} {name}.npy"
        right = got.shape == want.shape and got.dtype == (dtype or got.dtype)
        self.report.add("shape and type", float(right), 1.0, 0.0, f"{where}: {got.shape} {got.dtype}, expected {want.shape}")
        if got.shape == want.shape and got.size:
            off = np.abs(got.astype(np.float64) - want) / np.maximum(tolerance, 1e-300)
            at = np.unravel_index(int(np.where(np.isnan(off), np.inf, off).argmax()), off.shape)
            limit = float(np.broadcast_to(tolerance, want.shape)[at])
            self.report.add(f"{name}.npy", float(got[at]), float(want[at]), limit, f"{where} at {tuple(int(x) for x in at)}")

    def check_matrices(self):
        H = np.stack([x.H for x in self.problems])
        self.compare("interaction", H, self.matrix_slack(H), np.float64)
        values = np.linalg.eigvalsh(H)[:, ::-1]
        self.compare("spectrum", values, self.slack.of(values, values[:, :1] * np.ones(values.shape)))
        if any(x.partition("+")[0] == "output" or x.endswith("+output") for x in self.settings.methods):
            M = np.stack([x.M for x in self.problems])
            self.compare("output_interaction", M, self.matrix_slack(M), np.float64)
        if self.layer.inv_freq is not None:
            self.compare("rope_pair", rope_partners(self.layer), 0.0, np.int32)
        for name, rows in self.rows.items():
            q = self.layer.q[:, rows - self.layer.first_row]
            mean, std, size = q.mean(axis=1), q.std(axis=1), np.abs(q).max(axis=1)
            self.compare(f"query_{name}_mean", mean, self.slack.of(mean, size))
            self.compare(f"query_{name}_std", std, self.slack.of(std, size))

    def matrix_slack(self, x):
        size = np.sqrt(np.abs(np.diagonal(x, axis1=1, axis2=2)))
        return self.slack.of(x, size[:, :, None] * size[:, None, :])

    def check_sets(self):
        for name in [x for x in self.settings.methods if x in GREEDY]:
            if name == "rope_pairs" and self.layer.inv_freq is None:
                continue
            orders = self.array(f"{name}_order")
            if orders is None or orders.shape != (len(self.units), self.layer.k.shape[2]) or orders.dtype != np.int32:
                self.report.add("shape and type", float(orders is None), 1.0, 0.0, f"layer {self.index} {name}_order.npy")
                continue
            for u, problem in enumerate(self.problems):
                count, given = sum(map(len, problem.blocks(name))), orders[u]
                found = problem.order(name, given)
                tail = (given[count:] != -1).any()
                self.report.add(f"{name} order", float(found.wrong + tail), 0.0, 0.0, f"layer {self.index} unit {u}: {given}")
                if found.ties:
                    self.report.skipped[f"{name} order: choices within rounding"] += found.ties
        d = self.layer.k.shape[2]
        for method, ratio in itertools.product(self.settings.methods, self.settings.ratios):
            if method == "rope_pairs" and self.layer.inv_freq is None:
                continue
            masks = self.array(f"{method}-{np.format_float_positional(ratio, trim='-')}")
            if masks is None or masks.shape != (len(self.units), d) or masks.dtype != bool:
                self.report.add("shape and type", float(masks is None), 1.0, 0.0, f"layer {self.index} {method}-{ratio}.npy")
                continue
            self.pruned[method, ratio] = masks
            count = channels_pruned(ratio, d, self.settings.semantics)
            for u, problem in enumerate(self.problems):
                self.check_set(method, count, problem, masks[u], f"layer {self.index} unit {u} {method} {ratio}")
            self.measure(method, ratio, masks)

    def check_set(self, method, count, problem, got, where):
        count = min(count, int(problem.usable.sum()))
        wrong = (got & ~problem.usable).any() or got.sum() > count or (got.sum() < count and "rope_pairs" not in method)
        self.report.add("pruned channels", float(wrong), 0.0, 0.0, f"{where}: {int(got.sum())}, expected {count}")
        try:
            want, doubtful = problem.select(method, count)
        except Unknown as reason:
            self.report.skipped[f"set: {reason}: only one swap from it"] += 1
            want, doubtful = exchange(problem.H, got, problem.usable, self.slack)[0], False
        wrong = float((got != want).sum())
        if wrong and got.sum() == want.sum():
            matrix = problem.matrix(method.partition("+")[0])
            a, b, size = error_of(matrix, got), error_of(matrix, want), np.abs(matrix[np.ix_(got, got)]).sum()
            tie = abs(a - b) <= self.slack.of(b, size)
            if doubtful and not tie:  # a swap within rounding led elsewhere: the end must be one too, and no worse than the start
                change = swap_changes(matrix, got, problem.usable)[0]
                before = error_of(matrix, problem.start(method, count)[0])
                tie = change.min() >= -self.slack.of(a, size) and a <= before + self.slack.of(before, size)
            if tie:
                wrong = 0.0
                self.report.skipped[f"{method} sets that differ by a tie"] += 1
        self.report.add(f"{method} set", wrong, 0.0, 0.0, where)

    def measure(self, method, ratio, masks):
        layer = self.layer
        whole = layer.l * (layer.k.shape[2] * self.width[0] + layer.v.shape[2] * self.width[1])
        self.held[method, ratio] = [float(whole - self.m * x.sum() * self.width[0]) for x in masks]
        for name, rows in self.rows.items():
            found, change = [], np.zeros_like(self.full[name])
            for unit, pruned in zip(self.units, masks):
                k = layer.k[unit[0] // layer.group]
                q = [layer.q[h, rows - layer.first_row] for h in unit]
                cut = k.copy()
                cut[: self.m, pruned] = 0.0
                for h in unit:
                    change[h] = outputs(layer, h, rows, np.arange(layer.T), cut, layer.v[h // layer.group]) - self.full[name][h]
                lost = sum((x[:, pruned] @ k[: self.m, pruned].T) ** 2 for x in q).sum()
                terms = np.abs(interaction(q, k[: self.m])[np.ix_(pruned, pruned)]).sum()
                whole = sum((x @ k[: self.m].T) ** 2 for x in q).sum()
                found.append(Sums(lost, terms, whole, (change[unit] ** 2).sum(), (self.full[name][unit] ** 2).sum()))
            self.sums[method, ratio, name] = found
            if layer.wo is not None:
                error = through_output(layer, change) / through_output(layer, self.full[name])
                self.through[method, ratio, name] = scaled(with_tolerance(error), self.slack)

    def as_many(self, method, ratio, units):
        """whether the method prunes as many channels as think there: sets of different sizes do not compare"""
        masks, think = (self.pruned.get((x, ratio)) for x in (method, "think"))
        return masks is None or think is None or sum(masks[u].sum() for u in units) == sum(think[u].sum() for u in units)

    def expected(self):
        """{(layer, unit, method, ratio, rows, metric): (value, tolerance)}; unit None is the layer"""
        found = {}
        for (method, ratio, rows), sums in self.sums.items():
            think = self.sums.get(("think", ratio, rows))
            for g, units in (*enumerate(self.of_head), (None, range(len(sums)))):
                total, base = (None if x is None else Sums(*np.sum([x[u] for u in units], axis=0)) for x in (sums, think))
                base = base if self.as_many(method, ratio, units) else None
                for metric, figure in expected_figures(total, base, self.slack).items():
                    found[self.index, g, method, ratio, rows, metric] = figure
            if (method, ratio, rows) in self.through:
                error, slack = self.through[method, ratio, rows]
                found[self.index, None, method, ratio, rows, "layer_output_error"] = error, slack
                if think is not None and self.as_many(method, ratio, range(len(sums))):
                    before, before_slack = self.through["think", ratio, rows]
                    gain = (before - error) / before if before > 0 else 0.0 if error == before else np.nan
                    limit = (slack + before_slack * error / before) / before + self.slack.rounding if before > 0 else 0.0
                    found[self.index, None, method, ratio, rows, "layer_output_gain"] = gain, limit
        for (method, ratio), held in self.held.items():
            for g, units in (*enumerate(self.of_head), (None, range(len(held)))):
                found[self.index, g, method, ratio, "", "bytes"] = sum(held[u] for u in units), 1e-9
        partner, shares = rope_partners(self.layer), defaultdict(list)
        for problem in self.problems:
            size = np.abs(problem.H)
            off = size.sum() - np.trace(size)
            shares["off_diagonal_share"].append(off / size.sum() if size.sum() else np.nan)
            if partner is not None:
                c = np.flatnonzero(partner >= 0)
                shares["rope_pair_share"].append(size[c, partner[c]].sum() / off if off else np.nan)
        for metric, x in shares.items():
            for g, units in (*enumerate(self.of_head), (None, range(len(x)))):
                value = np.mean([x[u] for u in units])
                found[self.index, g, "", "", "", metric] = value, self.slack.of(value)
        return found

    def check_bounds(self, bounds):
        """bounds: {(unit, ratio): lower_bound}. Nothing that was found may be below."""
        for (u, ratio), bound in bounds.items():
            if ("convex", ratio) not in self.pruned:
                continue
            problem, own_set = self.problems[u], self.pruned["convex", ratio][u]
            alike = [x[u] for (_, r), x in self.pruned.items() if r == ratio and x[u].sum() == own_set.sum()]
            errors, where = [error_of(problem.H, x) for x in alike], f"layer {self.index} unit {u} {ratio}"
            own, slack = error_of(problem.H, own_set), self.slack.of(min(errors), np.abs(problem.H[np.ix_(own_set, own_set)]).sum())
            self.report.add("lower_bound", max(bound - min(errors), 0.0), 0.0, slack, where)
            if bound < own - slack:
                self.report.skipped["convex sets with a gap to their bound"] += 1
            else:
                self.report.add("convex, the best known", max(own - min(errors), 0.0), 0.0, slack, where)


# ---------------------------------------------------------------- channels.csv


def number(text, kind=int):
    return kind(text) if text != "" else None


def key_of(line):
    method, rows = line["method"], line["rows"] if line["method"] else ""
    ratio = float(line["ratio"]) if line["ratio"] else ""
    return number(line["layer"]), number(line["kv_head"]), method, ratio, rows, line["metric"]


def of_model(checks, slack):
    """What channels.csv must hold of all layers together."""
    found, shares = {}, defaultdict(list)
    total = lambda key: Sums(*np.sum([s for x in checks for s in x.sums[key]], axis=0))  # noqa: E731
    everywhere = [key for key in checks[0].sums if all(key in x.sums for x in checks)]
    for method, ratio, rows in everywhere:
        counts = [sum(c.pruned.get((x, ratio), np.zeros(1)).sum() for c in checks) for x in (method, "think")]
        think = total(("think", ratio, rows)) if ("think", ratio, rows) in everywhere and counts[0] == counts[1] else None
        for metric, figure in expected_figures(total((method, ratio, rows)), think, slack).items():
            found[None, None, method, ratio, rows, metric] = figure
    for key in checks[0].held:
        if all(key in x.held for x in checks):
            found[None, None, *key, "", "bytes"] = sum(sum(x.held[key]) for x in checks), 1e-9
    for check in checks:
        for (_, unit, method, *_, metric), (value, _) in check.expected().items():
            if unit is not None and not method:
                shares[metric].append(value)
    for metric, x in shares.items():
        found[None, None, "", "", "", metric] = np.mean(x), slack.of(np.mean(x))
    return found


def check_lines(report, lines, expected, checks, settings):
    bounds, proven = defaultdict(list), {}
    seen = {key_of(line): line for line in lines}
    report.add("lines twice", float(len(lines) - len(seen)), 0.0, 0.0, "channels.csv")
    by_layer = {check.index: check for check in checks}
    for key, line in seen.items():
        layer, unit, method, ratio, rows, metric = key
        level, where, value = "model" if layer is None else "layer" if unit is None else "head", str(key), float(line["value"])
        if layer is not None and layer not in by_layer or layer is None and len(checks) != report.layers:
            continue
        if metric == "lower_bound" and method == "convex" and rows == "window":
            bounds[ratio, layer, unit] = value
        elif metric == "proven" and method == "convex" and rows == "window":
            proven[ratio, layer, unit] = value
        else:
            figure = expected.get(key)
            report.add("unexpected line", float(figure is None), 0.0, 0.0, where)
            if figure is not None:
                report.add(f"{metric} {level} {rows}", value, *figure, where)
        if method:
            counts = {int(x) for c in checks for u, x in enumerate(c.pruned.get((method, ratio), np.zeros((0, 1))).sum(axis=1))
                      if (layer is None or c.index == layer) and (unit is None or u in c.of_head[unit])}  # fmt: skip
            agree = [line["pruned"]] == [str(x) for x in counts] or (unit is None and line["pruned"] == "")
            agree = agree and line["semantics"] == settings.semantics and line["recent"] == str(settings.recent)
            report.add("columns pruned, recent, semantics", float(agree), 1.0, 0.0, f"{where}: {line}")
    for key, (value, _) in expected.items():
        optional = key[-1].endswith("_gain") and (key[2] == "think" or np.isnan(value))  # of think over itself, or of no error
        if not optional:
            report.add("missing line", float(key not in seen), 0.0, 0.0, str(key))
    for (ratio, layer, unit), value in bounds.items():
        if unit is None:
            parts = [x for (r, i, u), x in bounds.items() if r == ratio and u is not None and layer in (None, i)]
            report.add("lower_bound summed", value, sum(parts), settings.slack.of(sum(parts)), f"layer {layer} {ratio}")
    for check in checks:
        for (method, ratio), masks in check.pruned.items():
            for u in range(len(masks) if method == "convex" and settings.semantics != "official" else 0):
                key = ratio, check.index, u
                report.add("missing line", float(key not in bounds), 0.0, 0.0, f"lower_bound {key}")
        for (ratio, i, u), value in proven.items():
            if i == check.index and u is not None and ("convex", ratio) in check.pruned:
                mask, H = check.pruned["convex", ratio][u], check.problems[u].H
                own, slack = error_of(H, mask), settings.slack.of(error_of(H, mask), np.abs(H[np.ix_(mask, mask)]).sum())
                away = abs(bounds[ratio, i, u] - own) if value == 1 else 0.0
                report.add("proven", away, 0.0, slack, f"{i} {u} {ratio}")
        check.check_bounds({(u, ratio): x for (ratio, i, u), x in bounds.items() if i == check.index and u is not None})


def check_channels(report, folder, dump, indices, summary, tolerance):
    settings, checks, expected = Settings(summary, tolerance), [], {}
    for index in indices:
        width = ELEMENT_BYTES
        check = ChannelsCheck(report, folder, load_layer(dump, index, summary["dump"]["l"]), index, settings, width)
        check.check_matrices()
        check.check_sets()
        expected.update(check.expected())
        checks.append(check)
    if len(checks) == report.layers:
        expected.update(of_model(checks, settings.slack))
    check_lines(report, read_lines(folder / "channels.csv"), expected, checks, settings)


# ---------------------------------------------------------------- the command line


def check_folder(folder, dump, layers, tolerance):
    """True if all is as expected."""
    summary = json.loads((folder / "summary.json").read_text())
    report, options = Report(), summary["options"]
    report.layers = len(summary["layers"])
    indices = [x for x in layer_list(layers, dump) if x in summary["layers"]]
    if "channels" in options:
        check_channels(report, folder, dump, indices, summary, tolerance)
    evict = options.get("evict", {})
    if evict.get("channels") or evict.get("bits"):
        check_compressed(report, folder, dump, indices, summary, tolerance, read_lines(folder / "evictions.csv"))
    return report.print()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dump", type=Path, default=SAMPLE)
    parser.add_argument("--check", type=Path, metavar="DIR", nargs="+")
    parser.add_argument("--selftest", action="store_true")
    parser.add_argument("--layers", help="such as 0,3-5 (default: all)")
    parser.add_argument("--tolerance", type=float, help="relative (default: 1e-9 for f64 results, 1e-4 for f32, 1e-2 for tensor)")
    args = parser.parse_args()
    if args.selftest:
        import golden_channels_test

        golden_channels_test.selftest()
        return
    if not args.check:
        parser.error("give --check DIR or --selftest")
    passed = [check_folder(folder, args.dump, args.layers, args.tolerance) for folder in args.check]
    sys.exit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
