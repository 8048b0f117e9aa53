#!/usr/bin/env python3
"""Asks a model questions over compressed caches: does it still answer, and did the figures say so?

  answer_record.py --program KVREPLAY --work DIR --model NAME=FILE [--runs NAME] [--task NAME ...] [--samples N] [--length N] [--out DIR]
  answer_record.py --tables [DIR]      prints the tables of DIR/answers.csv (default: beside this script)
  answer_record.py --write             puts those beside this script into ANSWERS.md

Of every task it captures samples that the model answers rightly with its whole cache, compresses each in every way, once with the
question behind the prompt (agnostic) and once in it (aware), and judges the answer (kvvalidate.py): answers.csv. --runs papers compresses as
the papers' tables do, for paper_answers.csv; blocks cuts behind every block of 128 tokens that the model reads, for block_answers.csv;
longbench asks tasks of LongBench's shapes, for longbench_answers.csv. What is there is not done again.
"""
from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np

from analysis import fill, table, times, with_interval
from papers import rows_of_model
from study import HERE, Steps, read, shorter, write_csv

from answer_statistics import auc_interval, curve, holm, mcnemar, safe_below, wilson  # noqa: E402  data/capture
from answer_tasks import TASKS  # noqa: E402

RULER = ("niah_single_2", "niah_multikey_1", "niah_multikey_2", "niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe")
# By --runs: the file that it makes, and the tasks.
ASKED = {"answers": ("answers", RULER), "papers": ("paper_answers", RULER), "blocks": ("block_answers", RULER[:3]),
         "longbench": ("longbench_answers", ("document_qa", "few_shot", "passage_retrieval", "passage_count", "code_completion"))}
FEWEST = 0.6  # of a task's samples that a model has to answer with its whole cache, for its answers to be judged


class Run(NamedTuple):
    """A command and its options; of one protocol alone, where it names one. What it adds to a policy's name in the tables."""

    arguments: tuple[str, ...]
    protocol: str = ""
    named: str = ""


KEEP, TENTHS, UNSEEN = ("--keep", "50%,20%,10%"), ("--keep", "40%,30%,20%,10%"), ("--keep", "40%,20%")
WHOLE = ("evict", "--policy", "none", "--residual", "0")
SCORES = ("+value", "+key", "+joint")
# As OBCache runs H2O, TOVA and SnapKV on needles, and AdaKV by its SnapKV.
BASES = ("h2o{}[window=16,recent=16]", "tova{}", "snapkv{}[window=16,pool=max:7]")
ORDER = "snapkv{}[window=16,pool=max:7,sinks=0,recent=16]"
OBCACHE = ("evict", "--policy", ",".join(base.format(score) for base in BASES for score in ("", *SCORES)))
ADA = ("budget", "--order", ",".join(ORDER.format(score) for score in ("", *SCORES)), "--method", "ada", "--semantics", "raw",
       "--profile", "none")
