#!/usr/bin/env python3
"""The tables of README.md, from the tables that study.py gathers: beside this script, or in the folder given.

  analysis.py [DIR]              prints them
  analysis.py [DIR] --write      puts them into DIR/README.md, between its marks

Orders are compared within a model, a prompt and a budget, never across. Intervals are over prompts (intervals.py). Needs NumPy.
"""
from __future__ import annotations

import sys
from collections import defaultdict
from itertools import combinations
from pathlib import Path

import numpy as np

from intervals import interval, share_interval
from orders import (BINS, BUDGETS, CLEAR, FIGURES, FORESEE, IN_NATS, METHODS, RECENT, SAMPLES, Cases, clear, orders, read,
                    spearman)

KINDS_ORDER = ("output_error", "residual_error", "loss_row", "loss_layer, loss_step", "loss_step")
KINDS_NATS = ("loss_layer", "loss_step")


def rho_table(cases, truth, keep=lambda policy: True, figures=FIGURES):
    """Spearman's correlation of every figure with the truth within a prompt and budget: the mean over prompts."""
    rows = []
    for figure in figures:
        each = np.array([[spearman(cases.values[figure][some], cases.values[truth][some]) for prompt in cases.prompts
                          for some in [cases.only(cases.groups[prompt, budget], keep)]] for budget in BUDGETS])
        rows.append([f"`{figure}`", *(with_interval(interval(found, -1, 1)) for found in (*each, each.mean(0)))])
    return table(["figure", *(f"{b} evicted" for b in BUDGETS), "mean of the three"], rows)


def ratio_table(found):
    """How often the order is right where the figure differs so much."""
    rows = []
    for figure in FIGURES:
        cells = []
        for low, high in BINS:
            counts = [(right[inside].sum(), inside.sum())
                      for said, _, right, *_ in found[figure] for at in [np.round(said, 9)]  # as on every machine
                      for inside in [(at >= low) & (at < high)]]
            right, total = np.sum(counts, 0)
            cells.append(f"{100 * right / total:.0f} % of {total}" if total else "")
        rows.append([f"`{figure}`", *cells])
    names = [f"below {BINS[0][1]}", *(f"{low} to {high}" for low, high in BINS[1:-1]), f"{BINS[-1][0]} and more"]
    return table(["figure", *names], rows)


def clear_table(cases, found):
    """Of pairs whose true KL differs clearly: how many are ordered rightly."""
    runs, recent = np.array([p not in FORESEE for p in cases.policy]), np.array([p in RECENT for p in cases.policy])
    kinds = {f"{CLEAR} times and more": {}, "2 and more": {"least": 2}, "4 and more": {"least": 4},
             f"{CLEAR}, both can be run": {"some": lambda i, j: runs[i] & runs[j]},
             f"{CLEAR}, both keep the last": {"some": lambda i, j: recent[i] & recent[j]},
             f"{CLEAR}, one of them does": {"some": lambda i, j: runs[i] & runs[j] & (recent[i] != recent[j])}}
    rows = [[f"`{figure}`", *(with_interval(share_interval(clear(found[figure], **kind)), 100, 1) for kind in kinds.values())]
            for figure in FIGURES]
    counts = [int(np.sum(clear(found[FIGURES[0]], **kind), 0)[1]) for kind in kinds.values()]
    return table(["share in %", *kinds], [["pairs", *map(str, counts)], *rows]), counts[0]


def samples_table(found):
    """The same by how many samples of the gradients there are."""
    rows = [[f"`{figure}`", *(with_interval(share_interval(clear(found[name])), 100, 1) for name in names)]
            for figure, names in SAMPLES.items()]
    return table(["figure", "6 samples", "12", "24"], rows)


