#!/usr/bin/env python3
"""Golden kept sets and errors of `kvreplay evict`, computed from their definitions in float64.

  golden_evictions.py --check DIR [--dump DUMP]   compare a result folder with a fresh computation; exit 1 on a miss
  golden_evictions.py --out DIR [--policy LIST --semantics LIST --sigma LIST --phase LIST]   write such a folder
  golden_evictions.py --selftest                  plain loops on tiny dumps, and kvpress' own kept sets

A kept set must be the same but for tokens whose score is within 1e-9 (relative) of the cut without being equal to it. The
figures of evictions.csv are computed for the kept set that the folder holds. Options that the run was given (--window, --recent, ..)
must be given here too. golden_evictions_policies.py holds the policies, golden_evictions_test.py the self-test.
"""
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import csv
import re
import sys
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
from golden_evictions_policies import Attention, Evictions, Options, Policy, Unknown, masked_softmax, tokens_kept, visible
from make_golden import SAMPLE, layer_folders, layer_list, load_layer, squared_norm, top, write_csv

DEFAULT_POLICIES = [base + score for base in ("h2o", "tova", "snapkv") for score in ("", "+value", "+key", "+joint", "+caote")]
DEFAULT_WINDOW = 32  # rows of the window's errors, whatever the policy's own window
HEADER = ["layer", "kv_head", "policy", "semantics", "phase", "budget", "kept", "rows", "metric", "value"]
DECODE_HEADER = ["layer", "kv_head", "policy", "semantics", "budget", "metric", "value"]
KEPT_NAME = re.compile(r"^(.+)-(paper|official|kvpress)-(prefill|blockwise_\d+)-(\d+)$")
DECODE_NAME = re.compile(r"^(.+)-(paper|official|kvpress)-(?:(decode|append-only)-)?([0-9.]+)$")


# ---------------------------------------------------------------- errors of a kept set


class Errors:
    """Measures kept sets [n_kv, l] of one layer."""

    def __init__(self, layer, evictions, window, element_bytes):
        self.layer, self.evictions, self.element_bytes = layer, evictions, element_bytes
        self.rows = {"window": np.array(layer.window_rows(min(window, layer.l))), "future": np.array(layer.future_rows())}
        self.rows = {name: rows for name, rows in self.rows.items() if len(rows)}
        self.full, self.logits, self.seen = {}, {}, {}
        for name, rows in self.rows.items():
            self.seen[name] = visible(layer, rows, np.arange(layer.T))
            whole = [Attention(layer, h, rows, np.arange(layer.T)) for h in range(layer.n_q)]
            self.full[name] = [x.o for x in whole]
            self.logits[name] = [x.z for x in whole]

    def outputs(self, kept, name):
        """[n_q] outputs [r, d_v] of attention over the kept prompt positions and everything decoded."""
        layer = self.layer
        found = []
        for h in range(layer.n_q):
            g = h // layer.group
            held = np.concatenate([kept[g], np.ones(layer.T - layer.l, bool)])
            sink = None if layer.sinks is None else layer.sinks[h]
            found.append(masked_softmax(self.logits[name][h][:, held], self.seen[name][:, held], sink) @ layer.v[g, held])
        return found

    def figures(self, kept):
        """{(rows, metric, kv_head or None for the layer): (value, tolerance)}"""
        layer, found = self.layer, {}
        for name in self.rows:
            change = [got - want for got, want in zip(self.outputs(kept, name), self.full[name])]
            error = np.array([squared_norm(x).sum() for x in change]).reshape(layer.n_kv, -1).sum(axis=1)
            size = np.array([squared_norm(x).sum() for x in self.full[name]]).reshape(layer.n_kv, -1).sum(axis=1)
            for g in range(layer.n_kv):
                found[name, "output_error", g] = with_tolerance(error[g] / size[g])
            found[name, "output_error", None] = with_tolerance(error.sum() / size.sum())
            if layer.wo is not None:
                error, size = (sum(x[h] @ layer.wo[h] for h in range(layer.n_q)) for x in (change, self.full[name]))
                found[name, "layer_output_error", None] = with_tolerance(squared_norm(error).sum() / squared_norm(size).sum())
        if "future" in self.rows:
            self.add_oracle_figures(kept, found)
        width = layer.k.shape[2] * self.element_bytes[0] + layer.v.shape[2] * self.element_bytes[1]
        for rows in ("", *self.rows):
            for g in range(layer.n_kv):
                found[rows, "bytes", g] = (float(kept[g].sum() * width), 0.0)
            found[rows, "bytes", None] = (float(kept.sum() * width), 0.0)
        return found

    def add_oracle_figures(self, kept, found):
        sums = defaultdict(float)
        for g, mask in enumerate(kept):
            importance = self.evictions.remember((g, "oracle_importance"), lambda: self.evictions.future_score(g, "oracle_importance"))
            best = np.zeros(len(mask), bool)
            best[top(importance, int(mask.sum()))] = True
            loss, least = importance[~mask].sum(), importance[~best].sum()
            slack = 1e-9 * max(loss, 1e-5 * importance.sum())
            recall = (mask & best).sum() / best.sum() if best.any() else np.nan
            figures = (("eviction_loss", loss, slack), ("optimality_gap", loss - least, slack), ("oracle_recall", recall, 1e-9))
            for metric, value, tolerance in figures:
                found["future", metric, g] = (value, tolerance)
                sums[metric] += value / (len(kept) if metric == "oracle_recall" else 1)
                sums[metric, "slack"] += tolerance
        for metric in ("eviction_loss", "optimality_gap", "oracle_recall"):
            found["future", metric, None] = (sums[metric], sums[metric, "slack"])


