#!/usr/bin/env python3
"""Kept sets of NVIDIA kvpress 0.5.4 on the tensors of a dump.

  make_kvpress.py                        write kvpress-0.5.4.<dump>.npz and .json of the sample dump
  make_kvpress.py --dump DUMP --out DIR  the same for another dump

The presses run as published: `hidden_states` holds the dump's queries without their rotation and `q_proj` is the identity, so
what a press recomputes from hidden states are the dump's own queries. The golden run is in float64; a second run in float32,
with the library's own rotary embedding, says how many tokens single precision moves.
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
from kvpress.presses.lukv_press import LUKVPress
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from make_golden import SAMPLE, layer_folders, load_layer, read_manifest, rotation  # noqa: E402

VERSION = "0.5.4"
RATIOS = (0.5, 0.8, 0.9)
NEAR = 1e-6  # scores this close (relative) to the cut count as tied with it
LU_SEED = 20

PRESSES = {
    "streaming": kvpress.StreamingLLMPress,
    "h2o": kvpress.ObservedAttentionPress,
    "tova": kvpress.TOVAPress,
    "snapkv": kvpress.SnapKVPress,
    "knorm": kvpress.KnormPress,
    "keydiff": kvpress.KeyDiffPress,
    "expected_attention": kvpress.ExpectedAttentionPress,
    "pyramid_snapkv": kvpress.PyramidKVPress,
    "ada_snapkv": lambda compression_ratio: kvpress.AdaKVPress(kvpress.SnapKVPress(compression_ratio)),
    "block128_keydiff": lambda compression_ratio: kvpress.BlockPress(kvpress.KeyDiffPress(compression_ratio), block_size=128),
    "lu_expected_attention": lambda compression_ratio: LUKVPress(compression_ratio=compression_ratio),
}
PYRAMIDS = [(window, beta, ratio) for window in (64, 32, 8) for beta in (20, 5) for ratio in (0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9)]


class RotaryFloat64(torch.nn.Module):
    """cos and sin of shape [1, n, d] as transformers' Llama returns them, with angles in float64."""

    def __init__(self, layer):
        super().__init__()
        self.inv_freq = torch.from_numpy(layer.inv_freq)

    def forward(self, x, position_ids):
        angle = position_ids[0].double()[:, None] * self.inv_freq
        angle = torch.cat([angle, angle], dim=-1)[None]
        return angle.cos().to(x.dtype), angle.sin().to(x.dtype)


def model_config(layer, n_layers, theta):
    n_q, _, d = layer.q.shape
    config = LlamaConfig(num_attention_heads=n_q, num_key_value_heads=layer.n_kv, hidden_size=n_q * d, head_dim=d,
                         num_hidden_layers=n_layers, rope_theta=theta, attn_implementation="sdpa")
    config._attn_implementation = "sdpa"
    return config


def refuse_what_kvpress_cannot(layer):
    usual = layer.causal and not layer.sliding and not layer.cap and layer.sinks is None and layer.first_row == 0
    if not usual or layer.inv_freq is None or 2 * len(layer.inv_freq) != layer.q.shape[2] or layer.attention_factor != 1:
        raise SystemExit("expected plain causal attention, queries of the whole prompt and an unscaled full rotary embedding")
    if not np.isclose(layer.scale, layer.q.shape[2] ** -0.5) or layer.v.shape[2] != layer.k.shape[2]:
        raise SystemExit("expected scale 1/sqrt(d) and values as wide as keys")


