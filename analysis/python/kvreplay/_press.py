"""Policies in a running model, as presses of kvpress (0.5). Imported by kvreplay.press only: it needs torch and kvpress."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping

import numpy as np
import torch
from kvpress import BasePress
from kvpress.utils import get_prerope_query_states

from . import _core
from ._evictions import evict
from ._layer import Layer


@dataclass
class Press(BasePress):
    """What evict() keeps, of every layer that is read with `with press(model):`."""

    policy: str
    compression_ratio: float = 0.5  # share evicted of every head
    budgets: Any = None  # [layers, n_kv], tokens of every head in its place
    options: Mapping[str, Any] = field(default_factory=dict)  # of evict()
    kept: dict[int, np.ndarray] = field(default_factory=dict, repr=False)  # of each layer last read, bool [batch, n_kv, l]

    def compress(self, module, hidden_states, keys, values, attentions, kwargs):
        if self.budgets is None and self.compression_ratio == 0:
            return keys, values
        queries = rotated_queries(module, hidden_states, kwargs)
        facts = facts_of(module)
        kept = np.stack([self.keep(module, [states.detach()[one] for states in (queries, keys, values)], facts)
                         for one in range(keys.shape[0])])
        self.kept[module.layer_idx] = kept
        return self.gathered(kept, keys, values) if self.budgets is None else self.masked(module, kept, keys, values)

    def keep(self, module, arrays, facts) -> np.ndarray:
        """bool [n_kv, l] of one prompt."""
        if self.budgets is None:
            return evict(Layer(*arrays, **facts), policy=self.policy, sigma=self.compression_ratio, **self.options).kept
        q, k, v = arrays
        group = q.shape[0] // k.shape[0]
        sinks = facts.pop("sink_logit", None)
        kept = []
        for head, budget in enumerate(budgets_of(self.budgets, module.layer_idx, k.shape[0])):
            queries = slice(head * group, (head + 1) * group)
            own = facts if sinks is None else {**facts, "sink_logit": sinks[queries]}
            layer = Layer(q[queries], k[head : head + 1], v[head : head + 1], **own)
            kept.append(evict(layer, policy=self.policy, budget=budget, **self.options).kept[0])
        return np.stack(kept)

    def gathered(self, kept, keys, values):
        at = torch.from_numpy(np.nonzero(kept)[2].reshape(*kept.shape[:2], -1, 1)).to(keys.device)
        return tuple(states.gather(2, at.expand(-1, -1, -1, states.shape[3])).contiguous() for states in (keys, values))

    def masked(self, module, kept, keys, values):
        """Heads of unequal length: kvpress hides what is evicted from later queries, and leaves it where it is."""
        if module.config._attn_implementation == "eager":
            raise _core.InputError("budgets: expected an attention that kvpress can hide keys from (sdpa), found eager")
        module.masked_key_indices = tuple(torch.from_numpy(index).to(keys.device) for index in np.nonzero(~kept))
        return keys, values


def budgets_of(budgets, layer, n_kv) -> list[int]:
    found = np.asarray(budgets)
    if found.ndim != 2 or layer >= found.shape[0] or found.shape[1] != n_kv:
        raise _core.InputError(f"budgets: expected shape [layers, {n_kv}] with a row for layer {layer}, found shape {list(found.shape)}")
    return found[layer].tolist()


def rotated_queries(module, hidden_states, kwargs) -> torch.Tensor:
    """[batch, n_q, rows, d], as the layer has attended with them."""
    queries = get_prerope_query_states(module, hidden_states)
    cos, sin = (part.unsqueeze(1) for part in kwargs["position_embeddings"])
    turned, rest = queries.split([cos.shape[-1], queries.shape[-1] - cos.shape[-1]], -1)
    first, second = turned.chunk(2, -1)
    return torch.cat((turned * cos + torch.cat((-second, first), -1) * sin, rest), -1)


def facts_of(module) -> dict[str, Any]:
    """How the layer attends, for Layer()."""
    sinks = getattr(module, "sinks", None)
    facts = {"scale": module.scaling, "sliding_window": getattr(module, "sliding_window", None),
             "logit_softcap": getattr(module, "attn_logit_softcapping", None),
             "sink_logit": None if sinks is None else sinks.detach().float().cpu().numpy()}
    return {name: value for name, value in facts.items() if value is not None}
