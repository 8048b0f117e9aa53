"""How near the results of two runs of kvreplay are: of a device and of the CPU, say. Standard library only."""

import array
import ast
import csv
import math
import struct
from dataclasses import dataclass
from pathlib import Path

# Figures are in a head's own scale, where float32 knows changes of an output to some 1e-9. A rank correlation moves where two tokens
# that float32 cannot tell apart change places; kept sets and losses of order, for the same reason, in few of their entries.
RELATIVE, ABSOLUTE, RANKS, KEPT = 1e-3, 1e-8, 5e-3, 2e-3
# Distances of two scores that are nearly equal are float32's rounding.
DISTANCES = 1e-6


def allowed(words, figure):
    """How far from `figure` another may be that these words speak of. A gain is the share of two errors, which are compared themselves."""
    if "gain" in words:
        return math.inf
    if any(word in words for word in ("spearman", "overlap", "recall")):
        return RANKS
    return RELATIVE * abs(figure) + (DISTANCES if "rel_l1" in words else ABSOLUTE)

TYPES = {"<f4": "f", "<f8": "d", "<i4": "i", "<i8": "q", "|b1": "B", "|u1": "B", "<f2": "e"}


@dataclass
class Comparison:
    """One file of both. `worst` is the largest difference as a share of what is allowed; 0: the same bytes."""

    file: str
    entries: int = 0
    differing: int = 0
    worst: float = 0.0
    where: str = ""

    @property
    def ok(self):
        return self.worst <= 1

    def note(self, share, where):
        if not share <= self.worst:  # NaN too
            self.worst, self.where = (share, where) if share == share else (math.inf, where)


def npy(path):
    """Its numbers in the order of the file, and its shape."""
    data = path.read_bytes()
    size, start = (struct.unpack_from("<H", data, 8)[0], 10) if data[6] == 1 else (struct.unpack_from("<I", data, 8)[0], 12)
    header = ast.literal_eval(data[start : start + size].decode())
    body, code = data[start + size :], TYPES[header["descr"]]
    if code == "e":
        return [x for (x,) in struct.iter_unpack("<e", body)], header["shape"]
    numbers = array.array(code)
    numbers.frombytes(body)
    return numbers, header["shape"]


def of_arrays(want, got, result):
    (a, shape), (b, other) = npy(want), npy(got)
    result.entries = len(a)
    if shape != other:
        result.note(math.inf, f"shape {shape}, {other}")
        return
    if isinstance(a, array.array) and a.typecode == "B":
        result.differing = sum(x != y for x, y in zip(a, b))
        result.note(result.differing / (KEPT * max(1, len(a))), f"{result.differing} of {len(a)}")
        return
    # Ranked figures of one head have one scale: a row's.
    width = shape[-1] if shape else 1
    for first in range(0, len(a), max(1, width)):
        row, others = a[first : first + width], b[first : first + width]
        scale = max((abs(x) for x in row if math.isfinite(x)), default=0.0)
        for i, (x, y) in enumerate(zip(row, others)):
            if x == y or (x != x and y != y):
                continue
            result.differing += 1
            result.note(abs(x - y) / allowed(result.file, scale), f"entry {first + i}: {x!r}, {y!r}")


def number(text):
    try:
        return float(text)
    except ValueError:
        return None


def of_tables(want, got, result):
    with want.open(newline="") as a, got.open(newline="") as b:
        rows, others = list(csv.reader(a)), list(csv.reader(b))
    if len(rows) != len(others):
        result.note(math.inf, f"{len(rows)} rows, {len(others)}")
        return
    for line, (row, other) in enumerate(zip(rows, others), 1):
        if len(row) != len(other):
            result.note(math.inf, f"line {line}: {len(row)} cells, {len(other)}")
            return
        for column, (x, y) in enumerate(zip(row, other)):
            result.entries += 1
            if x == y:
                continue
            result.differing += 1
            where = f"line {line}, {rows[0][column] if column < len(rows[0]) else column}: {x}, {y}"
            a, b = number(x), number(y)
            if a is None or b is None:
                result.note(math.inf, where)
            else:
                words = ",".join(cell for cell in (*row, rows[0][column]) if number(cell) is None)
                result.note(abs(a - b) / allowed(words, a), where)


def files_of(folder):
    """What is compared of a folder of results."""
    return {
        str(path.relative_to(folder)): path
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file() and path.suffix in (".csv", ".npy") and path.name != "files.csv"
    }


def compare(want, got):
    """A Comparison for each file of the folders `want` and `got`."""
    a, b = files_of(want), files_of(got)
    results = []
    for name in sorted(a.keys() | b.keys()):
        result = Comparison(name)
        results.append(result)
        if name not in a or name not in b:
            result.note(math.inf, "only one has it")
        elif a[name].read_bytes() != b[name].read_bytes():
            (of_arrays if name.endswith(".npy") else of_tables)(a[name], b[name], result)
    return results


def same_bytes(one, other):
    """The first file in which two folders of results differ, or None. run.json says when and how long."""
    a, b = ({str(p.relative_to(f)): p for p in Path(f).rglob("*") if p.is_file() and p.name != "run.json"} for f in (one, other))
    for name in sorted(a.keys() | b.keys()):
        if name not in a or name not in b or a[name].read_bytes() != b[name].read_bytes():
            return name
    return None
