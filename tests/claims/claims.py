#!/usr/bin/env python3
"""Replays what papers on KV-cache eviction claim on a dump, and prints a table of what holds.

  claims.py [--program KVREPLAY] [--work DIR] DUMP...

Every number comes from a `kvreplay` command, which is printed above the table, and from the CSV files it writes; no number is
computed here but means, counts and differences of theirs. Standard library only.
"""

import argparse
import csv
import json
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

BASES = ("h2o", "tova", "snapkv")


class Results:
    """The results of the commands on one dump."""

    def __init__(self, program, dump, work):
        self.program, self.dump, self.work = program, dump, work / dump.name

    def run(self, name, *arguments):
        folder = self.work / name
        command = [self.program, arguments[0], self.dump, "--out", folder, "--precision", "f64", *arguments[1:]]
        print("   ", " ".join(str(part) for part in command), file=sys.stderr)
        subprocess.run([*command, "--force", "--quiet"], check=True)
        return folder

    def agreement(self):
        folder = self.run("tokens", "tokens", "--reserve", "0,32")
        return list(read(folder / "agreement.csv"))

    def evictions(self):
        policies = ",".join(base + score for base in BASES for score in ("", "+caote", "+fastcaote"))
        folder = self.run("evict", "evict", "--policy", policies, "--sigma", "0.8", "--phase", "prefill,blockwise:32,blockwise:128")
        prompt = json.loads((folder / "summary.json").read_text())["totals"]["candidates"]
        return [{**row, "prompt": prompt} for row in read(folder / "evictions.csv")]

    def budgets(self):
        folder = self.run("budget", "budget", "--order", "snapkv,keydiff,value", "--sigma", "0.5,0.8", "--method", "uniform,ada,lu,optimal")
        return list(read(folder / "budgets.csv"))


def read(path):
    with open(path, newline="") as file:
        yield from csv.DictReader(file)


def mean_over_heads(rows, **wanted):
    values = [float(row["value"]) for row in rows if all(row[key] == value for key, value in wanted.items())]
    return statistics.fmean(value for value in values if value == value)


def median_over_heads(rows, **wanted):
    values = [float(row["value"]) for row in rows if all(row[key] == value for key, value in wanted.items())]
    return statistics.median(value for value in values if value == value)


def verdict(holds, total=1):
    """Of `total` comparisons; those between equal numbers are no comparisons."""
    return "n/a" if total == 0 else "yes" if holds == total else "no" if holds == 0 else "in part"


def output_aware_recall(agreement):
    """OBCache fig. 2a"""
    recall = {s: mean_over_heads(agreement, score=s, reference="oracle_next", metric="recall@10%", reserve="0")
              for s in ("attn", "value", "key", "joint")}
    better = sum(recall[s] > recall["attn"] for s in ("value", "key", "joint"))
    return ", ".join(f"{s} {r:.3f}" for s, r in recall.items()), verdict(better, 3)


def reserved_window(agreement):
    """OBCache fig. 2b"""
    gain, texts = 0, []
    for score in ("attn", "value", "key", "joint"):
        without, reserved = (mean_over_heads(agreement, score=score, reference="oracle_next", metric="recall@10%", reserve=r)
                             for r in ("0", "32"))
        gain += reserved > without
        texts.append(f"{score} {without:.3f} -> {reserved:.3f}")
    return ", ".join(texts), verdict(gain, 4)


def taylor_ranks(agreement):
    """value/exact_value is left out: the two are equal by definition."""

    def rho(score, reference):
        return median_over_heads(agreement, score=score, reference=reference, metric="spearman", reserve="0")

    pairs = (("key", "exact_key"), ("joint", "exact_joint"), ("value", "exact_remove"), ("key", "exact_remove"), ("joint", "exact_remove"))
    found = [(a, b, rho(a, b)) for a, b in pairs]
    return ", ".join(f"{a}/{b} {r:.2f}" for a, b, r in found), verdict(sum(r > 0.95 for *_, r in found), len(found))


def figure(evictions, policy, phase, metric, layer=None):
    """By layer (kv_head empty), or of the whole model (layer None)."""
    for row in evictions:
        if (row["policy"], row["phase"], row["metric"], row["rows"]) == (policy, phase, metric, "future") and row["kv_head"] == "":
            if row["layer"] == ("" if layer is None else layer):
                return float(row["value"])
    raise KeyError((policy, phase, metric, layer))


def caote_by_layer(evictions):
    """CAOTE fig. 3. Layers where both keep the same tokens do not count."""
    layers = sorted({row["layer"] for row in evictions if row["layer"]}, key=int)
    texts, wins, total = [], 0, 0
    metric = "layer_output_error" if any(row["metric"] == "layer_output_error" for row in evictions) else "output_error"
    for base in BASES:
        for score in ("caote", "fastcaote"):
            pairs = [(figure(evictions, f"{base}+{score}", "prefill", metric, layer), figure(evictions, base, "prefill", metric, layer))
                     for layer in layers]
            better, differ = sum(a < b for a, b in pairs), sum(a != b for a, b in pairs)
            texts.append(f"{base}+{score} {better}/{differ}" if differ else f"{base}+{score} keeps the same")
            wins, total = wins + better, total + differ
    return f"layers with less {metric}: " + ", ".join(texts), verdict(wins, total)