def calibration_table(cases):
    """Predicted over true nats."""
    rows = []
    kl, inside = cases.values["true_kl"], cases.inside()
    for figure in IN_NATS:
        cells = []
        for budget in (*BUDGETS, None):
            some = [i for (_, b), group in cases.groups.items() if budget in (b, None) for i in group if inside[i]]
            ratio = cases.values[figure][some] / kl[some]
            low, middle, high = np.quantile(ratio, (0.05, 0.5, 0.95))
            near = np.mean((ratio >= 0.5) & (ratio <= 2))
            cells.append(f"{middle:.2f} [{low:.2f}, {high:.2f}], {100 * near:.0f} %")
        rows.append([f"`{figure}`", *cells])
    return table(["figure", *(f"{b} evicted" for b in BUDGETS), f"all {inside.sum()} cases"], rows)


def wrong_table(cases, found, most=12):
    """Pairs of policies, clearly apart in truth, that every figure of FIGURES puts in the wrong order, by how often."""
    wrong, seen = defaultdict(list), defaultdict(int)
    for n in range(len(cases.prompts)):
        _, truth, _, i, j = found[FIGURES[0]][n]
        never = ~np.any([found[figure][n][2] for figure in FIGURES], 0)
        for pair in np.flatnonzero(truth >= CLEAR):
            a, b = i[pair], j[pair]
            worse, better = (a, b) if cases.values["true_kl"][a] > cases.values["true_kl"][b] else (b, a)
            names = cases.policy[worse], cases.policy[better]
            seen[frozenset(names)] += 1
            if never[pair]:
                wrong[names].append(truth[pair])
    rows = [[f"{worse} > {better}", str(len(ratios)), str(seen[frozenset((worse, better))]), f"{max(ratios):.1f}"]
            for (worse, better), ratios in sorted(wrong.items(), key=lambda item: (-len(item[1]), item[0]))]
    total = sum(map(len, wrong.values()))
    return table(["true order of KL", "all wrong", "clear pairs", "largest ratio"], rows[:most]), total


def layers_table(rows):
    """How the KL of layers changed alone adds up, and which figure follows it over the layers."""
    cells = []
    groups = defaultdict(list)
    for row in rows:
        groups[row["model"], row["prompt"], row["policy"], row["budget"]].append(row)
    names = ("output_error", "layer_output_error", "loss_row", "loss_head")
    for (model, prompt, policy, budget), group in groups.items():
        alone = np.array([float(row["kl"]) for row in group])
        first = np.argsort(-alone)[:3]
        nats = {name: np.array([float(row[name]) for row in group]) for name in names}
        costliest = ", ".join(f"{group[i]['layer']} ({100 * alone[i] / alone.sum():.0f} %)" for i in first)
        cells.append([model, prompt, f"{policy} {budget}", f"{float(group[0]['whole_kl']):.4f}", f"{alone.sum():.4f}",
                      f"{nats['loss_head'].sum():.4f}", costliest,
                      *(f"{spearman(values, alone):.2f}" for values in nats.values())])
    return table(["model", "prompt", "case", "KL of all", "sum of layers alone", "`loss_head`", "costliest layers",
                  *(f"`{name}`" for name in names)], cells)


