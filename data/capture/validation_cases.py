"""What a result folder changed of the cache, case by case, and whether a dump is its own, for kvvalidate.py."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator, NamedTuple

import numpy as np

from dump_check import StoredArray, as_float64
from dump_files import require
from kvresults import Results, ResultsError, xxh3
from model_loop import Change, Quantization

KEYS = ("policy", "semantics", "phase", "budget", "kept")  # of a case, as validate.csv has them
DUMPED = ("k", "o", "q", "residual_norm", "v", "wo")
# Of the norm of k about its mean: how far the model's keys may be from the dump's, in whose dtype the capture computed.
# Measured: 0.09 (a mixture of experts; else 0.02), 0.003, 5e-7. Weights that are 5 % off give 0.24 and more.
TOLERANCES = {"bfloat16": 0.2, "float16": 0.05, "float32": 0.02, "float64": 0.02}


@dataclass(frozen=True)
class Case:
    """An eviction, division of a budget or selection of channels; change(layer) reads what it did to a layer."""

    name: str  # its files'
    keys: tuple[str, ...]
    change: Callable[[int], Change]


def cases_of(results: Results) -> tuple[list[Case], dict[str, str]]:
    """All that can be validated, in the order of the tables, and why what else there is cannot."""
    cases, left_out = {}, {}
    for name, find in (("evictions", evictions), ("budgets", budgets), ("channels", channels), ("compensation", compensation)):
        if name not in results.tables:
            continue
        rows = (row for row in results.rows(name) if not row["layer"] and not row["kv_head"])  # of the whole model
        try:
            for label, case in find(results, rows):
                if isinstance(case, str):
                    left_out[label] = case
                else:
                    cases[case.keys] = case
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            found = f"found others ({error!r})"
            raise ResultsError(f"{results.folder}: expected the options and {name} of a run, {found}") from None
    return list(cases.values()), left_out


Found = Iterator["tuple[str, Case | str]"]  # a name, and the case or why there is none


def evictions(results: Results, rows: Iterator[dict[str, str]]) -> Found:
    options = results.summary.get("options", {}).get("evict", {})
    quantization = Quantization(options["bits"], options["group"], options["residual"]) if "bits" in options else None
    for row in rows:
        keys = tuple(row[key] for key in KEYS)
        policy, semantics, phase, _, kept = keys
        name = f"{policy}-{semantics}-{phase}-{kept or 'mixed'}".replace(":", "_")
        if "channels" in options:
            yield name, f"evict --channels {options['channels']} does not write which channels; kvreplay channels does"
        elif phase in ("decode", "append-only"):
            yield name, "what it keeps changes with every step; phases prefill and blockwise:N end with the prompt"
        else:
            read = functools.partial(results.kept, name)
            yield name, Case(name, keys, lambda layer, read=read: Change(kept=read(layer).values, quantization=quantization))


def budgets(results: Results, rows: Iterator[dict[str, str]]) -> Found:
    semantics = results.summary.get("options", {}).get("budget", {}).get("semantics", "paper")
    for row in rows:
        order, method, sigma = (row[key] for key in ("order", "method", "sigma"))
        name = f"{order}-{method}-{sigma}".replace(":", "_")
        read = functools.partial(results.kept, name)
        keys = (f"{order}~{method}", semantics, "prefill", sigma, "")
        yield keys[0], Case(name, keys, lambda layer, read=read: Change(kept=read(layer).values))


def channels(results: Results, rows: Iterator[dict[str, str]]) -> Found:
    l = results.summary["dump"]["l"]
    for row in rows:
        method, ratio, recent = (row[key] for key in ("method", "ratio", "recent"))
        if not method:
            continue
        name = f"{method}-{ratio}"
        read = functools.partial(results.channel_array, name)
        keys = (f"channels:{method}", row["semantics"], "prefill", ratio, str(l))
        change = lambda layer, read=read, n=int(recent): Change(pruned=read(layer).values, recent=n)  # noqa: E731
        yield keys[0], Case(name, keys, change)


def compensation(results: Results, rows: Iterator[dict[str, str]]) -> Found:
    for row in rows:
        policy, semantics, phase, budget, kept, method = (row[key] for key in (*KEYS, "method"))
        if method == "none":
            continue  # the eviction alone
        name = f"{policy}-{semantics}-{phase}-{kept or 'mixed'}-{method}".replace(":", "_")
        read = functools.partial(results.compensated, name)
        change = lambda layer, read=read: Change(held=read(layer))  # noqa: E731
        yield f"{policy}~{method}", Case(name, (f"{policy}~{method}", semantics, phase, budget, kept), change)


class Dump(NamedTuple):
    """A dump as kvcapture.py lays it out, as far as results are held against it."""

    folder: Path
    manifest: dict[str, Any]

    @staticmethod
    def open(folder: Path) -> Dump:
        found = "something else" if folder.exists() else "none"
        require(folder.is_dir(), folder, "a dump, as a folder (--dump says where)", found)
        try:
            manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            manifest = {}
        except ValueError as error:
            raise ResultsError(f"{folder / 'manifest.json'}: cannot be read as JSON: {error}") from None
        require(isinstance(manifest, dict), folder / "manifest.json", "a JSON object", type(manifest).__name__)
        return Dump(folder, manifest)

    def layer_folder(self, layer: int) -> Path:
        return self.folder / f"layer_{layer:02}"

    def model_layers(self, layers: int, of_model: int) -> list[int]:
        """The model's number of each of the dump's layers."""
        given = self.manifest.get("layers")
        chosen = given or list(range(layers))
        numbers = isinstance(chosen, list) and all(type(i) is int and 0 <= i < of_model for i in chosen)
        fits = numbers and len(chosen) == layers and (given or layers == of_model)
        require(fits, f"{self.folder}: layers", f"those of the model's {of_model}", f"{layers} of the dump")
        return chosen

    def fingerprint(self, layer: int, *, gradients: bool = True) -> str:
        """What summary.json's layer_fingerprints has of it; without the gradients, where they were added later."""
        files = sorted(self.layer_folder(layer).glob("*.npy"))
        paths = [path for path in files if path.stem in DUMPED or gradients and path.stem.startswith("g_")]
        require(paths, self.layer_folder(layer), "k.npy and its like, as kvcapture.py lays a dump out", "none")
        text = ""
        for path in paths:
            try:
                array = np.load(path, mmap_mode="r")
                data = np.memmap(path, np.uint8, "r")
            except (OSError, ValueError, EOFError) as error:
                raise ResultsError(f"{path}: expected a .npy file, found {error}") from None
            bfloat16 = array.dtype.kind == "V" or array.dtype == np.uint16
            dtype = "bfloat16" if bfloat16 else array.dtype.name
            text += f"{path.stem} {dtype} [{', '.join(map(str, array.shape))}]\n{xxh3(data):016x}\n"
        return f"{xxh3(text.encode()):016x}"

    def require_of(self, results: Results) -> None:
        """Refuses a dump whose layers do not hold what these results are of."""
        prints = results.summary.get("layer_fingerprints")
        fits = isinstance(prints, dict) and set(prints) == set(map(str, results.layers))
        require(fits, results.folder / "summary.json", "a fingerprint of every layer", prints)
        for layer in results.layers:
            found, recorded = self.fingerprint(layer), prints[str(layer)]
            if found != recorded and self.fingerprint(layer, gradients=False) != recorded:
                wanted = f"the dump that {results.folder} is of (XXH3 {recorded})"
                raise ResultsError(f"{self.folder}: layer {layer}: expected {wanted}, found another ({found})")

    def require_keys(self, layer: int, k: np.ndarray) -> None:
        """Refuses a model whose keys k [n_kv, l, d] of the prompt are not the dump's."""
        stored = StoredArray(self.layer_folder(layer) / "k.npy")
        dtype = "bfloat16" if stored.dtype == np.uint16 else stored.dtype.name
        dumped = np.array([as_float64(stored.head(head)[: k.shape[1]]) for head in range(stored.shape[0])])
        require(dumped.shape == k.shape, f"the model's keys of layer {layer}", f"the dump's {dumped.shape}", k.shape)
        spread = np.linalg.norm(dumped - dumped.mean(1, keepdims=True))
        off = np.linalg.norm(k - dumped) / max(spread, 1e-300)
        wanted = f"those of {self.folder} to {TOLERANCES[dtype]:g} of their spread"
        why = "another model, or tokens.json of another text?"
        found = f"a difference of {off:.2g} ({why})"
        require(off <= TOLERANCES[dtype], f"the model's keys of layer {layer}", wanted, found)
