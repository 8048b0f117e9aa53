"""The prompts of the study: files that every Debian 12 with Python 3.11 and g++ has, and texts of this folder."""
from __future__ import annotations

import importlib
from pathlib import Path
from typing import NamedTuple

OWN = Path(__file__).resolve().parent / "prompts"
ENOUGH = 40_000  # characters of a text, of which the first tokens are taken


COPIED = ("retrieval", "copying")  # kinds of prompts whose answers stand in them


class Prompt(NamedTuple):
    name: str
    kind: str
    tokens: int
    source: str  # a path, a text of this folder, or a topic of Python's help
    begin: str = ""  # what the text begins with, where that is not the start of the file

    def text(self) -> str:
        if self.source.startswith("help("):
            topics = importlib.import_module("pydoc_data.topics").topics
            return topics[self.source[5:-1]][:ENOUGH]
        path = OWN / self.source if "/" not in self.source else Path(self.source)
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        start = text.find(self.begin)
        if not text or start < 0:
            wanted = f"a text with {self.begin!r}" if self.begin else "a text"
            raise SystemExit(f"study: {path}: expected {wanted}, as in Debian 12, found none (--prompt names others)")
        return text[start : start + ENOUGH]


PROMPTS = (
    Prompt("dialogue", "dialogue", 800, "dialogue.txt"),
    Prompt("table", "table", 1000, "/usr/share/zoneinfo/zone.tab", "AD\t"),
    Prompt("german", "prose in German", 500, "german.txt"),
    Prompt("code", "code, Python", 900, "/usr/lib/python3.11/heapq.py", "def heappush"),
    Prompt("licence", "licence", 2000, "/usr/share/common-licenses/GPL-3"),
    Prompt("story", "prose", 500, "story.txt"),
    Prompt("shell", "code, shell", 800, "/usr/bin/ldd"),
    Prompt("list", "lists and tables", 800, "list.txt"),
    Prompt("email", "technical prose", 900, "/usr/lib/python3.11/email/architecture.rst"),
    Prompt("cpp", "code, C++", 900, "/usr/include/c++/12/bits/stl_heap.h", "  template<typename _RandomAccess"),
    Prompt("artistic", "licence, short", 700, "/usr/share/common-licenses/Artistic"),
    Prompt("services", "table of ports", 1500, "/etc/services"),
    Prompt("manual", "manual", 3500, "help(specialnames)"),
    Prompt("recall", "retrieval, prose", 900, "recall.txt"),
    Prompt("keys", "retrieval, keys", 600, "keys.txt"),
    Prompt("rewrite", "copying, code", 900, "rewrite.txt"),
)

# Of what pystdlib-lm was trained on: modules of Python's standard library.
MODULES = tuple(Prompt(f"module_{name}", "code, Python", 896, f"/usr/lib/python3.11/{name}.py")
                for name in ("argparse", "calendar", "csv", "fractions", "gzip", "heapq", "queue", "sched", "shlex", "textwrap"))
