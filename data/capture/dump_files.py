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
WIDE = {b"\xff\xfe\0\0": "UTF-32", b"\0\0\xfe\xff": "UTF-32", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}  # keyed by byte order mark


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
    if force and folder.is_dir():
        for path in files_of_dump(folder):
            path.unlink()
        for path in folder.glob("layer_*"):
            with contextlib.suppress(OSError):  # holds something else: reported below
                path.rmdir()
    require_folder(folder, force, emptied=True)
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    require(free >= size, folder, f"{size:,} bytes of free disk", f"{free:,}")


def require_folder(folder: Path, force: bool, emptied: bool = False) -> None:
    """Rejects a folder with files that prepare_folder() does not remove, before anything is computed."""
    require(folder.is_dir() or not folder.exists(), folder, "a folder", "a file")
    if not force and is_incomplete(folder):
        raise CaptureError(f"{folder}: expected an empty folder, found a dump whose capture was interrupted (--force captures it again)")
    mine = {path.relative_to(folder).parts[0] for path in (*files_of_dump(folder), *folder.glob("layer_*"))}
    mine = mine if force and not emptied else set()
    left = min((path.name for path in folder.glob("*") if path.name not in mine), default=None)
    require(left is None, folder, "an empty folder" + ("" if force else " (or --force)"), f"{left} in it")


def files_of_dump(folder: Path) -> list[Path]:
    names = ("[qkvo]", "gate", "wo", "residual_norm", "shorter", *GRADIENTS, QUERIES, ASKING)
    arrays = (f"layer_*/{name}.npy" for name in names)
    begun = (f"layer_*/{name}.new" for name in (*GRADIENTS, QUERIES, ASKING))
    return [path for name in (*arrays, *begun, PROGRESS, "manifest.json", "tokens.json") for path in folder.glob(name)]


def is_incomplete(folder: Path) -> bool:
    """True if the folder has a dump whose capture was interrupted."""
    try:
        manifest = read_json(folder / "manifest.json")
    except (CaptureError, OSError):
        return False
    return isinstance(manifest, dict) and bool(manifest.get("incomplete"))


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
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST_TEXT + 1)
    except OSError as error:
        raise CaptureError(f"{path}: expected a file that can be read, found {error.strerror or error}") from None
    require(len(data) <= LARGEST_TEXT, path, f"at most {LARGEST_TEXT:,} bytes", "more")
    wide = next((name for mark, name in WIDE.items() if data.startswith(mark)), None)
    require(wide is None, path, "a text in UTF-8", f"one in {wide}, by its first bytes (iconv -f {wide} -t UTF-8 converts it)")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        cut = error.reason == "unexpected end of data"
        found = "a character that is cut off" if cut else f"the byte 0x{data[error.start]:02x} (Latin-1? iconv -f LATIN1 -t UTF-8 converts it)"
        raise CaptureError(not_utf8(path, data, error.start, found)) from None
    zero = data.find(b"\0")
    if zero >= 0:
        raise CaptureError(not_utf8(path, data, zero, "a zero byte (UTF-16, or no text?)"))
    return text


def not_utf8(path: str | os.PathLike, data: bytes, at: int, found: str) -> str:
    before = data[:at]
    place = f"line {before.count(10) + 1}, byte {at - before.rfind(10)} of it"
    return f"{path}: expected a text in UTF-8, found {found} at offset {at:,}, {place}"


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
