"""NVIDIA kvpress 0.5.4's presses, run as published on tensors that no model made just now.

A stand-in for the attention module has the attributes that a press reads. `hidden_states` holds queries without their rotation and
`q_proj` is the identity, so that what a press recomputes from hidden states are the queries given.
"""

from types import SimpleNamespace

import kvpress
import numpy as np
import torch
from kvpress.presses.lukv_press import LUKVPress
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import rotate_half

VERSION = "0.5.4"
NEAR = 1e-6  # scores this close (relative) to the cut count as tied with it
LU_SEED = 20
ACROSS_HEADS = ("ada_snapkv",)  # share one budget between a layer's heads

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


class RotaryFloat64(torch.nn.Module):
    """cos and sin of shape [1, n, d] as transformers' Llama returns them, with angles in float64."""

    def __init__(self, layer):
        super().__init__()
        self.inv_freq = torch.from_numpy(layer.inv_freq)

    def forward(self, x, position_ids):
        angle = position_ids[0].double()[:, None] * self.inv_freq
        angle = torch.cat([angle, angle], dim=-1)[None]
        return angle.cos().to(x.dtype), angle.sin().to(x.dtype)


def model_config(n_q, n_kv, d, n_layers, theta):
    config = LlamaConfig(num_attention_heads=n_q, num_key_value_heads=n_kv, hidden_size=n_q * d, head_dim=d,
                         num_hidden_layers=n_layers, rope_theta=theta, attn_implementation="sdpa")  # fmt: skip
    config._attn_implementation = "sdpa"
    return config


def config_of(layer, n_layers, manifest):
    return model_config(layer.n_q, layer.n_kv, layer.q.shape[2], n_layers, manifest["rope"].get("theta", 10000.0))


def refuse_what_kvpress_cannot(layer, where=""):
    usual = layer.causal and not layer.sliding and not layer.cap and layer.sinks is None and layer.first_row == 0
    if not usual or layer.inv_freq is None or 2 * len(layer.inv_freq) != layer.q.shape[2] or layer.attention_factor != 1:
        raise SystemExit(f"{where}expected plain causal attention, queries of the whole prompt and an unscaled full rotary embedding")
    if not np.isclose(layer.scale, layer.q.shape[2] ** -0.5) or layer.v.shape[2] != layer.k.shape[2]:
        raise SystemExit(f"{where}expected scale 1/sqrt(d) and values as wide as keys")


def attention_weights(q, k, hidden):
    """softmax(q k^T / sqrt(d)) [n_q, l, l] of q [n_q, l, d] and k [n_kv, l, d]; hidden [l, l]: who sees whom not."""
    logits = q.shape[-1] ** -0.5 * q @ k.repeat_interleave(len(q) // len(k), dim=0).transpose(1, 2)
    return logits.masked_fill_(hidden, float("-inf")).softmax(-1)


class Inputs:
    """What a press' `compress` is called with: queries before their rotation [n_q, l, d], keys and values [n_kv, l, d], and
    attentions [n_q, l, l] for the presses that are given them."""

    def __init__(self, unrotated, keys, values, attentions, index, config, rotary):
        l, d = keys.shape[1:]
        self.hidden_states = unrotated.transpose(0, 1).reshape(1, l, -1)
        self.keys, self.values = keys[None], values[None]
        self.attentions = None if attentions is None else attentions[None]
        embeddings = rotary(self.hidden_states, torch.arange(l, device=keys.device)[None])
        self.kwargs = {"position_embeddings": embeddings, "hidden_states": self.hidden_states}
        self.module = SimpleNamespace(config=config, head_dim=d, layer_idx=index, q_proj=torch.nn.Identity(), rotary_emb=rotary)

    def arguments(self, with_attentions):
        attentions = self.attentions if with_attentions else None
        return self.module, self.hidden_states, self.keys, self.values, attentions, self.kwargs


def channel_order(layer):
    """[d]: the channel of the dump that each channel of its Inputs is. Pairs (2j, 2j+1) become (j, j + d/2)."""
    channels = np.arange(layer.q.shape[2])
    return np.concatenate([channels[::2], channels[1::2]]) if layer.interleaved else channels


def layer_inputs(layer, index, config, dtype, rotary):
    """The Inputs of one layer's prompt; rotations are undone and attentions computed in float64, whatever the dtype."""
    l, order = layer.l, channel_order(layer)
    q, k, v = (torch.from_numpy(np.ascontiguousarray(x)) for x in (layer.q[:, :l, order], layer.k[:, :l, order], layer.v[:, :l]))
    cos, sin = RotaryFloat64(layer)(q, torch.arange(l)[None])
    unrotated = q * cos - rotate_half(q) * sin
    attentions = attention_weights(q, k, torch.ones(l, l, dtype=torch.bool).triu(1))
    return Inputs(*(x.to(dtype) for x in (unrotated, k, v, attentions)), index, config, rotary)


def kept_rows(original, returned):
    """Positions [n_kv, B] of the rows that `compress` returned; original [1, n_kv, l, d]."""
    kept = []
    for rows, some in zip(original[0].numpy(), returned[0].numpy()):
        position = {row.tobytes(): p for p, row in enumerate(rows)}
        if len(position) < len(rows):
            raise SystemExit("two positions have the same key: kept rows cannot be told apart")
        if any(row.tobytes() not in position for row in some):
            raise SystemExit("expected keys of the prompt among those kept, found one that is none of them")
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


def tied(kept, scores, across_heads, margin=NEAR):
    """bool [n_kv, l]: tokens whose score is within `margin`, relative to the score there, of the cut's other side."""
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
        room = margin * max(abs(lowest), abs(highest))
        if lowest - highest <= room:
            near[g] = (m & (x <= highest + room) & (x >= highest - room)) | (~m & (x >= lowest - room))
    return near


def make_press(name, ratio, curves=None):
    """curves: prune ratios [99, layers, n_kv] for LU-KV, which would download its own."""
    press = PRESSES[name](compression_ratio=ratio)
    if isinstance(press, LUKVPress):
        press._budget_curves = curves
    return press


def lu_curves(layers, heads):
    """Prune ratios [99, layers, heads], invented: each sigma with a seeded spread of up to 0.1 between heads."""
    spread = np.random.default_rng(LU_SEED).uniform(-0.1, 0.1, (layers, heads))
    sigma = np.arange(1, 100)[:, None, None] / 100
    return np.clip(sigma + 4 * sigma * (1 - sigma) * spread, 0, 1).astype(np.float32)


def think_pruned(inputs, ratio):
    """bool [n_kv, d]: the channels that ThinKPress.compress sets to 0. Nothing else may change."""
    module, hidden_states, keys, values, _, kwargs = inputs.arguments(False)
    press = kvpress.ThinKPress(key_channel_compression_ratio=ratio)
    returned, _ = press.compress(module, hidden_states, keys.clone(), values, None, kwargs)  # it writes into the keys
    before, after = keys[0].numpy(), returned[0].numpy()
    pruned = (after == 0).all(axis=1)
    if (before == 0).all(axis=1).any() or not np.array_equal(np.where(pruned[:, None, :], 0, before), after):
        raise SystemExit("expected keys that differ from those given in channels set to 0 only")
    return pruned
