"""A model in the loop, for kvvalidate.py: its decoding steps are fed once more, and see a cache that was changed.

  with ModelLoop(model) as loop:
      full = loop.read(ids, prompt_len)           # logits [steps, vocabulary] of the model as it is
      changed = loop.feed({3: Change(kept=kept)})    # layer 3 holds only kept [n_kv, l] of the prompt
      print(figures(full, changed, ids[prompt_len + 1:]))

read() notes the keys and values that every layer's attention makes of the prompt. feed() then passes all decoding steps
through the model at once, with a function registered with the transformers attention interface: in every head a row
attends over what the head's cache holds of the prompt, and over the decoding steps up to itself, as far as the layer's
sliding window goes.

Needs torch and transformers 4.56 or later.
"""

from __future__ import annotations

import contextlib
import inspect
from dataclasses import dataclass
from typing import Any, Mapping, NamedTuple, Sequence

import numpy as np
import torch

from dump_files import require
from kvresults import Compensated
from model_attention import own_attention, stand_in, window_of

FIGURES = ("kl", "kl_median", "kl_p95", "dnll", "same_top1")
ROWS_AT_ONCE = 32  # of float64 log-probabilities
# Fed at once or read whole, the steps' logits differ by rounding; nats of KL that this may come to.
ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}


class Quantization(NamedTuple):
    """As sim/channels/CHANNELS.md has it."""

    bits: int
    group: int
    residual: int


@dataclass(frozen=True)
class Change:
    """What a layer's cache of the prompt becomes. Arrays have a row for every KV head, or one for every query head."""

    kept: np.ndarray | None = None  # [heads, l], true where kept
    pruned: np.ndarray | None = None  # [heads, d], true where a key loses the channel
    recent: int = 0  # the prompt's last keys, which lose none
    quantization: Quantization | None = None
    held: Sequence[Compensated] | None = None  # a KV head each, in place of all this

    def cache(self, k: torch.Tensor, v: torch.Tensor,
              head: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Of all keys [l, d] and values [l, d_v]: the positions that a head holds, what it reads there, and biases of their
        logits where there are any."""
        at = torch.arange(len(k), device=k.device)
        if self.held is not None:
            mine = self.held[head]
            at = torch.as_tensor(mine.tokens, dtype=torch.long, device=k.device)
            k, v = (k[at] if x is None else torch.as_tensor(x).to(k) for x in (mine.keys, mine.values))
            return at, k, v, torch.as_tensor(mine.bias, device=k.device)
        if self.kept is not None:
            at = at[torch.from_numpy(self.kept[head]).to(k.device)]
        k, v = k[at], v[at]
        if self.pruned is not None:
            rows, channels = at < len(at) - self.recent, torch.from_numpy(self.pruned[head]).to(k.device)
            k[rows[:, None] & channels] = 0
        if self.quantization is not None:
            quantize(k, v, self.quantization)
        return at, k, v, None

    def heads(self, n_kv: int) -> int:
        return next((len(x) for x in (self.kept, self.pruned) if x is not None), n_kv)


def quantize(k: torch.Tensor, v: torch.Tensor, q: Quantization) -> None:
    """In place: keys [n, d] of the cache's tokens, in groups of tokens; values [n, d_v] in groups of channels."""
    old = max(len(k) - q.residual, 0)
    whole = old // q.group * q.group
    k[:whole] = on_grid(k[:whole].reshape(-1, q.group, k.shape[1]), 1, q.bits).reshape(whole, -1)
    for begin in range(0, v.shape[1], q.group):
        v[:old, begin : begin + q.group] = on_grid(v[:old, begin : begin + q.group], 1, q.bits)


def on_grid(x: torch.Tensor, axis: int, bits: int) -> torch.Tensor:
    """x read back from 2^bits steps between the smallest and the largest along an axis, both of which stay."""
    if not x.numel():
        return x
    wide, last = x.double(), 2**bits - 1
    low, high = wide.amin(axis, keepdim=True), wide.amax(axis, keepdim=True)
    step = (high - low) / last
    place = torch.floor((wide - low) / step + 0.5)
    read = torch.where(place >= last, high, low + step * place)
    return torch.where(step > 0, read, wide).to(x.dtype)


class Layer(NamedTuple):
    """How a layer attends, and what its attention makes of the prompt."""

    k: torch.Tensor  # [n_kv, l, d]
    v: torch.Tensor  # [n_kv, l, d_v]
    n_q: int
    scale: float
    window: int | None
    softcap: float | None
    sinks: torch.Tensor | None  # [n_q]


class ModelLoop:
    """A causal model that reads one text; `layers` is what its attention made of the prompt, by layer."""

    def __init__(self, model: torch.nn.Module):
        self.model = model
        self.layers: dict[int, Layer] = {}
        self._reading, self._changes = True, {}
        takes = inspect.signature(model.forward).parameters
        require("position_ids" in takes, type(model).__name__, "a model that is told its positions", "no position_ids")
        self._cuts = "logits_to_keep" in takes

    def __enter__(self) -> ModelLoop:
        with contextlib.ExitStack() as stack:
            self.own = stack.enter_context(stand_in(self.model, self._attend))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_) -> None:
        self._stack.close()

    def read(self, ids: Sequence[int], prompt_len: int) -> torch.Tensor:
        """The whole text through the model; the logits [steps, vocabulary] of its steps, as feed() has them."""
        self.layers, self._reading, self._ids, self._l = {}, True, list(ids), prompt_len
        whole = self._forward(0)
        self._reading = False
        count = self.model.config.get_text_config().num_hidden_layers
        missing = ", ".join(str(i) for i in range(count) if i not in self.layers)
        name, wanted = type(self.model).__name__, "every layer's attention through the transformers attention interface"
        require(not missing, name, wanted, f"none in layers {missing}" if self.layers else "none")
        full = self.feed({})
        off = float(np.mean(figures_of_steps(whole, full)[0]))
        wanted = "the same from decoding steps fed over its keys and values"
        require(off <= ROUNDING[self.model.dtype], name, wanted, f"{off:.1e} nats between them")
        return full

    def feed(self, changes: Mapping[int, Change]) -> torch.Tensor:
        """The logits [steps, vocabulary] behind the decoding steps over the prompt's cache, changed in these layers."""
        self._changes = changes
        return self._forward(self._l)

    def _forward(self, begin: int) -> torch.Tensor:
        """Positions begin, begin + 1, ... as one pass without a cache of the model's own."""
        device = self.model.get_input_embeddings().weight.device
        at, steps = torch.arange(begin, len(self._ids), device=device), len(self._ids) - self._l
        ids, keep = torch.tensor([self._ids[begin:]], device=device), {"logits_to_keep": steps} if self._cuts else {}
        with torch.no_grad():
            result = self.model(input_ids=ids, position_ids=at[None], use_cache=False, **keep)
        return result.logits[0, -steps:]

    def _attend(self, module, query, key, value, mask, called):
        """The attention of query [1, n_q, rows, d], key [1, n_kv, rows, d] and value [1, n_kv, rows, d_v]."""
        index = module.layer_idx
        if self._reading:
            self.layers[index] = self._layer(module, query, key[0, :, : self._l], value[0, :, : self._l], called)
            return own_attention(self.own, module)(module, query, key, value, mask, **called)
        layer, change = self.layers[index], self._changes.get(index, Change())
        heads, outputs = change.heads(len(layer.k)), []
        for head, q in enumerate(query[0].reshape(heads, -1, *query.shape[2:])):
            g = head * len(layer.k) // heads
            at, k, v, bias = change.cache(layer.k[g], layer.v[g], head)
            sinks = None if layer.sinks is None else layer.sinks.reshape(heads, -1)[head]
            k, v = torch.cat((k, key[0, g])), torch.cat((v, value[0, g]))
            outputs.append(attend(q, at, k, v, self._l, layer, sinks, bias))
        return torch.cat(outputs).transpose(0, 1)[None].to(query.dtype), None

    def _layer(self, module, query, k, v, called: dict[str, Any]) -> Layer:
        scale, sinks = called.get("scaling"), called.get("s_aux", getattr(module, "sinks", None))
        softcap = called.get("softcap") or getattr(module, "attn_logit_softcapping", None)
        wanted = "eager attention for a soft cap or sinks (attn_implementation='eager')"
        require(self.own == "eager" or not softcap and sinks is None, f"layer {module.layer_idx}", wanted, self.own)
        scale = query.shape[3] ** -0.5 if scale is None else float(scale)
        return Layer(k, v, query.shape[1], scale, window_of(module, called), float(softcap or 0) or None, sinks)


