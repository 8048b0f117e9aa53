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
import sys
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
from golden_agreement import top
from golden_dump import SAMPLE, layer_folders, layer_list, load_layer
from golden_evictions_policies import Attention, Evictions, Options, Policy, Unknown, masked_softmax, parse_pool, tokens_kept, visible
from golden_loss import losses, losses_together
from golden_tokens import squared_norm
from make_golden import write_csv

DEFAULT_POLICIES = [base + score for base in ("h2o", "tova", "snapkv") for score in ("", "+value", "+key", "+joint", "+caote")]
ELEMENT_BYTES = (2, 2)  # of a number of keys and of values, whatever type the dump has
DEFAULT_WINDOW = 32  # rows of the window's errors, whatever the policy's own window
HEADER = ["layer", "kv_head", "policy", "semantics", "phase", "budget", "kept", "rows", "metric", "value"]
DECODE_HEADER = ["layer", "kv_head", "policy", "semantics", "budget", "metric", "value"]


# ---------------------------------------------------------------- errors of a kept set


class Errors:
    """Measures kept sets [n_kv, l] of one layer."""

    def __init__(self, layer, evictions, window, element_bytes):
        self.layer, self.evictions, self.element_bytes = layer, evictions, element_bytes
        self.rows = {"window": np.array(layer.window_rows(min(window, layer.l))), "future": np.array(layer.future_rows())}
        self.rows = {name: rows for name, rows in self.rows.items() if len(rows)}
        self.full, self.logits, self.seen, self.projected_size = {}, {}, {}, {}
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
        found = {}
        for name in self.rows:
            change = np.stack(self.outputs(kept, name)) - np.stack(self.full[name])
            self.add_output_figures(name, change, np.stack(self.full[name]), found)
        return self.with_cache_figures(kept, kept.sum(axis=1), found)

    def decoding_figures(self, decoding):
        found = {}
        self.add_output_figures("future", decoding.change, decoding.full, found)
        return self.with_cache_figures(decoding.kept, decoding.count, found)

    def add_output_figures(self, name, change, full, found):
        """change, full [n_q, r, d_v]"""
        layer = self.layer
        error, size = (squared_norm(x).sum(axis=1).reshape(layer.n_kv, -1).sum(axis=1) for x in (change, full))
        for g in range(layer.n_kv):
            found[name, "output_error", g] = with_tolerance(error[g] / size[g])
        found[name, "output_error", None] = with_tolerance(error.sum() / size.sum())
        if layer.wo is not None:
            error, size = (squared_norm(sum(x @ w for x, w in zip(y, layer.wo))).sum() for y in (change, full))
            found[name, "layer_output_error", None] = with_tolerance(error / size)
            self.projected_size[name] = size
            if layer.residual_norm is not None:
                found[name, "residual_error", None] = with_tolerance(error / (layer.residual_norm[self.rows[name]] ** 2).sum())
        self.add_losses(name, change, full, found)

    def add_losses(self, name, change, full, found):
        layer, rows = self.layer, self.rows[name]
        measured = range(rows[0], rows[-1] + 1)
        of_outputs = losses(layer, name, np.abs(full), measured)  # whose rounding shows in those of a change
        for metric, heads in losses(layer, name, change, measured).items():
            if metric == "samples":
                found[name, metric, None] = (heads, 0.0)
                of_layer = losses_together([heads])
                for together in ("loss_layer", "loss_step"):
                    found[name, together, None] = close_to(of_layer[together])
                continue
            heads = heads.reshape(layer.n_kv, -1).sum(axis=1)
            largest = np.abs(of_outputs[metric]).sum() + 1e-300
            for g, value in [*enumerate(heads), (None, heads.sum())]:
                rounding = 1e-12 * largest if metric == "dnll" else 1e-12 * np.sqrt(value * largest) + 1e-24 * largest
                found[name, metric, g] = (value, 1e-9 * abs(value) + rounding)

    def with_cache_figures(self, kept, count, found):
        """Adds what depends on the kept prompt positions [n_kv, l] and the tokens held [n_kv]."""
        layer = self.layer
        if "future" in self.rows:
            self.add_oracle_figures(kept, found)
        width = layer.k.shape[2] * self.element_bytes[0] + layer.v.shape[2] * self.element_bytes[1]
        for rows in ("", *self.rows):
            for g in range(layer.n_kv):
                found[rows, "bytes", g] = (float(count[g] * width), 0.0)
            found[rows, "bytes", None] = (float(count.sum() * width), 0.0)
        return found

    def size_of(self, rows, metric):
        """What weighs the layer's error in the model's: the sum of its squared outputs, of heads or behind W_O; the mean is taken
        of residual errors."""
        if metric == "residual_error":
            return 1
        return self.projected_size[rows] if metric == "layer_output_error" else sum(squared_norm(x).sum() for x in self.full[rows])

    def add_oracle_figures(self, kept, found):
        sums = defaultdict(float)
        for g, mask in enumerate(kept):
            importance = self.evictions.remember((g, "oracle_importance"), lambda: self.evictions.future_score(g, "oracle_importance"))
            best = np.zeros(len(mask), bool)
            best[top(importance, int(mask.sum()))] = True
            loss, least = importance[~mask].sum(), importance[~best].sum()
            slack = 1e-9 * max(loss, 1e-5 * importance.sum())
            recall = (mask & best).sum() / max(best.sum(), 1)
            figures = (("eviction_loss", loss, slack), ("optimality_gap", loss - least, slack), ("oracle_recall", recall, 1e-9))
            for metric, value, tolerance in figures:
                found["future", metric, g] = (value, tolerance)
                sums[metric] += value / (len(kept) if metric == "oracle_recall" else 1)
                sums[metric, "slack"] += tolerance
        for metric in ("eviction_loss", "optimality_gap", "oracle_recall"):
            found["future", metric, None] = (sums[metric], sums[metric, "slack"])


