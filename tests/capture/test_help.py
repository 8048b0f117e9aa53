#!/usr/bin/env python3
"""Every script says what it does, and what it lacks, on a machine that has no packages.

  python3 tests/capture/test_help.py
"""
import subprocess
import sys
import unittest
from pathlib import Path

CAPTURE = Path(__file__).resolve().parents[2] / "data/capture"


def bare(script, *arguments):
    """Of a Python without packages."""
    return subprocess.run([sys.executable, "-S", str(CAPTURE / script), *arguments], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})


class Help(unittest.TestCase):
    def test_help_needs_no_packages(self):
        for script in ("kvcapture.py", "kvvalidate.py"):
            found = bare(script, "--help")
            self.assertEqual((found.returncode, found.stderr), (0, ""))
            self.assertIn("--model", found.stdout)

    def test_what_is_missing_is_a_line(self):
        for script, arguments in (("kvcapture.py", ("--model", "x", "--prompt", "y", "--out", "z")), ("kvcapture.py", ("--check", "x")),
                                  ("kvvalidate.py", ("--model", "x", "--results", "y"))):
            found = bare(script, *arguments)
            self.assertEqual((found.returncode, found.stdout), (2, ""))
            self.assertRegex(found.stderr, r"^kv\w+: packages: expected .*numpy")
            self.assertEqual(found.stderr.count("\n"), 1)

    def test_arguments_that_are_missing_are_named(self):
        for arguments, missing in ((["--model", "x", "--prompt", "y"], "--out"), (["--model", "x", "--out", "z"], "--prompt, --messages, --ids or --task"),
                                   (["--prompt", "y", "--out", "z"], "--model or --gguf"), (["--model", "x", "--out", "z", "--resume"], "--prompt, .*"),
                                   ([], "--model or --gguf and --prompt, .* and --out")):
            found = bare("kvcapture.py", *arguments)
            self.assertEqual((found.returncode, found.stdout), (2, ""))
            self.assertRegex(found.stderr, rf"^kvcapture: expected {missing}, found none \(--help lists the options\)\n$")

    def test_packages_of_a_gguf_file(self):
        """Missing packages are all named, before any is imported."""
        file = str(Path(__file__).resolve())
        for script, arguments, expected in (
                ("kvcapture.py", ("--gguf", file, "--prompt", "y", "--out", "z"), "numpy torch transformers gguf accelerate tokenizers"),
                ("kvcapture.py", ("--gguf", file, "--messages", "y", "--estimate"), "numpy torch transformers gguf accelerate tokenizers jinja2"),
                ("kvvalidate.py", ("--model", file, "--results", "y"), "numpy torch transformers xxhash gguf accelerate")):
            found = bare(script, *arguments)
            self.assertEqual(found.returncode, 2)
            self.assertRegex(found.stderr, rf"^kv\w+: packages: expected {expected.replace(' ', ', ')} \(pip install {expected}\), found none of them\n$")


if __name__ == "__main__":
    unittest.main()
