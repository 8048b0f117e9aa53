#!/usr/bin/env python3
"""The paper (paper/paper.md): its length, its references, and that every interval in it and in README.md stands in a page that is held
against its table.

  python3 tests/research/test_paper.py
"""
import re
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PAPER = (HERE / "paper/paper.md").read_text(encoding="utf-8").split("\n---\n", 1)[1]
REFERENCES = (HERE / "paper/paper.bib").read_text(encoding="utf-8")
INTERVAL = re.compile(r"\[-?[\d.]+, -?[\d.]+\]")


class Paper(unittest.TestCase):
    def test_has_the_length_that_joss_asks_for(self):
        self.assertTrue(750 <= len(PAPER.split()) <= 1750, len(PAPER.split()))

    def test_has_the_sections(self):
        found = re.findall(r"^# (.*)$", PAPER, re.M)
        for section in "Summary", "Statement of need", "State of the field", "Software design", "Research impact statement", "References":
            self.assertIn(section, found)

    def test_every_reference_is_cited_and_has_its_doi(self):
        entries = dict(re.findall(r"^@\w+\{(\w+),\n(.*?)^\}", REFERENCES, re.M | re.S))
        self.assertEqual(sorted(set(re.findall(r"@(\w+)", PAPER))), sorted(entries))
        for key, entry in entries.items():
            self.assertRegex(entry, r"doi = \{10\.\d{4,}/\S+\}", key)

    def test_every_interval_stands_in_a_page(self):
        pages = [ROOT / "analysis/PAPERS.md", ROOT / "analysis/eviction/COMPENSATED.md", ROOT / "sim/cache/CURES.md", *HERE.glob("*.md")]
        known = {interval for page in pages for interval in INTERVAL.findall(page.read_text(encoding="utf-8"))}
        for page, fewest in (PAPER, 15), ((ROOT / "README.md").read_text(encoding="utf-8"), 5):
            said = INTERVAL.findall(page)
            self.assertGreater(len(said), fewest)
            for interval in said:
                self.assertIn(interval, known)


if __name__ == "__main__":
    unittest.main()