def with_tolerance(error):
    """1e-9 relative; below that an output's own rounding (1e-16 of its size) shows in the square."""
    return error, 1e-9 * error + 1e-15 * np.sqrt(error) + 1e-30


# ---------------------------------------------------------------- writing a result folder


def element_bytes(folder):
    return [np.load(folder / f"{name}.npy", mmap_mode="r").dtype.itemsize for name in "kv"]


def write_result(dump, out, policies, semantics, sigmas, phases, options, indices, prompt_len):
    lines, decode_lines, traces = [], [], defaultdict(list)
    for index in indices:
        started = time.time()
        folder = layer_folders(dump)[index]
        layer = load_layer(dump, index, prompt_len)
        evictions = Evictions(layer, index)
        errors = Errors(layer, evictions, options.window or DEFAULT_WINDOW, element_bytes(folder))
        kept_folder = out / f"layer_{index:02d}" / "kept"
        kept_folder.mkdir(parents=True, exist_ok=True)
        for style in semantics:
            for name in policies:
                policy = Policy(name, style, options)
                for sigma in sigmas:
                    budget = tokens_kept(sigma, layer.l, style)
                    for phase in phases:
                        run = [index, name, style, sigma, phase, budget]
                        try:
                            if phase in ("decode", "append-only"):
                                write_trace(evictions, policy, run, traces, decode_lines)
                            else:
                                write_kept(evictions, errors, policy, run, kept_folder, lines)
                        except Unknown as reason:
                            print(f"left out: {name} {style} {phase}: {reason}")
        print(f"layer {index}: {time.time() - started:.1f} s", flush=True)
    write_csv(out / "evictions.csv", HEADER, lines)
    if traces:
        (out / "decode").mkdir(exist_ok=True)
        for name, x in traces.items():
            np.save(out / "decode" / f"{name}.npy", np.stack(x))
        write_csv(out / "decode.csv", DECODE_HEADER, decode_lines)


def write_trace(evictions, policy, run, traces, lines):
    index, name, style, _, phase, budget = run
    trace, _ = evictions.decode(policy, budget, phase == "append-only")
    traces[f"{name}-{style}-{phase}-{budget}"].append(trace)
    for g, x in enumerate(trace):
        start = [index, g, name, style if phase == "decode" else f"{style}:{phase}", budget]
        lines += [[*start, kind, repr(float(f(x)))] for kind, f in SUMMARIES.items()]


