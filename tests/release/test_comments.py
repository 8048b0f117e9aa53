#!/usr/bin/env python3
"""Comments of C++ files have a noun of the field as their subject: none opens with What, Whether, Whose, How, That, Of, Those or a
pronoun. Offenders are listed as FILE:LINE.

  python3 tests/release/test_comments.py [FOLDER ...]
"""
import re
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("data", "sim", "analysis", "viewer", "tests/analysis", "tests/support")  # whose comments are held to it
OPENING = re.compile(r"\s*//[/!]?<? ?(What|Whether|Whose|How|That|Of|Those|It|They|Who|Which)\b(?!['-])")
COMMENT = re.compile(r"\s*//")


def offenders(text):
    """Numbers of the lines with which a comment begins that opens so; a comment behind code begins there."""
    found, inside = [], False
    for number, line in enumerate(text.split("\n"), 1):
        begins = COMMENT.match(line)
        behind = None if begins else re.search(r"[;,{})]\s+(//.*)$", line)
        if begins and not inside and OPENING.match(line) or behind and OPENING.match(behind[1]):
            found.append(number)
        inside = bool(begins or behind)
    return found


def files(folders):
    names = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, stdout=subprocess.PIPE, encoding="utf-8", check=True).stdout.split("\n")
    return [name for name in names if re.search(r"\.(cpp|hpp|cu|cuh|mm)$", name)]


class Comments(unittest.TestCase):
    def test_openings(self):
        names = files(FOLDERS)
        self.assertGreater(len(names), 20)
        found = [f"{name}:{number}" for name in names for number in offenders((ROOT / name).read_text(encoding="utf-8"))]
        self.assertFalse(found, "\n" + "\n".join(found))

    def test_finds_what_is_planted(self):
        self.assertEqual(offenders("/// What it is.\nint a;\n// Rows [n].\n// What follows is the same comment.\nint b;\n"), [1])
        self.assertEqual(offenders("int a;  ///< whether\nint b;  ///< Whether it is.\nint c;  // fine\n"), [2])
        self.assertEqual(offenders("const char* url = \"https://What\";\n// It's a name.\n// Of 3 rows.\n"), [])
        self.assertEqual(offenders("\n// Of 3 rows.\n"), [2])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        counts = 0
        for each in files(sys.argv[1:]):
            for at in offenders((ROOT / each).read_text(encoding="utf-8")):
                print(f"{each}:{at}: {(ROOT / each).read_text(encoding='utf-8').split(chr(10))[at - 1].strip()}")
    else:
        unittest.main()
