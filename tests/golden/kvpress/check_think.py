#!/usr/bin/env python3
"""Compares the channels that `kvreplay channels --method think` prunes with those of kvpress and of ThinK's own code; NumPy only.

  kvreplay channels data/samples/pystdlib-lm --out DIR --method think --semantics kvpress --ratio 0.4,0.5,0.6,0.7
  check_think.py DIR... [--golden FILE.npz]

Folders of `--semantics official` are compared with the authors' function. Exit 1 where a mask differs, or where a folder had
nothing to compare.
"""
import argparse
import json
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent


def unlike(summary, facts):
    """What keeps a result from being comparable, or None."""
    options, dump = summary["options"]["channels"], summary["dump"]
    if options["semantics"] not in ("kvpress", "official"):
        return f"expected semantics kvpress or official, found {options['semantics']}"
    if options["window"] != facts["window"] or options["protect"] is not None:
        return f"expected window {facts['window']} and nothing protected"
    shape = {"l": facts["prompt_len"], "layers": facts["layers"], "n_q": facts["n_q"], "n_kv": facts["n_kv"], "d": facts["d"]}
    found = {name: dump[name] for name in shape}
    return None if found == shape else f"expected a dump with {shape}, found {found}"


def compare(folder, golden, facts):
    """(masks compared, masks that differ); a mask is one KV head's (kvpress) or one query head's (official)."""
    summary = json.loads((folder / "summary.json").read_text())
    reason = unlike(summary, facts)
    if reason:
        print(f"{folder}: {reason}")
        return 0, 0
    compared, wrong = 0, 0
    for ratio in facts["ratios"]:
        for layer, want in enumerate(golden[f"{summary['options']['channels']['semantics']}-{ratio}"]):
            path = folder / f"layer_{layer:02d}" / "channels" / f"think-{ratio}.npy"
            if not path.exists():
                continue
            got = np.load(path).astype(bool)
            compared += len(want)
            if got.shape != want.shape:
                print(f"{path}: expected shape {want.shape}, found {got.shape}")
                wrong += len(want)
                continue
            for head in np.flatnonzero((got != want).any(axis=-1)):
                at = np.flatnonzero(got[head] != want[head])
                pruned = f"{want[head].sum()} pruned, found {got[head].sum()}"
                print(f"{path}: head {head}: {len(at)} channels differ, first {at[0]}: expected {want[head, at[0]]} ({pruned})")
                wrong += 1
    return compared, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+", metavar="DIR")
    parser.add_argument("--golden", type=Path, default=HERE / "kvpress-0.5.4.think.pystdlib-lm.npz")
    args = parser.parse_args()
    golden = np.load(args.golden)
    facts = json.loads(args.golden.with_suffix(".json").read_text())
    failed = False
    for folder in args.results:
        compared, wrong = compare(folder, golden, facts)
        print(f"{folder}: {compared} masks compared, {wrong} differ")
        failed |= wrong > 0 or not compared
    sys.exit(failed)


if __name__ == "__main__":
    main()