def write_kept(evictions, errors, policy, run, folder, lines):
    index, name, style, sigma, phase, budget = run
    phase_name = phase.replace(":", "_")
    kept, _ = compute_kept(evictions, policy, phase_name, budget)
    np.save(folder / f"{name}-{style}-{phase_name}-{budget}.npy", kept)
    for (rows, metric, g), (value, _) in errors.figures(kept).items():
        if rows or metric != "bytes":
            count = int(kept.sum() if g is None else kept[g].sum())
            where = [index, "" if g is None else g, name, style, phase, sigma]
            lines.append([*where, count, rows, metric, repr(float(value))])


SUMMARIES = {"mean": np.mean, "max": np.max, "last": lambda x: x[-1]}


# ---------------------------------------------------------------- checking a result folder


class Report:
    """Per kind of figure: how many were compared, the worst in units of its tolerance, and where."""

    def __init__(self, scale=1.0):
        self.scale = scale  # of every tolerance
        self.kinds = {}
        self.skipped = defaultdict(int)

    def add(self, kind, got, want, tolerance, where):
        entry = self.kinds.setdefault(kind, [0, 0.0, 0.0, ""])
        off = abs(got - want) if np.isfinite(got) or np.isfinite(want) else 0.0
        tolerance = tolerance * self.scale
        units = off / tolerance if tolerance > 0 else (0.0 if off == 0 else np.inf)
        units = np.inf if np.isnan(units) else units
        entry[0] += 1
        entry[1] = max(entry[1], off / abs(want) if want else off)
        if units > entry[2]:
            entry[2], entry[3] = units, f"{where}: {got!r}, expected {want!r}"

    def add_set(self, kind, got, want, near, where):
        """got, want, near: bool [n_kv, l]"""
        for g in range(len(want)):
            wrong = int(((got[g] != want[g]) & ~near[g]).sum())
            first = f" first at position {int(np.argmax((got[g] != want[g]) & ~near[g]))}" if wrong else ""
            self.add(kind, float(wrong), 0.0, 0.0, f"{where} KV head {g}{first}")
            if near[g].all():
                self.skipped[f"{kind}: heads where an earlier cut was within rounding"] += 1
            elif (got[g] != want[g]).any() and not wrong:
                self.skipped[f"{kind}: tokens at the cut within rounding"] += int((got[g] != want[g]).sum())

    def print(self):
        """True if everything is within tolerance and something was compared."""
        print(f"{'figure':34} {'compared':>8} {'worst':>9} {'of tol.':>9}  where")
        for kind, (count, relative, units, where) in sorted(self.kinds.items()):
            print(f"{kind:34} {count:8d} {relative:9.1e} {units:9.1e}  {where if units > 1 else ''}")
        for what, count in sorted(self.skipped.items()):
            print(f"not compared: {what}: {count}")
        passed = bool(self.kinds) and all(entry[2] <= 1 for entry in self.kinds.values())
        print("passed" if passed else "FAILED" if self.kinds else "FAILED: nothing to compare")
        return passed


def read_lines(path):
    if not path.exists():
        return []
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def compute_kept(evictions, policy, phase, budget):
    if phase == "prefill":
        return evictions.prefill(policy, budget)
    return evictions.blockwise(policy, budget, int(phase.split("_")[1]))


