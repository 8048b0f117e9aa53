"""kvresults on damaged result folders: every kind of file with every damage is refused in one line, or read as it was.

  KVREPLAY=build/release/bin/kvreplay python3 tests/capture/test_damaged_results.py

Needs pandas (without: nothing is tested, exit status 77).
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DUMP = ROOT / "data/samples/pystdlib-lm"
PROGRAM = os.environ.get("KVREPLAY")
sys.path.insert(0, str(ROOT / "data/capture"))
sys.dont_write_bytecode = True

sys.path.insert(0, str(ROOT / "tests/hostile"))

import damage  # noqa: E402
from damage import damaged  # noqa: E402

try:
    import numpy as np
    import pandas as pd
    import xxhash  # noqa: F401  other bytes of the same size are found by it

    import kvresults
    from kvresults import ResultsError, open_results
except ImportError as error:
    if error.name not in ("numpy", "pandas", "xxhash"):
        raise
    MISSING = f"needs {error.name}"
else:
    MISSING = "" if PROGRAM else "KVREPLAY names no kvreplay"

# Together they write every kind of file; {dumps} are two.
RUNS = {
    "tokens": "tokens {dump} --layers 1,4 --metrics attn,exact_remove",
    "evict": "evict {dump} --layers 1,4 --policy h2o --phase prefill,decode --diff paper,kvpress --budget 448",
    "budget": "budget {dump} --layers 1,4 --order snapkv --method uniform,lu --sigma 0.5",
    "channels": "channels {dump} --layers 1 --method think --ratio 0.5",
    "over": "tokens {dump} {other} --layers 1 --metrics attn,exact_remove",
}
KINDS = ("tokens", "kept", "diff", "channels", "maps", "curves", "decode")
WRONG = (
    "missing",
    None,
    True,
    -1,
    0,
    2.5,
    2**70,
    float("nan"),
    "../..",
    "\x1b[2J" * 9999,
    [],
    {},
    [0, 0],
    [["a"]],
    [2**70],
    {"name": 1},
)
NOTABLE = ("cut-1", "flip-70%", "twice", "removed", "pipe", "folder", "link-to-nothing", "link-to-zero", "enormous")


def named(folder, name):
    """What a file of a folder says, in the way that a user asks for it."""
    results, parts = open_results(folder), Path(name).parts
    if parts[0] == "head_budgets":
        return results.head_budgets(*Path(name).stem.rsplit("-", 2)).values
    if len(parts) > 1:
        layer = int(parts[0][6:]) if parts[0].startswith("layer_") else None
        return results.array(parts[-2], Path(name).stem, layer).values
    if name == "budget_curves.npy":
        return results.budget_curves().values
    if name == "dumps.csv":
        return results.dump_list
    if name.endswith(".csv") and name != "files.csv":
        return results.table(name[:-4])
    return results.run if name == "run.json" else everything(folder)


def everything(folder):
    """Of each kind the first array, all tables, and all else that is not a figure."""
    results = open_results(folder)
    found = [repr(results), results.run, *(results.table(name) for name in results.tables)]
    if isinstance(results, kvresults.ResultsOverDumps):
        return [*found, results.dump_list, *map(repr, results.dumps.values())]
    for kind in {kind for kind in KINDS if list(folder.glob(f"**/{kind}"))}:
        found.append(results.array(kind, results.names(kind)[0]).values)
    return found


def equal(one, other):
    if isinstance(one, pd.DataFrame):
        return one.equals(other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other


@unittest.skipIf(MISSING, MISSING)
class DamagedResultsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        place = tempfile.TemporaryDirectory(prefix="kvresults-")
        cls.addClassCleanup(place.cleanup)
        cls.work = Path(place.name)
        shutil.copytree(DUMP, cls.work / "other")
        for name, line in RUNS.items():
            command = line.format(dump=DUMP, other=cls.work / "other").split()
            subprocess.run([PROGRAM, *command, "--out", cls.work / name, "--backend", "cpu", "--quiet"], check=True)

    def setUp(self):
        warnings.simplefilter("error")
        self.addCleanup(warnings.resetwarnings)
        self.cases = 0

    def result(self, call, *arguments):
        """What a call gives, or None where it refuses, as it has to: one line that a terminal can show."""
        self.cases += 1
        try:
            return call(*arguments)
        except ResultsError as error:
            line = str(error)
            self.assertTrue(line.isprintable() and 10 < len(line) < 2500, line)
            return None

    def files(self, folder, all_arrays):
        """The tables and JSON files, and the arrays, or of each kind of them the first."""
        files, kinds = [], set()
        for path in sorted(folder.rglob("*")):
            if folder.name == "over" and path.parent != folder or path.suffix not in (".npy", ".csv", ".json"):
                continue
            if path.suffix == ".npy" and not all_arrays and path.parent.name in kinds:
                continue
            kinds.add(path.parent.name)
            files.append(path)
        return files

    def test_a_file_that_the_run_recorded_is_read_as_it_was_or_not_at_all(self):
        for name in RUNS:
            folder = self.work / name
            for path in self.files(folder, all_arrays=True):
                relative = path.relative_to(folder).as_posix()
                whole = named(folder, relative)
                damages = damage.all_of(path)
                for key in NOTABLE:
                    with self.subTest(f"{name}/{relative}: {key}"), damaged(path, damages[key]):
                        found = self.result(named, folder, relative)
                        if path.name not in ("summary.json", "run.json", "files.csv"):
                            self.assertIsNone(found)
                self.assertTrue(equal(named(folder, relative), whole))
        self.assertGreater(self.cases, 500)

    def test_without_the_record(self):
        """As results were before there was one: every damage is refused, or is one that the file does not show."""
        for name in RUNS:
            folder = self.work / "unrecorded" / name
            shutil.copytree(self.work / name, folder)
            (folder / "files.csv").unlink()
            for path in self.files(folder, all_arrays=False):
                relative = path.relative_to(folder).as_posix()
                whole = named(folder, relative)
                self.assertTrue(equal(whole, named(self.work / name, relative)) or path.suffix == ".json")
                for key, make in damage.all_of(path).items():
                    with self.subTest(f"{name}/{relative}: {key}"), damaged(path, make):
                        found = self.result(named, folder, relative)
                        if (path.suffix == ".npy" or key in NOTABLE) and not key.startswith("flip"):
                            self.assertIsNone(found)
        self.assertGreater(self.cases, 500)

    def test_every_member_of_the_summary(self):
        """Each with every wrong value, and missing."""
        for name in ("tokens", "over"):
            path = self.work / name / "summary.json"
            summary = json.loads(path.read_text(encoding="utf-8"))
            objects = [summary, summary["totals"], summary["dump"] if "dump" in summary else summary["dumps"][0]]
            for inner, key in [(inner, key) for inner in objects for key in inner]:
                kept = inner[key]
                for number, value in enumerate(WRONG):
                    inner[key] = value
                    if value == "missing":
                        del inner[key]
                    text = json.dumps(summary)
                    inner[key] = kept
                    with (
                        self.subTest(f"{name}: {key}", number=number),
                        damaged(path, text.encode()),
                    ):
                        self.result(everything, self.work / name)
        self.assertGreater(self.cases, 300)

    def test_the_tokens_of_the_dump(self):
        path = self.work / "other" / "tokens.json"
        for key, make in damage.all_of(path).items():
            with self.subTest(key), damaged(path, make):
                found = self.result(open_results, self.work / "tokens", path.parent)
                self.assertTrue(found is None or key.startswith("flip") or key == "longer-line")

    def test_a_link_to_what_was_written_is_read(self):
        """As large files are kept elsewhere."""
        results = self.work / "linked"
        shutil.copytree(self.work / "tokens", results)
        for path in [path for path in results.rglob("*") if path.is_file()]:
            path.rename(self.work / "store")
            shutil.move(
                self.work / "store",
                store := self.work / f"store-{path.relative_to(results).as_posix().replace('/', '-')}",
            )
            path.symlink_to(store)
        self.assertTrue(equal(everything(results)[1:], everything(self.work / "tokens")[1:]))

    def test_names_are_shown_on_one_short_line(self):
        results = open_results(self.work / "tokens")
        odd = ["\x1b[2J\n\r\0", "x" * 100_000, "../../tokens/attn", "/etc/passwd", "\udcff", "\u202egnp", "", "."]
        for name in odd:
            for call in (
                lambda: results.tokens(name),
                lambda: results.table(name),
                lambda: results.maps(name),
                lambda: results.names(name),
                lambda: results.table("heads", name),
                lambda: open_results(name + "\x1b"),
                lambda: results.array(name, name),
                lambda: open_results(self.work / "tokens", name + "\x1b"),
                lambda: results.tokens("attn", name),
            ):
                with self.subTest(repr(name[:20])):
                    self.assertIsNone(self.result(call))

    def test_what_there_is_instead_is_named(self):
        results = open_results(self.work / "tokens")
        for call, pattern in (
            (lambda: results.tokens("qqq"), "no qqq.npy of tokens; there are attn, exact_remove$"),
            (lambda: results.tokens("atn"), "near: attn$"),
            (lambda: results.tokens("attn", 2), "computed were 1, 4$"),
            (lambda: results.table("scores"), "no command writes it; there are heads, agreement$"),
            (lambda: results.table("heads", "token"), "expected head, layer, model or median head$"),
            (lambda: results.names("token"), "expected tokens, kept, read, last_rows, pruned, diff, channels, key_costs, maps, curves, decode, decode_tokens$"),
            (
                lambda: open_results(self.work / "over").table("heads"),
                "there are heads_over_dumps, agreement_over_dumps$",
            ),
        ):
            with self.assertRaisesRegex(ResultsError, pattern):
                call()
        self.assertRegex(
            kvresults._alternatives("?", [f"{i:03}" for i in range(99)]), "there are 000, 001, .*, 019 and 79 more$"
        )


if __name__ == "__main__":
    if MISSING:
        print(f"SKIPPED, nothing was tested: {MISSING}", file=sys.stderr)
        sys.exit(77)
    unittest.main()
