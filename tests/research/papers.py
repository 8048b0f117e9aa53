#!/usr/bin/env python3
"""Measures what the papers' methods, each in its own setting, cost a model: true KL of paired prompts.

  papers.py --program KVREPLAY --work DIR --model NAME=FILE ... [--prompt NAME ...] [--run NAME ...] [--out DIR]
  papers.py --tables [DIR]      prints the tables of DIR/papers.csv (default: beside this script)
  papers.py --write             puts those beside this script into README.md and analysis/budgets/FINDINGS.md

Of every model it captures all prompts, evicts, divides budgets, prunes channels and quantizes over all of them at once,
and feeds the model each case (kvvalidate.py). --out merges DIR/<model>/papers/cases.csv into papers.csv: a case that was measured again
replaces its row, all other rows of the file stay. --run does some of the runs only: later calls add the others. What is there is not done
again; --again NAME does one of the runs again.
"""
from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Callable, NamedTuple

import numpy as np

from analysis import fill, table, times
from intervals import FEWEST
from orders import BUDGETS
from prompts import MODULES, PROMPTS
from study import HERE, Steps, common_options, read, shorter, write_csv

SIGMAS = ",".join(BUDGETS)
SCORES = ("value", "key", "joint")
WINDOW16 = "[window=16,recent=16]"


def scored(base, *scores, own=""):
    """base[own] and base+score[own]."""
    return ",".join(base + score + own for score in ("", *(f"+{score}" for score in scores)))


OBCACHE = ",".join((scored("h2o", *SCORES, own=WINDOW16), scored("snapkv", *SCORES, own="[window=16]")))
PRUNED = ("0.4", "0.5")  # of channels, in IAP's tables
RANKED = ("random", "h2o", "snapkv", "tova", "streaming")  # with first and last tokens kept, or without
ENDS = {"0.5": "5%", "0.8": "2%", "0.87": "1.3%"}  # by what is evicted: a tenth of the cache
READ, KEPT = 256, 384  # tokens of a text that count as its prompt, and of the cache from then on


def pinned(sinks, recent):
    """All of RANKED with these first and recent tokens kept."""
    return ",".join(f"{policy}[sinks={sinks},recent={recent}]" for policy in RANKED)


