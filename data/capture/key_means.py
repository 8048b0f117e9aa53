#!/usr/bin/env python3
"""The mean key of every head over the prompts of dumps, for `kvreplay evict --center FILE.npy` on other prompts.

  key_means.py DUMP ... --out means.npy [--first 4]

Writes float64 [layers, kv_heads, d]: the mean of the keys of all prompts together, each without its first tokens (--first), as
attention sinks have unusual keys. Needs numpy.
"""
from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from dump_check import StoredArray, as_float64
from dump_files import CaptureError, one_line, read_json, require


def key_means(dumps: list[Path], first: int = 0) -> np.ndarray:
    sums, counts = None, 0
    for dump in dumps:
        manifest = read_json(dump / "manifest.json")
        l = manifest["prompt_len"]
        require(0 <= first < l, f"{dump}: --first", f"fewer than the prompt's {l} tokens", first)
        layers = (StoredArray(dump / f"layer_{layer:02}" / "k.npy") for layer in range(manifest["n_layers"]))
        mine = np.stack([as_float64(keys.rows(slice(first, l))).sum(1) for keys in layers])
        require(sums is None or sums.shape == mine.shape, dump, "the layers, heads and channels of the others", mine.shape)
        sums, counts = mine if sums is None else sums + mine, counts + l - first
    return sums / counts


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dumps", nargs="+", type=Path, metavar="DUMP")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE.npy")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="leave out the first N tokens of every prompt")
    args = parser.parse_args(arguments)
    try:
        means = key_means(args.dumps, args.first)
        np.save(args.out, means)
    except (CaptureError, OSError, KeyError) as error:
        print(f"key_means: {one_line(error)}", file=sys.stderr)
        return 2
    print(f"{one_line(args.out)}: {' x '.join(map(str, means.shape))} (layers, KV heads, channels)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
