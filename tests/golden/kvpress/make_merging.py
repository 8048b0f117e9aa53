#!/usr/bin/env python3
"""Values that NVIDIA kvpress' MergingPress leaves, on tensors of a dump and on small ones that are unkind to it.

  make_merging.py           write kvpress-0.5.4.merging.npz and .json
  make_merging.py --check   the same with another version of kvpress, compared with what is there

kvpress 0.5.4 and 0.5.5 must give the same numbers to the bit (0.5.5 only keeps at least one token).
"""
import argparse
import json
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import kvpress
import numpy as np
import torch
import transformers

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]
from golden_dump import SAMPLE, load_layer  # noqa: E402

STEM = HERE / "kvpress-0.5.4.merging"
LAYERS, RATIOS = (0, 4), (0.9, 0.98)
SEED = 54
LEAST_GAP = 2e-6  # of the two largest cosines: closer ones float32 might swap


def unkind():
    """k, v [1, 40, 3] in which a key is 0, another's value, keys repeat evicted ones and many look away from all that is kept."""
    rng = np.random.default_rng(SEED)
    k, v = rng.standard_normal((2, 1, 40, 3)).astype(np.float32)
    k[0, 7] = 0
    v[0, 11] = 0
    k[0, 20:25] = k[0, 3]
    return k, v


def merged(k, v, ratio, threshold):
    """(kept positions [heads, n], ascending; the values [heads, n, d] that MergingPress leaves of them)"""
    keys, values = (torch.from_numpy(x)[None] for x in (k, v))
    press = kvpress.MergingPress(kvpress.KnormPress(compression_ratio=ratio), similarity_threshold=threshold)
    module = SimpleNamespace(head_dim=k.shape[-1])
    new_keys, new_values = press.compress(module, None, keys, values, None, {})
    kept = press.press.score(module, None, keys, values, None, {}).topk(new_keys.shape[2], dim=-1).indices
    if not torch.equal(new_keys, keys.gather(2, kept[..., None].expand_as(new_keys))):
        raise SystemExit("expected the keys of the best scores, unchanged")
    order = kept.argsort(dim=-1)
    return kept.gather(-1, order)[0].numpy(), new_values.gather(2, order[..., None].expand_as(new_values))[0].numpy()


def smallest_gap(k, kept):
    """Of an evicted key's largest cosine with a kept one to the next smaller, over all, in float64."""
    gaps = []
    for keys, tokens in zip(k.astype(np.float64), kept):
        unit = keys / np.maximum(np.linalg.norm(keys, axis=-1, keepdims=True), 1e-6)
        evicted = np.setdiff1d(np.arange(len(keys)), tokens)
        cosines = np.sort(unit[evicted] @ unit[tokens].T, axis=-1)
        gaps.append((cosines[:, -1] - cosines[:, -2])[cosines[:, -1] > 0].min())
    return float(min(gaps))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()

    torch.set_num_threads(1)
    cases = {"unkind": (*unkind(), 0.9, 0.0), "unkind_0.5": (*unkind(), 0.8, 0.5)}
    for index in LAYERS:
        layer = load_layer(SAMPLE, index)
        k, v = (np.ascontiguousarray(x[:, : layer.l], np.float32) for x in (layer.k, layer.v))
        cases |= {f"layer_{index}_{ratio}": (k, v, ratio, 0.0) for ratio in RATIOS}

    arrays, facts = dict(zip(("small.k", "small.v"), unkind())), {}
    for name, (k, v, ratio, threshold) in cases.items():
        kept, values = merged(k, v, ratio, threshold)
        arrays |= {f"{name}.kept": kept.astype(np.int32), f"{name}.v": values}
        gap = smallest_gap(k, kept)
        if gap < LEAST_GAP:
            raise SystemExit(f"{name}: two cosines {gap:.2g} apart")
        facts[name] = {"threshold": threshold, "kept": kept.shape[1], "smallest_gap": float(f"{gap:.2g}")}

    if args.check:
        there = np.load(f"{STEM}.npz")
        wrong = [key for key in arrays if key not in there or not np.array_equal(there[key], arrays[key])]
        print(f"kvpress {version('kvpress')}: {'other numbers in ' + ', '.join(wrong) if wrong else 'the same numbers'}")
        raise SystemExit(bool(wrong))
    with open(f"{STEM}.npz", "wb") as file:
        np.savez(file, **arrays)
    record = {"kvpress": version("kvpress"), "torch": torch.__version__, "transformers": transformers.__version__}
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in record.items())
    sets = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in facts.items())
    Path(f"{STEM}.json").write_text(f'{{\n{lines},\n "cases": {{\n{sets}\n }}\n}}\n')
    print(f"{STEM}.npz: {Path(f'{STEM}.npz').stat().st_size} bytes")


if __name__ == "__main__":
    main()