LOSSES_OF_HEADS, LOSSES_TOGETHER = ("loss_row", "loss_head", "dnll"), ("loss_layer", "loss_step", "loss_joint")
LAYER_ERRORS = ("output_error", "layer_output_error", "residual_error")


def with_tolerance(error):
    """1e-9 relative; below that an output's own rounding (1e-16 of its size) shows in the square."""
    return error, 1e-9 * error + 1e-15 * np.sqrt(error) + 1e-30


def close_to(loss):
    return loss, 1e-9 * loss + 1e-15


# ---------------------------------------------------------------- writing a result folder


def in_files(word):
    """A policy or a phase as names of files have it."""
    return word.replace(":", "_")


def write_result(dump, out, policies, semantics, sigmas, phases, options, indices, prompt_len):
    lines, decode_lines, traces = [], [], defaultdict(list)
    for index in indices:
        started = time.time()
        folder = layer_folders(dump)[index]
        layer = load_layer(dump, index, prompt_len)
        evictions = Evictions(layer, index)
        errors = Errors(layer, evictions, options.window or DEFAULT_WINDOW, ELEMENT_BYTES)
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
                                write_trace(evictions, errors, policy, run, kept_folder, lines, traces, decode_lines)
                            else:
                                write_kept(evictions, errors, policy, run, kept_folder, lines)
                        except Unknown as reason:
                            print(f"left out: {name} {style} {phase}: {reason}")
        print(f"layer {index}: {time.time() - started:.1f} s", flush=True)
    write_csv(out / "evictions.csv", HEADER, lines)
    if traces:
        (out / "decode").mkdir(exist_ok=True)
        for name, x in traces.items():
            np.save(out / "decode" / f"{in_files(name)}.npy", np.stack(x))
        write_csv(out / "decode.csv", DECODE_HEADER, decode_lines)


def write_trace(evictions, errors, policy, run, folder, lines, traces, decode_lines):
    index, name, style, sigma, phase, budget = run
    decoding = evictions.decode(policy, budget, phase == "append-only")
    trace_name = name if phase == "decode" else f"{name}~{phase}"
    traces[f"{trace_name}-{style}-{sigma}"].append(decoding.trace())
    for g, x in enumerate(decoding.trace()):
        decode_lines += [[index, g, trace_name, style, sigma, kind, repr(float(f(x)))] for kind, f in SUMMARIES.items()]
    np.save(folder / f"{in_files(name)}-{style}-{phase}-{budget}.npy", decoding.kept)
    lines += figure_lines(errors.decoding_figures(decoding), decoding.count, run)


def write_kept(evictions, errors, policy, run, folder, lines):
    _, name, style, _, phase, budget = run
    phase_name = in_files(phase)
    kept, _ = compute_kept(evictions, policy, phase_name, budget)
    np.save(folder / f"{in_files(name)}-{style}-{phase_name}-{budget}.npy", kept)
    lines += figure_lines(errors.figures(kept), kept.sum(axis=1), run)


