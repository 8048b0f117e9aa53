#!/usr/bin/env python3
"""Compares the kept sets of `kvreplay evict --semantics kvpress` with those of kvpress itself; needs NumPy only.

  kvreplay evict data/samples/pystdlib-lm --out DIR --semantics kvpress --sigma 0.5,0.8,0.9 \\
      --policy streaming,h2o,tova,snapkv,knorm,keydiff,expected_attention
  check_kvpress.py DIR [--golden FILE.npz]        exit 1 where a kept token differs, or where nothing was found to compare
"""
import argparse
import json
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
POLICIES = ["streaming", "h2o", "tova", "snapkv", "knorm", "keydiff", "expected_attention"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path)
    parser.add_argument("--golden", type=Path, default=HERE / "kvpress-0.5.4.pystdlib-lm.npz")
    args = parser.parse_args()
    golden = np.load(args.golden)
    facts = json.loads(args.golden.with_suffix(".json").read_text())
    compared, wrong = 0, 0
    for policy in POLICIES:
        for ratio in facts["ratios"]:
            key = f"{policy}-{ratio}"
            want = np.unpackbits(golden[f"{key}.kept"], axis=-1, count=facts["prompt_len"]).astype(bool)
            tied = np.zeros_like(want)
            for at in facts["kept_sets"][key].get("tied_positions", []):
                tied[tuple(at)] = True
            for layer, kept in enumerate(want):
                path = args.result / f"layer_{layer:02d}" / "kept" / f"{policy}-kvpress-prefill-{kept[0].sum()}.npy"
                if not path.exists():
                    continue
                got = np.load(path).astype(bool)
                compared += 1
                if got.shape != kept.shape:
                    print(f"{path}: expected shape {kept.shape}, found {got.shape}")
                    wrong += 1
                    continue
                differs = (got != kept) & ~tied[layer]
                if differs.any():
                    g, p = np.argwhere(differs)[0]
                    print(f"{path}: {int(differs.sum())} positions differ, first KV head {g}, position {p}: expected {kept[g, p]}")
                    wrong += 1
    print(f"{compared} kept sets compared, {wrong} differ")
    sys.exit(1 if wrong or not compared else 0)


if __name__ == "__main__":
    main()
