#!/usr/bin/env python3
"""Measures what compensation saves of the loss that evictions cost a model, prompt by prompt.

  compensation.py --program KVREPLAY --work DIR --model NAME=FILE ... [--prompt NAME ...] [--out DIR]
  compensation.py --tables [DIR]      prints the tables of DIR/compensation.csv (default: beside this script)
  compensation.py --write             puts those beside this script into analysis/eviction/COMPENSATED.md

Of every model and prompt it captures a dump, evicts, compensates and puts the model in the loop, and keeps one row a
case in DIR/<model>/<prompt>/compensation/cases.csv; what has that file is not done again. --out gathers them as
compensation.csv. A dump is removed when its prompt is done.
"""
from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

import numpy as np

from analysis import fill, table, times
from prompts import PROMPTS
from study import HERE, TRUE, Steps, common_options, read, shorter, write_csv

SIGMAS = ("0.5", "0.8", "0.9")
POLICIES = ("streaming", "h2o", "snapkv", "greedy_exact", "greedy_leverage")
OTHERS = ("mass", "values", "mean", "cam", "d2o", "kvmerger", "keepkv", "merging_press")
# What is fitted for every policy, and what else there is for one of them.
RUNS = {"fit": (POLICIES, ("none", "fit")), "others": (("snapkv",), OTHERS)}
COLUMNS = ("model", "prompt", "tokens", "policy", "budget", "method", "output_error", *(f"true_{name}" for name in TRUE))
# A policy and method over another: what the tables compare.
PAIRS = (*((f"{policy}~fit", policy) for policy in POLICIES),
         *((f"snapkv~{method}", "snapkv") for method in OTHERS),
         ("streaming~fit", "snapkv"), ("greedy_leverage", "snapkv"), ("greedy_leverage~fit", "snapkv"),
         ("greedy_leverage~fit", "snapkv~fit"), ("greedy_leverage~fit", "greedy_exact~fit"), ("greedy_leverage~fit", "h2o"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common_options(parser)
    parser.add_argument("--tables", nargs="?", type=Path, const=HERE, metavar="DIR")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    if args.write:
        page = HERE.parents[1] / "analysis" / "eviction" / "COMPENSATED.md"
        found = {"study": tables(read(HERE / "compensation.csv"))}
        page.write_text(fill(page.read_text(encoding="utf-8"), found), encoding="utf-8")
        return 0
    if args.tables:
        print(tables(read(args.tables / "compensation.csv")))
        return 0
    for model, file in (text.split("=", 1) for text in args.model):
        for prompt in PROMPTS:
            if not args.prompt or prompt.name in args.prompt:
                measure(args, model, Path(file), prompt)
    rows = [row for path in sorted(args.work.glob("*/*/compensation/cases.csv")) for row in read(path)]
    write_csv((args.out or args.work) / "compensation.csv", COLUMNS, rows)
    print(tables(rows))
    return 0


def measure(args, model, file, prompt) -> None:
    """One prompt of one model, unless it is there."""
    folder = args.work / model / prompt.name / "compensation"
    if (folder / "cases.csv").exists():
        return
    run = Steps(args, folder)
    dump = folder / "dump"
    run.capture(model, file, prompt, dump)
    cases = []
    for name, (policies, methods) in RUNS.items():
        results = folder / name
        run(f"evict_{name}", args.program, "evict", dump, "--out", results, "--policy", ",".join(policies), "--force",
            "--quiet", "--sigma", ",".join(SIGMAS), "--compensate", ",".join(methods), "--threads", args.threads)
        run.validate(file, dump, results, step=f"validate_{name}")
        cases += cases_of(model, prompt, results)
    write_csv(folder / "cases.csv", COLUMNS, cases)
    shutil.rmtree(dump)


def cases_of(model, prompt, results):
    """What was replayed of the whole model on the decoding steps, and what was true of it."""
    cases = {}
    for row in read(results / "compensation.csv"):
        if row["metric"] == "output_error" and row["rows"] == "future" and not row["layer"]:
            cases[row["policy"], row["budget"], row["method"]] = {"output_error": shorter(row["value"])}
    for row in read(results / "validate.csv"):
        policy, _, method = row["policy"].partition("~")
        case = cases.get((policy, row["budget"], method or "none"))
        if case is not None and row["metric"] in TRUE:
            case[f"true_{row['metric']}"] = shorter(row["value"])
    return [{"model": model, "prompt": prompt.name, "tokens": prompt.tokens, "policy": policy, "budget": budget,
             "method": method, **figures} for (policy, budget, method), figures in cases.items()]


def tables(rows) -> str:
    """Means of the true KL and of the output error, and how many times one way loses what another does."""
    at = {}
    for row in rows:
        name = row["policy"] if row["method"] == "none" else f"{row['policy']}~{row['method']}"
        at.setdefault(row["model"], {}).setdefault((name, row["budget"]), {})[row["prompt"]] = row
    parts = []
    for model, cases in at.items():
        names = list(dict.fromkeys(name for name, _ in cases))
        of_prompts = {prompt for some in cases.values() for prompt in some}
        means = []
        for name in names:
            cells = [f"{geometric(cases[name, b], 'true_kl'):.4f} ({geometric(cases[name, b], 'output_error'):.4f})"
                     for b in SIGMAS]
            means.append([f"`{name}`", *cells])
        parts.append(f"{model}, {len(of_prompts)} prompts: true KL in nats a token (output error), geometric means\n\n"
                     + table(["", *(f"{b} evicted" for b in SIGMAS)], means))
        ratios = []
        for of, over in PAIRS:
            cells = []
            for b in SIGMAS:
                logs = [np.log(float(cases[of, b][p]["true_kl"]) / float(cases[over, b][p]["true_kl"])) for p in cases[over, b]]
                cells.append(times(logs))
            ratios.append([f"`{of}` over `{over}`", *cells])
        parts.append(table([f"{model}: true KL of", *(f"{b} evicted" for b in SIGMAS)], ratios))
    return "\n\n".join(parts)


def geometric(rows, name):
    return float(np.exp(np.mean([np.log(float(row[name])) for row in rows.values()])))


if __name__ == "__main__":
    sys.exit(main())
