"""What a layer's cache of a prompt becomes: some tokens left, key channels pruned, numbers quantized, values replaced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Sequence

import numpy as np
import torch

from kvresults import Compensated


class Quantization(NamedTuple):
    """As sim/channels/CHANNELS.md has it."""

    bits: int
    group: int
    residual: int


@dataclass(frozen=True)
class Change:
    """What a layer's cache of the prompt becomes. Arrays have a row for every KV head, or one for every query head."""

    kept: np.ndarray | None = None  # [heads, l], true where kept
    last: np.ndarray | None = None  # [heads, T], in place of kept: the last row that sees each position
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
        kept = self.kept if self.last is None else self.last[:, : len(k)] >= len(k)
        if kept is not None:
            at = at[torch.from_numpy(kept[head]).to(k.device)]
        k, v = k[at], v[at]
        lost = torch.zeros(k.shape, dtype=torch.bool, device=k.device)
        if self.pruned is not None:
            lost[: max(len(at) - self.recent, 0)] = torch.from_numpy(self.pruned[head]).to(k.device)
            k[lost] = 0
        if self.quantization is not None:
            quantize(k, v, lost, self.quantization)
        return at, k, v, None

    def heads(self, n_kv: int) -> int:
        return next((len(x) for x in (self.kept, self.last, self.pruned) if x is not None), n_kv)


def quantize(k: torch.Tensor, v: torch.Tensor, lost: torch.Tensor, q: Quantization) -> None:
    """In place: keys [n, d] of the cache's tokens, in groups of tokens, but for those channels that are `lost`, which are
    not stored; values [n, d_v] in groups of channels."""
    old = max(len(k) - q.residual, 0)
    whole = old // q.group * q.group
    groups = (-1, q.group, k.shape[1])
    k[:whole] = on_grid(k[:whole].reshape(groups), 1, q.bits, lost[:whole].reshape(groups)).reshape(whole, -1)
    for begin in range(0, v.shape[1], q.group):
        v[:old, begin : begin + q.group] = on_grid(v[:old, begin : begin + q.group], 1, q.bits)


def on_grid(x: torch.Tensor, axis: int, bits: int, lost: torch.Tensor | None = None) -> torch.Tensor:
    """x read back from 2^bits steps between the smallest and the largest along an axis, both of which stay; what is lost
    takes no part."""
    if not x.numel():
        return x
    if lost is not None and lost.any():
        inf = torch.full_like(x, torch.inf, dtype=torch.float64)
        ends = torch.where(lost, inf, x.double()), torch.where(lost, -inf, x.double())
        return torch.where(lost, x, between(x, ends[0].amin(axis, keepdim=True), ends[1].amax(axis, keepdim=True), bits))
    wide = x.double()
    return between(x, wide.amin(axis, keepdim=True), wide.amax(axis, keepdim=True), bits)


def between(x: torch.Tensor, low: torch.Tensor, high: torch.Tensor, bits: int) -> torch.Tensor:
    wide, last = x.double(), 2**bits - 1
    step = (high - low) / last
    place = torch.floor((wide - low) / step + 0.5)
    read = torch.where(place >= last, high, low + step * place)
    return torch.where(step > 0, read, wide).to(x.dtype)
