#!/usr/bin/env python3
"""analysis/PAPERS.md: its commands run, its numbers are what they give and what the study's tables hold."""
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

try:
    import numpy as np
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

sys.path.insert(0, str(Path(__file__).resolve().parent))

import page  # noqa: E402
import papers  # noqa: E402
import passkey  # noqa: E402
from intervals import t_quantile  # noqa: E402
from sample import FOUND  # noqa: E402

TEXT = page.PAGE.read_text(encoding="utf-8")
MARKS = [(kind, what, held) for kind, what, _, held, _ in page.MARK.findall(TEXT)]
PROGRAM = os.environ.get("KVREPLAY")


NUMBER = re.compile(r"(?<![A-Za-z_`])[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


class Page(unittest.TestCase):
    def assert_alike(self, held, found, what):
        """The same words, and numbers to a unit of the last digit: float32 differs between machines."""
        self.assertEqual(NUMBER.sub("#", held), NUMBER.sub("#", found), what)
        for a, b in zip(NUMBER.findall(held), NUMBER.findall(found)):
            unit = 10.0 ** -len(a.split("e")[0].partition(".")[2])
            near = 0.1 * float(a) if "e" in a else 1.01 * unit
            self.assertLessEqual(abs(float(a) - float(b)), near, f"{what}: {held}, found {found}")

    def test_every_mark_is_whole_and_known(self):
        self.assertEqual(TEXT.count("<!-- end -->"), len(MARKS))
        self.assertEqual(TEXT.count("<!--"), 2 * len(MARKS))
        self.assertEqual({what for kind, what, _ in MARKS if kind == "table"}, set(page.PAIRS))
        self.assertEqual({what for kind, what, _ in MARKS if kind == "sample"}, set(FOUND))

    def test_its_papers_are_as_many_as_readme_says(self):
        """A row of the first table, a link to the paper and a section each."""
        named = re.findall(r"^\| \[[^]]+\]\(#([\w-]+)\).*?\((https://(?:arxiv\.org|openreview\.net)/[^)]+)\)", TEXT, re.M)
        sections = [heading.lower().replace(" ", "-") for heading in re.findall(r"^## (.+)$", TEXT, re.M)]
        first, last = sections.index("settings") + 1, sections.index("keeping-this-page-true")
        self.assertEqual(sections[first:last], [anchor for anchor, _ in named])
        self.assertEqual(len({link for _, link in named}), len(named))
        for name in ("README.md", "CHANGELOG.md"):
            said = (page.ROOT / name).read_text(encoding="utf-8")
            self.assertEqual(re.findall(r"(?:\[|of )(\d+) papers\b", said), [str(len(named))], name)

    def test_true_kl_is_that_of_the_study(self):
        study = page.Study()
        for kind, what, held in MARKS:
            if kind in ("table", "cells", "kl", "nats", "answers", "divisions", "passkey", "depth", "perplexity", "transfer"):
                self.assertEqual(held, page.value_of(kind, what, study, None), f"{kind} {what}")
                self.assertTrue(held, f"{kind} {what}")

    def test_what_it_quotes_stands_there(self):
        for kind, what, held in MARKS:
            if kind == "quoted":
                self.assertIn(held, (page.ROOT / what).read_text(encoding="utf-8"))

    @unittest.skipUnless(PROGRAM, "KVREPLAY names no kvreplay")
    def test_its_commands_run_and_give_its_numbers(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(page.run(PROGRAM, TEXT, folder), [])
            for results in sorted((Path(folder) / "results").iterdir()):
                subprocess.run([PROGRAM, "report", results], check=True, stdout=subprocess.DEVNULL)
            for kind, what, held in MARKS:
                if kind == "sample":
                    self.assert_alike(held, page.value_of(kind, what, None, folder), what)

    def test_scripts_that_it_names_have_the_options(self):
        for command in re.findall(r"`python3 ([^`]+)`", TEXT):
            script, *words = command.split()
            source = "".join(path.read_text(encoding="utf-8") for path in (page.ROOT / script).parent.glob("*.py"))
            for option in (word for word in words if word.startswith("--")):
                self.assertIn(f'"{option}"', source, command)

    def test_results_of_different_commands_do_not_meet(self):
        outs = [command.split("--out ")[1].split()[0] for command in page.commands(TEXT) if "--out " in command]
        self.assertEqual(len(outs), len(set(outs)))


class Ratios(unittest.TestCase):
    def table(self, folder, name, rows):
        lines = ["model,prompt,policy,budget,true_kl", *(",".join(map(str, row)) for row in rows)]
        (Path(folder) / name).write_text("\n".join(lines) + "\n")

    def test_a_ratio_is_of_the_same_prompts_in_the_same_table(self):
        with tempfile.TemporaryDirectory() as folder:
            self.table(folder, "cases.csv", [("m", prompt, policy, "0.5", kl) for prompt, policy, kl in
                                             (("a", "x", 1), ("a", "y", 2), ("b", "x", 1), ("b", "y", 8), ("c", "x", 7))])
            study = page.Study(Path(folder))
            np.testing.assert_allclose(np.exp(study.logs("m", "x", "y", "0.5")), [0.5, 0.125])
            self.assertEqual(study.logs("m", "x", "z", "0.5"), [])
            self.table(folder, "papers.csv", [("m", "a", "x", "0.5", 3), ("m", "a", "z", "0.5", 1)])
            study = page.Study(Path(folder))
            np.testing.assert_allclose(np.exp(study.logs("m", "x", "z", "0.5")), [3])
            np.testing.assert_allclose(np.exp(study.logs("m", "x", "y", "0.5")), [0.5, 0.125])  # y is in one table only

    def test_the_table_with_more_prompts_answers_and_the_other_agrees_or_not(self):
        with tempfile.TemporaryDirectory() as folder:
            few, many = ([(f"p{i}", policy, kl * (1 + 0.01 * i)) for i in range(n) for policy, kl in (("x", of), ("y", 1 + 0.001 * i))]
                         for n, of in ((4, 0.5), (5, 2)))
            self.table(folder, "cases.csv", [("m", prompt, policy, budget, kl) for prompt, policy, kl in few for budget in page.BUDGETS])
            self.table(folder, "papers.csv", [("m", prompt, policy, budget, kl) for prompt, policy, kl in many for budget in page.BUDGETS])
            study = page.Study(Path(folder))
            self.assertEqual(len(study.logs("m", "x", "y", "0.5")), 5)
            self.assertEqual(study.agreement("m", "x", "y"), (0, 3))
            self.assertEqual(study.agreement("m", "x", "x"), (3, 3))
            self.assertEqual(len(study.nats("x", "0.5")["m"]), 5)

    def test_intervals_hold_the_mean_of_the_study_s_own_prompts(self):
        """Prompts drawn anew from those of every pair and budget that has ten and more: their mean is the truth."""
        study, draw = page.Study(), np.random.default_rng(0)
        own = [np.array(logs) for pairs in page.PAIRS.values() for *_, all_logs in study.rows(pairs) for logs in all_logs if len(logs) > 9]
        for prompts in (4, 6, 10):
            drawn = [(logs[draw.integers(0, len(logs), (500, prompts))], logs.mean()) for logs in own]
            held = [abs(x.mean(1) - truth) <= t_quantile(prompts - 1) * x.std(1, ddof=1) / np.sqrt(prompts) for x, truth in drawn]
            self.assertTrue(0.91 <= np.mean(held) <= 0.95, (prompts, np.mean(held)))

    def test_what_is_divided_as_the_bare_problem_is_named_so(self):
        with tempfile.TemporaryDirectory() as folder:
            self.table(folder, "cases.csv", [("m", "a", "x~lu", "0.5", 1), ("m", "a", "x", "0.5", 4)])
            (Path(folder) / "papers.csv").write_text("model,prompt,run,policy,budget,true_kl\n"
                                                     "m,a,budget,x~lu,0.5,3\nm,a,budget_raw,x~lu,0.5,5\nm,a,evict,x,0.5,1\n")
            study = page.Study(Path(folder))
            np.testing.assert_allclose(np.exp(study.logs("m", "x~lu", "x", "0.5")), [3])
            np.testing.assert_allclose(np.exp(study.logs("m", "x~lu[raw]", "x", "0.5")), [0.25])  # of cases.csv before the other
            (Path(folder) / "papers.csv").unlink()
            study = page.Study(Path(folder))
            self.assertEqual(study.logs("m", "x~lu", "x", "0.5"), [])
            np.testing.assert_allclose(np.exp(study.logs("m", "x~lu[raw]", "x", "0.5")), [0.25])
            self.assertEqual(study.nats("x", "0.5"), {"m": [4.0]})

    def test_a_side_is_where_the_whole_interval_lies(self):
        logs = np.log
        self.assertEqual([page.side(logs(x)) for x in ([0.5, 0.6, 0.6, 0.7], [0.5, 0.9, 1.3, 1.8], [1.1, 1.2, 1.2, 1.3], [0.5] * 3)],
                         [-1, 0, 1, 0])

    def test_what_the_budgets_say_together(self):
        down, up, none = (np.log(x) for x in ([0.5, 0.6, 0.6, 0.7], [1.1, 1.2, 1.2, 1.3], [0.9, 1.0, 1.0, 1.1]))
        self.assertEqual(page.verdict([down, down, none]), "less at 2 of 3")
        self.assertEqual(page.verdict([up, down, none]), "less at 1 of 3, more at 1 of 3")
        self.assertEqual(page.verdict([none, none, none]), "no difference, up to 14 %")
        self.assertEqual(page.verdict([none, 3 * none, none]), "undecided, up to 47 %")
        self.assertEqual(page.verdict([none, none[:3]]), "fewer than 4 prompts")

    def test_caches_of_query_heads_and_deep_budgets_have_cells_of_their_own(self):
        with tempfile.TemporaryDirectory() as folder:
            own, score = "h2o[window=16,recent=16]", "h2o+joint[window=16,recent=16]"
            (Path(folder) / "papers.csv").write_text("model,prompt,run,policy,budget,true_kl\n" + "".join(
                f'm,p{i},{run},"{policy}",{budget},{kl}\n' for i in range(4)
                for run, budget, times in (("per_head", "0.5", 2), ("per_head_2", "0.98", 3), ("evict", "0.5", 5))
                for policy, kl in ((own, 1), (score, times))))
            study = page.Study(Path(folder))
            np.testing.assert_allclose(np.exp(study.logs("m", score + page.PER_HEAD, own + page.PER_HEAD, "0.98")), 4 * [3])
            np.testing.assert_allclose(np.exp(study.logs("m", score, own, "0.5")), 4 * [5])
            self.assertEqual(page.kl_short(study, f"{score}{page.PER_HEAD} over {own}{page.PER_HEAD}"),
                             "m, 4 prompts: **2.00** / - / - / - / **3.00**, more at 2 of 2")
            self.assertIn("| model | true KL of | 0.5 evicted | 0.98 evicted |", page.kl_table(study, "obcache per query head"))
            self.assertEqual(page.kl_cells(study, "obcache per query head"), "m 0 / 2 / 0")

    def test_what_runs_are_called_in_the_table(self):
        self.assertEqual([papers.named(*case) for case in (("bits4", "none", ""), ("kivi_iap_0.4", "none", ""), ("tokens_think_0.5", "h2o", "0.8"),
                                                           ("own_group_2", "h2o", "0.98"))],
                         [("4 bits", ""), ("4 bits, channels:iap", "0.4"), ("h2o, channels:think 0.5", "0.8"), ("h2o", "0.98")])
        self.assertEqual([page.budgets_of(name) for name in ("channels:iap", "channels:iap[recent=64]", "4 bits, channels:iap", "h2o, channels:iap 0.4")],
                         [page.RATIOS, page.PRUNED, page.PRUNED, page.BUDGETS[:2]])

    def test_rows_that_were_measured_stay_where_others_are_gathered(self):
        row = dict(zip(papers.KEYS, ("m", "a", "evict", "h2o", "0.5")), true_kl="1")
        later, other = row | {"true_kl": "2"}, row | {"model": "n", "run": "bits2"}
        first = row | {"run": "evict", "prompt": "b"}
        self.assertEqual(papers.merged([row, other], [later, row | {"run": "bits4"}, first]),
                         [later, first, row | {"run": "bits4"}, other])
        kept = page.read(page.ROOT / "tests" / "research" / "papers.csv")
        self.assertEqual(papers.merged(list(kept), []), list(kept))

    def test_recall_of_a_passkey_s_tokens(self):
        oracle, score = np.arange(100.0), np.zeros(100)
        self.assertEqual(passkey.recall(score, oracle, 0), 0)  # of equals the first
        self.assertEqual(passkey.recall(score, oracle, 20), 0.5)
        self.assertEqual(passkey.recall(oracle, oracle, 0), 1)

    def test_a_page_is_filled_in_lines_and_around_them(self):
        text = "a <!-- cells caote -->?<!-- end --> b\n<!-- table caote -->\n<!-- end -->\n<!-- quoted X -->as it is<!-- end -->"
        study = page.Study()
        filled = page.fill(text, study, None)
        self.assertIn(f"a <!-- cells caote -->{page.kl_cells(study, 'caote')}<!-- end --> b", filled)
        self.assertIn(f"<!-- table caote -->\n{page.kl_table(study, 'caote')}\n<!-- end -->", filled)
        self.assertIn("<!-- quoted X -->as it is<!-- end -->", filled)
        self.assertEqual(page.fill(filled, study, None), filled)


if __name__ == "__main__":
    unittest.main()