# A command each, over all prompts. `semantics` paper is what the papers' own settings are where nothing is said.
RUNS = {
    "evict": ("evict", "--sigma", SIGMAS, "--policy", ",".join((
        "streaming,knorm,keydiff,expected_attention", scored("h2o", *SCORES, "caote", "fastcaote"),
        scored("tova", *SCORES, "caote", "fastcaote"), scored("snapkv", *SCORES, "caote", "fastcaote"),
        scored("h2o", *SCORES, "caote", own=WINDOW16), scored("snapkv", *SCORES, own="[window=16]")))),
    "budget": ("budget", "--sigma", SIGMAS, "--order", "snapkv,keydiff", "--method", "uniform,ada,lu"),
    "budget_scores": ("budget", "--sigma", SIGMAS, "--order", "snapkv+value,snapkv+joint", "--method", "uniform,ada",
                      "--profile", "none"),
    "budget_pyramid": ("budget", "--sigma", SIGMAS, "--order", "snapkv[window=8]", "--method", "uniform,pyramid",
                       "--profile", "none"),
    "budget_ada": ("budget", "--sigma", SIGMAS, "--order", "snapkv[sinks=0,recent=32]", "--method", "uniform,ada",
                   "--profile", "none", "--semantics", "raw"),
    "budget_funnel": ("budget", "--sigma", SIGMAS, "--order", "snapkv[window=8,sinks=0,recent=8]", "--method", "uniform,pyramid",
                      "--profile", "none", "--semantics", "raw"),
    "budget_raw": ("budget", "--sigma", SIGMAS, "--order", "snapkv", "--method", "uniform,lu", "--semantics", "raw"),
    "budget_gap": ("budget", "--sigma", SIGMAS, "--order", "snapkv,keydiff", "--method", "lu_without_gap", "--profile", "none"),
    "channels": ("channels", "--method", "think,iap"),
    "bits4": ("evict", "--policy", "none", "--bits", "4"),
    "bits2": ("evict", "--policy", "none", "--bits", "2"),
    "blocks": ("evict", "--sigma", SIGMAS, "--phase", "blockwise:128", "--policy",
               ",".join(scored(base, "caote") for base in ("h2o", "tova", "snapkv"))),
    "per_head": ("evict", "--sigma", f"{SIGMAS},0.95", "--per-query-head", "--policy", OBCACHE),
    "per_head_2": ("evict", "--sigma", "0.98", "--per-query-head", "--policy", OBCACHE),
    "own_group": ("evict", "--sigma", "0.95", "--policy", OBCACHE),
    "own_group_2": ("evict", "--sigma", "0.98", "--policy", OBCACHE),
    "iap_pairs": ("channels", "--ratio", ",".join(PRUNED), "--method",
                  "think[recent=32/64],iap[recent=32/64],iap[protect=3:7/5:10,recent=32/64]"),
    **{f"tokens_{method}_{ratio}": ("evict", "--sigma", "0.5,0.8", "--policy", "snapkv,h2o", "--channels", f"{method}:{ratio}")
       for ratio in PRUNED for method in ("think", "iap")},
    **{f"kivi_{method}_{ratio}": ("evict", "--policy", "none", "--bits", "4", "--channels", f"{method}:{ratio}")
       for ratio in PRUNED for method in ("think", "iap")},
    "blocks_half": ("evict", "--sigma", "0.5", "--phase", "blockwise:128", "--policy",
                    ",".join(scored(base, "caote", "fastcaote") for base in ("h2o", "tova", "snapkv"))),
    **{f"ends_{sigma}": ("evict", "--sigma", sigma, "--policy", ",".join((pinned(0, 0), pinned(share, share)))) for sigma, share in ENDS.items()},
    "prompt_kept": ("evict", "--prompt-len", KEPT, "--phase", "decode", "--budget", KEPT, "--policy",
                    ",".join((pinned(0, 32), pinned(READ, 32)))),
}
SHORTEST = {"per_head_2": 850, "own_group_2": 850}  # tokens of a prompt: of fewer a fiftieth is the 16 that stay in any case
FEEDBACK = ("blocks", "blocks_half")  # the model reads the prompt block by block over the cut cache (kvvalidate.py --feedback)
COLUMNS = ("model", "prompt", "tokens", "run", "policy", "budget", "output_error", "true_kl", "true_kl_median", "true_dnll",
           "true_same_top1")
KEYS = ("model", "prompt", "run", "policy", "budget")  # of a row
TRUE = {"kl": "true_kl", "kl_median": "true_kl_median", "dnll": "true_dnll", "same_top1": "true_same_top1"}

