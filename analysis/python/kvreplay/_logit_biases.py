"""Biases on the logits of a cache's keys in a running transformers model: through the mask that its attention adds to them."""
from __future__ import annotations

from typing import Any, Mapping, Optional

import torch
from transformers.cache_utils import Cache, QuantizedLayer

from . import _core

TAKES_BIASES = ("eager", "sdpa")  # attentions that add a mask to the logits


def set_biases(module: torch.nn.Module, cache: Any, biases: torch.Tensor) -> None:
    """From now on whoever attends to the module's layer of this cache has biases [batch, n_kv, m] on the logits of its first m keys,
    behind scale and soft cap, in the model's dtype. They go with the cache, also into copies of it."""
    attention = module.config._attn_implementation
    if attention not in TAKES_BIASES:
        raise _core.InputError(f"compensate: expected an attention that takes biases ({' or '.join(TAKES_BIASES)}), found {attention}")
    cache.layers[module.layer_idx].kvreplay_biases = biases
    if not getattr(module, "_kvreplay_hooked", False):
        module.register_forward_pre_hook(_with_biases, with_kwargs=True)
        module._kvreplay_hooked = True


def cache_of(kwargs: Mapping[str, Any]) -> Optional[Cache]:
    """The cache among the keyword arguments of a layer's attention, under any name."""
    return next((value for value in kwargs.values() if isinstance(value, Cache)), None)


def _with_biases(module: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> Optional[tuple[tuple, dict[str, Any]]]:
    layers = getattr(cache_of(kwargs), "layers", ())
    layer = layers[module.layer_idx] if module.layer_idx < len(layers) else None
    biases = getattr(layer, "kvreplay_biases", None)
    if biases is None:
        return None
    mask, (batch, rows, _) = kwargs.get("attention_mask"), kwargs["hidden_states"].shape
    keys = rows + (layer.cumulative_length if isinstance(layer, QuantizedLayer) else layer.keys.shape[-2])
    if batch != len(biases):
        raise _core.InputError(f"compensate: expected a batch of {len(biases)}, as was compensated, found {batch}")
    if mask is None and rows > 1 or mask is not None and (mask.ndim != 4 or mask.shape[-1] != keys):
        found = "none" if mask is None else f"shape {list(mask.shape)}"
        raise _core.InputError(f"compensate: expected a mask of {rows} rows and {keys} keys, found {found}")
    added = torch.zeros(batch, biases.shape[1], 1, keys, dtype=kwargs["hidden_states"].dtype, device=biases.device)
    m = min(biases.shape[2], keys - rows)  # of a cache that was cropped
    added[:, :, 0, :m] = biases[..., :m]
    added = added.repeat_interleave(module.config.num_attention_heads // biases.shape[1], 1)
    if mask is not None:
        added = added.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else added + mask
    return args, {**kwargs, "attention_mask": added}
