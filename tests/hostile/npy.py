"""The .npy format, written with any fault and read as NumPy would: the second opinion on what a damaged array holds."""

import ast
import math
import re
import struct
from dataclasses import dataclass

MAGIC = b"\x93NUMPY"
FLOATS = {"f2": "e", "f4": "f", "f8": "d"}
WORDS = {"float16": "f2", "half": "f2", "float32": "f4", "single": "f4", "float64": "f8", "double": "f8", "float": "f8"}


@dataclass(frozen=True)
class Reading:
    """What an array file says."""

    shape: tuple
    values: tuple  # in C order
    letter: str  # f2, f4 or f8


def header(descr="'<f4'", order="False", shape="(4, 48, 8)", extra="") -> str:
    """The dictionary as text, each entry as given."""
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, {extra}}}"


def file(text, data: bytes, version=(1, 0), magic=MAGIC, length=None, pad=True, end=b"\n") -> bytes:
    """An array file; length is what the prefix says of the header, if not the truth."""
    body = text if isinstance(text, bytes) else text.encode()
    width = 2 if version[0] == 1 else 4
    prefix = len(magic) + 2 + width
    if pad:
        body += b" " * (-(prefix + len(body) + len(end)) % 64)
    body += end
    said = len(body) if length is None else length
    return magic + bytes(version) + struct.pack("<H" if width == 2 else "<I", said % (1 << 8 * width)) + body + data


def split(data: bytes) -> tuple:
    """(header's text, data) of a version 1.0 file as this program writes them."""
    length = struct.unpack_from("<H", data, 8)[0]
    return data[10:10 + length].decode().strip(), data[10 + length:]


def read(data: bytes) -> Reading | None:
    """None where NumPy would refuse, or where the numbers are none that a dump may have."""
    try:
        return strict_reading(data)
    except (ValueError, SyntaxError, TypeError, KeyError, struct.error, MemoryError, RecursionError, IndexError):
        return None


def strict_reading(data: bytes) -> Reading:
    """Raises where read() gives None."""
    if data[:6] != MAGIC or tuple(data[6:8]) not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError("magic or version")
    width = 2 if data[6] == 1 else 4
    start = 8 + width
    length = struct.unpack_from("<H" if width == 2 else "<I", data, 8)[0]
    if len(data) < start + length:
        raise ValueError("header cut short")
    text = data[start:start + length].decode("utf8" if data[6] == 3 else "latin1").strip()
    fields = ast.literal_eval(text if data[6] == 3 else re.sub(r"(?<=\d)L", "", text))  # Python 2 wrote 4L
    if set(fields) != {"descr", "fortran_order", "shape"} or not isinstance(fields["fortran_order"], bool):
        raise ValueError("keys")
    descr, shape = fields["descr"], fields["shape"]
    if not isinstance(shape, tuple) or any(type(n) is not int or n < 0 for n in shape):
        raise ValueError("shape")
    order = {"<": "<", "=": "<", "|": "<", ">": ">"}.get(descr[0])
    kind = descr[1:] if order else WORDS.get(descr, descr)
    letter, order = FLOATS[kind], order or "<"
    count = math.prod(shape)
    size = count * struct.calcsize(letter)
    if len(data) - start - length != size:
        raise ValueError("size")
    values = struct.unpack_from(f"{order}{count}{letter}", data, start + length)
    if not all(map(math.isfinite, values)):
        raise ValueError("not finite")
    return Reading(shape, in_c_order(values, shape) if fields["fortran_order"] else values, kind)


def in_c_order(values: tuple, shape: tuple) -> tuple:
    """Fortran order to C order."""
    order = [0]
    stride = math.prod(shape)
    for extent in reversed(shape):
        stride //= max(extent, 1)
        order = [i * stride + j for i in range(extent) for j in order]
    return tuple(values[i] for i in order)
