#!/usr/bin/env python3
"""The key channels that ThinK prunes on the tensors of a dump: kvpress 0.5.4's ThinKPress, and the authors' own function.

  make_think.py --official FILE.py                       write kvpress-0.5.4.think.<dump>.npz and .json of the sample dump
  make_think.py --official FILE.py --dump DUMP --out DIR

FILE.py is ThinK_eager/src/kv_pruning_utils.py of SalesforceAIResearch/ThinK. Only its `key_pruner_query_driven` is executed.
Both run in float64, and again in float32 to count the channels that single precision moves.
"""
import argparse
import ast
import hashlib
import json
import sys
from importlib.metadata import version
from pathlib import Path

import kvpress
import numpy as np
import torch
import transformers
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent / "peers")]
from golden_dump import SAMPLE, layer_folders, load_layer, read_manifest  # noqa: E402
from presses import VERSION, RotaryFloat64, config_of, layer_inputs, refuse_what_kvpress_cannot, think_pruned  # noqa: E402

RATIOS = (0.4, 0.5, 0.6, 0.7)
WINDOW = RECENT = 32
FUNCTION = "key_pruner_query_driven"


def official_function(path):
    """(the function FUNCTION of the file, without running anything else of it; SHA-256 of its source)"""
    text = path.read_text()
    found = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == FUNCTION]
    if len(found) != 1 or [a.arg for a in found[0].args.args] != ["kv_states", "q_states", "recent_size", "ratio"]:
        raise SystemExit(f"{path}: expected one function {FUNCTION}(kv_states, q_states, recent_size, ratio)")
    names = {"torch": torch}
    exec(compile(ast.Module(found, []), str(path), "exec"), names)
    return names[FUNCTION], hashlib.sha256(ast.get_source_segment(text, found[0]).encode()).hexdigest()


def run_official(function, q, k, ratio):
    """bool [n_q, d]: the channels that the authors' function prunes; q, k [n_q, l, d] tensors."""
    short, recent, kept = function(k[None], q[None], recent_size=RECENT, ratio=ratio)
    pruned = ~kept[0].numpy()
    old, channels = k.shape[1] - RECENT, (~pruned).sum(-1)
    expected = [k[h, :old][:, torch.from_numpy(~pruned[h])].numpy() for h in range(len(k))]
    same = np.array_equal(short.numpy().ravel(), np.concatenate([x.ravel() for x in expected]))
    if not same or not torch.equal(recent[0], k[:, old:]) or len(set(channels)) != 1:
        raise SystemExit("expected the keys of the kept channels, the recent ones whole")
    return pruned


def smallest_gap(pruned, q, k):
    """Relative distance of the lowest kept from the highest pruned score, by the definition; q a list of query heads a set."""
    gaps = []
    for mask, queries, keys in zip(pruned, q, k):
        score = np.mean([np.square(x[-WINDOW:]).mean(axis=0) for x in queries], axis=0) * np.square(keys).mean(axis=0)
        gaps.append((score[~mask].min() - score[mask].max()) / score[~mask].min())
    if min(gaps) <= 0:
        raise SystemExit("a kept channel scores no higher than a pruned one")
    return float(min(gaps))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--official", type=Path, required=True, metavar="FILE.py")
    parser.add_argument("--dump", type=Path, default=SAMPLE)
    parser.add_argument("--out", type=Path, default=HERE)
    args = parser.parse_args()

    if version("kvpress") != VERSION:
        raise SystemExit(f"expected kvpress {VERSION}, found {version('kvpress')}")
    if kvpress.ThinKPress().window_size != WINDOW:
        raise SystemExit(f"expected ThinKPress to look at {WINDOW} queries")
    torch.set_num_threads(1)
    function, digest = official_function(args.official)
    manifest, indices = read_manifest(args.dump), list(layer_folders(args.dump))
    masks = {f"{who}-{ratio}": [] for who in ("kvpress", "official") for ratio in RATIOS}
    gaps, moved = {key: [] for key in masks}, dict.fromkeys(masks, 0)
    for index in indices:
        layer = load_layer(args.dump, index)
        refuse_what_kvpress_cannot(layer)
        if layer.interleaved:
            raise SystemExit("expected a rotary embedding that pairs channels j and j + d/2")
        config = config_of(layer, len(indices), manifest)
        inputs = layer_inputs(layer, index, config, torch.float64, RotaryFloat64(layer))
        single = layer_inputs(layer, index, config, torch.float32, LlamaRotaryEmbedding(config))
        q, k = layer.q[:, : layer.l], layer.k[:, : layer.l]
        repeated = np.repeat(k, layer.group, axis=0)
        tensors = [torch.from_numpy(np.ascontiguousarray(x)) for x in (q, repeated)]
        for ratio in RATIOS:
            runs = {
                "kvpress": (think_pruned(inputs, ratio), think_pruned(single, ratio), [q[layer.heads_of(g)] for g in range(layer.n_kv)], k),
                "official": (run_official(function, *tensors, ratio), run_official(function, *(x.float() for x in tensors), ratio),
                             q[:, None], repeated),
            }  # fmt: skip
            for who, (pruned, again, queries, keys) in runs.items():
                key = f"{who}-{ratio}"
                masks[key].append(pruned)
                gaps[key].append(smallest_gap(pruned, queries, keys))
                moved[key] += int((again & ~pruned).sum())
        print(f"layer {index}", flush=True)

    arrays, facts = {key: np.stack(sets) for key, sets in masks.items()}, {}
    for key, sets in arrays.items():
        counts = sorted(set(sets.sum(-1).ravel().tolist()))
        facts[key] = {"masks": int(np.prod(sets.shape[:2])), "pruned_per_mask": counts, "moved_by_float32": moved[key],
                      "smallest_relative_gap": float(f"{min(gaps[key]):.3g}")}  # fmt: skip
    stem = args.out / f"kvpress-{VERSION}.think.{args.dump.resolve().name}"
    with open(f"{stem}.npz", "wb") as file:
        np.savez(file, **arrays)
    record = {
        "kvpress": VERSION, "torch": torch.__version__,
        "transformers": transformers.__version__, "official_function": FUNCTION, "official_sha256": digest,
        "dump": args.dump.resolve().name, "prompt_len": layer.l, "layers": len(indices), "n_q": layer.n_q, "n_kv": layer.n_kv,
        "d": layer.q.shape[2], "ratios": RATIOS, "window": WINDOW, "official_recent_size": RECENT,
    }  # fmt: skip
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in record.items())
    sets = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in facts.items())
    Path(f"{stem}.json").write_text(f'{{\n{lines},\n "pruned_sets": {{\n{sets}\n }}\n}}\n')
    print(f"{stem}.npz: {Path(f'{stem}.npz').stat().st_size} bytes")


if __name__ == "__main__":
    main()
