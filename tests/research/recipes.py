#!/usr/bin/env python3
"""Measures what recipes of `kvreplay recommend` cost a model on prompts that they were not chosen on.

  recipes.py --program KVREPLAY --work DIR --model NAME=FILE ... [--prompt NAME ...] [--out DIR]
  recipes.py --answers --program KVREPLAY --work DIR --model NAME=FILE ... [--task NAME ...] [--samples N] [--out DIR]
  recipes.py --write [DIR]      puts the tables of DIR/recipes.csv (default: beside this script) into RECIPES.md, and draws recipes.svg

Of every model it captures prompts with gradients, measures every lever and combination on each (evict), and recommends recipes within
50, 20 and 10 % of the bytes without each prompt in turn; all that are listed are run on that prompt at once (evict --recipe), and the
model is fed it (kvvalidate.py). --out gathers DIR/<model>/recipes/cases.csv as recipes.csv. With --answers the prompts are
questions that the model answers rightly, each compressed by what the others choose, with the question behind what is cut (agnostic) and
within it (aware); does it still answer? recipe_answers.csv. What is there is not done again.
The picture needs Matplotlib.
"""
from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from analysis import fill, significant, table, times, with_interval
from answer_record import PROTOCOLS
from intervals import FEWEST, interval
from prompts import PROMPTS
from study import HERE, STEPS, Steps, common_options, label_panel, read, save_panels, shorter, write_csv

CHOSEN = ("dialogue", "german", "code", "story", "shell", "list", "email", "cpp", "artistic")
LEVERS = ("--policy", "none,snapkv,h2o", "--keep", "80%,65%,50%,35%,25%,18%,12.5%,8%", "--bits", "16,8,k8v4,4,k4v2,2",
          "--rotate", "none,hadamard", "--residual", "0")
BYTES = ("50", "20", "10")
WAYS = {"both-each": "tokens and bits, each head its own", "tokens-each": "tokens alone, each head its own",
        "bits-each": "bits alone, each layer its own", "both-everywhere": "tokens and bits, the same everywhere",
        "tokens-everywhere": "tokens alone, the same everywhere", "bits-everywhere": "bits alone, the same everywhere"}
JOINT, SINGLE, EACH = "both-each", ("tokens-everywhere", "bits-everywhere"), ("tokens-each", "bits-each")
# summed: what the heads cost one by one, as recommend has it; together: all at once (loss_step)
FIGURES = ("share", "promised", "summed", "together", "output_error", "true_kl", "true_same_top1")
COLUMNS = ("model", "prompt", "way", "within", *FIGURES)
TASKS = ("niah_multikey_1", "niah_multivalue", "vt")
ANSWER_COLUMNS = ("model", "task", "sample", "protocol", "way", "within", "right", "true_kl")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common_options(parser)
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help=f"decoding steps of a prompt (default {STEPS})")
    parser.add_argument("--answers", action="store_true", help="asks questions")
    parser.add_argument("--task", nargs="+", default=TASKS, metavar="NAME", help=f"of --answers (default {' '.join(TASKS)})")
    parser.add_argument("--samples", type=int, default=5, metavar="N", help="of each task (default 5)")
    parser.add_argument("--length", type=int, default=2048, metavar="N", help="tokens of a question's prompt (default 2048)")
    parser.add_argument("--write", nargs="?", type=Path, const=HERE, metavar="DIR")
    args = parser.parse_args()
    if args.write:
        page = HERE / "RECIPES.md"
        rows = read(args.write / "recipes.csv")
        found = {**tables(rows), "recipes answers": answers_table(read(args.write / "recipe_answers.csv"))}
        page.write_text(fill(page.read_text(encoding="utf-8"), found), encoding="utf-8")
        draw(rows, HERE / "recipes.svg")
        return 0
    models = [(model, Path(file)) for model, file in (text.split("=", 1) for text in args.model)]
    if args.answers:
        for model, file in models:
            ask(args, model, file)
        gather(args, "recipe_answers", ANSWER_COLUMNS, "recipe_answers/answers.csv")
        return 0
    chosen = [prompt for prompt in PROMPTS if prompt.name in (args.prompt or CHOSEN)]
    if len(chosen) < FEWEST:
        parser.error(f"--prompt: expected {FEWEST} at least, an interval is over them, found {len(chosen)}")
    for model, file in models:
        measure(args, model, file, chosen)
    gather(args, "recipes", COLUMNS, "recipes/cases.csv")
    return 0


