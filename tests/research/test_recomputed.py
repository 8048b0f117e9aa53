#!/usr/bin/env python3
"""The tables of PAPERS, RECIPES, LEVERS and ANSWERS, those of methods and of perplexity of the study, recomputed from their CSV files by formulas of its
own: Python's standard library, tabulated quantiles of Student's t, and nothing of the scripts that write the pages.

  python3 tests/research/test_recomputed.py
"""
import csv
import math
import re
import unittest
from itertools import groupby
from pathlib import Path
from statistics import fmean, stdev

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
T = dict(zip(range(4, 14), (3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157, 2.228139, 2.200985, 2.178813)))  # by prompts
NUMBER = r"[\d.]+(?:e-?\d+)?"
RATIO = re.compile(rf"({NUMBER})(?: \[({NUMBER}), ({NUMBER})\])?, less in (\d+) of (\d+)")
MODELS = ("SmolLM2-135M", "Qwen2.5-Coder-0.5B", "gemma-3-270m")
WAYS = {"tokens and bits, each head its own": "both-each", "tokens alone, each head its own": "tokens-each",
        "bits alone, each layer its own": "bits-each", "tokens and bits, the same everywhere": "both-everywhere",
        "tokens alone, the same everywhere": "tokens-everywhere", "bits alone, the same everywhere": "bits-everywhere"}


def rows(name):
    with open(HERE / name, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def tables(page, named):
    """(name, cells of a line) of the marks that match."""
    for name, text in re.findall(r"<!-- ([^>]*?) -->\n(.*?)<!-- end -->", page.read_text(encoding="utf-8"), re.S):
        if re.fullmatch(named, name):
            for line in [line for line in text.split("\n") if line.startswith("|")][2:]:
                yield name, [cell.strip() for cell in line.strip("|").split(" | ")]


def mean(logs):
    """(geometric mean, low, high)"""
    middle = fmean(logs)
    half = T[len(logs)] * stdev(logs) / math.sqrt(len(logs)) if len(logs) > 3 else math.nan
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)


def at(x, points):
    """Of a line through points, beyond them the nearest one's."""
    points = sorted(points)
    if x <= points[0][0] or x >= points[-1][0]:
        return points[0 if x <= points[0][0] else -1][1]
    (a, y), (b, z) = next(pair for pair in zip(points, points[1:]) if x <= pair[1][0])
    return y + (z - y) * (x - a) / (b - a)


