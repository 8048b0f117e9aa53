#!/usr/bin/env python3
"""Replays what papers on KV-cache compression claim on a dump, and prints tables of what holds.

  claims.py [--program KVREPLAY] [--work DIR] DUMP...

Of several dumps the last table has their verdicts side by side.

Every number comes from a `kvreplay` command, which is printed above the table, and most verdicts from its report
(figures/papers-claims.csv). Standard library only.
"""

import argparse
import csv
import functools
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

BAD_INPUT = 2
EVICTED = ",".join(base + score for base in ("h2o", "tova", "snapkv") for score in ("", "+caote", "+fastcaote"))
# Each command decides the claims that its report then has.
RUNS = (
    ("tokens", "tokens", "--reserve", "0,32"),
    ("evict", "evict", "--policy", EVICTED, "--sigma", "0.8", "--phase", "prefill,blockwise:32,blockwise:128"),
    ("budget", "budget", "--order", "snapkv,keydiff,value", "--sigma", "0.5,0.8", "--method", "uniform,ada,lu,optimal"),
    ("channels", "channels"),
    ("merging", "evict", "--policy", "snapkv,h2o", "--sigma", "0.8", "--compensate",
     "none,mass,values,fit,cam,d2o,kvmerger,keepkv,merging_press"),
    ("leverage", "evict", "--policy", "greedy_exact,greedy_leverage", "--sigma", "0.8", "--compensate", "fit"),
)


class Results:
    """The results of the commands on one dump."""

    def __init__(self, program, dump, work):
        self.program, self.dump, self.work = program, dump, work / dump.name

    def run(self, name, *arguments):
        """The folder; none where the dump lacks what the command needs, which it has said."""
        folder = self.work / name
        command = [self.program, arguments[0], self.dump, "--out", folder, "--precision", "f64", *arguments[1:]]
        print("   ", " ".join(str(part) for part in command), file=sys.stderr)
        done = subprocess.run([*command, "--force", "--quiet"])
        if done.returncode == BAD_INPUT:
            return None
        done.check_returncode()
        return folder

    def decided(self, *run):
        """What a run's report decides."""
        folder = self.run(*run)
        if folder is None:
            return {}
        subprocess.run([self.program, "report", folder], check=True, stdout=subprocess.DEVNULL)
        table = folder / "report" / "figures" / "papers-claims.csv"
        return {row["claim"]: (row["measured"], row["holds"]) for row in read(table)} if table.exists() else {}

    def claims(self):
        """{claim: (measured, holds)}"""
        found = {}
        for run in RUNS:
            found |= self.decided(*run)
        found[PROTECTION] = protection(self.channels)
        return found

    @functools.cached_property
    def channels(self):
        protected = self.run("protected", "channels", "--method", "iap", "--protect", "5:15")
        return [{**row, "protect": protect} for protect, folder in (("", self.work / "channels"), ("5:15", protected))
                for row in read(folder / "channels.csv")]

    def levers(self):
        """Evicting tokens, making up for them, pruning key channels, quantizing: alone and together."""
        found = []
        for name, *arguments in LEVERS:
            folder = self.run(f"levers {name}", "evict", *arguments)
            if folder is None:
                continue
            fitted = folder / "compensation.csv"
            found += [{**row, "lever": name} for row in read(fitted if fitted.exists() else folder / "evictions.csv")]
        return found


def read(path):
    with open(path, newline="") as file:
        yield from csv.DictReader(file)


def verdict(holds, total=1):
    """Of `total` comparisons; those between equal numbers are no comparisons."""
    return "n/a" if total == 0 else "yes" if holds == total else "no" if holds == 0 else "in part"


RATIOS = ("0.4", "0.5", "0.6", "0.7")


def channel_errors(channels, metric, rows, protect=""):
    """{(method, ratio, layer): error}; layer None: of the model"""
    return {(row["method"], row["ratio"], row["layer"] or None): float(row["value"]) for row in channels
            if (row["metric"], row["rows"], row["kv_head"], row["protect"]) == (metric, rows, "", protect)}


def best_rows(channels):
    return "future" if any(row["rows"] == "future" for row in channels) else "window"


def layers_of(errors):
    return sorted({layer for *_, layer in errors if layer}, key=int)


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
    ("tokens, fitted", "--policy", "snapkv", "--sigma", "0.5,0.75,0.85", "--compensate", "fit"),
    ("greedy_leverage's tokens, fitted", "--policy", "greedy_leverage", "--sigma", "0.5,0.75,0.85", "--compensate", "fit"),
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


PROTECTION = "Protecting outstanding key channels (5:15 %) makes iap's logits better for later queries (IAP 3.3; relative reconstruction error)"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dumps", nargs="+", type=Path, metavar="DUMP")
    parser.add_argument("--program", default="build/release/bin/kvreplay")
    parser.add_argument("--work", type=Path, default=Path("results/claims"))
    args = parser.parse_args()
    verdicts = {}
    for number, dump in enumerate(args.dumps):
        results = Results(args.program, dump, args.work)
        print(f"\n{dump.name}\n\n| claim | measured | holds |\n|---|---|---|")
        for claim, (measured, holds) in results.claims().items():
            print(f"| {claim} | {measured} | {holds} |")
            verdicts.setdefault(claim, ["n/a"] * len(args.dumps))[number] = holds
        print("\nGain over ThinK at the ratios " + ", ".join(RATIOS) + ", by layer: reconstruction error, and under it output error\n")
        print(gain_table(results.channels))
        print("\nThree levers\n")
        print(lever_table(results.levers()))
    if len(args.dumps) > 1:
        print("\nWhat holds where\n\n| claim | " + " | ".join(dump.name for dump in args.dumps) + " |")
        print("|---" * (1 + len(args.dumps)) + "|")
        for claim, found in verdicts.items():
            print(f"| {claim} | " + " | ".join(found) + " |")


if __name__ == "__main__":
    main()