def gather(args, name, columns, part) -> None:
    rows = [row for path in sorted(args.work.glob(f"*/{part}")) for row in read(path)]
    (args.out or args.work).mkdir(parents=True, exist_ok=True)
    write_csv((args.out or args.work) / f"{name}.csv", columns, rows)


def measure(args, model, file, prompts) -> None:
    folder = args.work / model / "recipes"
    dumps = [folder / "dumps" / prompt.name for prompt in prompts]
    for prompt, dump in zip(prompts, dumps):
        Steps(args, folder / prompt.name).capture(model, file, prompt, dump, "--gradients", 24, "--rows", "future", "--decode", args.steps)
    leave_out_each(args, folder, file, dumps)
    summed = summed_of(args.program, folder / "levers")
    write_csv(folder / "cases.csv", COLUMNS, [row for prompt in prompts for row in cases_of(model, prompt.name, folder, summed)])


def ask(args, model, file) -> None:
    folder = args.work / model / "recipe_answers"
    dumps = folder / "dumps"
    Steps(args, folder)("capture", "kvcapture.py", "--model" if file.is_dir() else "--gguf", file, "--name", model, "--task", ",".join(args.task),
                        "--samples", args.samples, "--length", args.length, "--gradients", 16, "--rows", "future", "--out", dumps, "--resume")
    asked = [(row["task"], int(row["sample"])) for row in read(dumps / "tasks.csv") if row["right"] == "1"]
    rows = []
    for protocol, ends in PROTOCOLS.items():
        leave_out_each(args, folder / protocol, file, [dumps / f"{task}-{sample:02}" for task, sample in asked], ends)
        for task, sample in asked:
            rows += answers_of(model, task, sample, protocol, folder / protocol / "run" / f"{task}-{sample:02}")
    write_csv(folder / "answers.csv", ANSWER_COLUMNS, rows)


def answers_of(model, task, sample, protocol, results):
    kl = {row["policy"]: shorter(row["value"]) for row in read(results / "validate.csv") if row["metric"] == "kl"}
    for row in read(results / "answers.csv"):
        way, within = way_of(row["policy"])
        yield {"model": model, "task": task, "sample": sample, "protocol": protocol, "way": way, "within": within, "right": row["right"],
               "true_kl": kl[row["policy"]]}


def way_of(policy):
    """"both-each" and "20" of "recipe~both_each_20"."""
    way, _, within = policy.partition("~")[2].rpartition("_")
    return way.replace("_", "-"), within


def leave_out_each(args, folder, file, dumps, ends=()) -> None:
    """levers/, what each dump's recipes are without it in chosen/, and what they do to it in run/, validated."""
    run = Steps(args, folder)
    levers, ran = folder / "levers", folder / "run"
    common = ("--force", "--quiet", "--threads", args.threads, *ends)
    run("levers", args.program, "evict", *dumps, "--out", levers, *common, *LEVERS)
    for dump in dumps:
        to = folder / "chosen" / dump.name
        to.mkdir(parents=True, exist_ok=True)
        run(f"without_{dump.name}", args.program, "recommend", levers, "--bytes", percents(), "--without", dump.name, "--quiet",
            "--out", to / "{bytes}-{way}.json")
    recipes = [f"{way}-{within}".replace("-", "_") + f"={folder}/chosen/{{dump}}/{within}-{way}.json" for within in BYTES for way in WAYS
               if all((folder / "chosen" / dump.name / f"{within}-{way}.json").exists() for dump in dumps)]
    run("run", args.program, "evict", *dumps, "--out", ran, *common, "--recipe", ",".join(recipes))
    run("validate", "kvvalidate.py", "--model", file, "--dump", *dumps, "--results", ran,
        "--resume" if any(ran.glob("**/validate.json")) else "--force")


def percents() -> str:
    return ",".join(f"{within}%" for within in BYTES)