def smaller_blocks(evictions):
    """CAOTE table 10. A block as long as the prompt is no block."""
    prompt = evictions[0]["prompt"]
    if prompt <= 128:
        return f"the prompt has {prompt} tokens", "n/a"
    texts, wins, total = [], 0, 0
    for base in BASES:
        small, large = (figure(evictions, f"{base}+caote", f"blockwise:{n}", "output_error") for n in (32, 128))
        wins, total = wins + (small < large), total + (small != large)
        texts.append(f"{base}+caote {small:.4f} (32) / {large:.4f} (128)")
    return ", ".join(texts), verdict(wins, total)


def losses(budgets, order, sigma, layer=False):
    found = defaultdict(list)
    for row in budgets:
        if (row["order"], row["sigma"], row["kv_head"]) == (order, sigma, "") and (row["layer"] != "") == layer:
            found[row["method"]].append(float(row["loss"]))
    return found


def lu_ada_uniform(budgets):
    """LU-KV fig. 3"""
    texts, wins, total = [], 0, 0
    for order in ("snapkv", "keydiff", "value"):
        for sigma in ("0.5", "0.8"):
            loss = {method: values[0] for method, values in losses(budgets, order, sigma).items()}
            wins += (loss["lu"] < loss["ada"]) + (loss["ada"] < loss["uniform"])
            total += 2
            texts.append(f"{order} {sigma}: {loss['lu']:.3g} / {loss['ada']:.3g} / {loss['uniform']:.3g}")
    return "lu / ada / uniform: " + ", ".join(texts), verdict(wins, total)


def bursts(budgets):
    """LU-KV fig. 4: the layer that loses most"""
    texts, wins, total = [], 0, 0
    for order in ("snapkv", "keydiff", "value"):
        for sigma in ("0.5", "0.8"):
            worst = {method: max(values) for method, values in losses(budgets, order, sigma, layer=True).items()}
            wins += worst["lu"] <= min(worst["ada"], worst["uniform"])
            total += 1
            texts.append(f"{order} {sigma}: {worst['lu']:.3g} / {worst['ada']:.3g} / {worst['uniform']:.3g}")
    return "largest loss of a layer, lu / ada / uniform: " + ", ".join(texts), verdict(wins, total)


def hull_is_optimal(budgets):
    """LU-KV fig. 2a"""
    texts, equal, total = [], 0, 0
    for order in ("snapkv", "keydiff", "value"):
        for sigma in ("0.5", "0.8"):
            loss = {method: values[0] for method, values in losses(budgets, order, sigma).items()}
            excess = 100 * (loss["lu"] / loss["optimal"] - 1) if loss["optimal"] else 0.0
            equal += excess == 0
            total += 1
            texts.append(f"{order} {sigma}: +{excess:.2g} %")
    return ", ".join(texts), verdict(equal, total)


CLAIMS = (
    ("Output-aware scores find more of the next step's costliest tokens than attention sums (OBCache fig. 2a; recall@10% of `oracle_next`)",
     "agreement", output_aware_recall),
    ("A reserved recent window of 32 raises that recall (fig. 2b)", "agreement", reserved_window),
    ("Taylor scores rank as the exact errors do (median Spearman over heads; above 0.95 counts)", "agreement", taylor_ranks),
    ("CAOTE and FastCAOTE lower the output error of H2O, TOVA and SnapKV in every layer (CAOTE fig. 3; sigma 0.8)",
     "evictions", caote_by_layer),
    ("Smaller blocks help CAOTE (table 10; output error, sigma 0.8)", "evictions", smaller_blocks),
    ("lu loses less than ada, ada less than uniform (LU-KV fig. 3)", "budgets", lu_ada_uniform),
    ("lu has no layer with a burst of loss (fig. 4)", "budgets", bursts),
    ("Greedy on the hull equals the exact optimum (fig. 2a; loss above it)", "budgets", hull_is_optimal),
)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dumps", nargs="+", type=Path, metavar="DUMP")
    parser.add_argument("--program", default="build/release/bin/kvreplay")
    parser.add_argument("--work", type=Path, default=Path("results/claims"))
    args = parser.parse_args()
    for dump in args.dumps:
        results = Results(args.program, dump, args.work)
        tables = {"agreement": results.agreement(), "evictions": results.evictions(), "budgets": results.budgets()}
        print(f"\n{dump.name}\n\n| claim | measured | holds |\n|---|---|---|")
        for claim, table, judge in CLAIMS:
            measured, holds = judge(tables[table])
            print(f"| {claim} | {measured} | {holds} |")


if __name__ == "__main__":
    main()
