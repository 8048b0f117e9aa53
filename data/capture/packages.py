"""Packages that capture and validation need, checked before any of them is imported, and the tested versions of transformers. Needs
no packages itself."""
from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from typing import Iterable

from dump_files import CaptureError, require

TESTED = "5.2", "5.24"  # oldest and newest tested transformers; the pages name them
TORCH = "numpy", "torch", "transformers"
GGUF = "gguf", "accelerate"  # transformers needs both to read a GGUF file
TEXTS = ("tokenizers",)
CHATS = ("jinja2",)


def require_packages(names: Iterable[str], failed: str = "") -> None:
    """Reports in one line all packages that are not installed, or the failed import of an installed one (`failed`: its error)."""
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
    """A note if transformers is older or newer than the tested versions; else empty."""
    found, (oldest, newest) = found or transformers_version(), TESTED
    beyond = "older" if release(found) < release(oldest) else "newer" if release(found) > release(newest) else ""
    return beyond and f"transformers {found} is {beyond} than what was tested, {oldest} to {newest}: what it changed may be refused"


def release(version: str) -> tuple[int, int]:
    """The first two numbers of a version."""
    numbers = re.findall(r"\d+", version)
    return int(numbers[0]), int((numbers + ["0"])[1])
