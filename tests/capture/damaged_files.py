"""What may have become of a file: every damage leaves something else in its place, and what was there comes back."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Callable, Iterator

DEEP = b"[" * 200_000
NPY = b"\x93NUMPY\x01\x00\x76\x00"


def header(text: str) -> bytes:
    """A .npy file that says this of itself, and 512 bytes behind it."""
    return NPY + text.encode().ljust(117) + b"\n" + bytes(512)


# What a file may hold in place of its own, by the end of its name.
ANY = {
    "nothing": b"",
    "a line end": b"\n",
    "not UTF-8": b"\xff\xfe{\x00\n",
    "zeros": bytes(4096),
    "a gap": b"\x00,\x00\n\x1b[2J\n",
    "a long line": b"a," * 50_000 + b"\n",
}
INSTEAD = {
    ".json": {
        "deep": DEEP,
        "deep keys": b'{"a":' * 100_000,
        "a list": b"[1, 2]",
        "nothing in it": b"{}",
        "null": b"null",
        "a huge number": b'{"schema": 1' + b"0" * 5000 + b"}",
        "cut in a string": b'{"program": "kvre',
        "keys twice": b'{"program": "other", "program": "kvreplay", "schema": 1}',
        "behind its end": b"{} {}",
    },
    ".csv": {
        "columns alone": b"layer,kv_head,value\n",
        "other columns": b"a,b\n1,2\n",
        "a quote": b'layer,kv_head\n"0,1\n',
        "too many fields": b"layer,kv_head\n0,0,0,0\n0,1\n",
        "too few": b"layer,kv_head,attn\n0\n",
        "words": b"layer,kv_head,attn\nx,y,z\n",
        "huge": b"layer,kv_head,attn\n" + b"9" * 400 + b",1e999,1e-999\n",
        "fractions": b"layer,kv_head,attn\n0.5,1,2\n",
        "a name outside": b"name,bytes,xxh3\n../../x,1,00\n",
        "no size": b"name,bytes,xxh3\nheads.csv,-,00\n",
    },
    ".npy": {
        "a huge shape": header("{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999999, 9999999999), }"),
        "no shape": header("{'descr': '<f8', 'fortran_order': False, 'shape': (), }"),
        "a negative shape": header("{'descr': '<f8', 'fortran_order': False, 'shape': (-1, 2), }"),
        "an empty shape": header("{'descr': '<f8', 'fortran_order': False, 'shape': (0, 9999999999, 2), }"),
        "objects": header("{'descr': '|O', 'fortran_order': False, 'shape': (64,), }"),
        "records": header("{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (64,), }"),
        "texts": header("{'descr': '<U999999999', 'fortran_order': False, 'shape': (4, 2), }"),
        "deep": header("(" * 110),
        "no dict": header("()()"),
        "a code": header("__import__('os').abort()"),
        "a long header": b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b" " * 500,
        "another version": b"\x93NUMPY\x09\x00" + bytes(200),
        "an archive": b"PK\x03\x04" + bytes(200),
    },
}


def flipped(whole: bytes, at: float) -> bytes:
    position = int(at * (len(whole) - 1))
    return whole[:position] + bytes([whole[position] ^ 4]) + whole[position + 1 :]


def damages_of(path: Path) -> dict[str, Callable[[], None]]:
    """By name; each is called where the file no longer is."""
    whole = path.read_bytes()

    def holds(data: bytes) -> Callable[[], None]:
        return lambda: path.write_bytes(data) and None

    def as_large_as(size: int) -> None:
        with open(path, "wb") as file:
            file.truncate(size)

    cut = {
        f"cut to {size}": holds(whole[:size])
        for size in {1, 7, 100, len(whole) // 2, len(whole) - 1}
        if size < len(whole)
    }
    flips = {f"flipped at {at:.0%}": holds(flipped(whole, at)) for at in (0, 0.02, 0.3, 0.7, 1)}
    instead = {name: holds(data) for name, data in {**ANY, **INSTEAD.get(path.suffix, {})}.items()}
    return {
        **cut,
        **flips,
        **instead,
        "grown": holds(whole + b"\n"),
        "twice": holds(whole * 2),
        "removed": lambda: None,
        "enormous": lambda: as_large_as(1 << 42),
        "a folder": path.mkdir,
        "a pipe": lambda: os.mkfifo(path),
        "a link to nothing": lambda: path.symlink_to("nowhere"),
        "a link to itself": lambda: path.symlink_to(path.name),
        "a link to zeros": lambda: path.symlink_to("/dev/zero"),
        "a link to a folder": lambda: path.symlink_to(".."),
    }


@contextlib.contextmanager
def damaged(path: Path, damage: Callable[[], None], seconds: int = 10) -> Iterator[None]:
    """The file is damaged, and put back; whoever takes longer is interrupted by a TimeoutError."""

    def late(*_):
        raise TimeoutError(f"more than {seconds} s")

    aside = path.with_name(f"{path.name}.aside")
    path.rename(aside)
    former = signal.signal(signal.SIGALRM, late)
    try:
        damage()
        signal.alarm(seconds)
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, former)
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
        aside.rename(path)