def attend(q: torch.Tensor, at: torch.Tensor, k: torch.Tensor, v: torch.Tensor, l: int, rule: Layer,
           sinks: torch.Tensor | None, bias: torch.Tensor | None = None) -> torch.Tensor:
    """o [group, rows, d_v] of q [group, rows, d], the rows l, l + 1, ..., over a cache whose first keys are those of
    positions `at`, with these biases, followed by the rows' own: in float32 at least."""
    group, rows, d = q.shape
    wide = torch.promote_types(q.dtype, torch.float32)
    row = torch.arange(l, l + rows, device=q.device)
    position = torch.cat((at, row))
    hidden = position > row[:, None]
    if rule.window:
        hidden |= position <= row[:, None] - rule.window
    z = rule.scale * (q.reshape(-1, d).to(wide) @ k.to(wide).T).reshape(group, rows, -1)
    if rule.softcap:
        z = rule.softcap * torch.tanh(z / rule.softcap)
    if bias is not None:
        z[..., : len(at)] += bias.to(wide)
    z.masked_fill_(hidden, -torch.inf)
    if sinks is not None:
        z = torch.cat((z, sinks.to(wide)[:, None, None].expand(group, rows, 1)), dim=-1)
    a = z.softmax(-1)[..., : len(position)]
    return (a.reshape(group * rows, -1) @ v.to(wide)).reshape(group, rows, -1)


def figures_of_steps(full: torch.Tensor, changed: torch.Tensor,
                     following: Sequence[int] = ()) -> tuple[np.ndarray, ...]:
    """Of every decoding step: KL(full || changed) in nats, whether both put the same token first, and, where the token
    that followed is known, what the change adds to its negative log-likelihood."""
    kl, same, added = [], [], []
    for begin in range(0, len(full), ROWS_AT_ONCE):
        p, q = (x[begin : begin + ROWS_AT_ONCE].double().log_softmax(-1) for x in (full, changed))
        kl.append((p.exp() * (p - q)).sum(-1))
        same.append(p.argmax(-1) == q.argmax(-1))
        next_ids = torch.tensor(following[begin : begin + ROWS_AT_ONCE], dtype=torch.long, device=p.device)
        rows = torch.arange(len(next_ids), device=p.device)
        added.append((p - q)[rows, next_ids])
    return tuple(torch.cat(parts).cpu().numpy() for parts in (kl, same, added))


def figures(full: torch.Tensor, changed: torch.Tensor, following: Sequence[int]) -> dict[str, float | None]:
    """What validate.csv has of a case, by FIGURES; dnll has no value where no following token is known."""
    kl, same, added = figures_of_steps(full, changed, following)
    values = (kl.mean(), np.median(kl), np.quantile(kl, 0.95), added.mean() if len(added) else None, same.mean())
    return {name: None if value is None else float(value) for name, value in zip(FIGURES, values)}
