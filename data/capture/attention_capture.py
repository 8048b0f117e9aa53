"""`with capture(model, ...)`: what the attention sees inside it becomes a dump. See kvcapture.py."""
from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, Callable, Iterable

import numpy as np
import torch
import transformers

from dump_check import check_layer
from dump_files import (FILE_DTYPES, TOLERANCES, CaptureError, Shape, allocate, layer_files, npy_bytes, prepare_folder,
                        require, write_json)
from model_attention import (Turn, cache_for, check_mask, choose_layers, decoder_of, fit_rotation, input_device,
                             interleaved_in_ggml, is_causal, own_attention, require_no_dropout, residual_block,
                             rotations, rounded, sees_ahead, stand_in, to_file, window_of)
from output_path import OutputPath, Site, find_output_paths, near

PROBE_TOKENS = 16


class capture:
    """Writes a dump of all that the model's attention sees inside the `with` block, which feeds it one sequence,
    once: prompt_len positions, in one pass or several (an encoder: in one), then at most `decode` decoding steps with
    a growing cache. The dump has as many decoding steps as were made. layers: which, renumbered from 0 (default all).
    window: only the queries of the last that many prompt positions, and of the decoding steps. dtype: the files', by
    default the model's; not finer than the model's. name: the manifest's `model`. progress: called with a line that
    says how far the capture is. Raises CaptureError, behind a whole dump whose o does not follow from q, k and v, too;
    where the block does not end normally, manifest.json keeps `"incomplete": true`."""

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
        self.first: Layer | None = None  # of those chosen
        self.probing = True
        self.sites: dict[int, Site] = {}
        self.caches: dict[int, torch.Tensor] = {}  # the keys that every layer was first called with
        self.cache_of: list[int] = []  # the first of the dump's layers that read each layer's cache
        self.ids: list[int] | None = []  # None where the model was fed something else
        self.adjacent, self.offset = True, None  # were the rows' positions offset, offset + 1, ...?
        with contextlib.ExitStack() as stack:
            self.own = stack.enter_context(stand_in(self.model, self._attend))
            self._probe()
            size = len(self.chosen) * sum(npy_bytes(shape, dtype) for shape, dtype in self._files(self.T).values())
            prepare_folder(self.out, self.force, size)
            write_json(self.out / "manifest.json", {"incomplete": True, **self._manifest(self.T), **self._output()})
            stack.callback(self.model.register_forward_pre_hook(self._note_ids, with_kwargs=True).remove)
            for rotation in {owner for owner, _ in rotations(decoder_of(self.model))}:
                stack.callback(rotation.register_forward_pre_hook(self._note_positions, with_kwargs=True).remove)
            for layer in self.layers.values():
                if self._adds_to_stream():
                    stack.callback(layer.block.register_forward_pre_hook(layer.note_residual, with_kwargs=True).remove)
                if not self._wo_note():
                    stack.callback(layer.path.projection.register_forward_pre_hook(layer.read_factor).remove)
                    stack.callback(layer.path.projection.register_forward_hook(layer.compare).remove)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, kind, *_) -> None:
        self.stack.close()
        if kind is None:
            manifest = self._finish()
            for at, (i, layer) in enumerate(self.layers.items()):
                good, line = check_layer(layer.folder, at, manifest, rows=1)
                follows = "o to follow from q, k and v (with a cache that hands back what it was given)"
                require(good, f"layer {i}", follows, line)

    def _probe(self) -> None:
        """Fills self.layers, in their order."""
        self._feed_some()
        missing = ", ".join(str(i) for i in self.chosen if i not in self.layers)
        nothing = "nothing was captured (its attention calls no function that can be stood in for)"
        found = f"none in layers {missing} (choose with --layers)" if self.layers else nothing
        if any(i < 0 for i in self.caches):
            found = "a module that serves several layers and has the number of none"
        require(not missing, type(self.model).__name__, "attention through the transformers attention interface", found)
        self.layers = {i: self.layers[i] for i in self.chosen}
        read = [self.caches[i].data_ptr() for i in self.chosen]  # all of them are alive
        self.cache_of = [read.index(cache) for cache in read]
        self.caches = {}
        self.first = self.layers[self.chosen[0]]
        for i, layer in self.layers.items():
            for what in ("shape", "scale", "softcap", "causal"):
                mine, firsts = getattr(layer, what), getattr(self.first, what)
                require(mine == firsts, f"layer {i}, {what}", f"layer {self.chosen[0]}'s {firsts}", f"{mine} (--layers chooses layers that are alike)")
        alone = self.first.causal or self.T == self.prompt_len
        require(alone, "decode", "no decoding steps of an encoder (--decode 0)", self.T - self.prompt_len)
        self.sites = {i: Site(layer.module, layer.block, layer.shape) for i, layer in self.layers.items()}
        paths = find_output_paths(self.sites, self._feed_some, self.config, self.compute)
        with contextlib.ExitStack() as stack:
            for i, layer in self.layers.items():
                layer.path = paths[i]
                stack.callback(layer.module.register_forward_pre_hook(equal_rows, with_kwargs=True).remove)
            self._feed_some()
        for layer in self.layers.values():
            layer.rotation, layer.rope_note = fit_rotation(*layer.probed, self.model, self.dtype)
            layer.probed = ()
        self.probing = False

    def _meet(self, index: int, module, query, key, value, mask, kwargs) -> None:
        folder = self.out / f"layer_{self.chosen.index(index):02}"
        layer = self.layers[index] = Layer(folder, self.model, module, query, key, value, kwargs)
        layer.causal = not sees_ahead(module, mask, kwargs)
        fits = self.own == "eager" or not (layer.softcap or layer.sinks)
        wanted = "eager attention for a soft cap or sinks (attn_implementation='eager')"
        require(fits, f"layer {index}", wanted, "sdpa")

    def _adds_to_stream(self) -> bool:
        return not self._residual_note() and all(layer.block is not None for layer in self.layers.values())

    def _feed_some(self) -> None:
        """Different tokens to the decoder, which a probe needs few of."""
        count = min(PROBE_TOKENS, getattr(self.config, "max_position_embeddings", None) or PROBE_TOKENS)
        ids = torch.arange(1, count + 1, device=input_device(self.model))[None] * 7919 % self.config.vocab_size
        try:
            with torch.no_grad():
                decoder_of(self.model)(input_ids=ids, **cache_for(self.config))
        except CaptureError:
            raise
        except Exception as error:  # models raise of all kinds
            wanted = f"{type(self.model).__name__}: expected a model that reads {count} tokens"
            raise CaptureError(f"{wanted}, found {type(error).__name__}: {error}") from error

    def _note_ids(self, _module, args, kwargs) -> None:
        ids = kwargs.get("input_ids", args[0] if args else None)
        self.ids = None if self.ids is None or ids is None else self.ids + ids[0].tolist()

    def _note_positions(self, _rotation, args, kwargs) -> None:
        """Before it turns the rows of a pass, or a row of several kinds of positions."""
        given = kwargs.get("position_ids", args[1] if len(args) > 1 else None)
        if not torch.is_tensor(given) or given.is_floating_point():
            return
        found = given.detach().cpu().numpy().reshape(-1, given.shape[-1])
        self.offset = found[0, 0] if self.offset is None else self.offset
        seen, rows = min(layer.seen for layer in self.layers.values()), np.arange(found.shape[1])
        # The latter once all that are captured are through.
        expected = (self.offset + start + rows for start in (seen, seen - len(rows)))
        self.adjacent = self.adjacent and any((found == positions).all() for positions in expected)

    def _attend(self, module, query, key, value, mask, kwargs):
        """Stands in for the model's own attention of query [1, n_q, rows, d], key [1, n_kv, keys, d] and
        value [1, n_kv, keys, d_v]."""
        index, own = module.layer_idx, own_attention(self.own, module)
        require(query.shape[0] == 1, "batch", "one sequence", query.shape[0])
        require_no_dropout(index, kwargs)
        if self.probing and not self.sites:
            self.caches[index] = key
        query, key, value = rounded(self.dtype, query, key, value)
        if self.probing:
            values = value.repeat_interleave(query.shape[1] // key.shape[1], dim=1).transpose(1, 2).contiguous()
            if index in self.sites:
                self.layers[index].probed = key, value
                return self.sites[index].heads_return(values), None
            if index in self.chosen:
                self._meet(index, module, query, key, value, mask, kwargs)
            return values, None
        if index not in self.chosen:
            return own(module, query, key, value, mask, **kwargs)

        layer, rows, keys = self.layers[index], query.shape[2], key.shape[2]
        first, end = layer.seen, layer.seen + rows
        require(end <= self.T, f"layer {index}", f"at most {self.T} positions (prompt_len and decode)", end)
        fewest = min(first, layer.window - 1) + rows if layer.window else end
        grows = f"a cache that grows by each position fed, {end} keys"
        alone = f"{keys}, those fed alone (is the cache that the pass before returned handed on?)"
        found = alone if keys == rows < end else keys
        require(fewest <= keys <= end, f"layer {index} at position {first}", grows, found)
        by_itself = self.own == "sdpa" and is_causal(module, kwargs)
        require(layer.causal or rows == self.prompt_len, "an encoder", f"{self.prompt_len} positions in one pass", rows)
        check_mask(f"layer {index}, attention mask", mask, by_itself, first, rows, keys, layer.window, layer.causal)

        if not layer.files:
            layer.folder.mkdir()
            kinds = self._files(self.T)
            layer.files = {name: allocate(layer.folder / f"{name}.npy", *kinds[name]) for name in kinds if name != "wo"}
            layer.turn = layer.rotation and layer.rotation()
        unwritten = max(self.prompt_len - self.window - first, 0)  # of these rows, the first have no query in the files
        row = max(first - (self.prompt_len - self.window), 0)
        self._write(index, "q", query[0, :, unwritten:], row)
        self._write(index, "k", key[0, :, keys - rows:], first)
        self._write(index, "v", value[0, :, keys - rows:], first)
        output, weights = own(module, query, key, value, mask, **kwargs)
        self._write(index, "o", output[0].transpose(0, 1)[:, unwritten:], row)
        if not self._wo_note():
            layer.returned = output
        if self._gated():  # the projection is told the heads' outputs once it has shown what they are multiplied by
            layer.take_gate = lambda gate: self._write(index, "gate", gate[0].transpose(0, 1)[:, unwritten:], row)
            output = torch.ones_like(output)
        if "residual_norm" in layer.files:
            norms = layer.residual_norm
            fits = norms is not None and len(norms) == rows and np.isfinite(norms).all()
            require(fits, f"layer {index}, residual_norm", f"{rows} finite numbers", norms)
            layer.files["residual_norm"][first:end] = norms
        layer.seen = end
        if rows > 1:
            layer_of = f"layer {self.chosen.index(index) + 1} of {len(self.chosen)}"
            self.progress(f"prompt to position {end} of {max(self.prompt_len, end)}, {layer_of}")
        elif index == self.chosen[-1]:
            self.progress(f"decoding step {end - self.prompt_len} of {self.T - self.prompt_len}")
        return output, weights

    def _write(self, index: int, name: str, x: torch.Tensor, start: int) -> None:
        """x [heads, rows, channels] to rows start, start + 1, ... of the layer's file."""
        rows, files = x.shape[1], self.layers[index].files
        files[name][:, start:start + rows] = to_file(x, self.dtype, f"layer {index}, {name}")
        if rows > 1:  # a prompt's pages leave this process' memory with the map that wrote them
            files[name] = np.lib.format.open_memmap(files[name].filename, mode="r+")

    def _finish(self) -> dict[str, Any]:
        """The manifest."""
        seen = sorted({layer.seen for layer in self.layers.values()})
        whole = len(seen) == 1 and seen[0] >= self.prompt_len
        found = seen if seen != [0] else "none: its model was not called"
        require(whole, self.out, f"{self.prompt_len} to {self.T} positions in every layer", found)
        kinds = self._files(seen[0])
        for i, layer in self.layers.items():
            for name, array in layer.files.items():
                array.flush()
                shape, dtype = kinds[name]
                if array.shape != shape:  # fewer decoding steps than there was room for
                    allocate(layer.folder / "shorter.npy", shape, dtype)[:] = array[tuple(map(slice, shape))]
                    os.replace(layer.folder / "shorter.npy", layer.folder / f"{name}.npy")
            layer.files = {}
            if not self._wo_note():
                wo = to_file(layer.path.wo(), self.dtype, f"layer {i}, wo")
                allocate(layer.folder / "wo.npy", *kinds["wo"])[:] = wo
        if self.ids is not None and len(self.ids) == seen[0]:
            write_json(self.out / "tokens.json", {"ids": self.ids})
        manifest = {**self._manifest(seen[0]), **self._rope(), **self._output()}
        write_json(self.out / "manifest.json", manifest)
        return manifest

    def _files(self, T: int) -> dict[str, tuple[tuple[int, ...], str]]:
        files = layer_files(self.first.shape, T, T - self.prompt_len + self.window, self.dtype)
        there = {"gate": self._gated(), "wo": not self._wo_note(), "residual_norm": self._adds_to_stream()}
        return {name: file for name, file in files.items() if there.get(name, True)}

    def _gated(self) -> bool:
        return not self._wo_note() and any(layer.path.gated for layer in self.layers.values())

    def _wo_note(self) -> str:
        """Why there is no wo, of the first layer that has none: a dump has it in all layers or in none."""
        unlike = (f"no wo: layer {i} changes its heads' outputs before it projects them"
                  for i, layer in self.layers.items() if layer.unlike)
        eps = {i: eps_of(layer.path) for i, layer in self.layers.items()}
        first = self.chosen[0]
        others = (f"no wo: layers {first} and {i} do not norm their heads' outputs alike (eps {eps[first]} and {eps[i]})"
                  for i in eps if eps[i] != eps[first])
        return next(filter(None, (*(layer.path.wo_note for layer in self.layers.values()), *others, *unlike)), "")

    def _residual_note(self) -> str:
        return next(filter(None, (layer.path.residual_note for layer in self.layers.values())), "")

    def _manifest(self, T: int) -> dict[str, Any]:
        shape, layers = self.first.shape, self.layers.values()
        windows, sinks = [layer.window for layer in layers], [layer.sinks for layer in layers]
        return {
            "model": self.name or self.config._name_or_path or type(self.model).__name__,
            "prompt_len": self.prompt_len, "total_len": T,
            "n_layers": len(layers), "n_q_heads": shape.n_q, "n_kv_heads": shape.n_kv, "head_dim": shape.d,
            "scale": self.first.scale, "causal": self.first.causal,
            "dtype": self.dtype if self.dtype == "bfloat16" else None,
            "logit_softcap": self.first.softcap,
            "sliding_window": windows if any(windows) else None, "sink_logit": sinks if any(sinks) else None,
            "layers": self.chosen,
            **({"sliding_window_two_sided": True} if any(windows) and not self.first.causal else {}),
            **({"cache_of": self.cache_of} if len(set(self.cache_of)) < len(layers) else {}),
            "origin": f"kvcapture.py: torch {torch.__version__}, transformers {transformers.__version__}, "
                      f"computed in {self.compute}, {self.own} attention"}

    def _output(self) -> dict[str, Any]:
        """What the manifest says of the way from the heads' outputs to the residual stream."""
        notes = {"wo_note": self._wo_note(), "residual_note": self._residual_note()}
        found = {key: note for key, note in notes.items() if note}
        eps = eps_of(self.first.path)
        if eps is not None and "wo_note" not in found:
            found["output_norm"] = {"kind": "rms", "eps": eps}
        each = [layer.path.multiplier for layer in self.layers.values()]
        if "residual_note" not in found and set(each) != {1.0}:
            found["output_multiplier"] = each[0] if len(set(each)) == 1 else each
        return found

    def _rope(self) -> dict[str, Any]:
        """The manifest's `rope`, or a note why there is none."""
        if not self.adjacent:
            return {"rope_note": "no rope: the model was fed other positions than adjacent ones (of an image's parts?)"}
        for i, layer in self.layers.items():
            if layer.turn is None:
                return {"rope_note": f"no rope: layer {i}{layer.rope_note}"}
            if layer.turn != layer.rotation():
                turned = f"whose keys are turned as for its {self.prompt_len} positions, and each step's as for as many as there were"
                return {"rope_note": f"no rope: the rotation of layer {i} changed after the prompt, {turned}: scores and fits that turn keys "
                                     "(expected_attention, leverage, shifted fits) are left out"}
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
        in_ggml = {"ggml_style": "interleaved"} if style == "half" and interleaved_in_ggml(self.config) else {}
        return {"rope": {"style": style, **in_ggml, "rotary_dim": 2 * half, "attention_factor": factor, **frequency}}


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
        self.causal = True
        self.softcap = float(softcap) if softcap else None
        # JSON has no -inf, by which a head has no sink.
        self.sinks = None if sinks is None else sinks.detach().float().clamp(min=-1e9).cpu().tolist()
        self.rotation: Callable[[], Turn] | None = None
        self.rope_note = ""  # why there is none
        self.turn: Turn | None = None  # rotation() when the prompt was read
        self.block, self.path = residual_block(model, module), OutputPath()
        self.probed = key, value
        self.returned: torch.Tensor | None = None  # by the heads, and not yet read by the projection
        self.take_gate: Callable[[torch.Tensor], None] | None = None
        self.unlike = False  # has the projection read something else than what the heads returned?
        self.residual_norm: np.ndarray | None = None  # of the rows that the block was last called with
        self.files: dict[str, np.memmap] = {}
        self.seen = 0  # positions written

    def note_residual(self, _block, args, kwargs) -> None:
        x = args[0] if args else kwargs.get("hidden_states")
        stream = torch.is_tensor(x) and x.dim() == 3 and x.shape[2] == self.shape.d_model
        self.residual_norm = x[0].detach().float().norm(dim=-1).cpu().numpy() if stream else None

    def read_factor(self, _projection, args):
        """Before the projection of a layer whose gate is asked for, which is told no heads' outputs but ones."""
        if self.returned is None or self.take_gate is None:
            return None
        x, o = args[0], self.returned
        gate = x.reshape(o.shape)
        self.take_gate(gate)
        self.returned, self.take_gate = o * gate, None
        return (self.returned.reshape(x.shape), *args[1:])

    def compare(self, _projection, args, _output) -> None:
        """Behind the projection, which may have been called with less than went to it."""
        if self.returned is not None:
            x, o, self.returned = args[0], self.returned, None
            o = self.path.norm.of(o) if self.path.norm else o
            self.unlike = self.unlike or not near(x, o, TOLERANCES[str(x.dtype).replace("torch.", "")])


def eps_of(path: OutputPath) -> float | None:
    """Of a norm before the projection."""
    return path.norm.eps if path.norm else None


def equal_rows(_attention, args, kwargs):
    """The hidden states with which an attention is called become one of their rows, again and again: what still changes
    from key to key is their position, whatever stands before this attention."""
    def equal(x):
        if not torch.is_tensor(x) or not x.is_floating_point() or x.dim() != 3:
            return x
        longest = int(x[0].float().norm(dim=-1).argmax())  # a padding token's may be 0
        return x[:, longest:longest + 1].expand_as(x).contiguous()

    if "hidden_states" in kwargs:
        return args, {**kwargs, "hidden_states": equal(kwargs["hidden_states"])}
    return (*map(equal, args[:1]), *args[1:]), kwargs
