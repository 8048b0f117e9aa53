"""Queries of a second reading of the prompt, beside q, k, v and o of a dump: kvcapture.py --repeat.

The prompt is read, then, with its keys and values held, once more behind itself, at positions l to 2l - 1: what the
model asks when it is to read again what it has read (KVzip's idea, without the request to repeat it). Each row
attends to the whole first reading and to the second up to itself, as it would in a text that goes on so. The queries
that a layer's attention is called with are q_ref.npy [n_q, l, d], the norms of the hidden states that these are made
of h_ref_norm.npy [l].
"""
from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Callable

import numpy as np
import torch

from dump_check import StoredArray
from dump_files import ASKING, QUERIES, allocate, npy_bytes, require, write_json
from gradient_progress import Dump
from model_attention import decoder_of, rounded, stand_in, to_file
from output_gradients import REPEATED, FedAgain


def write_second_reading(model: torch.nn.Module, dump: str | os.PathLike, *, resume: bool = False,
                         progress: Callable[[str], object] = lambda line: None) -> None:
    """Adds q_ref.npy to every layer of a whole dump of this model, whose tokens.json says what was read, and
    `reference_rows` to its manifest. resume: leaves what is there. Raises CaptureError; no file has its final name
    before all are written."""
    dump = Dump(Path(dump))
    there = dump.has(QUERIES) and "reference_rows" in dump.manifest
    require(resume or not there, dump.folder, "--resume, or --force", f"{QUERIES}.npy")
    if there:
        return
    check_length(model.config.get_text_config(), dump.prompt_len)
    reading = SecondReading(model, dump)
    ids = dump.ids[:dump.prompt_len]
    progress(f"reading the prompt's {len(ids)} positions")
    reading.read(ids)
    check_keys(dump, reading)
    try:
        reading.allocate()
        progress(f"reading the prompt's {len(ids)} positions again")
        reading.read_again(ids)
        for path in (*reading.paths, *reading.norm_paths):
            if path.exists():
                os.replace(path, path.with_suffix(".npy"))
    finally:
        for path in (*reading.paths, *reading.norm_paths):
            path.unlink(missing_ok=True)
    write_json(dump.folder / "manifest.json", {**dump.manifest, "reference_rows": {"kind": "repeat"}})


def check_length(config: object, prompt_len: int) -> None:
    """Refuses a prompt that the model cannot read twice."""
    longest = getattr(config, "max_position_embeddings", None) or np.inf
    require(2 * prompt_len <= longest, "--repeat", f"a prompt of at most half the model's {longest} positions",
            prompt_len)


class SecondReading(FedAgain):
    """A model that reads a prompt twice; the second time its queries are written."""

    def __init__(self, model: torch.nn.Module, dump: Dump):
        super().__init__(model, dump.dtype, [], "--repeat")
        self.dump = dump
        self.place = {index: at for at, index in enumerate(dump.layers)}
        self.paths = [dump.layer(at) / f"{QUERIES}.new" for at in range(len(dump.layers))]
        self.norm_paths = [path.with_name(f"{ASKING}.new") for path in self.paths]
        self.norms: dict[int, np.ndarray] = {}  # by layer: [l] of its attention's input in the second reading
        self.called_with: tuple[torch.nn.Module | None, np.ndarray | None] = None, None  # the last module with a number
        require(dump.layers[-1] < self.count, dump.folder, f"a dump of layers 0 to {self.count - 1}",
                f"layer {dump.layers[-1]}")

    def allocate(self) -> None:
        """Takes the room for the files."""
        shape = self.dump.n_q, self.dump.prompt_len, StoredArray(self.dump.layer(0) / "k.npy").shape[2]
        size, free = len(self.paths) * npy_bytes(shape, self.dtype), shutil.disk_usage(self.dump.folder).free
        require(free >= size, self.dump.folder, f"{size:,} bytes of free disk", f"{free:,}")
        for path in self.paths:
            allocate(path, shape, self.dtype)

    def read_again(self, ids: list[int]) -> None:
        """Positions l, l + 1, ..., as far as the decoder's last layer: nobody asks for logits."""
        self.first = len(ids)
        position = self._tensor(list(range(self.first, 2 * self.first)))
        numbered = [module for module in decoder_of(self.model).modules() if hasattr(module, "layer_idx")]
        hooks = [module.register_forward_pre_hook(self._note, with_kwargs=True) for module in numbered]
        try:
            with stand_in(self.model, self._attend) as self.own, torch.no_grad():
                decoder_of(self.model)(input_ids=self._tensor(ids), position_ids=position, **self.cache)
        finally:
            for hook in hooks:
                hook.remove()
        if all(index in self.norms for index in self.place):  # else an attention is called with something else
            for index, at in self.place.items():
                with self.norm_paths[at].open("wb") as file:
                    np.save(file, self.norms[index])

    def _note(self, module, args, kwargs) -> None:
        x = args[0] if args else kwargs.get("hidden_states")
        if torch.is_tensor(x) and x.dim() == 3:
            self.called_with = module, x[0].detach().float().norm(dim=-1).cpu().numpy()

    def _attend(self, module, query, key, value, mask, kwargs):
        at = self.place.get(module.layer_idx)
        if at is not None:
            if self.called_with[0] is module:
                self.norms[module.layer_idx] = self.called_with[1]
            queries, = rounded(self.dtype, query)
            file = np.lib.format.open_memmap(self.paths[at], mode="r+")
            file[:] = to_file(queries[0], self.dtype, f"layer {module.layer_idx}, {QUERIES}")
            file.flush()
        return super()._attend(module, query, key, value, mask, kwargs)


def check_keys(dump: Dump, reading: SecondReading) -> None:
    """Refuses a model whose keys of the prompt are not those that were captured."""
    for at, index in enumerate(dump.layers):
        folder = dump.layer(at)
        captured = dump.rows(at, "k", slice(dump.prompt_len))
        found = reading.prompt[index][0][0].double().cpu().numpy()
        fits = found.shape == captured.shape
        off = np.linalg.norm(found - captured) / np.linalg.norm(captured) if fits else np.inf
        tolerance = REPEATED[dump.dtype]
        require(off <= tolerance, f"{folder}: k of the prompt when it is read again",
                f"what was captured, within {tolerance:g} of its norm",
                f"{off:.1e} (another model, dtype or attention?)")
