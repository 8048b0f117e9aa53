"""`with capture(model, ...)`: what the attention sees inside it becomes a dump. See kvcapture.py."""
from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, Callable, Iterable

import numpy as np
import torch
import transformers

from dump_files import (FILE_DTYPES, TOLERANCES, Shape, allocate, layer_files, npy_bytes, prepare_folder, require,
                        write_json)
from model_attention import (Turn, check_mask, choose_layers, fit_rotation, is_causal, output_projection, own_attention,
                             residual_block, rounded, stand_in, to_file, window_of)

PROBE_TOKENS = 16


class capture:
    """Writes a dump of all that the model's attention sees inside the `with` block, which feeds it one sequence,
    once: prompt_len positions, in one pass or several, then at most `decode` decoding steps with a growing cache. The
    dump has as many decoding steps as were made. layers: which, renumbered from 0 (default all). window: only the
    queries of the last that many prompt positions, and of the decoding steps. dtype: the files', by default the
    model's; not finer than the model's. name: the manifest's `model`. progress: called with a line that says how far
    the capture is. Raises CaptureError; where the block does not end normally, manifest.json keeps `"incomplete":
    true`."""

    def __init__(self, model: torch.nn.Module, out: str | os.PathLike, *, prompt_len: int, decode: int = 0,
                 layers: Iterable[int] | None = None, window: int | None = None, dtype: str | None = None,
                 force: bool = False, name: str | None = None, progress: Callable[[str], object] = lambda line: None):
        self.model, self.out, self.force, self.name, self.progress = model, Path(out), force, name, progress
        self.prompt_len, self.T = prompt_len, prompt_len + decode
        self.window = prompt_len if window is None else window
        self.config = model.config.get_text_config()
        self.chosen = choose_layers(self.config, layers, prompt_len, decode, window)
        self.compute = compute = str(model.dtype).replace("torch.", "")
        self.dtype = dtype or compute
        known = {self.dtype, compute} <= FILE_DTYPES.keys()
        require(known, "dtype", ", ".join(FILE_DTYPES), f"{self.dtype} for a model in {compute}")
        fine = TOLERANCES[compute] <= TOLERANCES[self.dtype]
        require(fine, f"dtype {self.dtype}", "a model that computes at least as finely", f"one in {compute}")

    def __enter__(self) -> "capture":
        self.layers: dict[int, Layer] = {}
        self.first: Layer | None = None  # until the probe has met all layers
        self.ids: list[int] | None = []  # None where the model was fed something else
        with contextlib.ExitStack() as stack:
            self.own = stack.enter_context(stand_in(self.model, self._attend))
            self._probe()
            size = len(self.chosen) * sum(npy_bytes(shape, dtype) for shape, dtype in self._files(self.T).values())
            prepare_folder(self.out, self.force, size)
            write_json(self.out / "manifest.json", {"incomplete": True, **self._manifest(self.T)})
            stack.callback(self.model.register_forward_pre_hook(self._note_ids, with_kwargs=True).remove)
            for layer in self.layers.values():
                if layer.block is not None:
                    stack.callback(layer.block.register_forward_pre_hook(layer.note_residual, with_kwargs=True).remove)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, kind, *_) -> None:
        self.stack.close()
        if kind is None:
            self._finish()

    def _probe(self) -> None:
        """Fills self.layers, in their order."""
        count = min(PROBE_TOKENS, getattr(self.config, "max_position_embeddings", None) or PROBE_TOKENS)
        decoder = self.model.get_decoder() or self.model
        ids = torch.full((1, count), self.config.vocab_size // 2, device=decoder.get_input_embeddings().weight.device)
        with torch.no_grad():
            decoder(input_ids=ids, use_cache=False)
        missing = ", ".join(str(i) for i in self.chosen if i not in self.layers)
        found = f"none in layers {missing} (choose with --layers)" if self.layers else "nothing was captured"
        require(not missing, type(self.model).__name__, "attention through the transformers attention interface", found)
        self.layers = {i: self.layers[i] for i in self.chosen}
        self.first = self.layers[self.chosen[0]]
        for i, layer in self.layers.items():
            for what in ("shape", "scale", "softcap"):
                mine, firsts = getattr(layer, what), getattr(self.first, what)
                require(mine == firsts, f"layer {i}, {what}", f"layer {self.chosen[0]}'s {firsts}", mine)

    def _note_ids(self, _module, args, kwargs) -> None:
        ids = kwargs.get("input_ids", args[0] if args else None)
        self.ids = None if self.ids is None or ids is None else self.ids + ids[0].tolist()

    def _attend(self, module, query, key, value, mask, kwargs):
        """Stands in for the model's own attention of query [1, n_q, rows, d], key [1, n_kv, keys, d] and
        value [1, n_kv, keys, d_v]."""
        index, own = module.layer_idx, own_attention(self.own, module)
        require(query.shape[0] == 1, "batch", "one sequence", query.shape[0])
        dropout = kwargs.get("dropout")
        require(not dropout, f"layer {index}", "no dropout in attention (model.eval())", dropout)
        query, key, value = rounded(self.dtype, query, key, value)
        if self.first is None:  # the probe
            if index in self.chosen:
                folder = self.out / f"layer_{self.chosen.index(index):02}"
                layer = self.layers[index] = Layer(folder, self.model, module, query, key, value, kwargs)
                fits = self.own == "eager" or not (layer.softcap or layer.sinks)
                wanted = "eager attention for a soft cap or sinks (attn_implementation='eager')"
                require(fits, f"layer {index}", wanted, "sdpa")
            return value.repeat_interleave(query.shape[1] // key.shape[1], dim=1).transpose(1, 2).contiguous(), None
        if index not in self.chosen:
            return own(module, query, key, value, mask, **kwargs)

        layer, rows, keys = self.layers[index], query.shape[2], key.shape[2]
        first, end = layer.seen, layer.seen + rows
        require(end <= self.T, f"layer {index}", f"at most {self.T} positions (prompt_len and decode)", end)
        fewest = min(first, layer.window - 1) + rows if layer.window else end
        grows = f"a cache that grows by each position fed, {end} keys"
        require(fewest <= keys <= end, f"layer {index} at position {first}", grows, keys)
        by_itself = self.own == "sdpa" and is_causal(module, kwargs)
        check_mask(f"layer {index}, attention mask", mask, by_itself, first, rows, keys, layer.window)

        if not layer.files:
            layer.folder.mkdir()
            names = "qkvo" if layer.residual_norm is None else (*"qkvo", "residual_norm")
            layer.files = {name: allocate(layer.folder / f"{name}.npy", *self._files(self.T)[name]) for name in names}
            layer.turn = layer.rotation and layer.rotation()
        unwritten = max(self.prompt_len - self.window - first, 0)  # of these rows, the first have no query in the files
        row = max(first - (self.prompt_len - self.window), 0)
        self._write(index, "q", query[0, :, unwritten:], row)
        self._write(index, "k", key[0, :, keys - rows:], first)
        self._write(index, "v", value[0, :, keys - rows:], first)
        output, weights = own(module, query, key, value, mask, **kwargs)
        self._write(index, "o", output[0].transpose(0, 1)[:, unwritten:], row)
        if "residual_norm" in layer.files:
            norms = layer.residual_norm
            fits = norms is not None and len(norms) == rows and np.isfinite(norms).all()
            require(fits, f"layer {index}, residual_norm", f"{rows} finite numbers", norms)
            layer.files["residual_norm"][first:end] = norms
        layer.seen = end
        if rows > 1:
            layer_of = f"layer {self.chosen.index(index) + 1} of {len(self.chosen)}"
            self.progress(f"prompt to position {end} of {self.prompt_len}, {layer_of}")
        elif index == self.chosen[-1]:
            self.progress(f"decoding step {end - self.prompt_len} of {self.T - self.prompt_len}")
        return output, weights

    def _write(self, index: int, name: str, x: torch.Tensor, start: int) -> None:
        """x [heads, rows, channels] to rows start, start + 1, ... of the layer's file."""
        rows, files = x.shape[1], self.layers[index].files
        files[name][:, start:start + rows] = to_file(x, self.dtype, f"layer {index}, {name}")
        if rows > 1:  # a prompt's pages leave this process' memory with the map that wrote them
            files[name] = np.lib.format.open_memmap(files[name].filename, mode="r+")

    def _finish(self) -> None:
        seen = sorted({layer.seen for layer in self.layers.values()})
        whole = len(seen) == 1 and seen[0] >= self.prompt_len
        require(whole, self.out, f"{self.prompt_len} to {self.T} positions in every layer", seen)
        kinds, notes = self._files(seen[0]), {}
        for i, layer in self.layers.items():
            for name, array in layer.files.items():
                array.flush()
                shape, dtype = kinds[name]
                if array.shape != shape:  # fewer decoding steps than there was room for
                    allocate(layer.folder / "shorter.npy", shape, dtype)[:] = array[tuple(map(slice, shape))]
                    os.replace(layer.folder / "shorter.npy", layer.folder / f"{name}.npy")
            layer.files = {}
            wo = output_projection(layer.module, layer.shape)
            if wo is None:
                notes = {"wo_note": f"no wo: layer {i} has no plain o_proj weight"}
            else:
                allocate(layer.folder / "wo.npy", *kinds["wo"])[:] = to_file(wo, self.dtype, f"layer {i}, wo")
        if self.ids is not None and len(self.ids) == seen[0]:
            write_json(self.out / "tokens.json", {"ids": self.ids})
        write_json(self.out / "manifest.json", {**self._manifest(seen[0]), **self._rope(), **notes})

    def _files(self, T: int) -> dict[str, tuple[tuple[int, ...], str]]:
        return layer_files(self.first.shape, T, T - self.prompt_len + self.window, self.dtype)

    def _manifest(self, T: int) -> dict[str, Any]:
        shape, layers = self.first.shape, self.layers.values()
        windows, sinks = [layer.window for layer in layers], [layer.sinks for layer in layers]
        return {
            "model": self.name or self.config._name_or_path or type(self.model).__name__,
            "prompt_len": self.prompt_len, "total_len": T,
            "n_layers": len(layers), "n_q_heads": shape.n_q, "n_kv_heads": shape.n_kv, "head_dim": shape.d,
            "scale": self.first.scale, "causal": True, "dtype": self.dtype if self.dtype == "bfloat16" else None,
            "logit_softcap": self.first.softcap,
            "sliding_window": windows if any(windows) else None, "sink_logit": sinks if any(sinks) else None,
            "layers": self.chosen,
            "origin": f"kvcapture.py: torch {torch.__version__}, transformers {transformers.__version__}, "
                      f"computed in {self.compute}, {self.own} attention"}

    def _rope(self) -> dict[str, Any]:
        """The manifest's `rope`, or a note why there is none."""
        for i, layer in self.layers.items():
            if layer.turn is None:
                reason = "do not turn as any of the model's rotations would have them"
                return {"rope_note": f"no rope: the keys of layer {i} {reason}"}
            if layer.turn != layer.rotation():
                return {"rope_note": f"no rope: the rotation of layer {i} changed after the prompt"}
        turns = [layer.turn for layer in self.layers.values()]
        kinds = {(style, factor, len(inv_freq)) for style, factor, inv_freq in turns if inv_freq}
        if len(kinds) != 1:
            return {"rope_note": "no rope: " + ("the layers turn in several ways" if kinds else "no layer turns")}
        style, factor, half = kinds.pop()
        each = [inv_freq or (0.0,) * half for _, _, inv_freq in turns]
        theta = (getattr(self.config, "rope_parameters", None) or {}).get("rope_theta")
        theta = theta or getattr(self.config, "rope_theta", None)
        alike = len(set(each)) == 1
        regular = alike and theta and np.allclose(each[0], float(theta) ** (-np.arange(half) / half), rtol=1e-6, atol=0)
        frequency = {"theta": float(theta)} if regular else {"inv_freq": each[0] if alike else each}
        return {"rope": {"style": style, "rotary_dim": 2 * half, "attention_factor": factor, **frequency}}


class Layer:
    """One layer's attention as the probe's call of it shows it, then its files as they fill."""

    def __init__(self, folder: Path, model: torch.nn.Module, module: torch.nn.Module, query, key, value,
                 called: dict[str, Any]):
        scale, sinks = called.get("scaling"), called.get("s_aux", getattr(module, "sinks", None))
        softcap = called.get("softcap") or getattr(module, "attn_logit_softcapping", None)
        self.folder, self.module = folder, module
        self.shape = Shape(query.shape[1], key.shape[1], key.shape[3], value.shape[3], module.config.hidden_size)
        self.scale = self.shape.d ** -0.5 if scale is None else float(scale)
        self.window = window_of(module, called)
        self.softcap = float(softcap) if softcap else None
        self.sinks = None if sinks is None else sinks.detach().float().cpu().tolist()
        self.rotation = fit_rotation(key[0].detach().double().cpu().numpy(), model)
        self.turn: Turn | None = None  # rotation() when the prompt was read
        self.block = residual_block(model, module)
        self.residual_norm: np.ndarray | None = None  # of the rows that the block was last called with
        self.files: dict[str, np.memmap] = {}
        self.seen = 0  # positions written

    def note_residual(self, _block, args, kwargs) -> None:
        x = args[0] if args else kwargs.get("hidden_states")
        stream = torch.is_tensor(x) and x.dim() == 3 and x.shape[2] == self.shape.d_model
        self.residual_norm = x[0].detach().float().norm(dim=-1).cpu().numpy() if stream else None
