#!/usr/bin/env python3
"""Scores and kept sets beside those of make_kvpress.py, of whichever kvpress is installed, 0.5.4 or 0.5.5.

  make_more.py                                         write kvpress-<version>.more.<dump>.npz and .json of the sample dump
  make_more.py --qfilters FILE --defensive FILE        and scores.<dump>.npz: what LagKVPress, CURPress and these authors' files score
  make_more.py --dump DUMP --out DIR                   the same for another dump
  make_more.py --ties                                  print how many scores tie where caches are in 16 bits

FILE are make_filters.py of NathanGodey/qfilters and kvpress/presses/efficient_defensivekv_press.py of FFY0/DefensiveKV, neither
part of this repository. Kept sets are those of every press where a ratio leaves less than a token, of LagKV, CUR and CriticalKV
(over SnapKV) at the usual ratios, and, of 0.5.5, of all presses. All in float64 but for DefensiveKV's softmax.
"""
import argparse
import hashlib
import json
import math
import re
import sys
import textwrap
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import kvpress
import numpy as np
import torch
import transformers
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, repeat_kv, rotate_half

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent / "peers")]
from golden_dump import SAMPLE, layer_folders, load_layer, read_manifest  # noqa: E402
from presses import (ACROSS_HEADS, PRESSES, RotaryFloat64, config_of, layer_inputs, lu_curves, make_press,  # noqa: E402
                     refuse_what_kvpress_cannot, run, tied)  # fmt: skip

RATIOS = (0.5, 0.8, 0.9)
LESS_THAN_A_TOKEN = 0.999  # of 896 tokens
SCORED_LAYERS = (0, 4)
THRESHOLDS = {"knorm": -9.0, "keydiff": -0.5, "cur": 0.001}  # of DMSPress


NEW = {
    "lagkv": kvpress.LagKVPress,
    "cur": kvpress.CURPress,
    "criticalkv": lambda compression_ratio: kvpress.CriticalKVPress(kvpress.SnapKVPress(compression_ratio)),
}


def with_projection(inputs, layer):
    """The stand-in's output projection, which presses look at that weigh values by it."""
    weight = torch.from_numpy(layer.wo.reshape(-1, layer.wo.shape[-1]).T.copy())
    inputs.module.o_proj = SimpleNamespace(weight=weight)
    inputs.module.num_key_value_groups = layer.group
    return inputs


def kept_by(name, ratio, inputs, curves):
    """(kept, near the cut) [n_kv, l]"""
    press = NEW[name](compression_ratio=ratio) if name in NEW else make_press(name, ratio, curves)
    kept, scores = run(press, inputs, name != "block128_keydiff")
    if name == "criticalkv":
        scores = press.score(*inputs.arguments(True))[0].double().numpy()
        if kept.sum(-1).max() <= press.press.window_size:  # topk takes any of the window's equal columns
            scores[:, -press.press.window_size:] = scores.max()
    empty = not kept.any()
    return kept, np.zeros_like(kept) if empty else tied(kept, scores, name in ACROSS_HEADS)


def kept_by_threshold(name, inputs):
    """bool [n_kv, l]: what DMSPress leaves of the prompt behind its forward hook."""
    module, hidden, keys, values, _, kwargs = inputs.arguments(False)
    press = kvpress.DMSPress((NEW.get(name) or PRESSES[name])(), threshold=THRESHOLDS[name])
    cache = SimpleNamespace(layers={module.layer_idx: SimpleNamespace(keys=keys, values=values)})
    module.masked_key_indices = None
    press.forward_hook(module, [], {**kwargs, "past_key_values": cache, "cache_position": torch.arange(keys.shape[2])}, [])
    kept = np.ones(keys.shape[1:3], bool)
    if module.masked_key_indices is not None:
        _, heads, positions = module.masked_key_indices
        kept[heads.numpy(), positions.numpy()] = False
    return kept


def filters_by_authors(text, queries):
    """[n_q, d]: the lines of make_filters.py that make filters of queries [n_q, n, d]."""
    lines = re.search(r"^ *u,s,vh = .*?^ *svd_filter_q = [^\n]*\n", text, re.M | re.S).group(0)
    names = {"torch": torch, "stacked_el": SimpleNamespace(float=lambda: queries)}
    exec(textwrap.dedent(lines), names)
    return names["svd_filter_q"]


def defensive_by_authors(text):
    """Their press, without the second stage behind its aggregation and without what it inherits."""
    body = "\n".join(line for line in text.split("\n") if not line.startswith(("from ", "import ")))
    names = {"math": math, "dataclass": dataclass, "torch": torch, "nn": torch.nn, "F": torch.nn.functional,
             "repeat_kv": repeat_kv, "rotate_half": rotate_half, "EfficientAdaScorerPress": object,
             "Qwen3MoeAttention": type(None), "Qwen3Attention": type(None), "vw_l1norm": None}  # fmt: skip
    exec(body, names)
    press = names["EfficientDefensiveKVPress"]()
    press.vwl1norm_triton = lambda values, module, scores, bias, mean: scores
    return press