CAOTE = ("h2o", "tova", "snapkv")
FED_BACK = ", fed back"  # behind the name of a case whose cuts the model decided over the caches that it had cut before
# By the file that they make: the commands.
RUNS = {
    "answers": {
        "evict": Run(("evict", *KEEP, "--policy", "streaming,h2o,tova,snapkv,snapkv+joint")),
        "formats": Run((*WHOLE, "--bits", "k8v4,4,q4_0")),
        "budgets": Run(("budget", *KEEP, "--order", "snapkv", "--method", "ada", "--profile", "leave-one-out"), "agnostic"),  # LU-KV's
    },
    "paper_answers": {
        "obcache": Run((*OBCACHE, *TENTHS), "aware"),
        "obcache_unseen": Run((*OBCACHE, *UNSEEN), "agnostic"),
        "obcache_ada": Run((*ADA, *TENTHS), "aware"),
        "obcache_ada_unseen": Run((*ADA, *UNSEEN), "agnostic"),
        "caote": Run(("evict", "--keep", "20%", "--phase", "blockwise:128", "--policy",
                      ",".join(base + score for base in CAOTE for score in ("", "+caote"))), "aware", " in blocks"),
        "lukv": Run(("budget", "--keep", "50%,20%", "--order", "snapkv", "--method", "uniform,pyramid,ada,lu", "--profile",
                     "leave-one-out"), "agnostic"),
        "none": Run(("evict", *UNSEEN, "--policy", "snapkv"), "aware"),
        "think": Run(("evict", *UNSEEN, "--policy", "snapkv", "--channels", "think:0.5"), "aware", ", think 50 %"),
        "iap": Run(("evict", *UNSEEN, "--policy", "snapkv", "--channels", "iap:0.5"), "aware", ", iap 50 %"),
        "bits": Run((*WHOLE, "--bits", "2,tq2,tq4,nvfp4,k4v2"), "aware"),
    },
    "block_answers": {
        "blocks": Run(("evict", "--keep", "50%", "--phase", "blockwise:128", "--policy",
                       ",".join(base + score for base in CAOTE for score in ("", "+caote", "+fastcaote"))), "aware", " in blocks"),
    },
    "longbench_answers": {
        "shapes": Run(("evict", "--keep", "20%", "--policy", "streaming,h2o,h2o+joint,tova,snapkv,snapkv+joint,snapkv+caote"), "aware"),
        "shapes_ada": Run(("budget", "--keep", "20%", "--order", "snapkv", "--method", "uniform,ada", "--profile", "none"), "aware"),
        "shapes_unseen": Run(("budget", "--keep", "50%", "--order", "snapkv", "--method", "uniform,pyramid,ada", "--profile",
                              "leave-one-out"), "agnostic"),
    },
}
# What the papers' tables compare: a method, and what it is to be better than.
PAIRS = {
    "obcache": [(base.format(score), base.format("")) for base in (*BASES, ORDER + "~ada") for score in SCORES],
    "caote": [(f"{base}+caote in blocks", f"{base} in blocks") for base in CAOTE],
    "caote half": [(f"{base}+{score} in blocks{FED_BACK}", f"{base} in blocks{FED_BACK}") for score in ("caote", "fastcaote") for base in CAOTE],
    "longbench": [("h2o+joint", "h2o"), ("snapkv+joint", "snapkv"), ("snapkv+caote", "snapkv"), ("snapkv~ada", "snapkv~uniform"),
                  ("snapkv~pyramid", "snapkv~uniform"), *(("snapkv~profile", f"snapkv~{other}") for other in ("uniform", "ada", "pyramid"))],
    **{name: [(f"snapkv~{method}", f"snapkv~{other}") for other in ("uniform", "ada", "pyramid")]
       for name, method in (("lukv", "profile"), ("lukv oracle", "lu"))},
    "adakv": [("snapkv~ada", "snapkv~uniform")],
    "pyramidkv": [("snapkv~pyramid", "snapkv~uniform")],
    "iap": [("snapkv, iap 50 %", "snapkv, think 50 %"), ("snapkv, iap 50 %", "snapkv")],
}
PAIRS_IN = {"caote half": "block_answers", "longbench": "longbench_answers"}  # the others are in paper_answers
CLEAR = 0.05  # McNemar's p, by Holm over its family, below which a difference is counted
PROTOCOLS = {"agnostic": (), "aware": ("--prompt-len", "question")}
FIGURES = ("output_error", "loss_row", "loss_layer", "loss_step")
JUDGED = ("right", "score", "nll", "margin", "kl_question", "kl_answer", "needles_kept", "needles_anywhere")
COLUMNS = ("model", "task", "sample", "protocol", "policy", "budget", *JUDGED, *FIGURES)
ASKED_COLUMNS = ("model", "task", "sample", "tokens", "right")
FIFTH = "0.8"  # what is evicted where a fifth stays
FORESEE = ("kl_answer", "kl_question", *FIGURES, "needles_lost")  # what may say that an answer flips
RATES = {"others": "flips of other samples, no dump", "all": "flips of all samples, no dump"}  # of one method at one budget
LEVELS = (0, 0.001, 0.005, 0.34, np.inf)  # nats on the answer's rows
EDGES = (0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, np.inf)  # nats on the answer's rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--program", default="kvreplay", help="the kvreplay to run")
    add("--work", type=Path, default=Path("build/answers"), help="where dumps and results are written")
    add("--model", action="append", default=[], metavar="NAME=FILE", help="a GGUF file or a folder")
    add("--runs", choices=[*ASKED], default="answers", help="which commands (default answers)")
    add("--task", nargs="+", metavar="NAME", choices=[*TASKS], help="only these")
    add("--samples", type=int, default=10, metavar="N", help="of each task (default 10)")
    add("--length", type=int, default=2048, metavar="N", help="tokens of a sample (default 2048)")
    add("--gradients", type=int, default=8, metavar="S", help="samples of the gradients (default 8; 0: none, and no predicted losses)")
    add("--out", type=Path, help="where the tables are gathered (default: the work folder)")
    add("--threads", default="2", help="of every step")
    add("--tables", nargs="?", type=Path, const=HERE, metavar="DIR")
    add("--write", action="store_true")
    args = parser.parse_args()
    args.task = args.task or ASKED[args.runs][1]
    if args.write:
        page = HERE / "ANSWERS.md"
        page.write_text(fill(page.read_text(encoding="utf-8"), tables(HERE)), encoding="utf-8")
        return 0
    if args.tables:
        for name, text in tables(args.tables).items():
            print(f"## {name}\n\n{text}\n")
        return 0
    for model, file in (text.split("=", 1) for text in args.model):
        measure(args, model, Path(file))
    out = args.out or args.work
    out.mkdir(parents=True, exist_ok=True)
    for name, columns in ((ASKED[args.runs][0], COLUMNS), ("asked", ASKED_COLUMNS)):
        path, new = out / f"{name}.csv", [row for path in sorted(args.work.glob(f"*/{name}.csv")) for row in read(path)]
        write_csv(path, columns, merged(read(path) if path.exists() else [], new))
    for name, text in tables(out).items():
        print(f"## {name}\n\n{text}\n")
    return 0


