#!/usr/bin/env python3
"""Reports of missing packages, and the tested versions of transformers.

  python3 tests/capture/test_packages.py
"""
import re
import sys
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "data" / "capture"))
sys.path.insert(1, str(ROOT / "tests" / "research"))
import llama_capture  # noqa: E402
import packages  # noqa: E402
from dump_files import CaptureError  # noqa: E402

PAGES = "data/DUMP-FORMAT.md", "data/capture/kvcapture.py", "data/capture/kvvalidate.py", "data/capture/README.md"


class Packages(unittest.TestCase):
    def refused(self, pattern, *arguments):
        with self.assertRaisesRegex(CaptureError, pattern):
            packages.require_packages(*arguments)

    def test_all_that_is_missing_is_one_line(self):
        packages.require_packages(["json", "csv"])
        self.refused(r"^packages: expected no_such_one \(pip install no_such_one\), found none$", ["json", "no_such_one"])
        self.refused(r"^packages: expected no_such_one, nor_this \(pip install no_such_one nor_this\), found none of them$",
                     ["no_such_one", "nor_this", "no_such_one"])

    def test_what_cannot_be_imported(self):
        with mock.patch.object(packages.importlib.metadata, "version", return_value="4.40.1"):
            self.refused(r"^packages: expected transformers 5\.2 to \d.*, found transformers 4\.40\.1: cannot import name 'X'$",
                         ["json"], "cannot import name 'X'")

    def test_versions_beyond_those_that_are_tested(self):
        oldest, newest = packages.TESTED
        self.assertLess(packages.release(oldest), packages.release(newest))
        for version in (oldest, newest, f"{newest}.7", f"{newest}.0.dev0", "5.2.0"):
            self.assertEqual(packages.version_note(version), "")
        major, minor = packages.release(newest)
        self.assertRegex(packages.version_note(f"{major}.{minor + 1}.0"), f"is newer than what was tested, {oldest} to {newest}")
        self.assertRegex(packages.version_note("4.9.2"), "is older than what was tested")

    def test_the_pages_name_these_versions(self):
        for page in PAGES:
            text = (ROOT / page).read_text(encoding="utf-8")
            self.assertTrue("{} to {}".format(*packages.TESTED) in " ".join(text.split()), page)
            self.assertFalse(re.search(r"transformers\s+\d\.\d+ or later", text), page)

    def test_the_pinned_version_is_one_of_them(self):
        pinned = re.search(r"(?m)^transformers==(.*)$", (ROOT / "data/capture/requirements.txt").read_text(encoding="utf-8"))[1]
        self.assertEqual(packages.version_note(pinned), "")

    def test_the_two_captures_of_a_gguf_file(self):
        """The tables of README.md that compare them are the CSV files'."""
        page = (ROOT / PAGES[-1]).read_text(encoding="utf-8")
        for name, table in (("llama", llama_capture.llama_table(llama_capture.read(llama_capture.RECORD))),
                            ("llama formats", llama_capture.formats_table(llama_capture.read(llama_capture.FORMATS)))):
            self.assertEqual(re.search(f"<!-- {name} -->\n(.*?)\n<!-- end -->", page, re.DOTALL)[1], table)


if __name__ == "__main__":
    unittest.main()
