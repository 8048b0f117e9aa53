"""What a layer's cache of a prompt becomes: some tokens left, key channels pruned, numbers quantized, values replaced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

import numpy as np
import torch

from kvresults import Compensated
from number_formats import Stored, center_of, quantize


@dataclass(frozen=True)
class Change:
    """What a layer's cache of the prompt becomes. Arrays have a row for every KV head, or one for every query head."""

    kept: np.ndarray | None = None  # [heads, l], true where kept
    last: np.ndarray | None = None  # [heads, T], in place of kept: the last row that sees each position
    read: np.ndarray | None = None  # [heads, steps, l], true where a decoding step reads a token that is kept; None: all
    pruned: np.ndarray | None = None  # [heads, d], true where a key loses the channel
    recent: int = 0  # the prompt's last keys, which lose none
    stored: Stored | None = None  # in which formats
    held: Sequence[Compensated] | None = None  # a KV head each, in place of all this

    def cache(self, k: torch.Tensor, v: torch.Tensor, head: int,
              n_kv: int | None = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
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
        center = None if self.stored is None else center_of(k, self.stored, head if n_kv is None else head * n_kv // self.heads(n_kv))
        k, v = k[at], v[at]
        if self.pruned is None and self.stored is None:
            return at, k, v, None
        lost = torch.zeros(k.shape, dtype=torch.bool, device=k.device)
        if self.pruned is not None:
            lost[: max(len(at) - self.recent, 0)] = torch.from_numpy(self.pruned[head]).to(k.device)
            k[lost] = 0
        if self.stored is not None:
            quantize(k, v, lost, self.stored, center)
        return at, k, v, None

    def heads(self, n_kv: int) -> int:
        return next((len(x) for x in (self.kept, self.last, self.read, self.pruned) if x is not None), n_kv)

    def unread(self, head: int, at: torch.Tensor) -> torch.Tensor | None:
        """[steps, held]: where a step does not read what a head holds of positions `at`; None where all read all."""
        return None if self.read is None else ~torch.from_numpy(self.read[head]).to(at.device)[:, at]
