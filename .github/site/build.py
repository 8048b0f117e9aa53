#!/usr/bin/env python3
"""The pages beside the code, a gallery of their pictures and the Python reference as one site, in build/site:

  python3 .github/site/build.py          every link that leads nowhere is an error
  python3 .github/site/build.py --serve  and serves it, to look at

Needs Python 3.11; mkdocs-material and mkdocstrings go into build/site-venv.
"""
import ast
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES, VENV = ROOT / "build/pages", ROOT / "build/site-venv"
PACKAGES = ["mkdocs-material==9.8.*", "mkdocstrings[python]==1.*", "ruff"]
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\]\([^)]*\)|\[[^\]]*\])*)\]\(([^)\s]+)\)")
IMAGE = re.compile(r'!\[([^\]]*)\]\(([^)\s]+)\)|<img alt="([^"]*)" src="([^"]*)"')
LEFT_OUT = {".github/PULL_REQUEST_TEMPLATE.md", "tests/research/paper/paper.md"}


def tracked(*patterns):
    return subprocess.run(["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", *patterns], stdout=subprocess.PIPE, encoding="utf-8", check=True).stdout.split("\n")[:-1]


def place(path):
    """Where a file of the tree is on the site, which serves nothing whose name begins with a dot."""
    return Path(*(part.removeprefix(".") for part in path.parts))


def outside_fences(text, change):
    """The text with every stretch that is no block of code changed."""
    pieces = re.split(r"(^```.*?^```$)", text, flags=re.M | re.S)
    return "".join(piece if i % 2 else change(piece) for i, piece in enumerate(pieces))


class Pages:
    def __init__(self):
        self.sources = [Path(path) for path in tracked("*.md") if path not in LEFT_OUT]
        self.beside = set()    # other files that pages lead to
        self.pictures = {}     # by path: what it shows, and the page that shows it first

    def target(self, link, page):
        """A link of a page as the site has it; None where it leads to a folder without a page."""
        if "://" in link or link.startswith("#"):
            return link
        path, _, anchor = link.partition("#")
        file = Path(os.path.normpath(page.parent / path))
        if (ROOT / file / "README.md").is_file():
            file = file / "README.md"
        if not (ROOT / file).is_file():
            return None if (ROOT / file).is_dir() else link
        if file.suffix != ".md":
            self.beside.add(file)
        return os.path.relpath(place(file), place(page).parent) + ("#" + anchor if anchor else "")

    def rewritten(self, text, page):
        def link(found):
            mark, words, to = found.groups()
            target = self.target(to, page)
            words = LINK.sub(link, words)
            return words if target is None else f"{mark}[{words}]({target})"
        return LINK.sub(link, text)

    def gather(self, page):
        text = (ROOT / page).read_text(encoding="utf-8")
        for alt, path, html_alt, html_path in IMAGE.findall(text):
            picture = Path(os.path.normpath(page.parent / (path or html_path)))
            self.beside.add(picture)
            self.pictures.setdefault(picture, (alt or html_alt, page))
        text = outside_fences(text, lambda piece: self.rewritten(piece, page))
        write(place(page), text)

    def gallery(self):
        lines = ["# Gallery\n", "Every picture of these pages, and the page that it is from.\n"]
        for picture, (alt, page) in self.pictures.items():
            lines.append(f"## {alt or picture.stem}\n\n[![{alt}]({place(picture)})]({place(page)})\n")
        write(Path("gallery.md"), "\n".join(lines))


def write(path, text):
    (PAGES / path).parent.mkdir(parents=True, exist_ok=True)
    (PAGES / path).write_text(text, encoding="utf-8")


def python_reference():
    """What kvreplay/__init__.py defines or takes from its modules in Python, in its order."""
    tree = ast.parse((ROOT / "analysis/python/kvreplay/__init__.py").read_text(encoding="utf-8"))
    names = [alias.name for node in tree.body if isinstance(node, ast.ImportFrom) and node.level and node.module not in ("_core", "_options", "results") for alias in node.names]
    names += [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    lines = ["# Python reference\n", "```text", ast.get_docstring(tree), "```\n",
             "`kvreplay.open_results` is described with [the capture scripts](data/capture/README.md), the options that calls share with the command line with [the commands](analysis/commands/COMMANDS.md).\n"]
    lines += [f"::: kvreplay.{name}\n" for name in names]
    write(Path("python-reference.md"), "\n".join(lines))


def main():
    if not (VENV / "bin/python").exists():
        venv.create(VENV, with_pip=True)
    subprocess.run([VENV / "bin/python", "-m", "pip", "install", "-q", *PACKAGES], check=True)
    shutil.rmtree(PAGES, ignore_errors=True)
    pages = Pages()
    for page in pages.sources:
        pages.gather(page)
    pages.gallery()
    python_reference()
    write(Path("site.css"), ".md-grid { max-width: 86rem; }\n")  # room for wide tables
    for file in pages.beside:
        (PAGES / place(file)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, PAGES / place(file))
    command = ["serve"] if "--serve" in sys.argv[1:] else ["build"]
    return subprocess.run([VENV / "bin/python", "-m", "mkdocs", *command, "--strict", "-f", ROOT / ".github/site/mkdocs.yml"],
                          env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}).returncode


if __name__ == "__main__":
    sys.exit(main())
