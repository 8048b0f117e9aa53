#!/usr/bin/env python3
"""Replays what papers on KV-cache compression claim on a dump, and prints tables of what holds.

  claims.py [--program KVREPLAY] [--work DIR] DUMP...

Of several dumps the last table has their verdicts side by side.

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

    def channels(self):
        plain = self.run("channels", "channels")
        protected = self.run("protected", "channels", "--method", "iap", "--protect", "5:15")
        return [{**row, "protect": protect} for protect, folder in (("", plain), ("5:15", protected)) for row in read(folder / "channels.csv")]

    def levers(self):
        """Evicting tokens, pruning key channels, quantizing: alone and together."""
        found = []
        for name, *arguments in LEVERS:
            folder = self.run(f"levers {name}", "evict", *arguments)
            found += [{**row, "lever": name} for row in read(folder / "evictions.csv")]
        return found


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


RATIOS = ("0.4", "0.5", "0.6", "0.7")


def channel_errors(channels, metric, rows, protect=""):
    """{(method, ratio, layer): error}; layer None: of the model"""
    return {(row["method"], row["ratio"], row["layer"] or None): float(row["value"]) for row in channels
            if (row["metric"], row["rows"], row["kv_head"], row["protect"]) == (metric, rows, "", protect)}


def best_rows(channels):
    return "future" if any(row["rows"] == "future" for row in channels) else "window"


def layers_of(errors):
    return sorted({layer for *_, layer in errors if layer}, key=int)


def interactions_reconstruct(channels):
    """IAP fig. 3"""
    errors = channel_errors(channels, "reconstruction_error", "window")
    cells = [(ratio, layer) for ratio in RATIOS for layer in layers_of(errors) if errors["iap", ratio, layer] != errors["think", ratio, layer]]
    wins = sum(errors["iap", *cell] < errors["think", *cell] for cell in cells)
    gains = ", ".join(f"{ratio}: {1 - errors['iap', ratio, None] / errors['think', ratio, None]:+.0%}" for ratio in RATIOS)
    return f"gain of iap {gains}; layers x ratios won: {wins}/{len(cells)}", verdict(wins, len(cells))


def reconstruction_is_output(channels):
    """What IAP's objective is for"""
    errors = channel_errors(channels, "output_error", best_rows(channels))
    cells = [(ratio, layer) for ratio in RATIOS for layer in layers_of(errors) if errors["iap", ratio, layer] != errors["think", ratio, layer]]
    wins = sum(errors["iap", *cell] < errors["think", *cell] for cell in cells)
    gains = ", ".join(f"{ratio}: {1 - errors['iap', ratio, None] / errors['think', ratio, None]:+.0%}" for ratio in RATIOS)
    return f"gain of iap {gains}; layers x ratios won: {wins}/{len(cells)}", verdict(wins, len(cells))


def output_space(channels):
    return output_space_on(channels, "window")


def output_space_later(channels):
    if best_rows(channels) == "window":
        return "the dump has no decoding steps", "n/a"
    return output_space_on(channels, "future")


def output_space_on(channels, rows):
    errors = channel_errors(channels, "output_error", rows)
    cells = [(ratio, layer) for ratio in RATIOS for layer in layers_of(errors)]
    wins = sum(errors["output", *cell] < min(errors["think", *cell], errors["iap", *cell]) for cell in cells)
    table = ", ".join(f"{ratio}: {errors['output', ratio, None]:.3g} / {errors['think', ratio, None]:.3g} / {errors['iap', ratio, None]:.3g}"
                      for ratio in RATIOS)
    return f"output / think / iap {table}; layers x ratios won: {wins}/{len(cells)}", verdict(wins, len(cells))


def protection(channels):
    """IAP 3.3"""
    rows = best_rows(channels)
    plain, kept = (channel_errors(channels, "relative_reconstruction_error", rows, protect) for protect in ("", "5:15"))
    cells = [("iap", ratio, layer) for ratio in RATIOS for layer in layers_of(plain)]
    wins, differ = sum(kept[cell] < plain[cell] for cell in cells), sum(kept[cell] != plain[cell] for cell in cells)
    table = ", ".join(f"{ratio}: {plain['iap', ratio, None]:.3g} -> {kept['iap', ratio, None]:.3g}" for ratio in RATIOS)
    return f"{table}; layers x ratios won: {wins}/{differ}", verdict(wins, differ)