def merged(old, new):
    """The rows of both; a model's task that was run again has its new rows alone."""
    again = {(row["model"], row["task"]) for row in new}
    return [row for row in old if (row["model"], row["task"]) not in again] + new


def measure(args, model, file) -> None:
    """All tasks and cases of one model, which is loaded once a run."""
    folder, (file_name, _) = args.work / model, ASKED[args.runs]
    run, dumps = Steps(args, folder), folder / "dumps"
    run(f"capture {' '.join(args.task)}", "kvcapture.py", "--model" if file.is_dir() else "--gguf", file, "--name", model, "--task", ",".join(args.task),
        "--samples", args.samples, "--length", args.length, *(("--gradients", args.gradients) if args.gradients else ()),
        "--out", dumps, "--resume")
    asked = [{"model": model, **row} for row in read(dumps / "tasks.csv") if int(row["sample"]) < args.samples]
    write_csv(folder / "asked.csv", ASKED_COLUMNS, [{name: row[name] for name in ASKED_COLUMNS} for row in asked])
    right = {task: [int(row["sample"]) for row in asked if (row["task"], row["right"]) == (task, "1")] for task in args.task}
    for task, found in right.items():
        if len(found) < FEWEST * args.samples:
            print(f"{model}: {task} left out: {len(found)} of {args.samples} answered rightly with the whole cache")
    judged = [dumps / f"{task}-{i:02}" for task, found in right.items() if len(found) >= FEWEST * args.samples for i in found]
    if len(judged) < 2:
        return
    folders = {}
    for protocol, ends in PROTOCOLS.items():
        for name, ((command, *options), alone, named) in RUNS[file_name].items():
            if alone not in ("", protocol):
                continue
            step = f"{name}_{protocol}"
            folders[folder / step] = protocol, named
            run(step, args.program, command, *judged, "--out", folder / step, "--force", "--quiet", "--threads", args.threads, *ends, *options)
    run(f"judged_{args.runs}", "kvvalidate.py", "--model", file, "--results", *folders, "--resume", *["--feedback"] * (args.runs == "blocks"))
    rows = [row for results, (protocol, named) in folders.items() for dump in judged
            for part in ("", "leave_one_out") if (results / part / dump.name).exists()
            for row in cases_of(model, dump, protocol, results / part / dump.name, named)]
    write_csv(folder / f"{file_name}.csv", COLUMNS, rows)


