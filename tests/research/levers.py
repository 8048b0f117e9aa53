#!/usr/bin/env python3
"""Measures what evicting, storing in fewer bits and reading less cost a model at equal bytes: true KL of paired prompts.

  levers.py --program KVREPLAY --work DIR --model NAME=FILE ... [--prompt NAME ...] [--out DIR]
  levers.py --tables [DIR]      prints the tables of DIR/levers.csv (default: beside this script)
  levers.py --write             puts those beside this script into LEVERS.md, and draws levers.svg

Of every model it captures six prompts with gradients, asks for every lever over all of them at once, and feeds the model
each case (kvvalidate.py). --out gathers DIR/<model>/levers/cases.csv as levers.csv. What is there is not done again;
--again NAME does one of the runs again. Pictures need Matplotlib.
"""
from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

from analysis import fill, table, with_interval
from orders import interval
from papers import measure
from prompts import PROMPTS
from study import HERE, SAMPLES, common_options, read, shorter, write_csv

SIX = ("dialogue", "german", "code", "story", "email", "cpp")
KEPT = ("--keep", "50%,25%,12.5%")
FORMATS = "8,4,3,2,k8v4,k4v2,q8_0,q4_0,fp8,int8_per_token_head,nvfp4,mxfp4,tq4,tq3,tq2"

