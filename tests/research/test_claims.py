#!/usr/bin/env python3
"""The page's tables are what the committed effects come to, statistics are those of the books, and a run on several dumps agrees with its
report. The program's part is left out where KVREPLAY does not name it."""

import math
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import claims  # noqa: E402
import effects  # noqa: E402


class Page(unittest.TestCase):
    def test_its_tables_are_what_the_committed_effects_come_to(self):
        page = (HERE / "CLAIMS.md").read_text(encoding="utf-8")
        marked = re.findall(r"<!-- claims -->\n(.*?)\n<!-- end -->", page, re.DOTALL)
        self.assertEqual(marked, [effects.page(HERE)])

    def test_every_effect_has_its_sentence_and_stands_once(self):
        sentences, found = effects.saved(HERE)
        self.assertEqual({row["id"] for row in found}, set(sentences))
        places = [(row["model"], row["prompt"], row["id"], row["setting"]) for row in found]
        self.assertEqual(len(places), len(set(places)))
        for row in found:
            self.assertTrue(math.isfinite(float(row["effect"])), row)


class Statistics(unittest.TestCase):
    def test_ratios_are_averaged_by_their_logarithms(self):
        found = effects.Summary("ratio < 1", [0.5, 0.25, 0.25, 0.125])
        half = 3.182446305284263 * math.log(2) * math.sqrt(2 / 3) / 2
        self.assertAlmostEqual(found.effect, 0.25)
        self.assertAlmostEqual(found.low, 0.25 * math.exp(-half), places=6)
        self.assertEqual(found.cell(), "0.25 [0.102, 0.615] **holds**")
        turned = effects.Summary("ratio < 1", [8, 4, 4, 2])
        self.assertAlmostEqual(turned.high, 1 / found.low, places=6)

    def test_correlations_stay_correlations(self):
        found = effects.Summary("correlation > 0.95", [0.99, 0.97, 0.9999, 0.98])
        self.assertAlmostEqual(found.effect, math.tanh(sum(map(math.atanh, (0.99, 0.97, 0.9999, 0.98))) / 4))
        self.assertTrue(0 < found.low < found.effect < found.high < 1)
        self.assertEqual(effects.Summary("correlation > 0.95", [1, 1, 0.7, 0.7]).high, 1)  # which has no z

    def test_fewer_than_four_prompts_have_no_interval(self):
        for values in ([0.5], [0.5, 0.5, 0.5]):
            found = effects.Summary("ratio < 1", values)
            self.assertTrue(math.isnan(found.low))
            self.assertEqual((found.verdict, found.cell()), ("", "0.5"))

    def test_verdicts_are_where_the_interval_lies(self):
        for claimed, low, high, verdict in (("ratio < 1", 0.7, 0.9, "holds"), ("ratio < 1", 1.01, 1.2, "does not hold"),
                                            ("ratio < 1", 0.95, 1.031, "no difference at this size (up to 5 %)"),
                                            ("ratio < 1", 0.59, 1.39, "undecided: between 0.59 and 1.39"),
                                            ("ratio < 1.001", 1.0001, 1.0007, "holds"),
                                            ("difference > 0", -0.01, 0.02, "no difference at this size (up to 0.02)"),
                                            ("difference > -0.025", -0.02, 0.5, "holds"),
                                            ("correlation > 0.95", 0.2, 0.5, "does not hold")):
            found = effects.Summary(claimed, [0.5] * 4)
            found.low, found.high = low, high
            self.assertEqual(found.verdict, verdict)


@unittest.skipUnless("KVREPLAY" in os.environ, "KVREPLAY names no program")
class Run(unittest.TestCase):
    def test_four_dumps_are_four_prompts_and_two_models_two_columns(self):
        program = os.environ["KVREPLAY"]
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            dumps = []
            for seed in (1, 2, 3, 4, 5):
                dump = folder / f"d{seed}"
                subprocess.run([program, "synth", dump, "--seed", str(seed), "--prompt", "150", "--decode", "8", "--head-dim", "8",
                                *(["--layers", "1"] if seed == 5 else [])], check=True, stdout=subprocess.DEVNULL)
                manifest = dump / "manifest.json"
                text = manifest.read_text(encoding="utf-8")
                name = "other" if seed == 5 else f"one / prompt {seed}"
                manifest.write_text(re.sub(r'"model": *"[^"]*"', f'"model": "{name}"', text), encoding="utf-8")
                dumps.append(dump)
            done = subprocess.run([sys.executable, HERE / "claims.py", "--program", program, "--work", folder / "work", *dumps],
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("| claim | setting | one (4 prompts) | other (1 prompt) |", done.stdout)
            self.assertIn("20 reserved - 0 reserved, attn", done.stdout)
            self.assertRegex(done.stdout, r"\| \d[.\d]* \[[.\d]+, [.\d]+\] (\*\*|no|un)")
            self.assertEqual(len(re.findall(r"kvreplay evict .*d1 .*d2 .*d3 .*d4 ", done.stderr)), 4)

    def test_what_is_no_dump_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([sys.executable, HERE / "claims.py", folder], capture_output=True, text=True)
            self.assertNotEqual(done.returncode, 0)
            self.assertEqual(len(done.stderr.splitlines()), 1)
            self.assertIn("expected a dump that names its model", done.stderr)


class Check(unittest.TestCase):
    def test_a_report_that_says_something_else_is_not_believed(self):
        row = dict(id="x", setting="s", claimed="ratio < 1", effect="0.5", low="", high="", verdict="", by_prompt={"a": 0.5})
        claims.check(row)
        for name, value in (("effect", "0.6"), ("low", "0.4"), ("verdict", "holds")):
            with self.assertRaises(SystemExit):
                claims.check({**row, name: value})


if __name__ == "__main__":
    unittest.main()
