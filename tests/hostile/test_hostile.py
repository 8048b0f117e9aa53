"""The harness on trial: programs that misbehave in one known way, each of which must get its verdict."""

import contextlib
import functools
import io
import sys
import tempfile
import unittest
from pathlib import Path

import hostile
import tree
from judge import Expect, Verdict
from process import Conditions
from trial import Bench, Case, Trial

SOUND = {"summary.json": b"{}", "files.csv": b"name,bytes,xxh3\nheads.csv,4,0\n", "heads.csv": b"a,b\n"}
WRITES = ("mkdir -p out && printf {} > out/summary.json && "
          "printf 'name,bytes,xxh3\\nheads.csv,4,0\\n' > out/files.csv && ")

# what the program does -> (verdict, a part of the reason); every one is told to write SOUND to out
PROGRAMS = {
    "writes what it should": (WRITES + "printf 'a,b\\n' > out/heads.csv", "OK", ""),
    "refuses in one line": ("echo 'kvreplay: input: expected a dump, found none' >&2; exit 2", "OK",
                            ""), "says nothing": ("exit 2", "POOR", "without a word"),
    "says too much": ("printf 'input: one thing\\nand another\\n' >&2; exit 2", "POOR",
                      "2 lines"), "does not end its line": ("head -c 700 /dev/zero | tr '\\0' x >&2; exit 2", "POOR",
                                                            "700 characters"),
    "steers the terminal": ("printf 'the input is \\033[31mred\\n' >&2; exit 2", "POOR", "U+001B"),
    "speaks no UTF-8": ("printf 'the input is \\377\\n' >&2; exit 2", "POOR",
                        "no UTF-8"), "gives no hint": ("echo 'something has gone wrong somewhere' >&2; exit 2", "POOR",
                                                       "no hint at input"),
    "writes other figures": (WRITES + "printf 'a,c\\n' > out/heads.csv", "WRONG",
                             "heads.csv differs"), "forgets a file": (WRITES + "true", "WRONG", "heads.csv is missing"),
    "leaves its temporary file": (WRITES + "printf 'a,b\\n' | tee out/tmp > out/heads.csv", "WRONG",
                                  "tmp is one too many"),
    "fails but leaves it as finished": (WRITES + "echo 'input: expected more, found less' >&2; exit 2", "WRONG",
                                        "left as finished"),
    "removes a file of somebody else": (WRITES + "printf 'a,b\\n' > out/heads.csv; rm canary.npy", "WRONG",
                                        "canary.npy"),
    "changes a file of somebody else": (WRITES + "printf 'a,b\\n' > out/heads.csv; echo >> canary_folder/file", "WRONG",
                                        "canary_folder"),
    "changes its input": (WRITES + "printf 'a,b\\n' > out/heads.csv; echo > input/k.npy", "WRONG", "input/k.npy"),
    "takes memory without end": (f"exec {sys.executable} -c 'bytearray(1200 << 20)'", "WRONG", "MiB of memory"),
    "dies of a signal": ("kill -SEGV $$", "CRASH", "SIGSEGV"), "dies of a check": ("kill -ABRT $$", "CRASH", "SIGABRT"),
    "ends as nobody documented": ("exit 3", "CRASH",
                                  "exit status 3"), "finds a difference where nothing is checked": ("exit 1", "CRASH",
                                                                                                    "exit status 1"),
    "hangs": ("sleep 60", "CRASH", "no end within"), "hangs in a child": ("sleep 60 & wait", "CRASH", "no end within"),
}


def program(folder: Path, text: str) -> Path:
    """A shell script under the program's name."""
    path = folder / "kvreplay"
    path.write_text("#!/bin/sh\n" + text + "\n")
    path.chmod(0o755)
    return path


def ordinary(trial, expected=Expect.SAME):
    """A run that reads `input` and is to write SOUND to `out`."""
    trial.put({"k.npy": b"numbers"}, "input")
    trial.guard(trial.root / "input")
    want_at = trial.place / "want"
    tree.write(SOUND, want_at)
    trial.expect(expected, "tokens", "input", "--out", "out", out="out", want=tree.digest(want_at), about=("input",))


def run_info(*words, expected=Expect.EITHER, command="info", **more):
    """A run that writes no folder; the trial is the last word."""
    *options, trial = words
    trial.expect(expected, command, "input", *options, **more)