# What the tables compare: a title, and pairs of (run, policy) over (run, policy), named by the first where nothing else is said.
E, B, S, P, R, G = "evict", "budget", "budget_scores", "budget_pyramid", "budget_raw", "budget_gap"
A, F, K = "budget_ada", "budget_funnel", "blocks"
SAID = {R: " (raw)", K: " (blocks of 128, fed back)"}
TABLES = {
    "papers caote": [((E, f"{base}+{score}"), (E, base)) for base in ("h2o", "tova", "snapkv")
                     for score in ("caote", "fastcaote")] +
                    [((K, f"{base}+caote"), (K, base)) for base in ("h2o", "tova", "snapkv")],
    "papers obcache": [((E, f"{base}+{score}{own}"), (E, base + own)) for base, own in
                       (("h2o", ""), ("h2o", WINDOW16), ("tova", ""), ("snapkv", ""), ("snapkv", "[window=16]"))
                       for score in SCORES] + [((E, "h2o" + WINDOW16), (E, "h2o"))],
    "papers budgets": [((B, "snapkv~ada"), (B, "snapkv~uniform")), ((B, "snapkv~lu"), (B, "snapkv~uniform")),
                       ((B, "snapkv~profile"), (B, "snapkv~uniform")), ((B, "snapkv~profile"), (B, "snapkv~ada")),
                       ((B, "keydiff~ada"), (B, "keydiff~uniform")), ((B, "keydiff~profile"), (B, "keydiff~uniform")),
                       ((G, "snapkv~lu_without_gap"), (B, "snapkv~lu")), ((G, "keydiff~lu_without_gap"), (B, "keydiff~lu")),
                       ((R, "snapkv~lu"), (R, "snapkv~uniform")), ((R, "snapkv~profile"), (R, "snapkv~uniform")),
                       ((A, "snapkv[sinks=0,recent=32]~ada"), (A, "snapkv[sinks=0,recent=32]~uniform")),
                       ((P, "snapkv[window=8]~pyramid"), (P, "snapkv[window=8]~uniform")),
                       ((F, "snapkv[window=8,sinks=0,recent=8]~pyramid"), (F, "snapkv[window=8,sinks=0,recent=8]~uniform")),
                       ((S, "snapkv+value~ada"), (B, "snapkv~ada")), ((S, "snapkv+joint~ada"), (B, "snapkv~ada"))],
}
RATIOS = ("0.4", "0.5", "0.6", "0.7")  # of channels pruned
DIVIDED = (*((B, f"{order}~{method}") for order in ("snapkv", "keydiff") for method in ("uniform", "ada", "lu", "profile")),
           *((G, f"{order}~lu_without_gap") for order in ("snapkv", "keydiff")),
           *((P, f"snapkv[window=8]~{method}") for method in ("uniform", "pyramid")),
           *((A, f"snapkv[sinks=0,recent=32]~{method}") for method in ("uniform", "ada")),
           *((F, f"snapkv[window=8,sinks=0,recent=8]~{method}") for method in ("uniform", "pyramid")),
           *((R, f"snapkv~{method}") for method in ("uniform", "lu", "profile")))
ORACLES = ("lu", "lu_without_gap", "optimal")
LONGEST = 1000  # tokens of a prompt
PAGES = (HERE / "README.md", HERE.parents[1] / "analysis" / "budgets" / "FINDINGS.md")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common_options(parser)
    parser.add_argument("--modules", action="store_true", help="ten modules of the standard library in place of the study's prompts")
    parser.add_argument("--run", nargs="+", choices=[*RUNS], metavar="RUN", help="only these runs")
    parser.add_argument("--again", action="append", default=[], choices=[*RUNS], metavar="RUN", help="does a run again")
    parser.add_argument("--tables", nargs="?", type=Path, const=HERE, metavar="DIR")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    if args.write:
        found = tables(read(HERE / "papers.csv"))
        for page in PAGES:
            page.write_text(fill(page.read_text(encoding="utf-8"), found), encoding="utf-8")
        return 0
    if args.tables:
        for name, text in tables(read(args.tables / "papers.csv")).items():
            print(f"## {name}\n\n{text}\n")
        return 0
    prompts = MODULES if args.modules else [prompt for prompt in PROMPTS if prompt.tokens <= LONGEST]
    chosen = [prompt for prompt in prompts if not args.prompt or prompt.name in args.prompt]
    if len(chosen) < FEWEST:
        parser.error(f"--prompt: expected {FEWEST} at least, an interval is over them, found {len(chosen)}")
    for model, file in (text.split("=", 1) for text in args.model):
        measure(args, model, Path(file), chosen, PAPERS, args.run or ())
    path = (args.out or args.work) / "papers.csv"
    rows = [row for path in sorted(args.work.glob("*/papers/cases.csv")) for row in read(path)]
    write_csv(path, COLUMNS, merged(read(path) if path.exists() else [], rows))
    return 0


def merged(old, new):
    """The rows of both, by model and run; a case of both has the new row."""
    rows = {tuple(row[name] for name in KEYS): row for row in (*old, *new)}
    models, runs = list(dict.fromkeys(row["model"] for row in rows.values())), list(RUNS)
    return sorted(rows.values(), key=lambda row: (models.index(row["model"]), runs.index(row["run"])))


