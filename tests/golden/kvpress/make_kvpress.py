#!/usr/bin/env python3
"""Kept sets of NVIDIA kvpress 0.5.4 on the tensors of a dump.

  make_kvpress.py                        write kvpress-0.5.4.<dump>.npz and .json of the sample dump
  make_kvpress.py --dump DUMP --out DIR  the same for another dump

The presses run as published (tests/peers/presses.py). The golden run is in float64; a second run in float32, with the library's
own rotary embedding, says how many tokens single precision moves.
"""
import argparse
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import kvpress
import numpy as np
import torch
import transformers
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent / "peers")]
from golden_dump import SAMPLE, layer_folders, load_layer, read_manifest  # noqa: E402
from presses import (ACROSS_HEADS, NEAR, PRESSES, VERSION, RotaryFloat64, config_of, layer_inputs, lu_curves, make_press,  # noqa: E402
                     refuse_what_kvpress_cannot, run, tied)  # fmt: skip

RATIOS = (0.5, 0.8, 0.9)
PYRAMIDS = [(window, beta, ratio) for window in (64, 32, 8) for beta in (20, 5) for ratio in (0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9)]


def pyramid_budgets(config, l):
    """[{window, beta, sigma, n_kept [layers]}] from PyramidKVPress.get_layer_budget."""
    table = []
    for window, beta, ratio in PYRAMIDS:
        press = kvpress.PyramidKVPress(compression_ratio=ratio, window_size=window, beta=beta)
        kept = [press.get_layer_budget(SimpleNamespace(config=config, layer_idx=i), l) for i in range(config.num_hidden_layers)]
        table.append({"window": window, "beta": beta, "sigma": ratio, "n_kept": kept})
    return table


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dump", type=Path, default=SAMPLE)
    parser.add_argument("--out", type=Path, default=HERE)
    args = parser.parse_args()

    torch.set_num_threads(1)
    manifest, indices = read_manifest(args.dump), list(layer_folders(args.dump))
    kept = {(name, ratio): [] for name in PRESSES for ratio in RATIOS}
    ties, moved = {key: [] for key in kept}, {key: [0, 0] for key in kept}
    for index in indices:
        layer = load_layer(args.dump, index)
        refuse_what_kvpress_cannot(layer)
        config = config_of(layer, len(indices), manifest)
        curves = lu_curves(len(indices), layer.n_kv)
        inputs = layer_inputs(layer, index, config, torch.float64, RotaryFloat64(layer))
        single = layer_inputs(layer, index, config, torch.float32, LlamaRotaryEmbedding(config))
        for name, ratio in kept:
            across = name in ACROSS_HEADS
            only_attentions = name == "h2o"
            no_attentions = name == "block128_keydiff"
            got, scores = run(make_press(name, ratio, curves), inputs, not no_attentions)
            near = tied(got, scores, across)
            kept[name, ratio].append(got)
            ties[name, ratio].append(near)
            again, _ = run(make_press(name, ratio, curves), single, only_attentions)
            moved[name, ratio][0] += int((again & ~got).sum())
            moved[name, ratio][1] += int((again & ~got & ~near).sum())
        print(f"layer {index}", flush=True)

    arrays, facts = {}, {}
    for (name, ratio), sets in kept.items():
        key = f"{name}-{ratio}"
        sets, near = np.stack(sets), np.stack(ties[name, ratio])
        arrays[f"{key}.kept"] = np.packbits(sets, axis=-1)
        arrays[f"{key}.tied"] = near.sum(axis=-1).astype(np.int32)
        facts[key] = {"n_kept": sets.sum(-1).tolist(), "tied": int(near.sum()), "moved_by_float32": moved[name, ratio][0]}
        facts[key]["moved_and_not_tied"] = moved[name, ratio][1]
        if near.any():
            facts[key]["tied_positions"] = [[int(x) for x in at] for at in np.argwhere(near)]
    arrays["lu_curves"] = curves
    stem = args.out / f"kvpress-{VERSION}.{args.dump.resolve().name}"
    with open(f"{stem}.npz", "wb") as file:
        np.savez(file, **arrays)
    record = {
        "kvpress": VERSION, "torch": torch.__version__, "transformers": transformers.__version__, "dump": args.dump.resolve().name,
        "prompt_len": layer.l, "ratios": RATIOS, "near": NEAR,
    }  # fmt: skip
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in record.items())
    sets = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in facts.items())
    budgets = ",\n".join(f"  {json.dumps(row)}" for row in pyramid_budgets(config, layer.l))
    Path(f"{stem}.json").write_text(f'{{\n{lines},\n "kept_sets": {{\n{sets}\n }},\n "pyramid_budgets": [\n{budgets}\n ]\n}}\n')
    print(f"{stem}.npz: {Path(f'{stem}.npz').stat().st_size} bytes")


if __name__ == "__main__":
    main()
