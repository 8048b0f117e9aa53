"""`kvcapture.py --check`: which layers of a dump are whole, and does o follow from q, k and v? Needs numpy."""
from __future__ import annotations

import itertools
import math
import os
import reprlib
import warnings
from pathlib import Path
from typing import Any, Callable, Iterable

import numpy as np

from dump_files import (ASKING, FILE_DTYPES, GRADIENTS, PROGRESS, QUERIES, TOLERANCES, CaptureError, Shape, layer_files,
                        one_line, read_json, require)


def check(folder: str | os.PathLike) -> bool:
    """Prints which layers of a dump are whole, and how far o is from what q, k and v give. True where all is well."""
    folder = Path(folder)
    begun = next(i for i in itertools.count() if not (folder / f"layer_{i:02}").is_dir())
    manifest = read_manifest(folder / "manifest.json", begun)
    layers, fine = manifest.get("n_layers") or begun, not manifest.get("incomplete")
    require(begun == layers > 0 or begun < layers and not fine, folder, f"{layers or 'some'} layers", begun)
    if not fine:
        print(f"{one_line(folder)}: incomplete, the capture was interrupted (capture again with --force)")
    gradients = [name for name in GRADIENTS if next(folder.glob(f"layer_*/{name}.npy"), None)]
    gated = next(folder.glob("layer_*/gate.npy"), None) is not None
    read_again = next(folder.glob(f"layer_*/{QUERIES}.npy"), None) is not None or "reference_rows" in manifest
    shapes: dict[str, tuple[int, ...]] = {}  # the first layer's
    for layer in range(min(begun + 1, layers)):
        try:
            good, line = check_layer(folder / f"layer_{layer:02}", layer, manifest)
            for name in gradients:
                line += f"; {check_gradient(folder / f'layer_{layer:02}', name, manifest, shapes)}"
            if gated:
                line += f"; {check_gate(folder / f'layer_{layer:02}')}"
            if read_again:
                line += f"; {check_queries(folder / f'layer_{layer:02}', shapes)}"
        except CaptureError as error:
            good, line = False, str(error)
        fine = fine and good
        print(f"layer {layer}: {line}")
    if begun + 1 < layers:
        print(f"layers {begun + 1} to {layers - 1}: missing")
    if (folder / PROGRESS).exists():
        fine = False
        print("gradients: incomplete, they were interrupted (--resume goes on)")
    elif manifest.get("gradients") and not {"g_future", "g_window"} & set(gradients):
        fine = False
        print(f"gradients: expected g_future.npy or g_window.npy, found {', '.join(gradients) or 'neither'}")
    for key in ("rope_note", "wo_note", "residual_note"):
        if manifest.get(key) is not None:
            print(one_line(manifest[key]))
    caches = manifest.get("cache_of") or []
    for layer, cache in enumerate(caches):
        if layer != cache:
            print(f"layer {layer} reads the cache of layer {cache}")
    return fine


def read_manifest(path: Path, layers: int) -> dict[str, Any]:
    """The manifest of a dump with so many layers; what a check goes by is as DUMP-FORMAT.md has it, or null."""

    def number(x: object, least: float = -1e30) -> bool:
        return type(x) in (int, float) and least <= x <= 1e30

    def whole(x: object) -> bool:
        return type(x) is int and x >= 1

    def each_layer(x: object, fits: Callable[[Any], bool]) -> bool:
        return isinstance(x, list) and len(x) >= layers and all(entry is None or fits(entry) for entry in x)

    require(path.is_file(), path, "a file", "something else" if path.exists() else "none")
    manifest = read_json(path)
    require(isinstance(manifest, dict), path, "a JSON object", type(manifest).__name__)
    for keys, expected, fits in (
            (("n_layers", "total_len"), "a whole number", whole),
            (("causal", "sliding_window_two_sided"), "true or false", lambda x: type(x) is bool),
            (("scale", "logit_softcap"), "a positive number", lambda x: number(x, 1e-30)),
            (("sliding_window",), "a whole number, or one for each layer", lambda x: whole(x) or each_layer(x, whole)),
            (("sink_logit",), "a list of numbers for each layer",
             lambda x: each_layer(x, lambda row: isinstance(row, list) and all(map(number, row)))),
            (("gradients",), "an object with a number of samples",
             lambda x: isinstance(x, dict) and whole(x.get("samples"))),
            (("output_norm",), "a kind, rms, and an eps",
             lambda x: isinstance(x, dict) and x.get("kind") == "rms" and number(x.get("eps"), 1e-300)),
            (("output_multiplier",), "a number, or one for each layer", lambda x: number(x) or each_layer(x, number)),
            (("cache_of",), "a layer for each layer", lambda x: isinstance(x, list) and len(x) >= layers and all(
                type(cache) is int and 0 <= cache <= layer for layer, cache in enumerate(x))),
            (("prompt_len",), "a whole number", whole)):
        for key, value in ((key, manifest.get(key)) for key in keys):
            require(value is None or fits(value), f"{path}: {key}", expected, reprlib.repr(value))
    return manifest


