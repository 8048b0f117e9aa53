#!/usr/bin/env python3
"""Measures what every lever on a KV cache costs a model at equal bytes: eviction, pages, retrieval, formats, budgets, channels.

  levers.py --program KVREPLAY --work DIR --model NAME=FILE ... [--prompt NAME ...] [--out DIR]
  levers.py --write [DIR]       puts the tables of DIR/levers.csv (default: beside this script) into LEVERS.md, and draws levers.svg

It is papers.py with other runs: of every model it captures six prompts with gradients, compresses all of them in every way, and
feeds the model each case (kvvalidate.py). --out gathers DIR/<model>/levers/cases.csv as levers.csv. What is there is not done again;
--again NAME does one of the runs again. The picture needs Matplotlib.
"""
from __future__ import annotations

import argparse
import json
import sys
from itertools import combinations
from pathlib import Path

import numpy as np

from analysis import fill, table, with_interval
from intervals import FEWEST, interval, share_interval
from orders import CLEAR
from papers import Study, measure, rows_of_model
from prompts import PROMPTS
from study import HERE, STEPS, common_options, label_panel, read, save_panels, shorter, write_csv

CHOSEN = ("dialogue", "german", "code", "list", "email", "cpp")
KEEP = ("--keep", "50%,25%,12.5%")
EVICTS = ("streaming", "keydiff", "score:lagkv", "score:cur", "expected_attention", "h2o", "tova", "snapkv+joint", "defensive",
          "criticalkv", "score:qfilter", "rkv", "triattention", "oracle_exact")
PAGED = ("snapkv[page=16]", "snapkv[page=16,page_heads=layer]", "snapkv[page=64]", "snapkv[chunk=sentence]")
BITS = "8,q8_0,fp8,k8v4,k4v8,4,q4_0,nvfp4,k4v2,2"
# What retrieval reads to choose by is inside its bytes: it reads fewer tokens.
RUNS = {
    "ruler": ("evict", "--keep", "80%,65%,50%,35%,25%,18%,12.5%,6%", "--policy", "snapkv"),
    "evict": ("evict", *KEEP, "--policy", ",".join(EVICTS)),
    "pages": ("evict", *KEEP, "--policy", ",".join(PAGED)),
    "ada": ("budget", *KEEP, "--order", "snapkv", "--method", "ada,lu", "--profile", "leave-one-out"),
    "decode": ("evict", "--keep", "25%", "--phase", "decode:32", "--policy", "snapkv,rkv,triattention"),
    "read": ("evict", *KEEP, "--policy", "top_k"),
    "quest": ("evict", "--keep", "44%,19%,6.25%", "--policy", "quest,quest[dense=2]"),
    "labels": ("evict", "--keep", "37.5%,12.5%", "--policy", "sparq,double_sparsity"),
    "formats": ("evict", "--policy", "none", "--residual", "0", "--bits", BITS, "--rotate", "none,hadamard"),
    "codebooks": ("evict", "--policy", "none", "--residual", "0", "--bits", "tq4,tq2"),  # which turn by themselves
    "per_token": ("evict", "--policy", "none", "--residual", "0", "--bits", "4", "--keys", "token"),
    "both": ("evict", "--keep", "80%,40%,20%", "--policy", "snapkv", "--residual", "0", "--bits", "q4_0", "--rotate", "hadamard"),
    "channels": ("channels", "--method", "think,iap", "--ratio", "0.5"),
}
# --short: two thirds of these cases.
SHORT = RUNS | {
    "ruler": ("evict", "--keep", "80%,50%,35%,25%,12.5%,6%", "--policy", "snapkv"),
    "evict": ("evict", *KEEP, "--policy", "streaming,keydiff,score:lagkv,h2o,snapkv+joint,criticalkv,rkv,oracle_exact"),
    "pages": ("evict", *KEEP, "--policy", ",".join(PAGED[:2])),
    "decode": ("evict", "--keep", "25%", "--phase", "decode:32", "--policy", "snapkv,rkv"),
    "quest": ("evict", "--keep", "44%,19%,6.25%", "--policy", "quest"),
    "formats": ("evict", "--policy", "none", "--residual", "0", "--bits", "8,k8v4,4,q4_0,2", "--rotate", "none,hadamard"),
}
RULER = ("ruler", "snapkv")
FIGURES = {"output_error": "output error", "loss_step": "predicted nats"}
COLUMNS = ("model", "prompt", "run", "policy", "budget", "share", *FIGURES, "true_kl", "true_same_top1")
TRUE = {"kl": "true_kl", "same_top1": "true_same_top1"}
# What knows the decoding steps or reads every weight first: a bound, no method.
REFERENCES = ("oracle_exact", "top_k", "snapkv~lu")
LEVELS = {"half the bytes": (0.37, 0.71), "a quarter": (0.19, 0.37), "an eighth": (0, 0.19)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common_options(parser)
    parser.add_argument("--again", action="append", default=[], choices=[*RUNS], metavar="RUN", help="does a run again")
    parser.add_argument("--short", action="store_true", help="two thirds of the cases")
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help=f"decoding steps of a prompt (default {STEPS})")
    parser.add_argument("--write", nargs="?", type=Path, const=HERE, metavar="DIR")
    args = parser.parse_args()
    if args.write:
        rows = read(args.write / "levers.csv")
        page = HERE / "LEVERS.md"
        page.write_text(fill(page.read_text(encoding="utf-8"), tables(rows)), encoding="utf-8")
        draw(rows, HERE / "levers.svg")
        return 0
    chosen = [prompt for prompt in PROMPTS if prompt.name in (args.prompt or CHOSEN)]
    if len(chosen) < FEWEST:
        parser.error(f"--prompt: expected {FEWEST} at least, an interval is over them, found {len(chosen)}")
    for model, file in (text.split("=", 1) for text in args.model):
        measure(args, model, Path(file), chosen, LEVERS._replace(
            runs=SHORT if args.short else RUNS, captured=(*LEVERS.captured, "--decode", args.steps)))
    rows = [row for path in sorted(args.work.glob("*/levers/cases.csv")) for row in read(path)]
    (args.out or args.work).mkdir(parents=True, exist_ok=True)
    write_csv((args.out or args.work) / "levers.csv", COLUMNS, rows)
    return 0


