"""A dump's files, as kvcapture.py writes and checks them: names, shapes, dtypes, errors of one line. Needs numpy."""
from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
from collections import namedtuple
from pathlib import Path

FILE_DTYPES = {"bfloat16": "uint16", "float16": "float16", "float32": "float32"}  # what NumPy calls them, coarse to fine
TOLERANCES = {"bfloat16": 2e-2, "float16": 2e-3, "float32": 1e-4}  # of o's row norm, as `kvreplay verify` has them
# Query heads, KV heads, channels of a key, of a value, of what wo makes of o.
Shape = namedtuple("Shape", "n_q n_kv d d_v d_model")
GRADIENTS = ("g_future", "g_window", "g_nll")
QUERIES = "q_ref"  # of a second reading of the prompt
ASKING = "h_ref_norm"  # of the hidden states that these queries are made of
PROGRESS = "gradients.progress"  # in the dump's folder while they are not whole
LARGEST_TEXT = 1 << 26  # bytes of a manifest, a prompt or ids


class CaptureError(Exception):
    """Something that cannot be captured or checked, in one line."""

    def __init__(self, text: str):
        super().__init__(one_line(text))


def one_line(text: object) -> str:
    """For a terminal: what cannot be seen escaped, without the middle of what is too long to be read."""
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))
    return text if len(text) <= 1000 else f"{text[:600]} ... {text[-300:]}"


def no_room(path: Path, size: int, error: OSError) -> CaptureError:
    return CaptureError(f"{path}: expected room for {size:,} bytes, found {error.strerror or error}")


def require(condition: object, what: object, expected: object, found: object) -> None:
    if not condition:
        raise CaptureError(f"{what}: expected {expected}, found {found}")


def prepare_folder(folder: Path, force: bool, size: int) -> None:
    """An empty folder with room for `size` bytes. With force, a former dump in it is removed (its own files, nothing
    else)."""
    require(folder.is_dir() or not folder.exists(), folder, "a folder", "a file")
    if force:
        names = ("[qkvo]", "gate", "wo", "residual_norm", "shorter", *GRADIENTS, QUERIES, ASKING)
        arrays = (f"layer_*/{name}.npy" for name in names)
        begun = (f"layer_*/{name}.new" for name in (*GRADIENTS, QUERIES, ASKING))
        for name in (*arrays, *begun, PROGRESS, "manifest.json", "tokens.json"):
            for path in folder.glob(name):
                path.unlink()
        for path in folder.glob("layer_*"):
            with contextlib.suppress(OSError):  # holds something else: reported below
                path.rmdir()
    left = min((path.name for path in folder.glob("*")), default=None)
    require(left is None, folder, "an empty folder" + ("" if force else " (or --force)"), f"{left} in it")
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    require(free >= size, folder, f"{size:,} bytes of free disk", f"{free:,}")


def layer_files(shape: Shape, T: int, T_q: int, dtype: str) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and dtype of a layer's files, with T keys and T_q queries."""
    n_q, n_kv, d, d_v, d_model = shape
    return {"q": ((n_q, T_q, d), dtype), "k": ((n_kv, T, d), dtype), "v": ((n_kv, T, d_v), dtype),
            "o": ((n_q, T_q, d_v), dtype), "gate": ((n_q, T_q, d_v), dtype), "wo": ((n_q, d_v, d_model), dtype),
            "residual_norm": ((T,), "float32")}


def npy_bytes(shape: tuple[int, ...], dtype: str) -> int:
    """The size of a .npy file with its header."""
    return 128 + math.prod(shape) * (4 if dtype == "float32" else 2)


def allocate(path: Path, shape: tuple[int, ...], dtype: str) -> np.memmap:
    """A .npy file of zeros whose space is taken now: a full disk is an error here, not a crash when a page is
    written."""
    from numpy.lib.format import open_memmap

    try:
        array = open_memmap(path, mode="w+", dtype=FILE_DTYPES[dtype], shape=shape)
        if hasattr(os, "posix_fallocate"):
            with open(path, "r+b") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise no_room(path, npy_bytes(shape, dtype), error) from None
    return array


def write_json(path: Path, value: object) -> None:
    """All of it or nothing: an interruption leaves the former file."""
    new, text = path.with_suffix(".new"), json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    try:
        new.write_text(text, encoding="utf-8")
        os.replace(new, path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise no_room(path, len(text.encode()), error) from None


def read_text(path: str | os.PathLike) -> str:
    """All of a file, or of a pipe that the user names, without a byte order mark; not what has no end."""
    with open(path, "rb") as file:
        data = file.read(LARGEST_TEXT + 1)
    require(len(data) <= LARGEST_TEXT, path, f"at most {LARGEST_TEXT:,} bytes", "more")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CaptureError(f"{path}: expected UTF-8, found {error}") from None


def read_json(path: str | os.PathLike) -> object:
    text = read_text(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CaptureError(f"{path}: expected JSON, found {error}") from None


def read_layers(text: str, count: int) -> list[int]:
    """0,3-5, of so many layers."""
    try:
        spans = [[int(end) for end in part.split("-", 1)] for part in text.split(",")]
    except ValueError:
        raise CaptureError(f"--layers: expected something like 0,3-5, found {text}") from None
    require(all(span[0] <= span[-1] < count for span in spans), "--layers", f"some of 0 to {count - 1}", text)
    return [layer for span in spans for layer in range(span[0], span[-1] + 1)]