class StoredArray:
    """[heads, rows, channels] in a .npy file, or [heads, samples, rows, channels]. Parts are read: a map of a file that
    shrinks would end the process."""

    def __init__(self, path: Path, dimensions: int = 3):
        require(path.is_file() or not path.exists(), path.name, "a file", "something else")  # a pipe would never end
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of what only looks like a header
                array = np.lib.format.open_memmap(path, mode="r")  # of which nothing is touched
        except FileNotFoundError:
            raise CaptureError(f"{path.name}: missing") from None
        except Exception as error:  # NumPy's reader raises of many kinds
            raise CaptureError(f"{path.name}: expected a whole .npy file, found {error}") from None
        known = array.ndim == dimensions and array.size and array.dtype in FILE_DTYPES.values()
        wanted = f"{dimensions} dimensions of {', '.join(FILE_DTYPES)}"
        require(known, path.name, wanted, f"{array.shape} of {array.dtype}")
        require(array.flags.c_contiguous, path.name, "C order", "Fortran order")
        size, found = array.offset + array.nbytes, path.stat().st_size
        require(found == size, path.name, f"{size:,} bytes", f"{found:,}")
        self.path, self.shape, self.dtype, self.offset = path, array.shape, array.dtype, array.offset

    def head(self, head: int) -> np.ndarray:
        """[rows, channels], of all samples"""
        rows = math.prod(self.shape[1:-1])
        return self._read(head * rows, rows)

    def rows(self, rows: Iterable[int] | slice) -> np.ndarray:
        """[heads, rows, channels]; of a slice those that there are"""
        firsts = range(0, self.shape[0] * self.shape[1], self.shape[1])
        rows = range(self.shape[1])[rows] if isinstance(rows, slice) else rows
        if isinstance(rows, range) and rows.step == 1:
            return np.array([self._read(first + rows.start, len(rows)) for first in firsts])
        return np.array([[self._read(first + row, 1)[0] for row in rows] for first in firsts])

    def _read(self, first: int, count: int) -> np.ndarray:
        """So many rows of all heads' together."""
        wanted, width = count * self.shape[-1], self.shape[-1] * self.dtype.itemsize
        try:
            found = np.fromfile(self.path, self.dtype, wanted, offset=self.offset + first * width)
        except OSError as error:
            raise CaptureError(f"{self.path.name}: cannot be read: {error.strerror}") from None
        require(found.size == wanted, self.path.name, "the rows that were there before", "a shorter file")
        return found.reshape(count, self.shape[-1])


def check_layer(folder: Path, layer: int, manifest: dict[str, Any], rows: int = 8) -> tuple[bool, str]:
    """Is the layer whole and does o of so many rows, the last among them, follow from q, k and v? And a line that says
    so. Raises CaptureError where a file cannot be read."""
    arrays = {name: StoredArray(folder / f"{name}.npy") for name in "qkvo"}
    q, k, v, o = arrays.values()
    (n_q, n_rows, d), (n_kv, T, _) = q.shape, k.shape
    T = manifest.get("total_len") or T
    wanted = layer_files(Shape(n_q, n_kv, d, v.shape[2], 0), T, n_rows, "")
    fits = all(x.shape == wanted[name][0] for name, x in arrays.items()) and n_q % n_kv == 0 and n_rows <= T
    found = ", ".join(f"{name} {x.shape}" for name, x in arrays.items())
    require(fits, "arrays", f"{T} positions, and shapes that go together", found)
    if not all(np.any(array.rows([array.shape[1] - 1])) for array in arrays.values()):
        return False, f"incomplete, {min(map(written_rows, (k, v)))} of {T} positions"

    window, sinks, cap = (manifest.get(name) for name in ("sliding_window", "sink_logit", "logit_softcap"))
    window = window[layer] if isinstance(window, list) else window
    window = window and min(window, T)
    sinks = sinks and sinks[layer] or [-np.inf] * n_q
    require(len(sinks) == n_q, f"sink_logit of layer {layer}", f"{n_q} numbers", len(sinks))
    sinks = np.array(sinks, float).reshape(n_kv, -1, 1)
    scale, worst = float(manifest.get("scale") or d ** -0.5), 0.0
    rows = np.unique(np.linspace(n_rows - 1, 0, rows).astype(int))
    causal, two_sided = manifest.get("causal") is not False, bool(manifest.get("sliding_window_two_sided"))
    seen = visible(np.arange(T), T - n_rows + rows, window, causal, two_sided)
    # [n_kv, group, rows, channels]
    some_q, some_o = (x.rows(rows).reshape(n_kv, -1, len(rows), x.shape[2]) for x in (q, o))
    for head, (q_g, o_g, sink) in enumerate(zip(some_q, some_o, sinks)):
        with np.errstate(all="ignore"):  # what is not finite is off by infinity
            z = scale * as_float64(q_g) @ as_float64(k.head(head)).T  # [group, rows, T]
            z = np.where(seen, cap * np.tanh(z / cap) if cap else z, -np.inf)
            lse = np.logaddexp(np.logaddexp.reduce(z, axis=-1), sink)  # [group, rows]
            expected = np.exp(z - lse[..., None]) @ as_float64(v.head(head))
            off = np.linalg.norm(expected - as_float64(o_g), axis=-1) / np.linalg.norm(expected, axis=-1)
        worst = max(worst, float(np.where(np.isfinite(off), off, np.inf).max()))
    tolerance = TOLERANCES["bfloat16" if k.dtype == np.uint16 else k.dtype.name]
    found = f"{'within' if worst <= tolerance else 'off by'} {worst:.1e} of its norm"
    line = f"o of {len(rows)} rows x {n_q} heads {found}"
    return worst <= tolerance, f"whole, {T} positions, {line} (tolerance {tolerance:g})"