def figure_lines(figures, count, run):
    """count [n_kv]; a layer's line has it where all heads agree."""
    index, name, style, sigma, phase, _ = run
    for (rows, metric, g), (value, _) in figures.items():
        if metric != "samples" and (metric != "bytes" or not rows):
            held = count[g] if g is not None else count[0] if (count == count[0]).all() else ""
            yield [index, "" if g is None else g, name, style, phase, sigma, held, rows, metric, repr(float(value))]


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


def run_of(line):
    return tuple(line[name] for name in ("policy", "semantics", "phase", "budget"))


def budget_of(text, l, semantics):
    value = float(text)
    return tokens_kept(value, l, semantics) if "." in text and value < 1 else int(value)


class LayerCheck:
    """Compares what a result folder holds of one layer."""

    def __init__(self, report, folder, dump, index, options, prompt_len):
        self.report, self.folder, self.index, self.options = report, folder, index, options
        self.layer = load_layer(dump, index, prompt_len)
        self.evictions = Evictions(self.layer, index)
        self.traces = {}
        width = ELEMENT_BYTES
        self.errors = Errors(self.layer, self.evictions, options.window or DEFAULT_WINDOW, width)

    def load_kept(self, path):
        """bool [n_kv, l], or None where there is no such file or it has another shape"""
        if not path.exists():
            return None
        kept = np.load(path).astype(bool)
        if kept.shape == (self.layer.n_kv, self.layer.l):
            return kept
        self.report.add("kept set shape", 1.0, 0.0, 0.0, f"{path}: {kept.shape}")
        return None

    def check_runs(self, lines, indices):
        """lines: those of this layer in evictions.csv. Returns {(run, rows, metric): (squared change, squared outputs)}"""
        by_run, model = defaultdict(list), {}
        for line in lines:
            by_run[run_of(line)].append(line)
        for run, some in by_run.items():
            policy, semantics, phase, budget = run
            budget = budget_of(budget, self.layer.l, semantics)
            phase_name = in_files(phase)
            path = self.folder / f"layer_{self.index:02d}" / "kept" / f"{in_files(policy)}-{semantics}-{phase_name}-{budget}.npy"
            kept, where = self.load_kept(path), f"layer {self.index} {path.stem}"
            if phase in ("decode", "append-only"):
                figures, count, near = self.check_decoding(run, budget, kept, indices, where)
            elif kept is None:
                self.report.skipped["runs without a kept set"] += 1
                continue
            else:
                self.check_set(run, phase_name, budget, kept, where)
                figures, count, near = self.errors.figures(kept), kept.sum(axis=1), np.zeros(self.layer.n_kv, bool)
            if figures:
                self.check_figures(some, phase.partition(":")[0], figures, count, near, where)
                for rows in self.errors.rows:
                    for metric in LAYER_ERRORS:
                        if (rows, metric, None) in figures and not near.any():
                            size = self.errors.size_of(rows, metric)
                            model[run, rows, metric] = figures[rows, metric, None][0] * size, size
                    if (rows, "samples", None) in figures and not near.any():
                        model[run, rows, "samples"] = figures[rows, "samples", None][0]
        return model

    def check_set(self, run, phase_name, budget, kept, where):
        try:
            want, near = compute_kept(self.evictions, Policy(run[0], run[1], self.options), phase_name, budget)
        except Unknown as reason:
            self.report.skipped[f"kept set: {reason}"] += 1
            return
        self.report.add_set(f"kept, {phase_name}, {run[1]}", kept, want, near, where)

    def check_decoding(self, run, budget, kept, indices, where):
        """(figures, count, near), or (None, None, None) where the policy is unknown"""
        policy, semantics, phase, label = run
        try:
            found = self.evictions.decode(Policy(policy, semantics, self.options), budget, phase == "append-only")
        except Unknown as reason:
            self.report.skipped[f"decoding: {reason}"] += 1
            return None, None, None
        if found.near.any():
            self.report.skipped["decoding heads where a cut was within rounding"] += int(found.near.sum())
        if kept is not None:
            near = np.repeat(found.near[:, None], self.layer.l, axis=1)
            self.report.add_set(f"kept, {phase}, {semantics}", kept, found.kept, near, where)
        name = policy if phase == "decode" else f"{policy}~{phase}"
        path = self.folder / "decode" / f"{in_files(name)}-{semantics}-{label}.npy"
        if path.exists():
            traces = np.load(path)
            got = traces[indices.index(self.index)]
            for g, line in enumerate(found.trace()):
                for step, value in enumerate(line) if not found.near[g] else ():
                    at = f"{where} KV head {g} step {step}"
                    self.report.add(f"{phase} step, {semantics}", got[g, step], *with_tolerance(value), at)
        else:
            self.report.skipped["decoding runs without a trace"] += 1
        self.traces[name, semantics, label] = found.trace(), found.near
        return self.errors.decoding_figures(found), found.count, found.near

    def check_figures(self, lines, phase, figures, count, near, where):
        for line in lines:
            g = int(line["kv_head"]) if line["kv_head"] else None
            if near.any() if g is None else near[g]:
                continue
            if not line["value"]:
                self.report.skipped[f"{line['metric']} without a value"] += 1
                continue
            level, metric = "layer" if g is None else "head", line["metric"]
            figure = figures.get((line["rows"], metric, g))
            if figure is None:
                self.report.skipped[f"{metric} of a {level}"] += 1
                continue
            kind = f"{metric} {level} {line['rows']}" if phase != "decode" else f"{metric} {level} {phase}"
            self.report.add(kind, float(line["value"]), *figure, f"{where} {line['kv_head']}")
            if g is not None:
                self.report.add("kept column", float(line["kept"]), float(count[g]), 0.0, where)

    def check_decode_lines(self, lines):
        """lines: those of this layer in decode.csv."""
        for line in lines:
            trace, near = self.traces.get((line["policy"], line["semantics"], line["budget"]), (None, None))
            if trace is None or not line["kv_head"] or line["metric"] not in SUMMARIES:
                self.report.skipped["lines of decode.csv"] += 1
            elif not near[int(line["kv_head"])]:
                want = SUMMARIES[line["metric"]](trace[int(line["kv_head"])])
                kind = f"decode.csv {line['metric']}"
                self.report.add(kind, float(line["value"]), *with_tolerance(want), f"layer {self.index} {line['policy']}")