# A command each, over all prompts.
RUNS = {
    "evict": ("evict", *KEPT, "--policy", "streaming,h2o,tova,snapkv,snapkv+joint,keydiff,expected_attention,rkv,triattention,"
              "snapkv[page=16],oracle_exact"),
    "formats": ("evict", "--policy", "none", "--bits", FORMATS, "--rotate", "none,hadamard", "--residual", "0"),
    "keys_by_token": ("evict", "--policy", "none", "--bits", "4,2,k4v2", "--rotate", "none,hadamard", "--keys", "token",
                      "--residual", "0"),
    "both": ("evict", "--keep", "50%,25%", "--policy", "snapkv", "--bits", "8,4,q8_0", "--residual", "0"),
}
COLUMNS = ("model", "prompt", "run", "lever", "setting", "bytes", "output_error", "loss_step", "true_kl", "true_dnll", "true_same_top1")
MEASURED = {"output_error": "output_error", "loss_step": "loss_step"}
TRUE = {"kl": "true_kl", "dnll": "true_dnll", "same_top1": "true_same_top1"}
SHARES = (("half the bytes", 0.40, 0.56), ("a quarter", 0.22, 0.33), ("an eighth", 0.10, 0.17))
BASE = "snapkv"
KINDS = {"evict": "evicted", "formats": "in fewer bits", "keys_by_token": "in fewer bits, keys by token", "both": "both"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common_options(parser)
    parser.add_argument("--again", action="append", default=[], choices=[*RUNS], metavar="RUN", help="does a run again")
    parser.add_argument("--tables", nargs="?", type=Path, const=HERE, metavar="DIR")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    if args.write or args.tables:
        rows = read((HERE if args.write else args.tables) / "levers.csv")
        found = tables(rows)
        if args.write:
            page = HERE / "LEVERS.md"
            page.write_text(fill(page.read_text(encoding="utf-8"), found), encoding="utf-8")
            draw(rows, HERE / "levers.svg")
            return 0
        for name, text in found.items():
            print(f"## {name}\n\n{text}\n")
        return 0
    prompts = [prompt for prompt in PROMPTS if prompt.name in (args.prompt or SIX)]
    if len(prompts) < 3:
        parser.error(f"--prompt: expected three at least, an interval is over them, found {len(prompts)}")
    for model, file in (text.split("=", 1) for text in args.model):
        measure(args, model, Path(file), prompts, RUNS, "levers", COLUMNS, cases_of,
                "--gradients", SAMPLES, "--rows", "future")
    rows = [row for path in sorted(args.work.glob("*/levers/cases.csv")) for row in read(path)]
    write_csv((args.out or args.work) / "levers.csv", COLUMNS, rows)
    return 0


def cases_of(model, prompt, run, results):
    """A row a case of one prompt's results. Bytes are shares of the prompt's cache in 16 bits."""
    dump = json.loads((results / "summary.json").read_text())["dump"]
    whole = 2.0 * dump["layers"] * dump["n_kv"] * dump["l"] * (dump["d"] + dump.get("d_v", dump["d"]))
    cases = {}
    for row in read(results / "evictions.csv"):
        if row["layer"] or row["kv_head"]:
            continue
        case = cases.setdefault((row["policy"], row["budget"]), {})
        if row["metric"] == "bytes":
            case["bytes"] = shorter(row["kept_share"] if run == "evict" else str(float(row["value"]) / whole))
        elif row["metric"] in MEASURED and row["rows"] == "future":
            case[MEASURED[row["metric"]]] = shorter(row["value"])
    for row in read(results / "validate.csv"):
        if row["metric"] in TRUE:
            cases[row["policy"], row["budget"]][TRUE[row["metric"]]] = shorter(row["value"])
    return [{"model": model, "prompt": prompt.name, "run": run, "lever": lever_of(policy, run), "setting": budget, **case}
            for (policy, budget), case in cases.items() if "true_kl" in case]


def lever_of(policy, run):
    """A line of the picture: what is alike but for how much of it."""
    base, _, stored = policy.partition("~")
    if run == "keys_by_token":
        stored += ", keys by token"
    return base if not stored else stored if base == "none" else f"{base}, {stored}"


def tables(rows):
    """By name: for every share of the bytes, what each lever costs, and how many times SnapKV's."""
    by = {}
    for row in rows:
        by.setdefault((row["model"], row["lever"], row["setting"]), {})[row["prompt"]] = row
    models = list(dict.fromkeys(row["model"] for row in rows))
    found = {}
    for name, low, high in SHARES:
        lines = {}
        for model in models:
            here = {key[1:]: prompts for key, prompts in by.items() if key[0] == model and low <= mean(prompts, "bytes") <= high}
            base = next((prompts for (lever, _), prompts in here.items() if lever == BASE), {})
            for (lever, setting), prompts in here.items():
                logs = [np.log(float(row["true_kl"]) / float(base[prompt]["true_kl"])) for prompt, row in prompts.items()
                        if prompt in base and float(row["true_kl"]) > 0]
                cells = lines.setdefault((lever, setting), {})
                cells[model] = (f"{geometric(prompts, 'true_kl'):.3g}", ratio(logs, lever), f"{geometric(prompts, 'loss_step'):.2g}",
                                f"{geometric(prompts, 'output_error'):.2g}", mean(prompts, "bytes"))
        order = sorted(lines.items(), key=lambda line: np.mean([float(cell[0]) for cell in line[1].values()]))
        header = ["lever", "bytes", *(f"{model}: {what}" for model in models
                                      for what in ("true KL", f"times `{BASE}`", "predicted nats", "output error"))]
        found[f"levers {name}"] = table(header, [
            [f"`{lever}`", f"{100 * np.mean([cell[4] for cell in cells.values()]):.1f} %",
             *(text for model in models for text in cells.get(model, ("",) * 5)[:4])] for (lever, _), cells in order])
    return found


def ratio(logs, lever):
    return "1" if lever == BASE else with_interval(np.exp(interval(logs))) if len(logs) > 2 else ""


def mean(prompts, name):
    return float(np.mean([float(row[name]) for row in prompts.values()]))


def geometric(prompts, name):
    values = [float(row[name]) for row in prompts.values() if row[name] and float(row[name]) > 0]
    return float(np.exp(np.mean(np.log(values)))) if values else float("nan")


def draw(rows, path) -> None:
    """True KL by bytes, a line a lever, a panel a model."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "levers", "font.size": 8})
    models = list(dict.fromkeys(row["model"] for row in rows))
    figure, panels = plt.subplots(1, len(models), figsize=(4.6 * len(models), 4.6), sharey=True, squeeze=False)
    for panel, model in zip(panels[0], models):
        levers = {}
        for row in rows:
            if row["model"] == model:
                levers.setdefault((row["run"], row["lever"]), {}).setdefault(row["setting"], {})[row["prompt"]] = row
        for (run, lever), settings in levers.items():
            points = sorted((mean(prompts, "bytes"), geometric(prompts, "true_kl")) for prompts in settings.values())
            x, y = zip(*points)
            style = {"evict": "o-", "both": "s--"}.get(run, "x")
            panel.plot(x, y, style, linewidth=1, markersize=4, color=colour(lever, run))
            panel.annotate(lever, points[0], xytext=(3, 2), textcoords="offset points", fontsize=5.5, color=colour(lever, run))
        panel.set(xscale="log", yscale="log", title=model, xlabel="bytes of the prompt's cache, of 16 bits a number")
        panel.set_xticks([0.125, 0.25, 0.5], ["12.5 %", "25 %", "50 %"])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    panels[0][0].set_ylabel("true KL, nats a token (geometric mean of the prompts)")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def colour(lever, run):
    if run == "evict":
        return {"oracle_exact": "#888888", BASE: "#0072b2"}.get(lever, "#56b4e9")
    if run == "both":
        return "#009e73"
    return "#cc3311" if "~" in lever or "hadamard" in lever else "#e69f00"


if __name__ == "__main__":
    sys.exit(main())
