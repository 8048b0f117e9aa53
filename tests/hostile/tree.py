"""Folders as values: kept in memory, written anew for every case, compared byte by byte."""

import csv
import hashlib
import io
import json
import os
import re
import stat
from pathlib import Path

CANARY = "canary"  # names of files that are not the program's begin with it
LARGE = 1 << 27  # files that are compared by their size alone: no run writes them


def read(folder: Path) -> dict:
    """Relative path -> bytes of every regular file; None for an empty folder."""
    found = {}
    for where, folders, files in os.walk(folder):
        here = Path(where).relative_to(folder)
        for name in files:
            found[str(here / name)] = (Path(where) / name).read_bytes()
        if not folders and not files and where != str(folder):
            found[str(here)] = None
    return found


def write(tree: dict, folder: Path):
    """The inverse of read()."""
    made = set()
    for name, data in tree.items():
        path = folder / name
        target = path if data is None else path.parent
        if target not in made:
            target.mkdir(parents=True, exist_ok=True)
            made.add(target)
        if data is not None:
            path.write_bytes(data)


def names(folder: Path) -> list:
    """Relative paths of what stands there now; the folder may be changing."""
    return [str((Path(where) / name).relative_to(folder)) for where, _, files in os.walk(folder) for name in files]


def digest(folder: Path, leave_out=("run.json",)) -> dict:
    """Relative path -> what stands there, for comparing; nothing is opened but regular files."""
    found = {}
    if not folder.is_dir():
        return found
    for where, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(CANARY)]
        for name in files + folders:
            path = Path(where) / name
            relative = str(path.relative_to(folder))
            if name.startswith(CANARY) or relative in leave_out:
                continue
            mode = path.lstat().st_mode
            if stat.S_ISREG(mode) and path.stat().st_size > LARGE:
                found[relative] = f"{path.stat().st_size} bytes"
            elif stat.S_ISREG(mode):
                data = without_fingerprints(path.read_bytes()) if relative == "summary.json" else path.read_bytes()
                found[relative] = hashlib.blake2b(data, digest_size=16).hexdigest()
            elif stat.S_ISLNK(mode):
                found[relative] = f"link to {os.readlink(path)}"
            elif not stat.S_ISDIR(mode):
                found[relative] = f"special {stat.S_IFMT(mode):o}"
    return found


def without_fingerprints(summary: bytes) -> bytes:
    """A summary but for what stands for the bytes of the dump: equal numbers are there in several formats."""
    try:
        parsed = json.loads(summary)
        parsed.pop("layer_fingerprints", None)
        parsed["dump"].pop("fingerprint", None)
        return json.dumps(parsed).encode()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return summary


def difference(found: dict, wanted: dict) -> str:
    """The first path at which two digests differ; empty where they are equal."""
    for name in sorted(found.keys() | wanted.keys()):
        if name not in found:
            return f"{name} is missing"
        if name not in wanted:
            return f"{name} is one too many"
        if found[name] != wanted[name]:
            return f"{name} differs"
    return ""


def incomplete(folder: Path) -> str:
    """What a finished result folder lacks by its own account; empty where nothing."""
    if not (folder / "summary.json").is_file():
        return "no summary.json"
    account = folder / "files.csv"
    if not account.is_file():  # over several dumps: every one has its own
        return next((fault for sub in sorted(folder.iterdir()) if (sub / "files.csv").is_file()
                     if (fault := incomplete(sub))), "")
    for row in csv.DictReader(io.StringIO(account.read_text())):
        path = folder / row["name"]
        if not path.is_file():
            return f"{row['name']} is missing"
        if path.stat().st_size != int(row["bytes"]):
            return f"{row['name']} has {path.stat().st_size} bytes, not {row['bytes']}"
        if path.suffix == ".csv" and re.search(rb"[,-]inf\b", path.read_bytes()):
            return f"{row['name']} holds an infinity"
    return ""
