#!/usr/bin/env python3
"""Prints the tables of analysis/channels/FINDINGS.md: what selections of key channels save layer by layer (IAP fig. 3), and what
evicting tokens, pruning channels and quantizing cost on one scale of bytes.

  channel_tables.py [--program KVREPLAY] [--work DIR] DUMP...

Standard library only.
"""

import argparse
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from effects import read

BAD_INPUT = 2
RATIOS = ("0.4", "0.5", "0.6", "0.7")
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


def results_of(program, dump, folder, *arguments):
    """The folder of a command; none where the dump lacks what it needs, which it has said."""
    command = [program, arguments[0], dump, "--out", folder, "--precision", "f64", *arguments[1:]]
    print("   ", " ".join(str(part) for part in command), file=sys.stderr)
    done = subprocess.run([*command, "--force", "--quiet"], stdout=subprocess.DEVNULL)
    if done.returncode == BAD_INPUT:
        return None
    done.check_returncode()
    return folder


def levers_of(program, dump, work):
    """The rows of every lever's table."""
    found = []
    for name, *arguments in LEVERS:
        folder = results_of(program, dump, work / f"levers {name}", "evict", *arguments)
        if folder is None:
            continue
        fitted = folder / "compensation.csv"
        found += [{**row, "lever": name} for row in read(fitted if fitted.exists() else folder / "evictions.csv")]
    return found


def lever_table(levers):
    """Markdown: what each lever leaves of the cache, and what it loses."""
    full = None
    lines = ["| lever | tokens kept | bytes kept | output error |", "|---|---|---|---|"]
    cells = defaultdict(dict)
    rows = best_rows(levers)
    for row in levers:
        if row["layer"] == "" and (row["metric"] == "bytes" or (row["metric"] == "output_error" and row["rows"] == rows)):
            cells[row["lever"], row["policy"], row["budget"], row["kept"]][row["metric"]] = float(row["value"])
    for (lever, _, _, kept), found in cells.items():
        full = full or found["bytes"] / int(kept)  # the first lever keeps whole tokens
        lines.append(f"| {lever} | {kept} | {found['bytes'] / (full * max(int(k) for *_, k in cells)):.0%} | {found['output_error']:.3g} |")
    return "\n".join(lines)


def channel_errors(channels, metric, rows):
    """{(method, ratio, layer): error}; layer None: of the model"""
    return {(row["method"], row["ratio"], row["layer"] or None): float(row["value"]) for row in channels
            if (row["metric"], row["rows"], row["kv_head"]) == (metric, rows, "")}


def best_rows(rows):
    return "future" if any(row["rows"] == "future" for row in rows) else "window"


def layers_of(errors):
    return sorted({layer for *_, layer in errors if layer}, key=int)


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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dumps", nargs="+", type=Path, metavar="DUMP")
    parser.add_argument("--program", default="build/release/bin/kvreplay")
    parser.add_argument("--work", type=Path, default=Path("results/claims"))
    args = parser.parse_args()
    for dump in args.dumps:
        work = args.work / dump.name
        channels = results_of(args.program, dump, work / "channels", "channels")
        if channels is not None:
            print(f"\n{dump.name}\n\nGain over ThinK at the ratios " + ", ".join(RATIOS) +
                  ", by layer: reconstruction error, and under it output error\n")
            print(gain_table(list(read(channels / "channels.csv"))))
        print("\nThree levers\n")
        print(lever_table(levers_of(args.program, dump, work)))


if __name__ == "__main__":
    main()