LEVERS = (
    ("tokens", "--policy", "snapkv", "--sigma", "0.5,0.75,0.85"),
    ("channels 0.5", "--policy", "none", "--channels", "output:0.5"),
    ("4 bits", "--policy", "none", "--bits", "4"),
    ("2 bits", "--policy", "none", "--bits", "2"),
    ("tokens, 4 bits", "--policy", "snapkv", "--sigma", "0.5", "--bits", "4"),
    ("tokens, channels 0.3, 4 bits", "--policy", "snapkv", "--sigma", "0.35", "--channels", "output:0.3", "--bits", "4"),
)


def lever_table(levers):
    """Markdown: what each lever leaves of the cache, and what it loses."""
    full = None
    lines = ["| lever | tokens kept | bytes kept | output error |", "|---|---|---|---|"]
    cells = defaultdict(dict)
    rows = "future" if any(row["rows"] == "future" for row in levers) else "window"
    for row in levers:
        if row["layer"] == "" and (row["metric"] == "bytes" or (row["metric"] == "output_error" and row["rows"] == rows)):
            cells[row["lever"], row["policy"], row["budget"], row["kept"]][row["metric"]] = float(row["value"])
    for (lever, _, _, kept), found in cells.items():
        full = full or found["bytes"] / int(kept)  # the first lever keeps whole tokens
        lines.append(f"| {lever} | {kept} | {found['bytes'] / (full * max(int(k) for *_, k in cells)):.0%} | {found['output_error']:.3g} |")
    return "\n".join(lines)


def gain_table(channels):
    """Markdown: IAP fig. 3 and its counterpart in the output, by layer."""
    window = channel_errors(channels, "reconstruction_gain", "window")
    rows = best_rows(channels)
    output = channel_errors(channels, "output_gain", rows)
    methods = ("magnitude", "iap", "exchange", "output")
    lines = ["| layer | " + " | ".join(methods) + " |", "|---" * (len(methods) + 1) + "|"]
    for layer in [*layers_of(window), None]:
        cells = [" / ".join(f"{window[m, r, layer]:+.0%}" for r in RATIOS) + "<br>" + " / ".join(f"{output[m, r, layer]:+.0%}" for r in RATIOS)
                 for m in methods]
        lines.append(f"| {'all' if layer is None else layer} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


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
    ("A selection that knows how channels interact reconstructs the logits better than ThinK (IAP fig. 3)", "channels", interactions_reconstruct),
    ("and so keeps the attention output better", "channels", reconstruction_is_output),
    ("Choosing channels in output space keeps it better than both, on the rows that it was chosen for (here first shown)", "channels", output_space),
    ("and on the decoding steps", "channels", output_space_later),
    ("Protecting outstanding key channels (5:15 %) makes iap's logits better for later queries (IAP 3.3; relative reconstruction error)",
     "channels", protection),
)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dumps", nargs="+", type=Path, metavar="DUMP")
    parser.add_argument("--program", default="build/release/bin/kvreplay")
    parser.add_argument("--work", type=Path, default=Path("results/claims"))
    args = parser.parse_args()
    verdicts = {claim: [] for claim, *_ in CLAIMS}
    for dump in args.dumps:
        results = Results(args.program, dump, args.work)
        tables = {"agreement": results.agreement(), "evictions": results.evictions(), "budgets": results.budgets(), "channels": results.channels()}
        print(f"\n{dump.name}\n\n| claim | measured | holds |\n|---|---|---|")
        for claim, table, judge in CLAIMS:
            measured, holds = judge(tables[table])
            print(f"| {claim} | {measured} | {holds} |")
            verdicts[claim].append(holds)
        print("\nGain over ThinK at the ratios " + ", ".join(RATIOS) + ", by layer: reconstruction error, and under it output error\n")
        print(gain_table(tables["channels"]))
        print("\nThree levers\n")
        print(lever_table(results.levers()))
    if len(args.dumps) > 1:
        print("\nWhat holds where\n\n| claim | " + " | ".join(dump.name for dump in args.dumps) + " |")
        print("|---" * (1 + len(args.dumps)) + "|")
        for claim, found in verdicts.items():
            print(f"| {claim} | " + " | ".join(found) + " |")


if __name__ == "__main__":
    main()