def check_layer(report, evictions, errors, folder, index, lines, options):
    """The kept sets of one layer, and its lines of evictions.csv."""
    by_run = defaultdict(list)  # (policy, semantics, phase, kept): lines
    kept_of_run = {}  # (policy, semantics, phase, budget): kept per head
    mine = [line for line in lines if line["layer"] and int(line["layer"]) == index]
    for line in mine:
        if line["kv_head"]:
            kept_of_run[line["policy"], line["semantics"], line["phase"], line["budget"]] = int(line["kept"])
    for line in mine:
        run = line["policy"], line["semantics"], line["phase"], line["budget"]
        if run in kept_of_run:
            by_run[(*run[:2], run[2].replace(":", "_"), kept_of_run[run])].append(line)
    measured = set()
    for path in sorted((folder / f"layer_{index:02d}" / "kept").glob("*.npy")):
        match = KEPT_NAME.match(path.stem)
        if not match:
            report.skipped[f"kept set of an unknown phase or semantics, such as {path.name}"] += 1
            continue
        name, semantics, phase, budget = match[1], match[2], match[3], int(match[4])
        got = np.load(path).astype(bool)
        if got.shape != (evictions.layer.n_kv, evictions.layer.l):
            report.add("kept set shape", 1.0, 0.0, 0.0, f"{path}: {got.shape}")
            continue
        where = f"layer {index} {path.stem}"
        try:
            want, near = compute_kept(evictions, Policy(name, semantics, options), phase, budget)
            report.add_set(f"kept, {phase}, {semantics}", got, want, near, where)
        except Unknown as reason:
            report.skipped[f"kept set: {reason}"] += 1
        found = errors.figures(got)
        measured.add((name, semantics, phase, budget))
        for line in by_run.get((name, semantics, phase, budget), []):
            g = int(line["kv_head"]) if line["kv_head"] else None
            figure = found.get((line["rows"], line["metric"], g))
            if figure is None:
                report.skipped[f"{line['metric']} {'of a layer' if g is None else 'of a head'}"] += 1
                continue
            kind = f"{line['metric']} {'layer' if g is None else 'head'} {line['rows']}"
            report.add(kind, float(line["value"]), *figure, f"{where} {line['kv_head']}")
            if g is not None:
                report.add("kept column", float(line["kept"]), float(got[g].sum()), 0.0, where)
    unmatched = sum(len(some) for run, some in by_run.items() if run not in measured)
    if unmatched:
        report.skipped["lines of evictions.csv without a kept set"] += unmatched
    if len(mine) - sum(map(len, by_run.values())):
        report.skipped["lines of evictions.csv without a line per head"] += len(mine) - sum(map(len, by_run.values()))


def budget_of(text, l, semantics):
    value = float(text)
    return tokens_kept(value, l, semantics) if "." in text and value < 1 else int(value)


def check_decode(report, evictions, folder, index, indices, lines, options):
    """Traces decode/*.npy [layers, n_kv, steps], with every layer of the dump or those of `indices`; and decode.csv."""
    traces = {}
    for path in sorted((folder / "decode").glob("*.npy")):
        match = DECODE_NAME.match(path.stem)
        if not match:
            report.skipped[f"decode trace with an unknown name, such as {path.name}"] += 1
            continue
        name, semantics, phase, text = match[1], match[2], match[3] or "decode", match[4]
        budget = budget_of(text, evictions.layer.l, semantics)
        try:
            want, near = evictions.decode(Policy(name, semantics, options), budget, phase == "append-only")
        except Unknown as reason:
            report.skipped[f"decode trace: {reason}"] += 1
            continue
        trace = np.load(path)
        got = trace[indices.index(index) if len(trace) == len(indices) else index]
        if got.shape != want.shape:
            report.add("decode trace shape", 1.0, 0.0, 0.0, f"{path}: {got.shape}, expected {want.shape}")
            continue
        for g in range(len(want)):
            if near[g]:
                report.skipped["decode traces where a cut was within rounding"] += 1
                continue
            traces[name, semantics, phase, budget, g] = want[g]
            for step, value in enumerate(want[g]):
                where = f"layer {index} {path.stem} KV head {g} step {step}"
                report.add(f"{phase} output_error step, {semantics}", got[g, step], *with_tolerance(value), where)
    for line in lines:
        if not line["layer"] or int(line["layer"]) != index or not line["kv_head"]:
            continue
        kind = next((kind for kind in SUMMARIES if re.search(rf"(^|[_:@-]){kind}$", line["metric"])), None)
        semantics, _, phase = line["semantics"].partition(":")
        phase = line.get("phase") or phase or "decode"
        key = line["policy"], semantics, phase, budget_of(line["budget"], evictions.layer.l, semantics), int(line["kv_head"])
        if kind is None or key not in traces:
            report.skipped["lines of decode.csv"] += 1
            continue
        want = SUMMARIES[kind](traces[key])
        report.add(f"{phase} {line['metric']}", float(line["value"]), *with_tolerance(want), f"layer {index} {key}")


