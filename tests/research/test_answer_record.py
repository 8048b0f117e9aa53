#!/usr/bin/env python3
"""The record of answers: its tables of cases made by hand."""
import sys
import tempfile
import unittest
from pathlib import Path

try:
    import numpy as np  # noqa: F401
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import answer_record  # noqa: E402
from study import write_csv  # noqa: E402


def case(sample, policy, right, kl, protocol="aware", model="m"):
    return {"model": model, "task": "vt", "sample": sample, "protocol": protocol, "policy": policy, "budget": "0.8", "right": right,
            "score": right, "kl_answer": kl, "output_error": 1 - kl}


class Tables(unittest.TestCase):
    def tables(self, rows):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_csv(folder / "answers.csv", answer_record.COLUMNS, rows)
            write_csv(folder / "asked.csv", answer_record.ASKED_COLUMNS,
                      [{"model": "m", "task": "vt", "sample": i, "tokens": 100, "right": int(i < 3)} for i in range(4)])
            return answer_record.tables(folder)

    def test_of_a_few_cases(self):
        found = self.tables([*(case(i, "snapkv", int(i == 0), (0.01, 0.5, 0.7)[i]) for i in range(3)),
                             *(case(i, "h2o", 1, 0.02 + 0.01 * i) for i in range(3)), case(0, "quest", "", 0.9), case(1, "quest", 1, 0)])
        self.assertIn("| `vt` | 3 of 4 |", found["answers asked"])
        self.assertIn("| `snapkv` | 0.8 | 33 [6, 79] |  |", found["answers aware"])
        self.assertIn("| `h2o` | 0.8 | 100 [44, 100] | +2 -0, p = 0.5 |", found["answers aware"])
        self.assertNotIn("quest", found["answers aware"])  # nobody knows whether it answers
        self.assertIn("| `snapkv` | 0.8 | 1 of 3 |", found["answers aware tasks"])
        self.assertIn("| m | `kl_answer` | 1.00 [1.00, 1.00] | 0.12 [0.00, 0.20] | 1.00 [1.00, 1.00] | 0.5 (4 of 6 cases) |", found["answers aware foreseen"])
        self.assertIn("| m | `output_error` | 0.00 [0.00, 0.00] | -0.88 [-1.00, -0.80] | 0.00 [0.00, 0.00] | 0.3 (0 of 6 cases) |",
                      found["answers aware foreseen"])
        self.assertIn("| m | flips of other samples, no dump | 0.75 ", found["answers aware foreseen"])
        self.assertIn("| m |  |  |  | 2 of 2 | 2 of 2 |  | 0 of 2 |  |", found["answers aware nats"])
        self.assertNotIn("answers agnostic", found)

    def test_pairs_of_methods(self):
        rows = [*(case(i, "a", int(i < 8), 0.1) for i in range(9)), *(case(i, "b", int(i < 1), 0.1) for i in range(9)),
                *(case(i, "c", int(i < 7), 0.1) for i in range(9)), case(0, "quest", "", 0.1)]
        pairs = [("a", "b"), ("b", "a"), ("c", "a"), ("quest", "a"), ("nobody", "a")]
        found = answer_record.pairs_table(rows, pairs).splitlines()
        self.assertEqual(found[0], "| right answers of 9 | model | question | 0.8 evicted |")
        self.assertEqual(found[2:], ["| `a` over `b` | m | seen | **1 to 8 (+7 -0, p = 0.016)** |",
                                     "| `b` over `a` | m | seen | **8 to 1 (+0 -7, p = 0.016)** |",
                                     "| `c` over `a` | m | seen | 8 to 7 (+0 -1, p = 1) |"])
        self.assertEqual(answer_record.pairs_cells(rows, pairs), "m, question seen 1 / 1 / 1")
        self.assertEqual(answer_record.pairs_cells(rows, pairs[3:]), "not measured yet")
        # One family of tests, whose number p is corrected for.
        self.assertEqual(answer_record.pairs_cells(rows + [case(i, f"c{n}", int(i < 7), 0.1) for n in range(4) for i in range(9)],
                                                   [("a", "b"), *((f"c{n}", "a") for n in range(4))]), "m, question seen 0 / 0 / 5")

    def test_every_answer_counts_once(self):
        rows = [case(0, "a", "1", 0.0005), case(0, "a", "1", 0.0006), case(1, "a", "0", 0.0007), case(1, "b", "0", 0.5)]
        self.assertIn("| m | 1 of 2 | 0 of 0 | 0 of 0 | 1 of 1 | 2 of 3 |", answer_record.levels_table(rows))

    def test_tasks_that_were_measured_stay_where_others_are_gathered(self):
        old = [case(0, "a", 1, 0.1), case(0, "a", 1, 0.1) | {"task": "fwe"}, case(0, "a", 1, 0.1, model="n")]
        new = [case(1, "b", 1, 0.1), case(1, "b", 1, 0.1) | {"task": "cwe"}]
        self.assertEqual(answer_record.merged(old, new), [*old[1:], *new])

    def test_runs_are_named_apart(self):
        """All of a model write into one folder, and what is there is not done again."""
        names = [name for runs in answer_record.RUNS.values() for name in runs]
        self.assertEqual(len(names), len(set(names)))
        for runs in answer_record.RUNS.values():
            for command, protocol, _ in runs.values():
                self.assertIn(command[0], ("evict", "budget"))
                self.assertIn(protocol, ("", *answer_record.PROTOCOLS))

    def test_the_page_has_what_the_tables_say(self):
        page = (HERE / "ANSWERS.md").read_text(encoding="utf-8")
        found = answer_record.tables(HERE)
        self.assertTrue(all(f"<!-- {name} -->" in page for name in found), list(found))
        self.assertEqual(answer_record.fill(page, found), page)


if __name__ == "__main__":
    unittest.main()
