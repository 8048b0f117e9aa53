#!/usr/bin/env python3
"""The commands that the documents show, run as they are written, on the sample; and what the README says that they print.

  KVREPLAY=build/release/bin/kvreplay python3 tests/analysis/test_documented_commands.py
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("KVREPLAY")
# Set-up, a display, several processes, and dumps, results and models of the reader's own.
ELSEWHERE = re.compile(r"^(\./bootstrap\.sh|export|cmake|python3|mpirun|kvreplay view|kvreplay-viewer)\b|\bDUMP\b|\bdumps/|\bresults/mine\b|\.gguf\b")


def blocks(document, language):
    """The code blocks of a document in one language, as lists of lines."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return [block.splitlines() for block in re.findall(rf"^```{language}\n(.*?)^```", text, re.S | re.M)]


def shortened(sample, at):
    """The sample's first two layers, where commands are run for what they take and not for what they say: a third of the time."""
    at.mkdir(parents=True)
    for layer in "layer_00", "layer_01":
        (at / layer).symlink_to(sample / layer)
    manifest = json.loads((sample / "manifest.json").read_text(encoding="utf-8"))
    (at / "manifest.json").write_text(json.dumps({**manifest, "n_layers": 2}), encoding="utf-8")
    shutil.copy(sample / "tokens.json", at)


class DocumentedCommands(unittest.TestCase):
    def run_commands(self, document, whole=False):
        """Runs a document's commands in one folder, in order; what they print."""
        commands = ["\n".join(line for line in block if not ELSEWHERE.search(line)) for block in blocks(document, "sh")]
        self.assertTrue(any(commands), document)
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            (place / "bin").mkdir()
            (place / "bin/kvreplay").symlink_to(Path(PROGRAM).resolve())
            if whole:
                (place / "data").symlink_to(ROOT / "data")
            else:
                shortened(ROOT / "data/samples/pystdlib-lm", place / "data/samples/pystdlib-lm")
            printed = ""
            for command in commands:
                run = subprocess.run(["bash", "-ec", command.replace("/tmp/", f"{folder}/")], cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                     encoding="utf-8", env={**os.environ, "PATH": f"{place / 'bin'}:{os.environ['PATH']}"})
                self.assertEqual(run.returncode, 0, f"{document}: {command}\n{run.stderr}")
                printed += run.stdout
        return printed

    def test_readme(self):
        printed = self.run_commands("README.md", whole=True).splitlines()
        for line in (line for block in blocks("README.md", "text") for line in block):
            self.assertIn(line, printed)

    def test_findings(self):
        self.run_commands("analysis/eviction/FINDINGS.md")

    def test_commands(self):
        self.run_commands("analysis/commands/COMMANDS.md")

    def test_comparing(self):
        self.run_commands("analysis/results/COMPARING.md")

    def test_machines(self):
        self.run_commands("analysis/run/MACHINES.md")


if __name__ == "__main__":
    if not PROGRAM:
        print("SKIPPED, nothing was tested: KVREPLAY names no kvreplay", file=sys.stderr)
        sys.exit(77)
    unittest.main()