def check_whole_model(report, lines, model):
    """Sums of the heads, their mean for oracle_recall; an error is the ratio of the sums over all layers, residual_error their mean."""
    values = defaultdict(list)
    lines = [line for line in lines if line["value"]]
    for line in lines:
        if line["layer"] and line["kv_head"]:
            values[run_of(line), line["rows"], line["metric"]].append(float(line["value"]))
    for line in lines:
        if line["layer"]:
            continue
        key, metric = (run_of(line), line["rows"]), line["metric"]
        parts = values.get((*key, metric))
        if metric in LAYER_ERRORS and len(model.get((*key, metric), ())) == report.layers:
            want, tolerance = with_tolerance(np.divide(*np.sum(model[*key, metric], axis=0)))
        elif metric in LOSSES_TOGETHER and len(model.get((*key, "samples"), ())) == report.layers:
            want, tolerance = close_to(losses_together(model[*key, "samples"])[metric])
        elif metric in (*LOSSES_OF_HEADS, "bytes", "eviction_loss", "optimality_gap", "oracle_recall") and parts:
            want = np.mean(parts) if metric == "oracle_recall" else sum(parts)
            tolerance = 1e-9 * abs(want) + 1e-15
        else:
            report.skipped[f"{metric} of the whole model"] += 1
            continue
        report.add(f"{metric} model", float(line["value"]), want, tolerance, str(key))


def check_result(folder, dump, indices, options, prompt_len):
    report = Report(options.near / Options.near)
    lines, decode_lines = read_lines(folder / "evictions.csv"), read_lines(folder / "decode.csv")
    model = defaultdict(list)
    in_run = sorted({int(line["layer"]) for line in lines if line["layer"]})
    report.layers = len(in_run)
    for index in [i for i in indices if i in in_run]:
        started = time.time()
        check = LayerCheck(report, folder, dump, index, options, prompt_len)
        for key, sums in check.check_runs([line for line in lines if line["layer"] == str(index)], in_run).items():
            model[key].append(sums)
        check.check_decode_lines([line for line in decode_lines if line["layer"] == str(index)])
        print(f"layer {index}: {time.time() - started:.1f} s", flush=True)
    check_whole_model(report, lines, model)
    return report.print()


# ---------------------------------------------------------------- the command line


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
    options = Options(args.window, args.recent, args.sinks, args.pool, args.decode_window, user_scores=scores, near=args.tolerance)
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
