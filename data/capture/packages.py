"""The packages that capture and validation need, looked for before any of them is imported, and the versions of transformers that
are tested. Needs none."""
from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from typing import Iterable

from dump_files import CaptureError, require

TESTED = "5.2", "5.24"  # of transformers: the oldest and the newest; the pages name them
TORCH = "numpy", "torch", "transformers"
GGUF = "gguf", "accelerate"  # with which transformers reads a GGUF file
TEXTS = ("tokenizers",)
CHATS = ("jinja2",)


def require_packages(names: Iterable[str], failed: str = "") -> None:
    """Refuses in one line what is not installed, all of it, or what was installed and could not be imported (`failed`: how)."""
    lacking = [name for name in dict.fromkeys(names) if importlib.util.find_spec(name) is None]
    require(not lacking, "packages", f"{', '.join(lacking)} (pip install {' '.join(lacking)})", "none of them" if lacking[1:] else "none")
    if failed:
        tested = f"transformers {TESTED[0]} to {TESTED[1]}, and what it needs"
        raise CaptureError(f"packages: expected {tested}, found transformers {transformers_version()}: {failed}")


def transformers_version() -> str:
    try:
        return importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError:
        return "none"


def version_note(found: str | None = None) -> str:
    """A note where transformers is older or newer than what is tested, or nothing."""
    found, (oldest, newest) = found or transformers_version(), TESTED
    beyond = "older" if release(found) < release(oldest) else "newer" if release(found) > release(newest) else ""
    return beyond and f"transformers {found} is {beyond} than what was tested, {oldest} to {newest}: what it changed may be refused"


def release(version: str) -> tuple[int, int]:
    """The first two numbers."""
    numbers = re.findall(r"\d+", version)
    return int(numbers[0]), int((numbers + ["0"])[1])
