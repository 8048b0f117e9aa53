"""What can befall any file: cut short, grown, flipped, emptied, replaced by something else."""

import os
import socket
from pathlib import Path

from process import sparse_file


def cuts(data: bytes) -> dict:
    """name -> shorter contents."""
    places = {0, 1, 6, 8, 10, 64, 127, 128, 129, len(data) // 2, len(data) - 8, len(data) - 1}
    return {f"cut-{n}": data[:n] for n in sorted(places) if 0 <= n < len(data)}


def growths(data: bytes) -> dict:
    """name -> longer contents."""
    return {"longer-1": data + b"\0", "longer-4096": data + b"x" * 4096, "twice": data + data}


def replacements(data: bytes) -> dict:
    """name -> contents of another kind."""
    return {"text": b"not what you think\n" * 20, "zeros": bytes(len(data)), "ones": b"\xff" * len(data),
            "json": b'{"a": 1}', "gzip": b"\x1f\x8b\x08\0\0\0\0\0\0\3" + data[:100], "newlines": b"\n" * 200,
            "escapes": b"\x1b]0;owned\x07\x1b[2J\r\n" * 20, "nul-first": b"\0" + data}


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
    "link-to-proc": link_to("/proc/version"),
}


def replace(path: Path, make):
    """Puts what make(path) makes, or bytes, in the place of a file."""
    path.unlink()
    if isinstance(make, bytes):
        path.write_bytes(make)
    else:
        make(path)