def second_order_table(rows, cases):
    """What an endless number of samples would say, beside what 24 do; and how many clear pairs it puts in order."""
    own = {(row["model"], row["prompt"], row["policy"], row["budget"]): row for row in cases}
    found = []
    for row in sorted(rows, key=lambda row: (row["model"], float(row["true_kl"]))):
        case = own[row["model"], row["prompt"], row["policy"], row["budget"]]
        names = ("true_kl", "second_order", "true_kl_large", "second_order_large", "true_kl_rest", "second_order_rest")
        found.append({**{name: float(row[name]) for name in names},
                      **{name: float(case[name]) for name in ("loss_step8", "loss_joint", "output_error")},
                      "what": (row["model"], row["prompt"], row["policy"], row["budget"])})
    cells = [[x["what"][0], x["what"][2], f"{x['true_kl']:.4f}",
              *(f"{x[name] / x['true_kl']:.2f}" for name in ("second_order", "loss_step8", "loss_joint")),
              f"{100 * x['true_kl_large'] / x['true_kl']:.0f} %",
              *(f"{x['second_order_' + part] / x['true_kl_' + part]:.2f}" if x["true_kl_" + part] else ""
                for part in ("large", "rest"))] for x in found]
    said = []
    for model in dict.fromkeys(x["what"][0] for x in found):
        pairs = [(a, b) for a, b in combinations([x for x in found if x["what"][0] == model], 2)
                 if abs(np.log(a["true_kl"] / b["true_kl"])) >= np.log(CLEAR)]
        shares = {name: np.mean([(a["true_kl"] - b["true_kl"]) * (a[name] - b[name]) > 0 for a, b in pairs])
                  for name in ("second_order", "loss_step8", "loss_joint", "output_error")}
        figures = ", ".join(f"`{name}` {100 * share:.0f} %" for name, share in shares.items())
        said.append(f"{model}: of {len(pairs)} clear pairs in the right order: {figures}.")
    header = ["model", f"policy, {rows[0]['budget']} evicted", "KL", "second order / KL", "`loss_step8` / KL",
              "`loss_joint` / KL", "KL in large steps", "second order / KL there", "in the others"]
    return "\n\n".join((table(header, cells), *said))


def methods_table(all_cases):
    """How many times one method loses what another does, in true KL: geometric means over prompts."""
    rows = []
    for name, cases in all_cases.items():
        at = {(cases.policy[i], group): i for group, some in cases.groups.items() for i in some}
        kl = cases.values["true_kl"]
        for of, over in METHODS:
            cells = []
            for budget in BUDGETS:
                logs = [np.log(kl[at[of, (prompt, budget)]] / kl[at[over, (prompt, budget)]]) for prompt in cases.prompts]
                cells.append(times(logs))
            rows.append([name, f"`{of}` over `{over}`", *cells])
    return table(["model", "true KL of", *(f"{b} evicted" for b in BUDGETS)], rows)


def summary_table(all_cases):
    """Of every model: the clear pairs in the right order, the mean rank correlation, and the calibration."""
    names = [f"{name}, {len(cases.prompts)}" for name, cases in all_cases.items()]
    found = [orders(cases) for cases in all_cases.values()]
    rows = []
    for figure in FIGURES:
        shares = [with_interval(share_interval(clear(each[figure])), 100, 1) for each in found]
        rhos, nats, near = [], [], []
        for cases in all_cases.values():
            rho = [np.mean([spearman(cases.values[figure][some], cases.values["true_kl"][some])
                            for some in (cases.groups[prompt, budget] for budget in BUDGETS)])
                   for prompt in cases.prompts]
            rhos.append(f"{np.mean(rho):.2f}")
            ratio = (cases.values[figure] / cases.values["true_kl"])[cases.inside()]
            if figure in IN_NATS:
                nats.append(f"{np.median(ratio):.2f}")
                near.append(f"{100 * np.mean((ratio >= 0.5) & (ratio <= 2)):.0f}")
        rows.append([f"`{figure}`", *shares, *map(" / ".join, (rhos, nats, near))])
    return table(["figure", *names, "rank correlation", "predicted over true", "within a factor of 2, %"], rows)


def kinds_table(running, copied):
    """The same for running text, and where the answers are copied from the prompt."""
    rows = []
    for name in copied:
        for what, cases in (("running text", running[name]), ("copied", copied[name])):
            found = orders(cases)
            cells = [with_interval(share_interval(clear(found[figure])), 100, 1) for figure in KINDS_ORDER]
            for figure in KINDS_NATS:
                ratio = (cases.values[figure] / cases.values["true_kl"])[cases.inside()]
                cells.append(f"{np.median(ratio):.2f}, {100 * np.mean((ratio >= 0.5) & (ratio <= 2)):.0f} %")
            rows.append([name, f"{what}, {len(cases.prompts)}", *cells])
    return table(["model", "answers", *(f"`{name}`, in order" for name in KINDS_ORDER),
                  *(f"`{name}` over true; within a factor of 2" for name in KINDS_NATS)], rows)