def check_whole_model(report, lines, bytes_of):
    """Lines of the whole model whose figure is a plain sum."""
    for line in lines:
        if not line["layer"]:
            run = tuple(line[name] for name in ("policy", "semantics", "phase", "budget", "rows", "metric"))
            if line["metric"] in ("bytes", "eviction_loss", "optimality_gap") and run in bytes_of:
                want = bytes_of[run]
                report.add(f"{line['metric']} model {line['rows']}", float(line["value"]), want, 1e-9 * abs(want) + 1e-15, str(run))
            else:
                report.skipped[f"{line['metric']} of the whole model"] += 1


def check_result(folder, dump, indices, options, prompt_len):
    report = Report(options.near / Options.near)
    lines, decode_lines = read_lines(folder / "evictions.csv"), read_lines(folder / "decode.csv")
    totals = defaultdict(float)
    for line in lines:
        if line["layer"] and line["kv_head"]:
            totals[tuple(line[name] for name in ("policy", "semantics", "phase", "budget", "rows", "metric"))] += float(line["value"])
    for index in indices:
        started = time.time()
        layer = load_layer(dump, index, prompt_len)
        evictions = Evictions(layer, index)
        errors = Errors(layer, evictions, options.window or DEFAULT_WINDOW, element_bytes(layer_folders(dump)[index]))
        check_layer(report, evictions, errors, folder, index, lines, options)
        check_decode(report, evictions, folder, index, indices, decode_lines, options)
        print(f"layer {index}: {time.time() - started:.1f} s", flush=True)
    check_whole_model(report, lines, totals)
    return report.print()


# ---------------------------------------------------------------- the command line


def parse_pool(text):
    kind, _, width = text.partition(":")
    return (kind, int(width or 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dump", type=Path, default=SAMPLE)
    parser.add_argument("--check", type=Path, metavar="DIR")
    parser.add_argument("--out", type=Path, metavar="DIR")
    parser.add_argument("--selftest", action="store_true")
    parser.add_argument("--policy", default=",".join(DEFAULT_POLICIES))
    parser.add_argument("--semantics", default="paper")
    parser.add_argument("--sigma", default="0.5,0.8,0.9")
    parser.add_argument("--phase", default="prefill")
    parser.add_argument("--layers", help="such as 0,3-5 (default: all)")
    parser.add_argument("--prompt-len", type=int)
    parser.add_argument("--window", type=int)
    parser.add_argument("--recent", type=int)
    parser.add_argument("--sinks", type=int)
    parser.add_argument("--pool", type=parse_pool, help="max:7, avg:5 or none")
    parser.add_argument("--decode-window", type=int)
    parser.add_argument("--tolerance", type=float, default=Options.near, help="relative; 1e-4 suits float32 results")
    parser.add_argument("--score", action="append", default=[], metavar="NAME=FILE")
    args = parser.parse_args()

    if args.selftest:
        import golden_evictions_test

        golden_evictions_test.selftest()
        return
    scores = {name: np.load(path).astype(np.float64) for name, _, path in (text.partition("=") for text in args.score)}
    options = Options(args.window, args.recent, args.sinks, args.pool, args.decode_window, scores, args.tolerance)
    indices = layer_list(args.layers, args.dump)
    if args.check:
        sys.exit(0 if check_result(args.check, args.dump, indices, options, args.prompt_len) else 1)
    if not args.out:
        parser.error("give --check DIR, --out DIR or --selftest")
    sigmas = [float(x) for x in args.sigma.split(",")]
    args.out.mkdir(parents=True, exist_ok=True)
    policies, semantics, phases = (x.split(",") for x in (args.policy, args.semantics, args.phase))
    write_result(args.dump, args.out, policies, semantics, sigmas, phases, options, indices, args.prompt_len)


if __name__ == "__main__":
    main()