class Inputs:
    """What a press' `compress` is called with for one layer's prompt, all in one dtype."""

    def __init__(self, layer, index, config, dtype, rotary):
        l, d = layer.l, layer.q.shape[2]
        q, k, v = layer.q[:, :l], layer.k[:, :l], layer.v[:, :l]
        unrotated = np.stack([np.linalg.solve(rotation(layer, i), q[:, i].T).T for i in range(l)], axis=1)
        if layer.interleaved:  # pairs (2j, 2j+1) become (j, j + d/2): the same dot products
            order = np.concatenate([np.arange(0, d, 2), np.arange(1, d, 2)])
            unrotated, q, k = unrotated[..., order], q[..., order], k[..., order]
        logits = layer.scale * torch.from_numpy(q) @ torch.from_numpy(np.repeat(k, layer.group, axis=0)).transpose(1, 2)
        hidden = torch.ones(l, l, dtype=torch.bool).triu(1)
        attention = logits.masked_fill(hidden, float("-inf")).softmax(-1)
        self.hidden_states = torch.from_numpy(unrotated).transpose(0, 1).reshape(1, l, -1).to(dtype)
        self.keys, self.values = (torch.from_numpy(np.ascontiguousarray(x))[None].to(dtype) for x in (k, v))
        self.attentions = attention[None].to(dtype)
        self.kwargs = {"position_embeddings": rotary(self.hidden_states, torch.arange(l)[None])}
        self.module = SimpleNamespace(config=config, head_dim=d, layer_idx=index, q_proj=torch.nn.Identity(), rotary_emb=rotary)

    def arguments(self, with_attentions):
        attentions = self.attentions if with_attentions else None
        return self.module, self.hidden_states, self.keys, self.values, attentions, self.kwargs


def kept_rows(original, returned):
    """Positions [n_kv, B] of the rows that `compress` returned; original [1, n_kv, l, d]."""
    kept = []
    for rows, some in zip(original[0].numpy(), returned[0].numpy()):
        position = {row.tobytes(): p for p, row in enumerate(rows)}
        if len(position) < len(rows):
            raise SystemExit("two positions have the same key: kept rows cannot be told apart")
        kept.append([position[row.tobytes()] for row in some])
    return kept


def run(press, inputs, with_attentions):
    """(kept bool [n_kv, l], scores [n_kv, l] or None)"""
    arguments = inputs.arguments(with_attentions)
    _, n_kv, l, _ = inputs.keys.shape
    kept = np.ones((n_kv, l), bool)
    inputs.module.masked_key_indices = None
    keys, _ = press.compress(*arguments)
    if inputs.module.masked_key_indices is not None:
        _, heads, positions = inputs.module.masked_key_indices
        kept[heads.numpy(), positions.numpy()] = False
    else:
        kept[:] = False
        for g, positions in enumerate(kept_rows(inputs.keys, keys)):
            kept[g, positions] = True
    scorer = getattr(press, "press", press)
    scores = None if isinstance(press, kvpress.BlockPress) else scorer.score(*arguments)[0].double().numpy()
    return kept, scores


def tied(kept, scores, across_heads):
    """bool [n_kv, l]: tokens whose score is within NEAR of the cut's other side."""
    near = np.zeros_like(kept)
    if scores is None or kept.all():
        return near
    groups = [slice(None)] if across_heads else [slice(g, g + 1) for g in range(len(kept))]
    for g in groups:
        x, m = scores[g], kept[g]
        if m.all():
            continue
        highest = x[~m].max()
        # with a budget across heads a head's safeguarded tokens may lie below the cut
        lowest = x[m & (x >= highest)].min() if (m & (x >= highest)).any() else highest
        margin = NEAR * max(abs(lowest), abs(highest))
        if lowest - highest <= margin:
            near[g] = (m & (x <= highest + margin) & (x >= highest - margin)) | (~m & (x >= lowest - margin))
    return near


def make_press(name, ratio, curves):
    press = PRESSES[name](compression_ratio=ratio)
    if isinstance(press, LUKVPress):
        press._budget_curves = curves
    return press


def lu_curves(layers, heads):
    """Prune ratios [99, layers, heads], invented: each sigma with a seeded spread of up to 0.1 between heads."""
    spread = np.random.default_rng(LU_SEED).uniform(-0.1, 0.1, (layers, heads))
    sigma = np.arange(1, 100)[:, None, None] / 100
    return np.clip(sigma + 4 * sigma * (1 - sigma) * spread, 0, 1).astype(np.float32)


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
        config = model_config(layer, len(indices), manifest["rope"].get("theta", 10000.0))
        curves = lu_curves(len(indices), layer.n_kv)
        inputs = Inputs(layer, index, config, torch.float64, RotaryFloat64(layer))
        single = Inputs(layer, index, config, torch.float32, LlamaRotaryEmbedding(config))
        for name, ratio in kept:
            across = name == "ada_snapkv"
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