class Verdicts(unittest.TestCase):
    """One case a program."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="hostile-test-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def verdict(self, text: str, act=ordinary):
        """Of a program that does what text says; what sleeps is given less time than it would take."""
        patience = 1.0 if "sleep" in text else 300.0
        trial = Trial(Bench(program(self.folder, text), self.folder, patience=patience), "case")
        act(trial)
        trial.close()
        return trial.verdict.name, trial.why

    def test_every_way_to_misbehave(self):
        for name, (text, verdict, why) in PROGRAMS.items():
            with self.subTest(name):
                found, said = self.verdict(text)
                self.assertEqual(found, verdict, said)
                self.assertIn(why, said)

    def test_what_must_be_refused(self):
        found = self.verdict(PROGRAMS["writes what it should"][0], functools.partial(ordinary, expected=Expect.REFUSED))
        self.assertEqual(found, ("WRONG", "accepted"))

    def test_what_must_be_accepted(self):
        found, why = self.verdict(PROGRAMS["refuses in one line"][0],
                                  functools.partial(ordinary, expected=Expect.ACCEPTED))
        self.assertEqual((found, why[:8]), ("WRONG", "refused:"))

    def test_a_finished_folder_by_its_own_account(self):
        either = functools.partial(ordinary, expected=Expect.EITHER)
        self.assertEqual(self.verdict(WRITES + "printf 'a,c\\n' > out/heads.csv", either)[0], "OK")
        self.assertEqual(self.verdict(WRITES + "printf 'a' > out/heads.csv", either)[0], "WRONG")
        self.assertEqual(self.verdict(WRITES + "printf '-inf' > out/heads.csv", either)[0], "WRONG")

    def test_verify_may_find_a_difference(self):
        self.assertEqual(self.verdict("exit 1", functools.partial(run_info, command="verify"))[0], "OK")

    def test_words_of_a_run_without_results(self):
        act = functools.partial(run_info, expected=Expect.SAME, want=b"6 layers\n")
        self.assertEqual(self.verdict("echo 6 layers", act)[0], "OK")
        self.assertEqual(self.verdict("echo 7 layers", act)[0], "WRONG")

    def test_json_has_no_nan(self):
        act = functools.partial(run_info, "--json")
        self.assertEqual(self.verdict("echo '{\"a\": 1}'", act)[0], "OK")
        self.assertEqual(self.verdict("echo '{\"a\": NaN}'", act)[0], "WRONG")

    def test_nothing_is_expected_of_streams_that_are_gone(self):
        deaf = Conditions(streams={1: "/dev/full", 2: "/dev/full"})
        act = functools.partial(run_info, expected=Expect.REFUSED, conditions=deaf)
        self.assertEqual(self.verdict("exit 2", act)[0], "OK")
        self.assertEqual(self.verdict("exit 0", act)[0], "WRONG")


class WholeRuns(unittest.TestCase):
    """The command line of the harness, with a family of two cases."""

    def run_with(self, text: str):
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(program(Path(folder), text), Path(folder))
            cases = [Case("family/first", ordinary), Case("family/second", ordinary)]
            return hostile.try_all(bench, cases, 2, None, False)

    def test_the_table_counts_and_a_crash_fails(self):
        results = self.run_with("kill -SEGV $$")
        self.assertEqual([verdict for _, verdict, *_ in results], [Verdict.CRASH] * 2)
        self.assertRegex(hostile.table(results), r"family +0 +0 +0 +2 +2\nall +0 +0 +0 +2 +2")
        self.assertEqual(self.exit_status(results), 1)

    def test_what_is_poor_does_not_fail(self):
        results = self.run_with("exit 2")
        self.assertEqual(self.exit_status(results), 0)

    def test_a_fault_of_the_harness_fails(self):
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(Path("/nonexistent"), Path(folder))
            results = hostile.try_all(bench, [Case("family/first", ordinary)], 1, None, False)
        self.assertEqual(self.exit_status(results), 1)

    def test_a_selection_has_all_families(self):
        cases = [Case(f"{family}/{i}", ordinary) for family, count in (("a", 5), ("b", 900)) for i in range(count)]
        picked = hostile.chosen(cases, 50, seed=1)
        self.assertEqual({case.family for case in picked}, {"a", "b"})
        self.assertLessEqual(len(picked), 51)
        self.assertEqual(picked, hostile.chosen(cases, 50, seed=1))

    def test_a_selection_has_what_was_mended(self):
        was_wrong = sorted(case_id for case_id in hostile.mended.CASES if case_id.startswith("limits/"))
        cases = [Case(f"limits/{i}", ordinary) for i in range(900)] + [Case(name, ordinary) for name in was_wrong]
        for seed in 1, 2:
            picked = [case.id for case in hostile.chosen(cases, 50, seed)]
            self.assertLessEqual(set(was_wrong), set(picked))
            self.assertEqual(len(picked), 50)

    @staticmethod
    def exit_status(results) -> int:
        with contextlib.redirect_stdout(io.StringIO()):
            return hostile.report(results, seed=1, talkative=False)


if __name__ == "__main__":
    unittest.main()