def summed_of(program, levers):
    """{(prompt, way, within): nats} of what the other prompts choose, head by head."""
    found = json.loads(subprocess.run([program, "recommend", levers, "--bytes", percents(), "--json"], check=True, capture_output=True).stdout)
    used = {"tokens and bits": "both", "tokens alone": "tokens", "bits alone": "bits"}
    return {(prompt, f"{used[one['levers']]}-{one['where']}", within): nats
            for within, recommendation in zip(BYTES, found["recommendations"]) for one in recommendation["candidates"]
            for prompt, nats in zip(found["prompts"], one["of_prompts"])}


def measured_in(results):
    """By policy: what the recipes of a result folder take, are predicted to lose, and lost in the model."""
    found = {}
    whole = json.loads((results / "summary.json").read_text())["totals"]["prompt_bytes"]
    for row in read(results / "evictions.csv"):
        if row["layer"] or row["kv_head"]:
            continue
        figures = found.setdefault(row["policy"], {})
        if row["metric"] == "bytes":
            figures["share"] = shorter(str(float(row["value"]) / whole))
        elif row["rows"] == "future" and row["metric"] in ("loss_step", "output_error"):
            figures["together" if row["metric"] == "loss_step" else "output_error"] = shorter(row["value"])
    for row in read(results / "validate.csv"):
        if row["metric"] in ("kl", "same_top1"):
            found[row["policy"]][f"true_{row['metric']}"] = shorter(row["value"])
    return found


def cases_of(model, prompt, folder, summed):
    found = measured_in(folder / "run" / prompt)
    rows = []
    for policy, figures in found.items():
        way, within = way_of(policy)
        promised = json.loads((folder / "chosen" / prompt / f"{within}-{way}.json").read_text())["chosen"]["chosen_on_all"]
        nats = summed.get((prompt, way, within))
        rows.append({"model": model, "prompt": prompt, "way": way, "within": within, "promised": shorter(str(promised)),
                     "summed": "" if nats is None else shorter(str(nats)), **figures})
    return rows


def tables(rows):
    """By name: what each way costs, the joint recipe over single levers, and how near what was predicted came."""
    at = {(row["model"], row["prompt"], row["way"], row["within"]): {name: float(row[name] or "nan") for name in FIGURES} for row in rows}
    prompts = {}
    for model, prompt, *_ in at:
        prompts.setdefault(model, {})[prompt] = None
    prompts = dict(sorted(prompts.items(), key=lambda item: -len(item[1])))  # the most first

    def points(model, prompt, way):
        """Logarithms of shares and of KL where it was measured."""
        measured = [at[key] for within in BYTES if (key := (model, prompt, way, within)) in at]
        return np.log(sorted((case["share"], case["true_kl"]) for case in measured)).T

    def over(model, prompt, within, others):
        """The logarithm of the joint recipe's KL over that of the best of the others at equal bytes: those of the recipe, or the most that
        the other takes; between budgets linear in the logarithms. None where there is nothing to compare."""
        ratios = []
        for way in others:
            if (model, prompt, way, within) in at and (key := (model, prompt, JOINT, within)) in at:
                mine, its = points(model, prompt, JOINT), points(model, prompt, way)
                share = min(np.log(at[key]["share"]), its[0, -1])
                ratios.append(np.interp(share, *mine) - np.interp(share, *its))
        return max(ratios, default=None)

    def ratios(model, way, above, below):
        """[prompts][budgets]: of a way's cases."""
        return [[np.log(case[above] / case[below]) for within in BYTES if (case := at.get((model, prompt, way, within))) and case[below] > 0]
                for prompt in prompts[model]]

    def cell(found):
        return with_interval(np.exp(interval(found))) if found else ""

    costs, overs = [], []
    for within in BYTES:
        for way, said in WAYS.items():
            of_models = [[case for prompt in prompts[model] if (case := at.get((model, prompt, way, within)))] for model in prompts]
            if any(of_models):
                costs.append([f"{within} %", said, *(f"{significant([np.log(case['true_kl']) for case in cases])}, "
                                                     f"{100 * np.mean([case['share'] for case in cases]):.1f} %" if cases else "" for cases in of_models)])
    for model in prompts:
        for within in BYTES:
            cells = []
            for others in (("both-everywhere",), EACH, SINGLE):
                found = [log for prompt in prompts[model] if (log := over(model, prompt, within, others)) is not None]
                cells.append(times(found) if found else "")
            overs.append([model, f"{within} %", *cells])
    near = []
    for model in prompts:
        for way in (JOINT, "both-everywhere", "tokens-everywhere", "bits-everywhere"):
            cells = []
            for figure in ("together", "promised"):
                found = ratios(model, way, "true_kl", figure)
                every = [log for of_prompt in found for log in of_prompt]
                inside = sum(abs(log) <= np.log(2) for log in every)
                cells.append(f"{cell([np.mean(of_prompt) for of_prompt in found])}, {inside} of {len(every)}")
            near.append([model, WAYS[way], *cells, cell([np.mean(of_prompt) for of_prompt in ratios(model, way, "together", "summed")])])
    failed = []
    for (model, prompt, way, within), case in at.items():
        if way != JOINT:
            continue
        log = over(model, prompt, within, SINGLE)
        if log >= 0 or abs(np.log(case["true_kl"] / case["together"])) > np.log(2):
            failed.append([model, prompt, f"{within} %", f"{case['true_kl']:.2g}", f"{np.exp(log):.2f}",
                           *(f"{case[name]:.2g}" for name in ("together", "promised"))])
    return {
        "recipes failed": table(["model", "prompt", "bytes", "true KL", "over the best single lever", "predicted", "promised"], failed),
        "recipes cost": table(["within", "recipe", *(f"{model}, {len(names)} prompts: nats, bytes taken" for model, names in prompts.items())], costs),
        "recipes over": table(["model", "bytes", "over the best setting of both, the same everywhere",
                               "over the best single lever, chosen by head or layer", "over the best single lever, the same everywhere"], overs),
        "recipes near": table(["model", "recipe", "true KL over predicted, all heads at once; within a factor of 2",
                               "over what the other prompts promised; within a factor of 2", "all at once over the sum of heads"], near)}