def cases_of(model, dump, protocol, results, named):
    """A row a case of one sample; `named` is added to its policies' names."""
    task = json.loads((dump / "manifest.json").read_text())["task"]
    figures = defaultdict(dict)
    for key, row in rows_of_model(results):
        if "metric" not in row:
            figures[key] = {figure: shorter(row[figure]) for figure in FIGURES if row.get(figure)}
        elif row["metric"] in FIGURES and row["rows"] == "future":
            figures[key][row["metric"]] = shorter(row["value"])
    return [{"model": model, "task": task["name"], "sample": task["sample"], "protocol": protocol,
             "policy": row["policy"] + named + FED_BACK * row["phase"].endswith("+feedback"), "budget": row["budget"],
             **{name: shorter(row[name]) for name in JUDGED}, **figures[row["policy"], row["budget"]]}
            for row in read(results / "answers.csv")]


def number(row, name):
    if name == "needles_lost":
        return 1 - number(row, "needles_kept")
    return float(row[name]) if row[name] else np.nan


def tables(folder):
    """By name, in the order of the page."""
    rows, asked = (read(folder / name) if (folder / name).exists() else [] for name in ("answers.csv", "asked.csv"))
    found = {"answers asked": asked_table(asked)}
    unknown = {(row["policy"], row["budget"]) for row in rows if not row["right"]}  # of what answers are not known of all
    for protocol in PROTOCOLS:
        mine = [row for row in rows if row["protocol"] == protocol and (row["policy"], row["budget"]) not in unknown]
        if mine:
            found[f"answers {protocol}"] = accuracy_table(mine)
            found[f"answers {protocol} tasks"] = tasks_table(mine)
            found[f"answers {protocol} foreseen"] = foreseen_table(mine)
            found[f"answers {protocol} nats"] = nats_table(mine)
    for name, pairs in PAIRS.items():
        if rows := answers_of(folder, name):
            found[f"answers {name}"] = pairs_table(rows, pairs)
            if name in PAIRS_IN:
                found |= {f"answers {name} nats": nats_over_table(rows, pairs), f"answers {name} right": accuracy_table(rows),
                          f"answers {name} tasks": tasks_table(rows)}
    if (folder / "paper_answers.csv").exists():
        rows = read(folder / "paper_answers.csv")
        found["answers levels"] = levels_table(read(folder / "answers.csv") + rows)
        found["answers bits"] = accuracy_table([row for row in rows if row["policy"].startswith("none~")])
    return found


def answers_of(folder, name):
    """The answers that these pairs are of."""
    path = folder / f"{PAIRS_IN.get(name, 'paper_answers')}.csv"
    return read(path) if path.exists() else []


def right_of(rows):
    """{(model, protocol, policy, budget): {(task, sample): whether it is answered}}, of what every answer is known of."""
    found = defaultdict(dict)
    for row in rows:
        found[row["model"], row["protocol"], row["policy"], row["budget"]][row["task"], row["sample"]] = str(row["right"])
    return {case: {sample: right == "1" for sample, right in mine.items()} for case, mine in found.items()
            if "" not in mine.values()}


def pairs_of(rows, pairs):
    """Of every pair that there is: (model, protocol, method, other), and by budget the answers of both."""
    right = right_of(rows)
    for model, protocol in dict.fromkeys((row["model"], row["protocol"]) for row in rows):
        for of, over in pairs:
            budgets = [b for m, p, policy, b in right if (m, p, policy) == (model, protocol, of) and (m, p, over, b) in right]
            if budgets:
                yield (model, protocol, of, over), {b: (right[model, protocol, of, b], right[model, protocol, over, b]) for b in budgets}


def differ(*pairs):
    """In how many samples the one answers at more of the budgets than the other, and at fewer, and McNemar's p; of (the one's answers,
    the other's) at each budget."""
    ahead = defaultdict(int)
    for mine, base in pairs:
        for sample in mine.keys() & base.keys():
            ahead[sample] += mine[sample] - base[sample]
    more, fewer = (sum(side * by > 0 for by in ahead.values()) for side in (1, -1))
    return more, fewer, mcnemar(more, fewer)


def bold_where_clear(column):
    """Of (text, p) the texts, bold where p is clear; the column is the family. None: no test."""
    corrected = iter(holm([cell[1] for cell in column if cell]))
    return [(f"**{cell[0]}**" if next(corrected) < CLEAR else cell[0]) if cell else "" for cell in column]