def cases_of(model, prompt, run, results, dump):
    """A row a case of one prompt's results. share: of the bytes that its prompt takes in 16 bits."""
    numbers, size = numbers_of(dump)
    found = {}
    for key, row in rows_of_model(results):
        figures = found.setdefault(key, {})
        if "metric" not in row:
            figures.update({figure: row[figure] for figure in FIGURES}, share=1 - float(row["sigma"]))
            continue
        if row["metric"] in FIGURES and row["rows"] == "future":
            figures[row["metric"]] = row["value"]
        if row["metric"] in ("bytes", "bytes_read") and (row["metric"] == "bytes_read" or "share" not in figures):
            figures["share"] = float(row["value"]) / (numbers * (2 if "--bits" in RUNS[run] else size))
    for row in read(results / "validate.csv"):
        if row["metric"] in TRUE:
            found[row["policy"], row["budget"]][TRUE[row["metric"]]] = row["value"]
    return [{"model": model, "prompt": prompt.name, "run": run, "policy": policy, "budget": budget,
             **{name: shorter(value) for name, value in figures.items()}}
            for (policy, budget), figures in found.items() if "true_kl" in figures]


def numbers_of(dump):
    """How many numbers the prompt's keys and values have, and the bytes of one."""
    length = json.loads((dump / "manifest.json").read_text())["prompt_len"]
    numbers = 0
    for path in dump.glob("layer_*/[kv].npy"):
        array = np.load(path, mmap_mode="r")
        numbers += array.shape[0] * length * array.shape[2]
    return numbers, array.dtype.itemsize


LEVERS = Study("levers", RUNS, COLUMNS, cases_of, ("--gradients", 8, "--rows", "future"))


class Cases:
    """KL by model, prompt and case; and what snapkv costs at any share of the bytes, between those where it was measured."""

    def __init__(self, rows):
        self.prompts, self.cases, self.at = {}, {}, {}
        ruler = {}
        for row in rows:
            model, prompt, case = row["model"], row["prompt"], (row["run"], row["policy"], row["budget"])
            self.prompts.setdefault(model, {})[prompt] = None
            self.at[model, prompt, case] = {name: float(row[name] or "nan") for name in ("share", "true_kl", *FIGURES)}
            self.cases.setdefault(case, []).append(float(row["share"]))
            if case[:2] == RULER:
                ruler.setdefault((model, prompt), []).append((np.log(float(row["share"])), np.log(float(row["true_kl"]))))
        self.prompts = dict(sorted(self.prompts.items(), key=lambda item: -sum(key[0] == item[0] for key in self.at)))  # the fullest first
        self.ruler = {key: np.array(sorted(points)).T for key, points in ruler.items()}

    def log_ratio(self, model, prompt, case):
        """Of a case's KL to that of snapkv with as many bytes."""
        found = self.at[model, prompt, case]
        shares, kl = self.ruler[model, prompt]
        return np.log(max(found["true_kl"], 1e-12)) - np.interp(np.log(found["share"]), shares, kl)

    def logs(self, model, case):
        return [self.log_ratio(model, prompt, case) for prompt in self.prompts[model] if (model, prompt, case) in self.at]

    def mean(self, model, case, figure):
        """The geometric mean over prompts."""
        values = [self.at[model, prompt, case][figure] for prompt in self.prompts[model] if (model, prompt, case) in self.at]
        return float(np.exp(np.mean(np.log(np.maximum(values, 1e-12))))) if values else np.nan

    def share(self, case):
        return float(np.mean(self.cases[case]))


SAID = {"decode": " while decoding", "both": " in `q4_0`, turned", "read": ", read", "quest": ", read", "labels": ", read"}


def named(case):
    run, policy, _ = case
    if run == "per_token":
        return "`4`, keys per token"
    return f"`{policy.removeprefix('none~')}`" + (" (reference)" if policy in REFERENCES else "") + SAID.get(run, "")