class Recomputed(unittest.TestCase):
    def same(self, said, found, what):
        """To a unit of the last digit that is said."""
        digits = said.partition("e")[0].partition(".")[2]
        unit = 10.0 ** -len(digits) * (10.0 ** int(said.partition("e")[2]) if "e" in said else 1)
        self.assertLessEqual(abs(float(said) - found), 0.51 * unit + 1e-9, what)

    def ratio(self, cell, logs, what):
        middle, low, high, less, of = RATIO.match(cell).groups()
        self.assertEqual((int(less), int(of)), (sum(log < 0 for log in logs), len(logs)), what)
        for said, found in zip((middle, low, high), mean(logs)):
            if said:
                self.same(said, found, what)

    def test_ratios_of_true_kl(self):
        kl = {}
        for name in ("cases.csv", "papers.csv"):
            for row in rows(name):
                run = row.get("run", "raw" if "~" in row["policy"] else "")
                setting = "[per query head]" if run.startswith("per_head") else "[raw]" if run in ("raw", "budget_raw") else (
                    "[blocks]" if run.startswith("blocks") else "")
                kl.setdefault((name, row["model"], row["policy"] + setting, row["budget"]), {})[row["prompt"]] = float(row["true_kl"])
        budgets = {"pruned": ("0.4", "0.5", "0.6", "0.7"), "evicted": ("0.5", "0.8", "0.87", "0.9", "0.95", "0.98", "384")}
        seen = 0
        for page, named in ((ROOT / "analysis" / "PAPERS.md", "table .*"), (HERE / "README.md", "methods")):
            for name, (model, pair, *cells) in tables(page, named):
                of, over = (text.strip("`") + "[raw]" * (named == "methods" and "~" in text) for text in pair.split(" over "))
                at_budgets = (key[3] for key in kl if key[1:3] == (model, of))
                for budget in sorted(set(at_budgets) & set(budgets["pruned" if "iap" in name and "tokens" not in name else "evicted"]), key=float):
                    logs = max(([math.log(a[p] / b[p]) for p in a if p in b] for file in ("cases.csv", "papers.csv")[: 1 if named == "methods" else 2]
                                for a, b in [(kl.get((file, model, each, budget), {}) for each in (of, over))]), key=len)
                    if logs:
                        while not cells[0]:
                            cells.pop(0)
                        self.ratio(cells.pop(0), logs, (name, model, pair, budget))
                        seen += 1
                self.assertFalse([cell for cell in cells if "less in" in cell], (name, model, pair))
        self.assertGreater(seen, 800)

    def test_answers(self):
        files = {name: rows(f"{name}.csv") for name in ("answers", "paper_answers", "block_answers", "longbench_answers") if (HERE / f"{name}.csv").exists()}
        right = {}
        for rows_of in files.values():
            for row in rows_of:
                right.setdefault((id(rows_of), row["protocol"], row["model"], row["policy"], row["budget"]), {})[row["task"], row["sample"]] = row["right"] == "1"
        own, papers = (id(files[name]) for name in ("answers", "paper_answers"))
        seen = 0
        for name, (policy, budget, *cells) in tables(HERE / "ANSWERS.md", "answers (agnostic|aware)"):
            models = ("Qwen2.5-Coder-0.5B", "Qwen2.5-Coder-0.5B at 4K", "Qwen2.5-Coder-1.5B at 4K")
            for model, cell in zip(models, cells[::2]):
                if cell.strip(" |"):
                    mine = right[own, name.split()[1], model, policy.strip("`"), budget]
                    share, n, z = fmean(mine.values()), len(mine), 1.959964
                    middle, half = (share + z * z / 2 / n) / (1 + z * z / n), z * math.sqrt(share * (1 - share) / n + z * z / 4 / n / n) / (1 + z * z / n)
                    for said, found in zip(re.findall(r"\d+", cell), (share, middle - half, middle + half)):
                        self.same(said, 100 * found, (name, policy, budget, model))
                    seen += 1
        for name, (pair, model, protocol, *cells) in tables(HERE / "ANSWERS.md", "answers (obcache|caote|lukv|lukv oracle|adakv|pyramidkv|iap|caote half|longbench)"):
            of, over = (text.replace("(oracle)", "").strip(" `") for text in pair.split(" over "))
            which = {"caote half": "block_answers", "longbench": "longbench_answers"}.get(name[8:])
            key = id(files[which]) if which else papers, "aware" if protocol == "seen" else "agnostic", model
            budgets = iter(sorted({k[4] for k in right if k[:4] == (*key, of)} & {k[4] for k in right if k[:4] == (*key, over)}))
            for cell in cells:
                if not (found := re.search(r"(\d+) to (\d+) \(\+(\d+) -(\d+), p = ([\d.e-]+)\)", cell)):
                    continue
                budget = next(budgets)
                mine, base = (right[(*key, each, budget)] for each in (of, over))
                more, fewer = (sum(a[s] and not b[s] for s in a if s in b) for a, b in ((mine, base), (base, mine)))
                self.assertEqual([int(x) for x in found.groups()[:4]], [sum(base.values()), sum(mine.values()), more, fewer], (name, pair, budget))
                p = min(1.0, 2 * sum(math.comb(more + fewer, i) for i in range(min(more, fewer) + 1)) / 2 ** (more + fewer))
                self.assertLessEqual(abs(float(found[5]) - p), 0.051 * p, (name, pair, budget))
                seen += 1
        self.assertGreater(seen, 100)

    def test_levers(self):
        found, snapkv = {}, {}
        for row in rows("levers.csv"):
            found.setdefault((row["run"], row["policy"], row["budget"]), []).append(row)
            if (row["run"], row["policy"]) == ("ruler", "snapkv"):
                snapkv.setdefault((row["model"], row["prompt"]), []).append((math.log(float(row["share"])), math.log(float(row["true_kl"]))))
        expected = set()
        for case in found.values():
            for model in MODELS:
                mine = [row for row in case if row["model"] == model]
                nats = [math.log(max(float(row["true_kl"]), 1e-12)) for row in mine]
                logs = [kl - at(math.log(float(row["share"])), snapkv[model, row["prompt"]]) for kl, row in zip(nats, mine)]
                if mine:
                    middle, low, high = mean(logs)
                    expected.add((model, f"{mean(nats)[0]:.2g}, {middle:.2f} [{low:.2f}, {high:.2f}]"))
        cells = [(model, cell.strip(" |")) for _, (_, _, *cells) in tables(HERE / "LEVERS.md", "levers (half|a quarter|an eighth).*")
                 for model, cell in zip(MODELS, cells) if cell.strip(" |")]
        self.assertGreater(len(cells), 200)
        self.assertEqual([cell for cell in cells if cell not in expected], [])

    def test_perplexity(self):
        nll = {}
        for row in rows("perplexity.csv"):
            nll.setdefault((row["model"], row["policy"], row["budget"]), {})[row["prompt"]] = {
                int(name[4:]): float(value) for name, value in row.items() if name[:4] == "nll_" and value}
        for _, (model, budget, policy, *cells) in tables(HERE / "README.md", "perplexity"):
            mine, whole = nll[model, policy.strip("`"), budget], nll[model, "whole", ""]
            for length, cell in zip((512, 1024, 2048, 4096), cells):
                logs = [mine[text][length] - whole[text][length] for text in mine if length in mine[text] and length > int(budget)]
                self.assertEqual(bool(logs), bool(cell.strip(" |")), (model, budget, policy, length))
                if logs:
                    self.ratio(cell, logs, (model, budget, policy, length))
        for _, (model, budget, policy, length, cell) in tables(HERE / "README.md", "perplexity pairs"):
            mine, base = nll[model, policy.strip("`"), budget], nll[model, "h2o", budget]
            length = int(length.replace(",", ""))
            self.ratio(cell, [mine[text][length] - base[text][length] for text in mine], (model, budget, policy))

    def test_a_transferred_profile(self):
        found = {}
        for row in rows("transfer.csv"):
            found.setdefault((row["kind"], row["divided_by"], row["budget"]), {})[row["prompt"]] = row
        for name, (_, divided_by, *cells) in tables(ROOT / "analysis" / "PAPERS.md", "transfer .*"):
            kind, divided_by = name.split()[1], divided_by.replace(" (oracle)", "")
            ratios = [cell for cell in cells if "less in" in cell]
            for budget, cell in zip(("0.5", "0.8"), ratios):
                mine, its = found[kind, "profile of the questions", budget], found[kind, divided_by, budget]
                self.ratio(cell, [math.log(float(mine[p]["true_kl"]) / float(its[p]["true_kl"])) for p in mine], (name, divided_by, budget))
            right = [f"{sum(row['right'] == '1' for row in found[kind, divided_by, budget].values())} of" for budget in ("0.5", "0.8")]
            self.assertEqual([cell[: len(said)] for cell, said in zip([cell for cell in cells if re.match(r"\d+ of \d+$", cell)], right)],
                             right if kind == "needles" else [])

    def test_recipes(self):
        found = {(row["model"], row["way"], row["within"]): [] for row in rows("recipes.csv")}
        for row in rows("recipes.csv"):
            found[row["model"], row["way"], row["within"]].append(row)
        for _, (within, said, *cells) in tables(HERE / "RECIPES.md", "recipes cost"):
            for model, cell in zip(MODELS, cells):
                case = found[model, WAYS[said], within.split()[0]]
                logs, share = [math.log(float(row["true_kl"])) for row in case], fmean(float(row["share"]) for row in case)
                self.assertEqual(cell.strip(" |"), "{:.2g} [{:.2g}, {:.2g}], {:.1f} %".format(*mean(logs), 100 * share))
        points = {key: [(math.log(float(row["share"])), math.log(float(row["true_kl"]))) for row in of] for key, of in groupby(
            sorted(rows("recipes.csv"), key=lambda row: (row["model"], row["prompt"], row["way"])), lambda row: (row["model"], row["prompt"], row["way"]))
            for of in [list(of)]}
        share_of = {(row["model"], row["prompt"], row["way"], row["within"]): math.log(float(row["share"])) for row in rows("recipes.csv")}
        others = (["both-everywhere"], ["tokens-each", "bits-each"], ["tokens-everywhere", "bits-everywhere"])
        for _, (model, within, *cells) in tables(HERE / "RECIPES.md", "recipes over"):
            for ways, cell in zip(others, cells):
                logs = []
                for prompt in {key[1] for key in points if key[0] == model}:
                    ratios = []
                    for way in ways:
                        if (model, prompt, way, within.split()[0]) in share_of:
                            mine, its = (points[model, prompt, each] for each in ("both-each", way))
                            x = min(share_of[model, prompt, "both-each", within.split()[0]], max(its)[0])
                            ratios.append(at(x, mine) - at(x, its))
                    logs += [max(ratios)] if ratios else []
                self.assertEqual(bool(logs), bool(cell.strip(" |")))
                if logs:
                    self.ratio(cell, logs, (model, within, ways))


if __name__ == "__main__":
    unittest.main()
