"""What can befall any file: cut short, grown, flipped, emptied, replaced by something else or by what is none of its
kind. Hostile cases, tests of the Python readers and the fuzzers' seeds are made of it; C++ tests of arrays and manifests
walk the same broken_inputs.json."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import socket
import struct
from pathlib import Path
from typing import Iterator

from process import sparse_file

BROKEN = Path(__file__).with_name("broken_inputs.json")
GOOD = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"


def npy(entry: dict) -> bytes:
    """A .npy file of these parts: header, version, length (as the file says it), zeros behind the header; `cut` after so
    many bytes."""
    text = entry.get("header", GOOD).encode("latin1") + b"\n"
    version = entry.get("version", 1)
    length = struct.pack("<H" if version == 1 else "<I", entry.get("length", len(text)))
    return (b"\x93NUMPY" + bytes([version, 0]) + length + text + bytes(entry.get("behind", 24)))[:entry.get("cut")]


@functools.lru_cache(maxsize=None)
def broken(kind: str) -> dict[str, tuple[bytes, tuple]]:
    """name -> (what the file holds, parts of the line that refuses it); of one kind, npy or manifest."""
    found = {}
    for entry in json.loads(BROKEN.read_text(encoding="utf-8"))[kind]:
        whole = next((entry[key].encode("latin1") for key in ("text", "bytes") if key in entry), None)
        found[entry["name"]] = (npy(entry) if whole is None else whole, tuple(entry["line"]))
    return found


# What a result folder's file may hold in place of its own, by the end of its name.
INSTEAD = {
    ".json": {
        "deep": b"[" * 200_000, "deep-keys": b'{"a":' * 100_000, "list": b"[1, 2]", "object": b"{}", "null": b"null",
        "huge-number": b'{"schema": 1' + b"0" * 5000 + b"}", "open-text": b'{"program": "kvre',
        "keys-twice": b'{"program": "other", "program": "kvreplay", "schema": 1}', "two-objects": b"{} {}"
    },
    ".csv": {
        "columns-alone": b"layer,kv_head,value\n", "other-columns": b"a,b\n1,2\n", "quote": b'layer,kv_head\n"0,1\n',
        "too-many-fields": b"layer,kv_head\n0,0,0,0\n0,1\n", "too-few": b"layer,kv_head,attn\n0\n",
        "words": b"layer,kv_head,attn\nx,y,z\n", "fractions": b"layer,kv_head,attn\n0.5,1,2\n",
        "huge": b"layer,kv_head,attn\n" + b"9" * 400 + b",1e999,1e-999\n",
        "name-outside": b"name,bytes,xxh3\n../../x,1,00\n", "no-size": b"name,bytes,xxh3\nheads.csv,-,00\n"
    },
    ".npy": {name: data for name, (data, _) in broken("npy").items()},
}


def cuts(data: bytes) -> dict:
    """name -> shorter contents."""
    places = {0, 1, 6, 8, 10, 64, 127, 128, 129, len(data) // 2, len(data) - 8, len(data) - 1}
    return {f"cut-{n}": data[:n] for n in sorted(places) if 0 <= n < len(data)}


def growths(data: bytes) -> dict:
    """name -> longer contents."""
    return {"longer-1": data + b"\0", "longer-4096": data + b"x" * 4096, "twice": data + data,
            "longer-line": data + b"\n"}


def replacements(data: bytes) -> dict:
    """name -> contents of another kind."""
    return {"text": b"not what you think\n" * 20, "zeros": bytes(len(data)), "ones": b"\xff" * len(data),
            "json": b'{"a": 1}', "gzip": b"\x1f\x8b\x08\0\0\0\0\0\0\3" + data[:100], "newlines": b"\n" * 200,
            "escapes": b"\x1b]0;owned\x07\x1b[2J\r\n" * 20, "nul-first": b"\0" + data, "line-end": b"\n",
            "not-utf8": b"\xff\xfe{\0\n", "gap": b"\0,\0\n\x1b[2J\n", "long-line": b"a," * 50_000 + b"\n"}


def flipped(data: bytes, bit: int) -> bytes:
    """One bit the other way round."""
    return data[:bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1:]


def folder(path: Path):
    """A folder where a file should be."""
    path.mkdir()


def pipe(path: Path):
    """A named pipe that nobody writes to."""
    os.mkfifo(path)


def local_socket(path: Path):
    """A socket; its path may be too long to bind to from here."""
    here = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as end:
            end.bind(path.name)
    finally:
        os.chdir(here)


def link_to(target):
    """A symbolic link to `target`, as text."""
    return lambda path: path.symlink_to(target)


def enormous(path: Path):
    """Ten gigabytes of nothing."""
    sparse_file(path, 10 << 30)


# name -> what makes it; the file is removed first.
STAND_INS = {
    "removed": lambda path: None, "folder": folder, "pipe": pipe, "socket": local_socket, "enormous": enormous,
    "link-to-zero": link_to("/dev/zero"), "link-to-null": link_to("/dev/null"), "link-to-full": link_to("/dev/full"),
    "link-to-tty": link_to("/dev/tty"), "link-to-nothing": link_to("nothing/here"), "link-to-folder": link_to("."),
    "link-to-proc": link_to("/proc/version"), "link-to-itself": lambda path: path.symlink_to(path.name),
}


def replace(path: Path, make):
    """Puts what make(path) makes, or bytes, in the place of a file."""
    path.unlink()
    if isinstance(make, bytes):
        path.write_bytes(make)
    else:
        make(path)


def all_of(path: Path) -> dict:
    """Every damage of a file: name -> what replace() puts in its place."""
    whole = path.read_bytes()
    flips = {f"flip-{at:.0%}": flipped(whole, 8 * int(at * (len(whole) - 1)) + 2) for at in (0, 0.02, 0.3, 0.7, 1)}
    contents = cuts(whole) | flips | growths(whole) | replacements(whole) | INSTEAD.get(path.suffix, {})
    return {**contents, **STAND_INS}


@contextlib.contextmanager
def damaged(path: Path, make, seconds: int = 10) -> Iterator[None]:
    """The file is replaced, and put back; whoever takes longer is interrupted by a TimeoutError."""

    def late(*_):
        raise TimeoutError(f"more than {seconds} s")

    aside = path.with_name(f"{path.name}.aside")
    aside.write_bytes(path.read_bytes())
    former = signal.signal(signal.SIGALRM, late)
    try:
        replace(path, make)
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