def answers_table(rows):
    """Of the questions that the model answers with its whole cache, those that it still does, and its KL."""
    lines = []
    for within in BYTES:
        for way, said in WAYS.items():
            cells = []
            for protocol in PROTOCOLS:
                at = [row for row in rows if (row["protocol"], row["way"], row["within"]) == (protocol, way, within)]
                right = sum(row["right"] == "1" for row in at)
                cells.append(f"{right} of {len(at)}, {np.exp(np.mean([np.log(max(float(row['true_kl']), 1e-12)) for row in at])):.2g}" if at else "")
            if any(cells):
                lines.append([f"{within} %", said, *cells])
    return table(["bytes", "recipe", "question unseen: right, nats", "question seen"], lines)


# By what is chosen the colour, by where the line.
COLOURS = {"both": "#0072b2", "tokens": "#e69f00", "bits": "#009e73"}


def draw(rows, path) -> None:
    import matplotlib
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "recipes", "font.size": 9, "svg.fonttype": "none"})
    from matplotlib import pyplot
    models = sorted(dict.fromkeys(row["model"] for row in rows), key=lambda model: -sum(row["model"] == model for row in rows))
    figure, panels = pyplot.subplots(1, len(models), figsize=(4 * len(models), 4.3), sharey=True, squeeze=False)
    for panel, model in zip(panels[0], models):
        for way, said in WAYS.items():
            points = []
            for within in BYTES:
                at = [row for row in rows if (row["model"], row["way"], row["within"]) == (model, way, within)]
                if at:
                    points.append((float(np.mean([float(row["share"]) for row in at])), *np.exp(interval([np.log(float(row["true_kl"])) for row in at]))))
            use, where = way.split("-")
            share, kl, low, high = np.array(points).T
            panel.plot(share, kl, "-" if where == "each" else "--", color=COLOURS[use], marker="o", markersize=3, linewidth=1.4, label=said)
            panel.fill_between(share, low, high, color=COLOURS[use], alpha=0.15 if where == "each" else 0.06, linewidth=0)
        count = len({row["prompt"] for row in rows if row["model"] == model})
        label_panel(panel, model, count, {0.1: "10 %", 0.2: "20 %", 0.5: "50 %"})
    save_panels(figure, panels, path, 3, 0.1)


if __name__ == "__main__":
    sys.exit(main())
