#!/usr/bin/env python3
"""The study's page says what analysis.py makes of the committed tables, and analysis.py computes what it says."""
import math
import re
import sys
import unittest
from pathlib import Path

try:
    import numpy as np
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import advice  # noqa: E402
import analysis  # noqa: E402
import compensation  # noqa: E402
import cures  # noqa: E402
import levers  # noqa: E402
import orders  # noqa: E402
import papers  # noqa: E402
import perplexity  # noqa: E402
import recipes  # noqa: E402
import sums  # noqa: E402
from prompts import Prompt  # noqa: E402


class Page(unittest.TestCase):
    def test_its_tables_are_those_of_the_committed_figures(self):
        page = (HERE / "README.md").read_text(encoding="utf-8")
        found = {**analysis.tables(HERE), **papers.tables(orders.read(HERE / "papers.csv")),
                 **perplexity.tables(orders.read(HERE / "perplexity.csv"))}
        marked = dict(re.findall(r"<!-- (.+?) -->\n(.*?)\n<!-- end -->", page, re.DOTALL))
        self.assertEqual(page.count("<!-- end -->"), len(marked))
        for name, text in marked.items():
            self.assertEqual(text, found[name], name)
        for model in {row["model"] for row in orders.read(HERE / "cases.csv")}:
            self.assertLessEqual({f"{model} clear", f"{model} calibration"}, set(marked))

    def test_what_compensation_saves_is_what_the_committed_figures_say(self):
        page = (HERE.parents[1] / "analysis" / "eviction" / "COMPENSATED.md").read_text(encoding="utf-8")
        rows = orders.read(HERE / "compensation.csv")
        self.assertIn(f"<!-- study -->\n{compensation.tables(rows)}\n<!-- end -->", page)
        per_prompt = {}
        for row in rows:
            per_prompt.setdefault(row["prompt"], []).append((row["policy"], row["budget"], row["method"]))
            for name in ("output_error", "true_kl", "true_dnll"):
                self.assertTrue(np.isfinite(float(row[name])), row)
        self.assertEqual(len(set(map(tuple, map(sorted, per_prompt.values())))), 1)

    def test_every_lever_says_what_the_committed_figures_say(self):
        rows = orders.read(HERE / "levers.csv")
        found = levers.tables(rows)
        page = (HERE / "LEVERS.md").read_text(encoding="utf-8")
        marked = dict(re.findall(r"<!-- (levers .+?) -->\n(.*?)\n<!-- end -->", page, re.DOTALL))
        self.assertEqual(marked, found)
        cases, of_prompt = levers.Cases(rows), {}
        for row in rows:
            self.assertTrue(float(row["true_kl"]) > 0 and 0 < float(row["share"]) < 1, row)
            of_prompt.setdefault((row["model"], row["prompt"]), []).append((row["run"], row["policy"], row["budget"]))
        for model, prompts in cases.prompts.items():
            self.assertEqual(len(prompts), 6, model)
            self.assertEqual(len({tuple(of_prompt[model, prompt]) for prompt in prompts}), 1, model)
            for case in cases.cases:
                if case[:2] == levers.RULER:
                    np.testing.assert_allclose(cases.logs(model, case), 0, atol=1e-9)

    def test_cures_cost_what_the_committed_figures_say(self):
        page = cures.PAGE.read_text(encoding="utf-8")
        marked = dict(re.findall(r"<!-- (cures .+?) -->\n(.*?)\n<!-- end -->", page, re.DOTALL))
        prose = re.sub(r"<!-- (.+?) -->\n.*?\n<!-- end -->", "", page, flags=re.DOTALL)
        self.assertLessEqual(set(re.findall(r"[\d.]+\s\[.+?\]", prose)), set(re.findall(r"[\d.]+\s\[.+?\]", "".join(marked.values()))))
        self.assertEqual(marked, cures.tables(orders.read(HERE / "cures.csv")))
        said = (HERE.parents[1] / "analysis/recommend/RECOMMEND.md").read_text(encoding="utf-8")
        said = re.findall(r"[\d.]+\s\[[\d., ]+\]", said[said.index("\nWritten `q4_0`"):said.index("CURES.md")])
        self.assertEqual(len(said), 3)
        for ratio in said:
            self.assertIn(" ".join(ratio.split()), " ".join(page.split()))

    def test_recommend_says_what_engines_lose_beyond_stored_keys(self):
        kl = {}
        for row in orders.read(HERE / "cures.csv"):
            if row["format"] == "kq4_0v16":
                kl.setdefault(row["model"], {}).setdefault(row["protocol"], []).append(math.log(float(row["true_kl"])))
        told = " and ".join(f"{analysis.significant(np.subtract(of['written'], of['stored']), 2)} times on {model}" for model, of in kl.items())
        source = (HERE.parents[1] / "analysis/recommend/recommend_text.cpp").read_text(encoding="utf-8")
        self.assertTrue(f'"{told}"' in source, f"kWrittenOverStored: {told}")

    def test_recipes_cost_what_the_committed_figures_say(self):
        rows = orders.read(HERE / "recipes.csv")
        page = (HERE / "RECIPES.md").read_text(encoding="utf-8")
        found = {**recipes.tables(rows), "recipes answers": recipes.answers_table(orders.read(HERE / "recipe_answers.csv"))}
        self.assertEqual(dict(re.findall(r"<!-- (recipes .+?) -->\n(.*?)\n<!-- end -->", page, re.DOTALL)), found)
        for row in rows:
            self.assertTrue(float(row["true_kl"]) > 0 and 0 < float(row["share"]) < float(row["within"]) / 100 + 0.015, row)

    def test_advice_costs_what_the_committed_figures_say(self):
        rows = orders.read(HERE / "advice.csv")
        page = (HERE / "RECIPES.md").read_text(encoding="utf-8")
        found = advice.tables(rows)
        self.assertEqual(dict(re.findall(r"<!-- (advice) -->\n(.*?)\n<!-- end -->", page, re.DOTALL)), found)
        for case in {(row["model"], row["within"], row["chosen_on"], row["draw"], row["way"], row["prompt"]) for row in rows}:
            self.assertIn(case[4], ("recipe", "plain", "worst"))
        # At equal bytes: the plain setting's share is the recipe's within 2 %, over all prompts.
        for within in {row["within"] for row in rows}:
            share = {way: np.mean([float(row["share"]) for row in rows if (row["way"], row["within"]) == (way, within)]) for way in ("recipe", "plain")}
            self.assertAlmostEqual(share["recipe"] / share["plain"], 1, delta=0.02)
        readme = " ".join((HERE.parents[1] / "README.md").read_text(encoding="utf-8").split())
        nats, ratio = re.search(r"chosen on four prompts of other kinds, loses (0\.\d+) nats: ([\d.]+ \[.*?\]) times", readme).groups()
        self.assertIn(f"| SmolLM2-135M | 20 % | 4 | {nats} / ", found["advice"])
        self.assertIn(f"| {ratio}, less in ", found["advice"])

    def test_between_its_budgets_the_ruler_is_a_line_in_the_logarithms(self):
        def row(run, policy, share, kl):
            return {"model": "m", "prompt": "p", "run": run, "policy": policy, "budget": "", "share": share, "output_error": 1,
                    "loss_step": "", "true_kl": kl}

        cases = levers.Cases([row("ruler", "snapkv", 0.5, 0.01), row("ruler", "snapkv", 0.125, 0.16), row("evict", "x", 0.25, 0.02),
                              row("evict", "y", 0.9, 0.02)])
        self.assertAlmostEqual(cases.log_ratio("m", "p", ("evict", "x", "")), np.log(0.02 / 0.04))
        self.assertAlmostEqual(cases.log_ratio("m", "p", ("evict", "y", "")), np.log(0.02 / 0.01))  # beyond it, its end

    def test_every_page_of_the_papers_says_what_the_committed_figures_say(self):
        rows = orders.read(HERE / "papers.csv")
        found = papers.tables(rows)
        named = set()
        for path in papers.PAGES:
            page = path.read_text(encoding="utf-8")
            for name, text in re.findall(r"<!-- (papers .+?) -->\n(.*?)\n<!-- end -->", page, re.DOTALL):
                self.assertEqual(text, found[name], name)
                named.add(name)
        self.assertEqual(named, set(found))
        of_model = {}
        for row in rows:
            of_model.setdefault(row["model"], {}).setdefault(row["prompt"], []).append((row["run"], row["policy"], row["budget"]))
            self.assertTrue(float(row["true_kl"]) > 0 and float(row["output_error"]) >= 0, row)
            self.assertGreaterEqual(int(row["tokens"]), papers.SHORTEST.get(row["run"], 0))
        for model, prompts in of_model.items():
            at = {}  # by run and policy, of every prompt the budgets
            for prompt, cases in prompts.items():
                for run, policy, budget in cases:
                    at.setdefault((run, policy), {}).setdefault(prompt, set()).add(budget)
            for case, budgets in at.items():
                self.assertEqual(len(set(map(frozenset, budgets.values()))), 1, (model, case))
                self.assertGreaterEqual(len(budgets), 4, (model, case))
            self.assertEqual(len({frozenset(budgets) for (run, _), budgets in at.items() if run in ("evict", "budget", "channels")}), 1, model)
            cases = max(prompts.values(), key=len)
            self.assertEqual(len(set(cases)), len(cases), model)

    def test_what_the_program_says_of_large_errors_is_what_the_committed_figures_say(self):
        source = (HERE.parents[1] / "analysis" / "results" / "comparisons.cpp").read_text(encoding="utf-8")
        said = re.search(r"rightly in (\d+) to (\d+) % of pairs, more than 1.5 times apart in (\d+) to (\d+) %", source)
        rows, near, far = orders.read(HERE / "cases.csv"), [], []
        for model in ("SmolLM2-135M", "gemma-3-270m", "Qwen2.5-Coder-0.5B"):
            ordered = orders.orders(orders.Cases(rows, model))["output_error"]
            apart, right = (np.concatenate([prompt[i] for prompt in ordered]) for i in (0, 2))
            near.append(100 * right[np.round(apart, 9) < 1.1].mean())
            far.append(100 * right[np.round(apart, 9) >= 1.5].mean())
        self.assertEqual([int(x) for x in said.groups()], [round(f(x)) for x in (near, far) for f in (min, max)])

    def test_a_ratio_is_of_paired_prompts(self):
        rows = [dict(model="m", prompt=prompt, run="evict", policy=policy, budget="0.5", true_kl=kl, output_error="1")
                for prompt, policy, kl in (("a", "tova", 1), ("a", "tova+caote", 2), ("b", "tova", 10), ("b", "tova+caote", 5),
                                           ("c", "tova", 100), ("c", "tova+caote", 100))]
        self.assertIn("| `tova+caote` over `tova` | m | 1.00, less in 1 of 3 |", papers.tables(rows)["papers caote"])

    def test_perplexity_s_cases_have_all_texts_and_a_whole_cache(self):
        of_case, prompts = {}, {}
        for row in orders.read(HERE / "perplexity.csv"):
            of_case.setdefault((row["model"], row["policy"], row["budget"]), []).append(row["prompt"])
            prompts.setdefault(row["model"], set()).add(row["prompt"])
            self.assertTrue(all(0 < float(row[name]) < 12 for name in perplexity.COLUMNS[4:] if row[name]), row)
        for (model, *_), mine in of_case.items():
            self.assertEqual(sorted(mine), sorted(prompts[model]))
            self.assertIn((model, "whole", ""), of_case)

    def test_every_case_has_every_figure(self):
        per_prompt = {}
        for row in orders.read(HERE / "cases.csv") + orders.read(HERE / "retrieval.csv"):
            per_prompt.setdefault((row["model"], row["prompt"]), []).append((row["policy"], row["budget"]))
            for name in row.keys() - {"model", "prompt", "policy", "budget"}:
                self.assertTrue(np.isfinite(float(row[name])), row)
        cases = set(map(tuple, map(sorted, per_prompt.values())))
        self.assertEqual(len(cases), 1)
        self.assertEqual(len(set(*cases)), len(*cases))
        listed = {(row["model"], row["prompt"]) for row in orders.read(HERE / "prompts.csv")}
        self.assertEqual(listed, set(per_prompt))