class Study(NamedTuple):
    """What is measured of every model and prompt, in <model>/<name>/cases.csv."""

    name: str
    runs: dict  # a command and its options each
    columns: tuple
    cases: Callable  # (model, prompt, run, results, dump) -> rows
    captured: tuple = ()  # options of the capture


def measure(args, model, file, prompts, study, only=()) -> None:
    """All runs over all prompts of one model, or some only; rows of those that are done."""
    folder = args.work / model / study.name
    dumps = []
    for prompt in prompts:
        dumps.append(folder / "dumps" / prompt.name)
        Steps(args, folder / prompt.name).capture(model, file, prompt, dumps[-1], *study.captured)
    run = Steps(args, folder)
    done, left = {}, {False: [], True: []}  # by run its prompts; runs to be fed to the model, by whether it evicts itself
    for name, (command, *options) in study.runs.items():
        of = [i for i, prompt in enumerate(prompts) if prompt.tokens >= SHORTEST.get(name, 0)]
        if name in args.again:
            for step in (name, f"validate_{name}"):
                (run.marks / step).unlink(missing_ok=True)
        validated = (run.marks / f"validate_{name}").exists()
        if not of or only and name not in only and not validated:
            continue
        done[name] = of
        run(name, args.program, command, *(dumps[i] for i in of), "--out", folder / name, "--force", "--quiet", "--threads", args.threads, *options)
        if not validated:
            left[name in FEEDBACK].append(name)
    for fed_back, names in left.items():  # a prompt is read once for all of its cases
        for some, how in ((args.again, "--force"), ([name for name in names if name not in args.again], "--resume")):
            together = [name for name in names if name in some]
            if together:
                run(f"validate_{together[0]}", "kvvalidate.py", "--model", file, "--results", *(folder / name for name in together), how,
                    *["--feedback"] * fed_back)
            for name in together:
                (run.marks / f"validate_{name}").touch()
    rows = []
    for name, of in done.items():
        for i in of:
            for part in (folder / name / prompts[i].name, folder / name / "leave_one_out" / prompts[i].name):
                if part.exists():
                    rows += study.cases(model, prompts[i], name, part, dumps[i])
    write_csv(folder / "cases.csv", study.columns, rows)


def cases_of(model, prompt, run, results, _dump):
    """A row a case of one prompt's results."""
    errors = output_errors(results)
    cases = {}
    for row in read(results / "validate.csv"):
        if row["metric"] in TRUE and row["phase"].endswith("+feedback") == (run in FEEDBACK):
            cases.setdefault((row["policy"], row["budget"]), {})[TRUE[row["metric"]]] = shorter(row["value"])
    return [{"model": model, "prompt": prompt.name, "tokens": prompt.tokens, "run": run,
             **dict(zip(("policy", "budget"), named(run, policy, budget))), "output_error": errors[policy, budget], **found}
            for (policy, budget), found in cases.items()]


def named(run, policy, budget):
    """Policy and budget of a case as papers.csv has them: formats and pruned channels stand in no policy's name."""
    if run in ("bits4", "bits2"):
        return f"{run[-1]} bits", budget
    kind, method, ratio = (*run.split("_"), "", "")[:3]
    base, free = policy.partition("[")[0], "[sinks=0," in policy
    if kind == "ends":
        return f"{base}, {'no ends' if free else 'ends'} kept", budget
    if kind == "prompt":
        return f"{base}, prompt {'not ' * free}kept", budget
    if kind == "kivi":
        return f"4 bits, channels:{method}", ratio
    if kind == "tokens":
        return f"{policy}, channels:{method} {ratio}", budget
    return policy, budget


def rows_of_model(results):
    """The rows of the whole model, each with its policy and budget as validate.csv names them. A row of budgets.csv has all
    figures, the others have a metric and its value."""
    named = {"evictions": lambda row: (row["policy"], row["budget"]),
             "budgets": lambda row: (f"{row['order']}~{row['method']}", row["sigma"]),
             "channels": lambda row: (f"channels:{row['method']}", row["ratio"])}
    for name, key in named.items():
        path = results / f"{name}.csv"
        for row in read(path) if path.exists() else ():
            if not row["layer"] and not row["kv_head"]:
                yield key(row), row