def written_rows(array: StoredArray) -> int:
    """Rows up to the last one that is not all zeros: those are not yet written."""
    last = (np.flatnonzero(np.any(array.head(head), axis=1)).max(initial=-1) for head in range(array.shape[0]))
    return int(max(last)) + 1


def check_gradient(folder: Path, name: str, manifest: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> str:
    """Says what a layer's file of gradients holds; shapes: those of the layers before. Raises CaptureError where it is
    not whole."""
    o, x = StoredArray(folder / "o.npy"), StoredArray(folder / f"{name}.npy", 3 if name == "g_nll" else 4)
    n_q, T_q, d_v = o.shape
    decoded = (manifest.get("total_len") or T_q) - (manifest.get("prompt_len") or T_q)
    samples = () if name == "g_nll" else ((manifest.get("gradients") or {}).get("samples", x.shape[1]),)
    rows = min(x.shape[-2], T_q - decoded) if name == "g_window" else decoded
    expected = shapes.setdefault(name, (n_q, *samples, rows, d_v))
    require(x.shape == expected, f"{name}.npy", list(expected), list(x.shape))
    finite = all(np.isfinite(as_float64(x.head(head))).all() for head in range(n_q))
    require(finite, f"{name}.npy", "finite numbers", "a NaN or an infinity")
    return f"{name} of {' x '.join(map(str, (*samples, rows)))} rows"


def check_gate(folder: Path) -> str:
    """Says that a layer's gate is whole. Raises CaptureError where it is not."""
    o, x = StoredArray(folder / "o.npy"), StoredArray(folder / "gate.npy")
    require(x.shape == o.shape, "gate.npy", list(o.shape), list(x.shape))
    finite = all(np.isfinite(as_float64(x.head(head))).all() for head in range(x.shape[0]))
    require(finite, "gate.npy", "finite numbers", "a NaN or an infinity")
    return "gated"


def check_queries(folder: Path, shapes: dict[str, tuple[int, ...]]) -> str:
    """Says what a layer's queries of a second reading are; shapes and errors as above."""
    q, x = StoredArray(folder / "q.npy"), StoredArray(folder / f"{QUERIES}.npy")
    expected = shapes.setdefault(QUERIES, (q.shape[0], x.shape[1], q.shape[2]))
    require(x.shape == expected, f"{QUERIES}.npy", list(expected), list(x.shape))
    finite = all(np.isfinite(as_float64(x.head(head))).all() for head in range(x.shape[0]))
    require(finite, f"{QUERIES}.npy", "finite numbers", "a NaN or an infinity")
    if (folder / f"{ASKING}.npy").exists():
        norms = np.load(folder / f"{ASKING}.npy")
        fits = norms.shape == x.shape[1:2] and np.isfinite(norms).all()
        require(fits, f"{ASKING}.npy", f"{x.shape[1]} finite numbers", f"{norms.dtype} {list(norms.shape)}")
    return f"{QUERIES} of {x.shape[1]} rows"


def as_float64(x: np.ndarray) -> np.ndarray:
    return ((x.astype(np.uint32) << 16).view(np.float32) if x.dtype == np.uint16 else x).astype(np.float64)


def visible(key: np.ndarray, query: np.ndarray, window: int | None, causal: bool = True,
            two_sided: bool = False) -> np.ndarray:
    """[rows, keys]: which of the positions `key` [keys] those of `query` [rows] attend to; two_sided: without causality,
    the window ends ahead as it does behind."""
    ahead, window = key - query[:, None], window or np.inf
    return (ahead > -window) & (ahead < (1 if causal else window if two_sided else np.inf))