class Perplexity(unittest.TestCase):
    def row(self, prompt, policy, budget, *nll):
        return dict(zip(perplexity.COLUMNS, ("m", f"p{prompt}", policy, budget, *map(str, nll))))

    def rows(self):
        for i in range(4):
            yield self.row(i, "whole", "", 3, 2, 2, 1)
            yield self.row(i, "h2o", "512", 3, 2 + np.log(2), 2, 1 + np.log(1.5))

    def test_a_policy_is_held_against_the_whole_cache_of_the_same_text(self):
        found = perplexity.tables(list(self.rows()))
        self.assertIn("| m | p3 | 20.09 | 7.39 | 7.39 | 2.72 |", found["perplexity whole"])
        self.assertIn("| m | 512 | `h2o` |  | 2.00 [2.00, 2.00], less in 0 of 4 | 1.00 [1.00, 1.00], less in 0 of 4 |", found["perplexity"])
        rows = [*self.rows(), *(self.row(i, "tova", "512", 3, 3, 3, 1 + np.log(4.5)) for i in range(4))]
        self.assertIn("| m | 512 | `tova` | 4,096 | 3.000 [3.000, 3.000], less in 0 of 4 |", perplexity.tables(rows)["perplexity pairs"])


class Statistics(unittest.TestCase):
    def test_rank_correlation_takes_ties_at_their_mean_rank(self):
        self.assertEqual(list(orders.ranks(np.array([5.0, 1.0, 5.0, 2.0]))), [3.5, 1, 3.5, 2])
        x, y = np.array([1, 2, 3, 4, 5.0]), np.array([5, 6, 7, 8, 7.0])
        self.assertAlmostEqual(orders.spearman(x, y), 0.8207826816681233)  # Wikipedia's example of ties
        self.assertAlmostEqual(orders.spearman(x, -(x**3)), -1)

    def test_orders_counts_pairs_within_a_prompt_and_budget(self):
        rows = [dict(model="m", prompt=prompt, policy=policy, budget=budget, dnll=0,
                     **{name: kl for name in orders.TRUE},
                     **{name: figure for name in (*orders.FIGURES, *sum(orders.SAMPLES.values(), ()))})
                for prompt, budget, policy, kl, figure in (
                    ("a", "0.5", "x", 0.01, 0.1), ("a", "0.5", "y", 0.02, 0.3), ("a", "0.5", "z", 0.03, 0.2),
                    ("a", "0.8", "x", 0.5, 0.01), ("a", "0.8", "y", 0.5, 0.02),  # equal in truth: no pair
                    ("a", "0.9", "x", 1.0, 9), ("b", "0.5", "x", 1, 1), ("b", "0.5", "y", 2, 1.05))]
        found = orders.orders(orders.Cases(rows, "m"))["loss_row"]
        self.assertEqual([len(said) for said, *_ in found], [3, 1])
        self.assertEqual(sorted(zip(found[0][0].round(2), found[0][2])), [(1.5, False), (2, True), (3, True)])
        self.assertIn("| `loss_row` | 100 % of 1 |", analysis.ratio_table({n: found for n in orders.FIGURES}))

    def test_what_is_added_up_first_counts_squared(self):
        steps, layers = np.ones((1, 24, 128)), np.full((1, 4, 24), 32.0)  # 4 layers, each a quarter of every row
        steps[0, ::2, 64:] = -1  # cancels in the sum of all rows, in every other sample
        found = {name: values[0] for name, values in sums.figures_of(steps, layers).items()}
        expected = {"loss_step": 0.5, "loss_step8": 4, "loss_step32": 16, "loss_layer": 4 * 32**2 / 256}
        self.assertEqual({name: found[name] for name in expected}, expected)
        self.assertEqual(found["loss_joint@12"], 0.5 * 64)


class Prompts(unittest.TestCase):
    def test_a_text_that_is_not_there_is_one_line(self):
        for prompt in (Prompt("a", "", 1, "/nonexistent"), Prompt("b", "", 1, "story.txt", "no such words")):
            with self.assertRaisesRegex(SystemExit, "expected a text.*found none"):
                prompt.text()
        self.assertTrue(Prompt("c", "", 1, "story.txt", "Nobody had").text().startswith("Nobody had believed"))


if __name__ == "__main__":
    unittest.main()