def output_errors(results):
    """The whole model's on the decoding steps, by policy and budget as validate.csv names them."""
    found = {}
    for key, row in rows_of_model(results):
        if "metric" not in row:
            found[key] = shorter(row["output_error"])
        elif (row["metric"], row["rows"]) == ("output_error", "future"):
            found[key] = shorter(row["value"])
    return found


PAPERS = Study("papers", RUNS, COLUMNS, cases_of)


def tables(rows):
    """By name: how many times one loses what the other does, in true KL, and what divisions, channels and bits cost."""
    def figure(name):
        return {(row["model"], row["prompt"], row["run"], row["policy"], row["budget"]): float(row[name]) for row in rows}

    kl, error = figure("true_kl"), figure("output_error")
    prompts = {}
    for row in rows:
        if row["run"] == E:  # others may have further prompts
            prompts.setdefault(row["model"], {})[row["prompt"]] = None
    found = {}
    for name, pairs in TABLES.items():
        lines = []
        for (run, of), (base_run, over) in pairs:
            for model, names in prompts.items():
                cells = []
                for budget in BUDGETS:
                    logs = [np.log(kl[model, prompt, run, of, budget] / kl[model, prompt, base_run, over, budget])
                            for prompt in names if (model, prompt, run, of, budget) in kl]
                    cells.append(times(logs) if logs else "")
                if any(cells):
                    lines.append([f"`{of}` over `{over}`" + SAID.get(run, ""), model, *cells])
        found[name] = table(["true KL of", "model", *(f"{budget} evicted" for budget in BUDGETS)], lines)
    found["papers channels"] = table(["`iap` over `think`, true KL", *(f"{ratio} pruned" for ratio in RATIOS)], [
        [model, *(times([np.log(kl[model, prompt, "channels", "channels:iap", ratio] / kl[model, prompt, "channels", "channels:think", ratio])
                         for prompt in names]) for ratio in RATIOS)] for model, names in prompts.items()
        if (model, next(iter(names)), "channels", "channels:iap", RATIOS[0]) in kl])
    found["papers costs"] = costs(kl, prompts)
    found["papers divisions"] = divisions(kl, error, prompts)
    return found


def mean(values):
    """The geometric mean, as it is printed; nothing where there is none."""
    return f"{np.exp(np.mean(np.log(values))):.3g}" if values else ""


def divisions(kl, error, prompts):
    """Budgets shared between heads: geometric means at the three budgets."""
    lines = []
    for run, policy in DIVIDED:
        order, method = policy.split("~")
        cells = [" / ".join(filter(None, (mean([of[key] for prompt in names for key in [(model, prompt, run, policy, budget)]
                                                if key in of]) for budget in BUDGETS)))
                 for model, names in prompts.items() for of in (error, kl)]
        if any(cells):
            lines.append([f"`{order}`" + (", raw" if run in (A, F, R) else ""), f"`{method}`" + (" (oracle)" if method in ORACLES else ""), *cells])
    header = [f"{model}, {len(names)}: {what}" for model, names in prompts.items() for what in ("output error", "true KL")]
    return table(["order", "divided by", *header], lines)


def costs(kl, prompts):
    """Nats a step, geometric means over prompts: levers side by side."""
    levers = [(E, "snapkv", "0.5"), (E, "snapkv", "0.8"), (B, "snapkv~profile", "0.8"), ("channels", "channels:think", "0.4"),
              ("channels", "channels:iap", "0.4"), ("bits4", "4 bits", ""), ("bits2", "2 bits", "")]
    lines = []
    for run, policy, budget in levers:
        cells = []
        for model, names in prompts.items():
            values = [kl[key] for prompt in names for key in [(model, prompt, run, policy, budget)] if key in kl]
            cells.append(mean(values))
        lines.append([f"`{policy}`" if run not in ("bits4", "bits2") else policy, budget, *cells])
    return table(["cache", "evicted or pruned", *(f"{model}, {len(names)}" for model, names in prompts.items())], lines)


if __name__ == "__main__":
    sys.exit(main())