def pairs_table(rows, pairs):
    """Of how many samples both answer what, budget by budget, and over all."""
    found = dict(pairs_of(rows, pairs))
    budgets = sorted({b for by_budget in found.values() for b in by_budget})

    def of_budget(by_budget, budget):
        if budget not in by_budget:
            return None
        mine, base = by_budget[budget]
        more, fewer, p = differ((mine, base))
        return f"{sum(base.values())} to {sum(mine.values())} (+{more} -{fewer}, p = {p:.2g})", p

    def of_all(by_budget):
        more, fewer, p = differ(*by_budget.values())
        return f"+{more} -{fewer}, p = {p:.2g}", p

    columns = [bold_where_clear([of_budget(by_budget, budget) for by_budget in found.values()]) for budget in budgets]
    together = ["samples, all budgets"] if len(budgets) > 1 else []
    if together:
        columns.append(bold_where_clear([of_all(by_budget) for by_budget in found.values()]))
    lines = [[f"`{of}`{' (oracle)' if of.endswith('~lu') else ''} over `{over}`", model, "seen" if protocol == "aware" else "unseen", *cells]
             for (model, protocol, of, over), cells in zip(found, zip(*columns))]
    count = len({(row["task"], row["sample"]) for row in rows})
    return table([f"right answers of {count}", "model", "question", *(f"{budget} evicted" for budget in budgets), *together], lines)


def nats_over_table(rows, pairs):
    """The KL on the answer's rows of the one over that of the other: geometric means over samples."""
    kl = {tuple(row[name] for name in COLUMNS[:6]): np.log(max(float(row["kl_answer"]), 1e-12)) for row in rows}
    lines = []
    for (model, protocol, of, over), by_budget in pairs_of(rows, pairs):
        for budget, (mine, base) in by_budget.items():
            logs = [kl[model, *sample, protocol, of, budget] - kl[model, *sample, protocol, over, budget] for sample in mine if sample in base]
            lines.append([f"`{of}` over `{over}`", model, budget, times(logs)])
    return table(["KL on the answer's rows", "model", "evicted", "times the other's"], lines)


def pairs_cells(rows, pairs):
    """Of how many pairs the method answers clearly more over all budgets, clearly fewer, and neither. All of them are one family."""
    found, counts = dict(pairs_of(rows, pairs)), defaultdict(lambda: [0, 0, 0])
    tests = [differ(*by_budget.values()) for by_budget in found.values()]
    for (model, protocol, *_), (more, fewer, _), p in zip(found, tests, holm([p for *_, p in tests])):
        counts[model, protocol][2 if p >= CLEAR else 0 if more > fewer else 1] += 1
    return "; ".join(f"{model}, question {'seen' if protocol == 'aware' else 'unseen'} {' / '.join(map(str, found))}"
                     for (model, protocol), found in counts.items()) or "not measured yet"


def asked_table(asked):
    """With the whole cache."""
    models = dict.fromkeys(row["model"] for row in asked)
    lines = []
    for task in dict.fromkeys(row["task"] for row in asked):
        cells = []
        for model in models:
            mine = [row["right"] == "1" for row in asked if (row["model"], row["task"]) == (model, task)]
            cells.append(f"{sum(mine)} of {len(mine)}" if mine else "")
        lines.append([f"`{task}`", *cells])
    return table(["task, whole cache", *models], lines)


def accuracy_table(rows):
    """Of the samples that the whole cache answers: how many a case does, and whether that is fewer than snapkv's."""
    models, lines = dict.fromkeys(row["model"] for row in rows), []
    right = {(model, policy, budget): mine for (model, _, policy, budget), mine in right_of(rows).items()}
    for policy, budget in dict.fromkeys((row["policy"], row["budget"]) for row in rows):
        cells = []
        for model in models:
            mine, base = right.get((model, policy, budget), {}), right.get((model, "snapkv", budget), {})
            if not mine:
                cells += ["", ""]
                continue
            low, high = wilson(sum(mine.values()), len(mine))
            more, fewer, p = differ((mine, base))
            versus = f"+{more} -{fewer}, p = {p:.2g}" if base and policy != "snapkv" else ""
            cells += [f"{100 * sum(mine.values()) / len(mine):.0f} [{100 * low:.0f}, {100 * high:.0f}]", versus]
        lines.append([f"`{policy}`", budget, *cells])
    header = [said for model in models for said in (f"{model}: right, %", "against `snapkv`")]
    return table(["policy", "evicted", *header], lines)


