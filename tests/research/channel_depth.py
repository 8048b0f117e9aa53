#!/usr/bin/env python3
"""IAP's figures 1 to 3 over several prompts: whether channels interact less in deeper layers, and how spread queries are.

  channel_depth.py --work DIR --model NAME [--out DIR]

Reads the results of papers.py's run iap_pairs, DIR/NAME/papers/iap_pairs. Writes depth.csv, a row a prompt: Spearman's correlation of a layer's
depth with the share of H off its diagonal and with IAP's gain over ThinK's error, and the share of query channels whose standard deviation
is larger than the mean. page.py reads it.
"""
from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from divisions import keep
from orders import spearman
from study import HERE, read, shorter

RATIOS = ("0.4", "0.5")
COLUMNS = ("model", "prompt", "layers", "off_diagonal", *(f"gain_{ratio}" for ratio in RATIOS), "spread_window", "spread_future")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("build/study"), help="where papers.py has worked")
    parser.add_argument("--model", required=True, metavar="NAME")
    parser.add_argument("--out", type=Path, default=HERE, help="where depth.csv is (default: beside this script)")
    args = parser.parse_args()
    folders = sorted(path.parent for path in (args.work / args.model / "papers" / "iap_pairs").glob("*/channels.csv"))
    keep(args.out / "depth.csv", COLUMNS, args.model, [row_of(folder) for folder in folders])
    return 0


def row_of(folder):
    layers = {"off_diagonal": {}, **{f"gain_{ratio}": {} for ratio in RATIOS}}
    for row in read(folder / "channels.csv"):
        if row["layer"] and not row["kv_head"]:
            if row["metric"] == "off_diagonal_share":
                layers["off_diagonal"][int(row["layer"])] = float(row["value"])
            if (row["metric"], row["method"], row["rows"]) == ("reconstruction_gain", "iap[recent=32]", "window"):
                layers[f"gain_{row['ratio']}"][int(row["layer"])] = float(row["value"])
    found = {name: shorter(spearman(np.array(list(of)), np.array(list(of.values())))) for name, of in layers.items()}
    for rows in ("window", "future"):
        mean, spread = (np.array([np.load(layer / "channels" / f"query_{rows}_{name}.npy") for layer in sorted(folder.glob("layer_*"))])
                        for name in ("mean", "std"))
        found[f"spread_{rows}"] = shorter(np.mean(spread > np.abs(mean)))
    return {"prompt": folder.name, "layers": len(layers["off_diagonal"]), **found}


if __name__ == "__main__":
    sys.exit(main())
