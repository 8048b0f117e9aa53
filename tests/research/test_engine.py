#!/usr/bin/env python3
"""engine.py compares a record of llama.cpp with what kvvalidate.py says, and says in one line why it cannot."""
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace

try:
    import numpy as np
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "data" / "capture")]

import engine  # noqa: E402


def row(prompt, in_engine, written, **more):
    return {"engine": "b1", "model": "m", "weights": "float32", "prompt": prompt, "tokens": "600", "steps": "128", "keys": "q4_0", "values": "f16", "rotated": "1",
            "engine_kl": str(in_engine), "written_kl": str(written), "engine_same_top1": "0.9", "written_same_top1": "0.9", **more}


class Comparison(unittest.TestCase):
    def test_near_is_a_fifth_or_two_thousandths_of_a_nat(self):
        for in_engine, written, near in ((1, 1.19, True), (1, 1.21, False), (1.21, 1, False), (1.19, 1, True), (0.001, 0.0029, True),
                                         (0.001, 0.0031, False)):
            self.assertEqual(engine.near(row("a", in_engine, written)), near, (in_engine, written))
        self.assertFalse(engine.near(row("a", 1, "")))

    def test_a_cell_has_geometric_means_and_a_ratio(self):
        some = [row("a", 0.1, 0.2), row("b", 0.4, 0.4)]
        self.assertEqual(engine.cell(some), "0.2; 1.4 times")
        self.assertEqual(engine.cell([row("a", 0.1, 0.2), row("b", 0.4, "")]), "0.2")
        self.assertRegex(engine.cell([*some, row("c", 0.1, 0.2), row("d", 0.4, 0.4)]), r"\A0.2 \[0.0\d+, 0.\d+\]; 1.4 \[\d.\d+, \d.\d+\] times\Z")
        self.assertIn("Within 20 % or 0.002 nats: m keys 1 of 2.", engine.tables([row("a", 1, 1.1), row("b", 1, 2)])["engine"])

    def test_the_files_own_weights_count_where_there_are_no_others(self):
        found = engine.tables([row("a", 1, 1, weights="file"), row("a", 2, 2)])["engine"]
        self.assertIn("| keys in `q4_0` | yes | 2; 1 times |", found)
        floor = {"keys": "f16", "rotated": "-"}
        found = engine.tables([row("a", 1, 1, weights="file"), row("a", 0.5, "", weights="file", **floor), row("b", 3, 3, model="n")])["engine"]
        self.assertIn("| yes | 1; 1 times | 3; 1 times |", found)
        self.assertTrue(found.endswith("over 16 bits with it: m, weights in their own bits, 0.5 nats."), found)

    def test_the_committed_record_is_the_page(self):
        rows = engine.read(HERE / "engine.csv")
        page = engine.PAGE.read_text(encoding="utf-8")
        self.assertEqual(re.findall(r"<!-- (engine) -->\n(.*?)\n<!-- end -->", page, re.DOTALL), [*engine.tables(rows).items()])
        keys = [tuple(row[name] for name in engine.KEY) for row in rows]
        self.assertEqual(len(keys), len(set(keys)))
        for found in rows:
            self.assertTrue(all(np.isfinite(float(found[name] or 0)) for name in ("engine_kl", "written_kl")), found)

    def test_a_format_is_rotated_as_llama_cpp_does(self):
        try:
            from number_formats import Stored
        except ImportError as missing:
            self.skipTest(missing)
        for d, turned in ((64, (64, 64)), (128, (128, 64)), (192, (64, 64)), (80, (0, 0))):
            head = np.zeros((2, 5, d))
            layer = SimpleNamespace(k=head, v=head)
            self.assertEqual(engine.stored_as(("q4_0", "q8_0", "1"), layer), Stored("q4_0", "q8_0", turned=turned, residual=0))
            self.assertEqual(engine.stored_as(("q4_0", "f16", "1"), layer).turned[1], 0)
            self.assertEqual(engine.stored_as(("f16", "q8_0", "0"), layer), Stored("16", "q8_0", residual=0))


class Skipped(unittest.TestCase):
    def test_without_llama_cpp_it_ends_in_one_line(self):
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "kvreplay"
            for text in (None, "#!/bin/sh\necho capture: this build has no llama.cpp >&2\nexit 2\n"):
                if text:
                    program.write_text(text)
                    program.chmod(0o755)
                command = [sys.executable, HERE / "engine.py", "--model", "m=none.gguf", "--work", folder, "--out", folder, "--program", program]
                done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, text=True)
                self.assertEqual(done.returncode, 77)
                self.assertRegex(done.stdout, r"\Aengine: skipped: expected a kvreplay that was built with llama.cpp .*, found .*\n\Z")


if __name__ == "__main__":
    unittest.main()