def tables(rows):
    """By name: a level of bytes each, and what the figures of a replay say of levers of different kinds."""
    cases = Cases(rows)
    found = {}
    for name, (low, high) in LEVELS.items():
        lines = []
        for case in cases.cases:
            share = cases.share(case)
            if not low <= share < high or (case[:2] == RULER and f"{share:.3f}" not in ("0.500", "0.250", "0.125")):
                continue
            logs = {model: cases.logs(model, case) for model in cases.prompts}
            lines.append((np.mean([np.mean(of) for of in logs.values() if of]), [
                named(case), f"{100 * share:.0f} %",
                *(f"{cases.mean(model, case, 'true_kl'):.2g}, {with_interval(np.exp(interval(of)))}" if of else ""
                  for model, of in logs.items())]))
        header = [f"{model}: nats, times `snapkv`" for model in cases.prompts]
        found[f"levers {name}"] = table(["lever", "bytes", *header], [line for _, line in sorted(lines, key=lambda line: line[0])])
    found["levers figures"] = figures_table(cases)
    return found


def kind_of(case):
    run = case[0]
    return {"formats": "formats", "codebooks": "formats", "per_token": "formats", "both": "both", "read": "retrieval", "quest": "retrieval",
            "labels": "retrieval", "channels": "channels"}.get(run, "eviction")


def figures_table(cases):
    """Of the pairs at a level of bytes that are clearly apart in true KL, those that a figure puts in the right order."""
    lines = []
    for alike in (True, False):
        for model, prompts in cases.prompts.items():
            right = {figure: [] for figure in FIGURES}
            for prompt in prompts:
                count = {figure: [0, 0] for figure in FIGURES}
                for low, high in LEVELS.values():
                    at = [case for case in cases.cases if low <= cases.share(case) < high and (model, prompt, case) in cases.at]
                    for one, other in combinations(at, 2):
                        a, b = cases.at[model, prompt, one], cases.at[model, prompt, other]
                        if (kind_of(one) == kind_of(other)) != alike or max(a["true_kl"], b["true_kl"]) < CLEAR * min(a["true_kl"], b["true_kl"]):
                            continue
                        for figure in FIGURES:
                            if np.isfinite(a[figure]) and np.isfinite(b[figure]):
                                count[figure][0] += (a[figure] - b[figure]) * (a["true_kl"] - b["true_kl"]) > 0
                                count[figure][1] += 1
                for figure in FIGURES:
                    right[figure].append(count[figure])
            lines.append([model, "of one kind" if alike else "of two kinds",
                          *(with_interval(share_interval(found), 100, 0) + " %" for found in right.values())])
    return table(["model", "pairs", *(f"{said}: in the right order" for said in FIGURES.values())], lines)


# The picture: a line a lever, from the most bytes to the fewest. (label, colour, dashed, cases as (run, policies))
LINES = (
    ("snapkv", "#1f77b4", False, [("ruler", ("snapkv",))]),
    ("h2o", "#17becf", False, [("evict", ("h2o",))]),
    ("snapkv, pages of 16 for all heads", "#9467bd", False, [("pages", ("snapkv[page=16,page_heads=layer]",))]),
    ("oracle_exact (evicts)", "#7f7f7f", True, [("evict", ("oracle_exact",))]),
    ("quest (reads)", "#8c564b", False, [("quest", ("quest",))]),
    ("double_sparsity (reads)", "#e377c2", False, [("labels", ("double_sparsity",))]),
    ("top_k (reads)", "#bcbd22", True, [("read", ("top_k",))]),
    ("bits 8, 4, 2 as they are", "#ff7f0e", False, [("formats", ("none~8", "none~4", "none~2"))]),
    ("bits 8, 4, 2 turned", "#d62728", False, [("formats", ("none~8+hadamard", "none~4+hadamard", "none~2+hadamard"))]),
    ("tq4, tq2", "#2ca02c", False, [("codebooks", ("none~tq4", "none~tq2"))]),
    ("snapkv in q4_0, turned", "#000000", False, [("both", ("snapkv",))]),
)


def draw(rows, path) -> None:
    import matplotlib
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "levers", "font.size": 9, "svg.fonttype": "none"})
    from matplotlib import pyplot
    cases = Cases(rows)
    figure, panels = pyplot.subplots(1, len(cases.prompts), figsize=(4 * len(cases.prompts), 4.6), sharey=True, squeeze=False)
    for panel, (model, prompts) in zip(panels[0], cases.prompts.items()):
        for label, colour, dashed, parts in LINES:
            points = sorted((cases.share(case), cases.mean(model, case, "true_kl")) for run, policies in parts
                            for case in cases.cases if case[0] == run and case[1] in policies and cases.logs(model, case))
            if points:
                panel.plot(*zip(*points), "--" if dashed else "-", color=colour, marker="o", markersize=3, linewidth=1.3, label=label)
        label_panel(panel, model, len(prompts), {0.0625: "1/16", 0.125: "1/8", 0.25: "1/4", 0.5: "1/2", 1: "1"})
    save_panels(figure, panels, path, 4, 0.13)


if __name__ == "__main__":
    sys.exit(main())
