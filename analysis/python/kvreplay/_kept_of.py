"""What a running model's caches keep of a prompt, whoever compresses them. Imported by kvreplay.kept_of only: it needs torch and
transformers."""
from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Iterator

import numpy as np
import torch
from transformers.cache_utils import Cache

from . import _core


class KeptOf:
    """What every layer's cache held of the prompt once the model had read it."""

    def __init__(self) -> None:
        self.layers: dict[int, list[np.ndarray]] = {}  # of each layer, of each KV head ascending positions
        self.lengths: dict[int, int] = {}  # tokens that each layer was given
        self.held: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # keys and values [n_kv, n, d]
        self.unmatched: dict[int, str] = {}  # why a layer's positions are not known

    def mask(self) -> np.ndarray:
        """bool [layers, n_kv, l], as `kvreplay conform --kept` takes it."""
        if self.unmatched:
            raise _core.InputError(next(iter(self.unmatched.values())))
        if not self.layers:
            raise _core.InputError("kept_of: expected a prompt that the model reads within it, found none")
        length = max(self.lengths.values())
        kept = np.zeros((max(self.layers) + 1, max(map(len, self.layers.values())), length), bool)
        for layer, heads in self.layers.items():
            for head, positions in enumerate(heads):
                kept[layer, head, positions] = True
        return kept

    def save(self, path) -> None:
        np.save(Path(path), self.mask())

    def save_cache(self, folder) -> None:
        """layer_XX/k.npy and v.npy, as `kvreplay conform --cache` takes them."""
        if not self.held:
            raise _core.InputError("kept_of: expected a prompt that the model reads within it, found none")
        for layer, states in self.held.items():
            if any(len(positions) != states[0].shape[1] for positions in self.layers.get(layer, ())):
                raise _core.InputError(f"kept_of: layer {layer}: expected a cache that holds what is kept and no more, found tokens that are hidden in it")
            place = Path(folder) / f"layer_{layer:02}"
            place.mkdir(parents=True, exist_ok=True)
            for name, numbers in zip("kv", states):
                np.save(place / f"{name}.npy", numbers.float().cpu().numpy())


class Recorder:
    """Notes what caches are given, and compares it with what they hold when more comes, or in the end."""

    def __init__(self, model, found: KeptOf) -> None:
        self.found = found
        self.only = model if isinstance(model, Cache) else None
        self.modules = {} if self.only is not None else {module.layer_idx: module for module in model.modules() if isinstance(getattr(module, "layer_idx", None), int)
                        and hasattr(module, "head_dim")}
        self.given: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        self.cache = None

    def add(self, cache, keys: torch.Tensor, values: torch.Tensor, layer: int) -> None:
        if self.only is not None and cache is not self.only:
            return
        if keys.shape[0] != 1:
            raise _core.InputError(f"kept_of: expected a batch of one prompt, found {keys.shape[0]}")
        if cache is not self.cache:  # another prompt
            self.cache, self.given = cache, {}
            for noted in (self.found.layers, self.found.lengths, self.found.held, self.found.unmatched):
                noted.clear()
        if keys.shape[2] == 1 and layer in self.given:  # the prompt is read
            self.take(layer)
        elif layer not in self.found.held:
            self.given.setdefault(layer, []).append((keys[0].detach().clone(), values[0].detach().clone()))

    def take(self, layer: int) -> None:
        pieces = self.given.pop(layer)
        keys, values = (torch.cat([piece[part] for piece in pieces], 1) for part in (0, 1))
        held = self.cache.layers[layer]
        self.found.held[layer] = held.keys[0].detach().clone(), held.values[0].detach().clone()
        self.found.lengths[layer] = keys.shape[1]
        try:
            heads = [positions_of(*(states[head] for states in (*self.found.held[layer], keys, values)), f"layer {layer}, head {head}")
                     for head in range(keys.shape[0])]
        except _core.InputError as error:
            self.found.unmatched[layer] = str(error)
            return
        masked = getattr(self.modules.get(layer), "masked_key_indices", None)  # kvpress hides what it does not take out
        if masked is not None:
            _, which, at = (index.cpu().numpy() for index in masked)
            heads = [np.setdiff1d(positions, at[which == head]) for head, positions in enumerate(heads)]
        self.found.layers[layer] = heads

    def finish(self) -> None:
        for layer in list(self.given):
            self.take(layer)


def rows_of(states: torch.Tensor) -> list[bytes]:
    return [row.tobytes() for row in states.contiguous().view(torch.uint8).cpu().numpy()]


def positions_of(held_keys, held_values, keys, values, where: str) -> np.ndarray:
    """Where rows of a cache stand among those that it was given: by the bytes of the key, or where keys were changed of the value."""
    unmatched = len(held_keys)
    for held, given in ((held_keys, keys), (held_values, values)):
        places: dict[bytes, list[int]] = {}
        for position, row in enumerate(rows_of(given)):
            places.setdefault(row, []).append(position)
        found = [places[row].pop(0) for row in rows_of(held) if places.get(row)] if held.dtype == given.dtype else []
        if len(found) == len(held):
            return np.sort(np.array(found, np.int64))
        unmatched = min(unmatched, len(held) - len(found))
    raise _core.InputError(f"kept_of: {where}: expected keys or values that the cache was given, found {unmatched} of {len(held_keys)} others: "
                           "merged or quantized")


@contextlib.contextmanager
def kept_of(model) -> Iterator[KeptOf]:
    found = KeptOf()
    recorder = Recorder(model, found)
    own = {}

    updating = False  # a class may call its parent's

    def noting(cls):
        def update(cache, key_states, value_states, layer_idx, *args, **kwargs):
            nonlocal updating
            if updating:
                return own[cls](cache, key_states, value_states, layer_idx, *args, **kwargs)
            updating = True
            try:
                recorder.add(cache, key_states, value_states, layer_idx)
                return own[cls](cache, key_states, value_states, layer_idx, *args, **kwargs)
            finally:
                updating = False
        return update

    for cls in [Cache, *subclasses(Cache)]:
        if "update" in vars(cls):
            own[cls] = cls.update
            cls.update = noting(cls)
    try:
        yield found
        recorder.finish()
    finally:
        for cls, update in own.items():
            cls.update = update


def subclasses(cls) -> Iterator[type]:
    for sub in cls.__subclasses__():
        yield sub
        yield from subclasses(sub)