def scores_of(inputs, layer, qfilters, defensive):
    """{name: [n_kv, l]} in float64."""
    arguments = inputs.arguments(False)
    found = {name: NEW[name](0.5).score(*arguments)[0] for name in ("lagkv", "cur")}
    queries = torch.from_numpy(layer.q[:, :layer.l])
    filters = filters_by_authors(qfilters, queries).reshape(layer.n_kv, layer.group, -1).mean(1)
    found["qfilter"] = -(filters[:, None] * torch.from_numpy(layer.k[:, :layer.l])).sum(-1)  # QFilterPress.score
    module, hidden, keys, values, _, kwargs = arguments
    heads = SimpleNamespace(head_lens=[layer.l], bsz=1, num_key_value_heads=layer.n_kv)
    flat = defensive_by_authors(defensive).score(module, hidden, keys, values, None, {**kwargs, "metadata": heads})
    found["defensive"] = flat.view(layer.n_kv, layer.l)
    return {name: scores.double().numpy() for name, scores in found.items()}


def print_ties(dump):
    """Tokens of a head that share the score of the last one kept where another of them is evicted, the mean over heads."""
    manifest, indices, found = read_manifest(dump), list(layer_folders(dump)), {}
    names = ["h2o", "tova", "snapkv", "knorm", "keydiff", "expected_attention"]
    for index in indices:
        layer = load_layer(dump, index)
        config = config_of(layer, len(indices), manifest)
        for dtype in (torch.float16, torch.bfloat16):
            inputs = layer_inputs(layer, index, config, dtype, LlamaRotaryEmbedding(config))
            for name, ratio in ((name, ratio) for name in names for ratio in RATIOS):
                scores = make_press(name, ratio).score(*inputs.arguments(name == "h2o"))[0].double().numpy()
                budget = int(layer.l * (1 - ratio))
                for head in scores:
                    last = np.sort(head)[-budget]
                    tied, above = (head == last).sum(), (head > last).sum()
                    found.setdefault((name, dtype, ratio), []).append(tied if above + tied > budget else 0)
    for name in names:
        for dtype in (torch.float16, torch.bfloat16):
            print(name, dtype, *(f"{np.mean(found[name, dtype, ratio]):.1f}" for ratio in RATIOS))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dump", type=Path, default=SAMPLE)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--qfilters", type=Path)
    parser.add_argument("--defensive", type=Path)
    parser.add_argument("--ties", action="store_true")
    args = parser.parse_args()

    torch.set_num_threads(1)
    if args.ties:
        print_ties(args.dump)
        return
    running, dump = version("kvpress"), args.dump.resolve().name
    manifest, indices = read_manifest(args.dump), list(layer_folders(args.dump))
    presses = list(NEW) if running == "0.5.4" else list(PRESSES) + list(NEW)
    keys = [(name, ratio) for name in presses for ratio in RATIOS]
    keys += [(name, LESS_THAN_A_TOKEN) for name in list(PRESSES) + list(NEW)]
    kept, near, scored = {key: [] for key in keys}, {key: [] for key in keys}, {}
    passed = {name: [] for name in THRESHOLDS}
    for index in indices:
        layer = load_layer(args.dump, index)
        refuse_what_kvpress_cannot(layer)
        inputs = layer_inputs(layer, index, config_of(layer, len(indices), manifest), torch.float64, RotaryFloat64(layer))
        with_projection(inputs, layer)
        for key in keys:
            found, close = kept_by(*key, inputs, lu_curves(len(indices), layer.n_kv))
            kept[key].append(found)
            near[key].append(close)
        for name, sets in passed.items():
            sets.append(kept_by_threshold(name, inputs))
        if args.qfilters and args.defensive and index in SCORED_LAYERS:
            texts = (path.read_text() for path in (args.qfilters, args.defensive))
            for name, scores in scores_of(inputs, layer, *texts).items():
                scored.setdefault(name, []).append(scores.astype(np.float32))
        print(f"layer {index}", flush=True)

    arrays, facts = {}, {}
    for (name, ratio), sets in kept.items():
        sets, close = np.stack(sets), np.stack(near[name, ratio])
        arrays[f"{name}-{ratio}.kept"] = np.packbits(sets, axis=-1)
        arrays[f"{name}-{ratio}.near"] = np.packbits(close, axis=-1)
        facts[f"{name}-{ratio}"] = {"n_kept": sets.sum(-1).tolist(), "tied": int(close.sum())}
    for name, sets in passed.items():
        arrays[f"dms-{name}.kept"] = np.packbits(np.stack(sets), axis=-1)
        facts[f"dms-{name}"] = {"threshold": THRESHOLDS[name], "n_kept": np.stack(sets).sum(-1).tolist()}
    record = {"kvpress": running, "torch": torch.__version__, "transformers": transformers.__version__, "dump": dump,
              "prompt_len": layer.l}  # fmt: skip
    np.savez_compressed(args.out / f"kvpress-{running}.more.{dump}.npz", **arrays)
    sets = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in facts.items())
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in record.items())
    (args.out / f"kvpress-{running}.more.{dump}.json").write_text(f'{{\n{lines},\n "kept_sets": {{\n{sets}\n }}\n}}\n')
    if scored:
        np.savez_compressed(args.out / f"scores.{dump}.npz", **{name: np.stack(of) for name, of in scored.items()})
        sha = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (args.qfilters, args.defensive)}
        (args.out / f"scores.{dump}.json").write_text(json.dumps({**record, "layers": SCORED_LAYERS, "sha256": sha}, indent=1) + "\n")


if __name__ == "__main__":
    main()