def tasks_table(rows):
    """The same by task: how many of how many."""
    tasks, lines = dict.fromkeys((row["model"], row["task"]) for row in rows), []
    several, right = len({model for model, _ in tasks}) > 1, defaultdict(lambda: defaultdict(list))
    for row in rows:
        right[row["policy"], row["budget"]][row["model"], row["task"]].append(row["right"] == "1")
    for (policy, budget), mine in right.items():
        lines.append([f"`{policy}`", budget, *(f"{sum(mine[task])} of {len(mine[task])}" if task in mine else "" for task in tasks)])
    return table(["policy", "evicted", *(f"{model}: `{task}`" if several else f"`{task}`" for model, task in tasks)], lines)


def rates_of(rows):
    """How often a method flips answers at its budget: of the other samples, and of all. What is known without a dump."""
    flips = defaultdict(dict)
    for i, row in enumerate(rows):
        flips[row["policy"], row["budget"]][i] = row["right"] == "0"
    found = {"others": [0.0] * len(rows), "all": [0.0] * len(rows)}
    for mine in flips.values():
        for i, flip in mine.items():
            found["all"][i] = sum(mine.values()) / len(mine)
            found["others"][i] = (sum(mine.values()) - flip) / (len(mine) - 1) if len(mine) > 1 else np.nan
    return found


def foreseen_table(rows):
    """How well a figure tells answers that flip from answers that stay: of all cases, and of one budget's alone."""
    lines = []
    for model in dict.fromkeys(row["model"] for row in rows):
        of_model = [row for row in rows if row["model"] == model]
        rates = rates_of(of_model)
        known = {f"`{name}`": [number(row, name) for row in of_model] for name in FORESEE} | {RATES[name]: rates[name] for name in RATES}
        for name, figures in known.items():
            mine = [i for i, figure in enumerate(figures) if not np.isnan(figure)]
            if not mine:
                continue
            fifth = [i for i in mine if of_model[i]["budget"] == FIFTH]
            least, below = safe_below([figures[i] for i in mine], [of_model[i]["right"] == "1" for i in mine])
            lines.append([model, name, auc_of(of_model, figures, mine), auc_of(of_model, figures, mine, rates["all"]) if name[0] == "`" else "",
                          auc_of(of_model, figures, fifth) if fifth else "", f"{least:.3g} ({below} of {len(mine)} cases)"])
    return table(["model", "figure", "AUC of a flip", "above that of the method's flips", "AUC, a fifth kept", "no answer flips below"], lines)


def auc_of(rows, figures, some, base=None):
    flips, samples = [rows[i]["right"] == "0" for i in some], [f"{rows[i]['task']} {rows[i]['sample']}" for i in some]
    return with_interval(auc_interval([figures[i] for i in some], flips, samples, base and [base[i] for i in some]))


def levels_table(rows):
    """Of how many answers how many flip, by the KL on their rows; each answer counted once."""
    rows = list({tuple(row[name] for name in COLUMNS[:6]): row for row in rows if row["right"]}.values())
    lines = []
    for model in dict.fromkeys(row["model"] for row in rows):
        mine = [row for row in rows if row["model"] == model]
        bins = curve([number(row, "kl_answer") for row in mine], [row["right"] == "1" for row in mine], LEVELS)
        lines.append([model, *(f"{b.count - b.right} of {b.count}" for b in bins), f"{sum(b.count - b.right for b in bins)} of {len(mine)}"])
    return table(["model", *(f"{low:g} to {high:g}" for low, high in zip(LEVELS, LEVELS[1:])), "all"], lines)


def nats_table(rows):
    """How many answers are right by the KL on their rows."""
    lines = []
    for model in dict.fromkeys(row["model"] for row in rows):
        mine = [row for row in rows if row["model"] == model]
        bins = curve([number(row, "kl_answer") for row in mine], [row["right"] == "1" for row in mine], EDGES)
        lines.append([model, *(f"{b.right} of {b.count}" if b.count else "" for b in bins)])
    return table(["model", *(f"{low:g} to {high:g}" for low, high in zip(EDGES, EDGES[1:]))], lines)


if __name__ == "__main__":
    sys.exit(main())