def times(logs, digits=2):
    """How many times one loses what another does, of the logarithms of prompts."""
    return f"{with_interval(np.exp(interval(logs)), digits=digits)}, less in {sum(log < 0 for log in logs)} of {len(logs)}"


def with_interval(found, factor=1, digits=2):
    """The mean alone where it has no interval."""
    middle, low, high = (f"{factor * x:.{digits}f}" for x in found)
    return middle if np.isnan(found[1]) else f"{middle} [{low}, {high}]"


def significant(logs, digits=2):
    """The geometric mean and its interval, so many digits each."""
    middle, low, high = (f"{x:.{digits}g}" for x in np.exp(interval(logs)))
    return middle if low == "nan" else f"{middle} [{low}, {high}]"


def table(header, rows):
    lines = ["| " + " | ".join(row) + " |" for row in (header, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:]])


def practical(policy):
    return policy not in FORESEE


def by_model(rows):
    return {model: Cases(rows, model) for model in dict.fromkeys(row["model"] for row in rows)}


def tables(folder):
    """By name, in the order of the page."""
    rows, prompts = read(folder / "cases.csv"), read(folder / "prompts.csv")
    found = {"prompts": table(["model", "prompt", "kind", "tokens", "nats a token", "text"],
                              [[row["model"], row["prompt"], row["kind"], row["tokens"], f"{float(row['nll']):.2f}",
                                f"`{row['source']}`"] for row in prompts])}
    models = by_model(rows)
    found["summary"] = summary_table(models)
    if copied := read(folder / "retrieval.csv") if (folder / "retrieval.csv").exists() else ():
        found["kinds"] = kinds_table(models, by_model(copied))
    found["methods"] = methods_table(models)
    for model, cases in models.items():
        ordered = orders(cases)
        found[f"{model} kl"] = rho_table(cases, "true_kl")
        found[f"{model} kl practical"] = rho_table(cases, "true_kl", practical)
        found[f"{model} median"] = rho_table(cases, "true_kl_median")
        found[f"{model} dnll"] = rho_table(cases, "true_dnll", figures=("dnll", *FIGURES))
        found[f"{model} ratios"] = ratio_table(ordered)
        found[f"{model} clear"], total = clear_table(cases, ordered)
        found[f"{model} samples"] = samples_table(ordered)
        found[f"{model} calibration"] = calibration_table(cases)
        wrong, every = wrong_table(cases, ordered)
        said = f"{every} of the {total} clear pairs are put in the wrong order by every figure."
        found[f"{model} wrong"] = f"{wrong}\n\n{said}"
    for name, make in (("layers", layers_table), ("second_order", lambda alone: second_order_table(alone, rows))):
        if alone := read(folder / f"{name}.csv"):
            found[name] = make(alone)
    return found


def fill(page, found):
    """The page with every `<!-- NAME -->` ... `<!-- end -->` filled."""
    for name, text in found.items():
        mark = f"<!-- {name} -->"
        if mark in page:
            begin = page.index(mark) + len(mark)
            page = page[:begin] + f"\n{text}\n" + page[page.index("<!-- end -->", begin) :]
    return page


def main() -> int:
    names = [argument for argument in sys.argv[1:] if argument != "--write"]
    folder = Path(names[0]) if names else Path(__file__).resolve().parent
    found = tables(folder)
    if "--write" in sys.argv:
        page = folder / "README.md"
        page.write_text(fill(page.read_text(encoding="utf-8"), found), encoding="utf-8")
    else:
        for name, text in found.items():
            print(f"## {name}\n\n{text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
