#!/usr/bin/env python3
"""LU-KV's figures 2b, 3 and 4 over several prompts: what its profile, AdaKV, PyramidKV and an even division lose, and how alike the
budgets of heads are from prompt to prompt.

  divisions.py --program KVREPLAY --work DIR --model NAME [--out DIR]

Reads the dumps that papers.py captured, DIR/NAME/papers/dumps, of one model or several work folders. Writes divisions.csv (a row a
division of a prompt: its summed loss and that of its worst head) and shares.csv (a row a pair of prompts: the correlation over heads
of the budgets that lu gives them). page.py reads both.
"""
from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np

from study import HERE, read, shorter, write_csv

ORDERS, METHODS, SIGMAS = ("snapkv", "keydiff"), ("uniform", "pyramid", "ada", "lu"), ("0.2", "0.5", "0.8")
DIVISIONS = ("model", "prompt", "order", "sigma", "method", "loss", "worst_head")
SHARES = ("model", "order", "sigma", "prompt", "other", "correlation")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="kvreplay", help="the kvreplay to run")
    parser.add_argument("--work", type=Path, nargs="+", default=[Path("build/study")], help="where papers.py has worked")
    parser.add_argument("--model", required=True, metavar="NAME")
    parser.add_argument("--threads", default="2")
    parser.add_argument("--out", type=Path, default=HERE, help="where the tables are (default: beside this script)")
    args = parser.parse_args()
    dumps = [dump for work in args.work for dump in sorted((work / args.model / "papers" / "dumps").iterdir())]
    results = args.work[0] / args.model / "papers" / "lukv"
    subprocess.run([args.program, "budget", *dumps, "--out", results, "--order", ",".join(ORDERS), "--method", ",".join(METHODS),
                    "--sigma", ",".join(SIGMAS), "--threads", args.threads, "--force", "--quiet"], check=True)
    losses, budgets = heads_of(results, [dump.name for dump in dumps])
    keep(args.out / "divisions.csv", DIVISIONS, args.model, [
        {"prompt": prompt, "order": order, "sigma": sigma, "method": method, "loss": shorter(sum(values)), "worst_head": shorter(max(values))}
        for (prompt, order, sigma, method), values in losses.items()])
    keep(args.out / "shares.csv", SHARES, args.model, [
        {"order": order, "sigma": sigma, "prompt": one, "other": other,
         "correlation": shorter(np.corrcoef(budgets[one, order, sigma, "lu"], budgets[other, order, sigma, "lu"])[0, 1])}
        for order in ORDERS for sigma in SIGMAS for one, other in itertools.combinations([dump.name for dump in dumps], 2)])
    return 0


def heads_of(results, prompts):
    """Losses and budgets of the heads by prompt, order, sigma and method."""
    losses, budgets = {}, {}
    for prompt in prompts:
        for folder in (results / prompt, results / "leave_one_out" / prompt):
            for row in read(folder / "budgets.csv") if (folder / "budgets.csv").exists() else ():
                if row["layer"] and row["kv_head"]:
                    key = prompt, row["order"], row["sigma"], row["method"]
                    losses.setdefault(key, []).append(float(row["loss"]))
                    budgets.setdefault(key, []).append(int(row["budget"]))
    return losses, budgets


def keep(path, columns, model, rows) -> None:
    """Puts one model's rows in the place of those that the table has."""
    others = [row for row in read(path) if row["model"] != model] if path.exists() else []
    write_csv(path, columns, others + [{"model": model, **row} for row in rows])


if __name__ == "__main__":
    sys.exit(main())
