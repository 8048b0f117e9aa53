#!/usr/bin/env python3
"""The numbers of analysis/PAPERS.md: of the committed study, and of the page's own commands on the sample.

  page.py [--program KVREPLAY] [--work DIR]            prints what every mark holds
  page.py [--program KVREPLAY] [--work DIR] --write    puts it into the page

A mark is <!-- KIND WHAT -->...<!-- end -->, in a line or around lines:

  table NAME       how many times the true KL of one method another has, of a group of PAIRS, under a line with models, prompts and what is equal
  cells NAME       of every model, in how many of that table's cells the whole interval is below 1, above it, and around it
  kl OF over OVER  the same ratio in short, model by model: bold where the interval leaves 1 out, and what that says
  answers NAME     of how many pairs of that table of ANSWERS.md the method answers clearly more, clearly fewer, and neither
  divisions NAME   of the importance that divisions of the budget lose: divisions.py's tables
  passkey N        the recall of passkey.csv with N tokens reserved: of attention sums, and by how much a score has more
  passkey answers  how many of passkey_answers.csv's are right, and how many times the base's nats on the answer a score's are
  perplexity OF over OVER   of perplexity.csv: how many times the perplexity of one method another has, by model and tokens kept
  transfer KIND    how many times the true KL of another division of budgets the profile of LU-KV's protocol has, on dumps of that kind
  depth COLUMN     a column of depth.csv: the mean over prompts, by model
  nats OF at B     the true KL of a case itself, nats a step, geometric means over prompts
  sample NAME      what sample.py and those beside it read from the results of the page's commands
  quoted FILE      words of another page, which a test looks for there

Needs NumPy; marks of the sample need the program.
"""
from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "analysis" / "PAPERS.md"
sys.path.insert(0, str(Path(__file__).resolve().parent))

import answer_record  # noqa: E402
import perplexity  # noqa: E402
from analysis import significant, table, times  # noqa: E402
from effects import ALIKE  # noqa: E402
from intervals import FEWEST, interval  # noqa: E402
from orders import BUDGETS, read  # noqa: E402
import sample_channels_budgets  # noqa: E402,F401
import sample_evictions  # noqa: E402,F401
from sample import FOUND  # noqa: E402

# Of the study; of a model, pair and budget that which has both methods on more prompts answers, of equals the first. What cases.csv
# divides it divides as the bare problem is (budget --semantics raw), which is no paper's setting.
TABLES = ("cases.csv", "papers.csv")
PER_HEAD = "[per query head]"
# Runs of papers.csv that give policies of others another setting, by what stands behind their names here.
SETTINGS = {"budget_raw": "[raw]", "blocks": "[blocks]", "blocks_half": "[blocks]", "per_head": PER_HEAD, "per_head_2": PER_HEAD}
SCORES = ("value", "key", "joint")
BASES = ("h2o", "tova", "snapkv")
WINDOW16 = "[window=16,recent=16]"  # H2O as OBCache runs it
PRUNED = ("0.4", "0.5")  # of channels, in IAP's tables
RANKED = ("h2o", "snapkv", "tova", "streaming")  # over random
OBCACHE = (("h2o", WINDOW16), ("snapkv", "[window=16]"))  # its bases
PAIRS = {
    "obcache": [(f"{base}+{score}", base) for base in BASES for score in SCORES],
    "obcache per query head": [(f"{base}+{score}{own}{PER_HEAD}", base + own + PER_HEAD) for base, own in OBCACHE for score in SCORES],
    "obcache grouped": [(f"{base}+{score}{own}", base + own) for base, own in OBCACHE for score in SCORES],
    "obcache caches": [(f"{base}{score}{own}{PER_HEAD}", base + score + own) for base, own in OBCACHE for score in ("", "+joint")],
    "obcache h2o": [(f"h2o{WINDOW16}", "h2o")],
    "obcache ada": [(f"snapkv+{score}~ada", "snapkv~ada") for score in SCORES],
    "caote": [(f"{base}+{score}", base) for score in ("caote", "fastcaote") for base in BASES],
    "caote blocks": [(f"{base}+{score}[blocks]", f"{base}[blocks]") for score in ("caote", "fastcaote") for base in BASES],
    "iap": [("channels:iap", "channels:think")],
    "iap pairs": [*((f"channels:iap[recent={recent}]", f"channels:think[recent={recent}]") for recent in (32, 64)),
                  *((f"channels:iap[protect={pair},recent={recent}]", f"channels:iap[recent={recent}]")
                    for pair in ("3:7", "5:10") for recent in (32, 64)),
                  ("channels:iap[recent=64]", "channels:iap[recent=32]"), ("channels:think[recent=64]", "channels:think[recent=32]")],
    "iap tokens": [(f"{base}, channels:{of} {ratio}", base if over == "none" else f"{base}, channels:{over} {ratio}")
                   for base in ("snapkv", "h2o") for of, over in (("iap", "think"), ("iap", "none"), ("think", "none")) for ratio in PRUNED],
    "iap kivi": [("4 bits, channels:iap", "4 bits, channels:think")],
    **{name: [(f"{order}~{method}", f"{order}~{other}") for order in ("snapkv", "keydiff") for other in ("uniform", "ada")]
       for name, method in (("lukv", "profile"), ("lukv oracle", "lu"))},
    "lukv gap": [(f"{order}~lu_without_gap", f"{order}~lu") for order in ("snapkv", "keydiff")],
    "lukv raw": [("snapkv~lu[raw]", "snapkv"), ("snapkv~lu[raw]", "snapkv~ada[raw]"), ("snapkv~optimal[raw]", "snapkv~lu[raw]"),
                 ("snapkv~lu[raw]", "snapkv~uniform[raw]"), ("snapkv~profile[raw]", "snapkv~uniform[raw]")],
    "snapkv": [("snapkv", other) for other in ("h2o", "tova", "streaming")],
    "h2o": [("h2o", other) for other in ("streaming", "tova", "snapkv")],
    "tova": [("tova", other) for other in ("streaming", "h2o", "snapkv")],
    "adakv": [("snapkv[sinks=0,recent=32]~ada", "snapkv[sinks=0,recent=32]~uniform")],
    "adakv pinned": [("snapkv~ada", "snapkv~uniform"), ("keydiff~ada", "keydiff~uniform")],
    "adakv raw": [("snapkv~ada[raw]", "snapkv")],
    "pyramidkv": [("snapkv[window=8,sinks=0,recent=8]~pyramid", "snapkv[window=8,sinks=0,recent=8]~uniform")],
    "pyramidkv pinned": [("snapkv[window=8]~pyramid", "snapkv[window=8]~uniform")],
    "pyramidkv raw": [("snapkv~pyramid[raw]", "snapkv")],
    "streaming": [("streaming", other) for other in ("h2o", "snapkv", "tova")],
    "keydiff": [("keydiff", other) for other in ("snapkv", "tova", "streaming", "knorm")],
    "expected attention": [("expected_attention", other) for other in ("snapkv", "tova", "streaming", "keydiff")],
    "protection": [(f"{policy}, ends kept", f"{policy}, no ends kept") for policy in ("random", *RANKED)],
    **{name: [(f"{policy}, {ends} kept", f"random, {ends} kept") for policy in RANKED]
       for name, ends in (("protection scores", "ends"), ("protection scores free", "no ends"))},
    **{name: [(f"random, prompt {kept}", f"{policy}, prompt {kept}") for policy in RANKED]
       for name, kept in (("random attention", "kept"), ("random attention free", "not kept"))},
    "random attention prompt": [(f"{policy}, prompt kept", f"{policy}, prompt not kept") for policy in ("random", *RANKED)],
}
RATIOS = ("0.4", "0.5", "0.6", "0.7")  # of channels, pruned
DEEP = (*BUDGETS, "0.95", "0.98")  # in OBCache's windows
GUARDED, CAPPED = ("0.5", "0.8", "0.87"), ("384",)  # of what keeps its ends; tokens of what keeps its prompt
MARK = re.compile(r"<!-- (\w+) (.+?) -->(\n?)(.*?)(\n?)<!-- end -->", re.DOTALL)
COMMAND = re.compile(r"`(kvreplay [^`]+)`")
NEEDS_MORE = re.compile(r"\b(DUMP|DIR)\b")  # dumps and results of the reader's own


class Study:
    """True KL and answers of the committed tables."""

    def __init__(self, folder=Path(__file__).resolve().parent):
        self.answers = {name: answer_record.answers_of(folder, name) for name in answer_record.PAIRS}
        self.divisions, self.shares, self.passkey, self.depth = (
            read(folder / f"{name}.csv") if (folder / f"{name}.csv").exists() else [] for name in ("divisions", "shares", "passkey", "depth"))
        self.passkey_answers = read(folder / "passkey_answers.csv") if (folder / "passkey_answers.csv").exists() else []
        self.transfer, self.perplexity = (read(folder / f"{name}.csv") if (folder / f"{name}.csv").exists() else []
                                          for name in ("transfer", "perplexity"))
        self.tables, self.tokens = [], {}
        for name in ("prompts.csv", *TABLES):
            for row in read(folder / name) if (folder / name).exists() else ():
                if row.get("tokens"):
                    self.tokens[row["model"], row["prompt"]] = int(row["tokens"])
        for name in TABLES:
            found = {}
            for row in read(folder / name) if (folder / name).exists() else ():
                setting = SETTINGS.get(row["run"], "") if "run" in row else "[raw]" * ("~" in row["policy"])
                key = row["model"], row["policy"] + setting, row["budget"]
                found.setdefault(key, {})[row["prompt"]] = float(row["true_kl"])
            self.tables.append(found)
        self.models = list(dict.fromkeys(model for found in self.tables for model, *_ in found))

    def each(self, model, of, over, budget):
        """Of every table that has both, the one with the most prompts first: {prompt: the logarithm of the ratio}."""
        found = []
        for cases in self.tables:
            a, b = (cases.get((model, policy, budget), {}) for policy in (of, over))
            if both := [prompt for prompt in a if prompt in b]:
                found.append({prompt: np.log(a[prompt] / b[prompt]) for prompt in both})
        return sorted(found, key=len, reverse=True)

    def logs(self, model, of, over, budget):
        return list(next(iter(self.each(model, of, over, budget)), {}).values())

    def prompts(self, model, pairs):
        """How many these pairs have, and of how many tokens."""
        used = [next(iter(self.each(model, of, over, budget)), {}) for of, over in pairs for budget in budgets_of(of)]
        counts = sorted({len(each) for each in used if each})
        tokens = [self.tokens[model, prompt] for each in used for prompt in each if (model, prompt) in self.tokens]
        return f"{model} {span(counts)} prompts" + (f" of {span(tokens)} tokens" if tokens else "")

    def rows(self, pairs):
        """(model, of, over, logarithms by budget) of what there is."""
        for model in self.models:
            for of, over in pairs:
                logs = [self.logs(model, of, over, budget) for budget in budgets_of(of)]
                if any(logs):
                    yield model, of, over, logs

    def agreement(self, model, of, over):
        """Of how many budgets the other table says the same side, and of how many it has the pair."""
        both = [each for budget in budgets_of(of) if len(each := self.each(model, of, over, budget)) > 1]
        return sum(side(list(one.values())) == side(list(other.values())) for one, other in both), len(both)

    def nats(self, policy, budget):
        """{model: true KL of its prompts}"""
        found = {}
        for cases in self.tables:
            for (model, name, at), kl in cases.items():
                if (name, at) == (policy, budget) and len(kl) > len(found.get(model, ())):
                    found[model] = list(kl.values())
        return found


def span(numbers):
    """"10", or "10 to 13"."""
    return " to ".join(f"{each:,}" for each in dict.fromkeys((min(numbers), max(numbers))))


def budgets_of(policy):
    if policy in ("channels:iap", "channels:think"):
        return RATIOS
    if policy.startswith(("channels:", "4 bits,")):
        return PRUNED
    if ", channels:" in policy:
        return BUDGETS[:2]
    if policy.endswith("ends kept"):
        return GUARDED
    if ", prompt " in policy:
        return CAPPED
    return DEEP if "[window=16" in policy else BUDGETS


def side(logs):
    """-1 where the whole interval of the ratio is below 1, 1 where it is above, 0 where it holds 1."""
    _, low, high = interval(logs)
    return -1 if high < 0 else 1 if low > 0 else 0


def kl_table(study, name):
    rows = [[model, f"`{of}` over `{over}`", *(times(each) if each else "" for each in logs), "{} of {}".format(*study.agreement(model, of, over))]
            for model, of, over, logs in study.rows(PAIRS[name])]
    if not rows:
        return "(not measured yet)"
    what = "pruned" if name in ("iap", "iap pairs", "iap kivi") else "evicted"
    capped = budgets_of(PAIRS[name][0][0]) == CAPPED
    header = ["model", "true KL of", *(f"a cache of {budget}" if capped else f"{budget} {what}" for budget in budgets_of(PAIRS[name][0][0])),
              "other file agrees"]
    rows = [[*row[:-1], ""] if row[-1] == "0 of 0" else row for row in rows]
    shown = [i for i in range(len(header)) if any(row[i] for row in rows)]
    equal = ("key channels pruned in every head" if what == "pruned" else "tokens kept by all heads together" if "~" in rows[0][1] else
             "tokens and channels in every head" if name == "iap tokens" else "tokens kept in every head")
    steps = f"the steps are the text behind its first {CAPPED[0]} tokens, and 128 more" if capped else "128 steps behind each"
    models = dict.fromkeys(row[0] for row in rows)
    said = f"*{'; '.join(study.prompts(model, PAIRS[name]) for model in models)}; {steps}. Equal: the {'number' if capped else 'share'} of {equal}.*\n\n"
    return said + table([header[i] for i in shown], [[row[i] for i in shown] for row in rows])


def kl_cells(study, name):
    of_models = {}
    for model, of, over, all_logs in study.rows(PAIRS[name]):
        of_models.setdefault(model, []).extend(map(side, filter(None, all_logs)))
    found = []
    for model, sides in of_models.items():
        found.append(f"{model} {sides.count(-1)} / {sides.count(1)} / {sides.count(0)}")
    return "; ".join(found) or "not measured yet"


def verdict(all_logs):
    """What the ratios at all budgets say together."""
    sides = [side(logs) for logs in all_logs]
    said = [f"{word} at {sides.count(which)} of {len(sides)}" for which, word in ((-1, "less"), (1, "more")) if which in sides]
    if said:
        return ", ".join(said)
    if min(map(len, all_logs)) < FEWEST:
        return f"fewer than {FEWEST} prompts"
    most = max(abs(np.exp(bound) - 1) for logs in all_logs for bound in interval(logs)[1:])
    return f"{'no difference' if most <= ALIKE['ratio'] else 'undecided'}, up to {100 * most:.0f} %"


def kl_short(study, pair):
    of, over = pair.split(" over ")
    found = []
    for model, _, _, all_logs in study.rows([(of, over)]):
        cells = [f"{np.exp(np.mean(logs)):.2f}" if logs else "-" for logs in all_logs]
        bold = [f"**{cell}**" if logs and side(logs) else cell for cell, logs in zip(cells, all_logs)]
        counts = [len(logs) for logs in all_logs if logs]
        found.append(f"{model}, {span(counts)} prompts: {' / '.join(bold)}, {verdict([logs for logs in all_logs if logs])}")
    return "; ".join(found) or "not measured yet"


def divisions(study, what):
    """Of divisions.py's tables: how many times one division loses what another does, or how alike heads' budgets are."""
    if what == "shares":
        found = {}
        for row in study.shares:
            found.setdefault((row["model"], row["order"]), {}).setdefault(row["sigma"], []).append(float(row["correlation"]))
        return "; ".join(f"{model}, `{order}` ({len(next(iter(of.values())))} pairs) " + " / ".join(
            f"{np.median(each):.2f} ({min(each):.2f})" for each in of.values()) for (model, order), of in found.items()) or "not measured yet"
    figure = {"losses": "loss", "worst heads": "worst_head"}[what]
    values = {}
    for row in study.divisions:
        values.setdefault((row["model"], row["order"], row["sigma"]), {}).setdefault(row["method"], {})[row["prompt"]] = float(row[figure])
    pairs = (("profile", "ada"), ("profile", "uniform"), ("ada", "uniform"), ("pyramid", "uniform"), ("lu", "ada"))
    rows = [[model, f"`{order}`", sigma, *(times([np.log(of[a][prompt] / of[b][prompt]) for prompt in of[a]]) for a, b in pairs)]
            for (model, order, sigma), of in values.items() if sigma in BUDGETS]
    names = {"lu": "`lu` (oracle)"}
    header = ["model", "order", "evicted", *(f"{names.get(a, f'`{a}`')} over `{b}`" for a, b in pairs)]
    return table(header, rows) if rows else "(not measured yet)"


def passkey_answers(study):
    values = {}
    for row in study.passkey_answers:
        case = values.setdefault((row["model"], row["caches"], row["policy"]), {}).setdefault(row["budget"], {})
        case[row["prompt"]] = int(row["right"]), np.log(float(row["kl_answer"]))
    rows = []
    for (model, caches, policy), of in values.items():
        base = re.sub(r"\+\w+", "", policy)
        cells = [f"{sum(right for right, _ in case.values())} of {len(case)}" + (
            "" if base == policy else "; " + times([kl - values[model, caches, base][at][prompt][1] for prompt, (_, kl) in case.items()]))
            for at, case in of.items()]
        rows.append([model, caches, f"`{policy}`", *cells])
    budgets = list(next(iter(values.values()), {}))
    return table(["model", "a cache for", "right answers; KL over the base's", *(f"{at} evicted" for at in budgets)], rows) if rows else "(not measured yet)"


def passkey(study, reserve):
    values = {}
    for row in study.passkey:
        if row["reserve"] == reserve:
            values.setdefault(row["model"], {}).setdefault(row["window"], {}).setdefault(row["score"], []).append(float(row["recall"]))
    rows = [[model, window, f"{np.mean(of['attn']):.3f}", *(difference(np.subtract(of[score], of["attn"])) for score in
             ("attn_sq", "value", "key", "joint", "exact_joint"))] for model, windows in values.items() for window, of in windows.items()]
    header = ["model", "rows that score", "`attn`", *(f"`{score}` - `attn`" for score in ("attn_sq", "value", "key", "joint", "exact_joint"))]
    return table(header, rows) if rows else "(not measured yet)"


def depth(study, column):
    values, layers = {}, {}
    for row in study.depth:
        values.setdefault(row["model"], []).append(float(row[column]))
        layers[row["model"]] = row["layers"]
    if column.startswith("spread"):
        return "; ".join("{} {:.0f} % [{:.0f}, {:.0f}]".format(model, *(100 * x for x in interval(of))) for model, of in values.items())
    return "; ".join("{} ({} layers, {} prompts) {:.2f} [{:.2f}, {:.2f}]".format(model, layers[model], len(of), *interval(of, -1, 1))
                     for model, of in values.items()) or "not measured yet"


def perplexities(study, pair):
    of, over = pair.split(" over ")
    found, ratios = {}, perplexity.ratios(study.perplexity)
    for (model, policy, budget), mine in ratios.items():
        base = {length: dict.fromkeys(logs, 0.0) for length, logs in mine.items()} if over == perplexity.WHOLE else ratios.get((model, over, budget))
        if policy == of and base:
            length = max(mine)
            logs = [mine[length][text] - base[length][text] for text in mine[length] if text in base[length]]
            found.setdefault(model, []).append(f"{budget} tokens of {length:,} {times(logs, 3)}")
    return "; ".join(f"{model}: {', '.join(of_model)}" for model, of_model in found.items()) or "not measured yet"


def transfer(study, kind):
    rows = [row for row in study.transfer if row["kind"] == kind]
    budgets, lines = list(dict.fromkeys(row["budget"] for row in rows)), []
    for model in dict.fromkeys(row["model"] for row in rows):
        kl, right, alike = {}, {}, {}
        for row in rows:
            if row["model"] == model:
                case = row["divided_by"], row["budget"]
                kl.setdefault(case, {})[row["prompt"]] = np.log(float(row["true_kl"]))
                right.setdefault(case, []).append(row["right"])
                alike.setdefault(case, []).append(float(row["correlation"] or "nan"))
        for divided_by in dict.fromkeys(name for name, _ in kl):
            cells = []
            for budget in budgets:
                mine, base = kl[divided_by, budget], kl["profile of the questions", budget]
                ratio = "" if base is mine else times([base[prompt] - mine[prompt] for prompt in mine])
                answers = right[divided_by, budget]
                same = np.median(alike[divided_by, budget])
                cells += [ratio, *([f"{answers.count('1')} of {len(answers)}"] if any(answers) else []), "" if np.isnan(same) else f"{same:.2f}"]
            lines.append([model, divided_by + (" (oracle)" if divided_by == "lu" else ""), *cells])
    answered = any(row["right"] for row in rows)
    header = [said for budget in budgets for said in (f"the profile's KL over its, {budget} evicted", *(["right answers"] if answered else []), "alike")]
    return table(["model", "divided by", *header], lines) if rows else "(not measured yet)"


def difference(values):
    middle, low, high = interval(values)
    return f"{middle:+.3f} [{low:+.3f}, {high:+.3f}], more in {sum(value > 0 for value in values)} of {len(values)}"


def nats(study, what):
    policy, budget = what.split(" at ")
    found = [f"{model} {significant(np.log(kl), 3)} ({len(kl)} prompts)" for model, kl in study.nats(policy, budget).items()]
    return "; ".join(found) or "not measured yet"


def commands(text):
    """The page's commands that run on the sample, each once."""
    return [command for command in dict.fromkeys(COMMAND.findall(text)) if not NEEDS_MORE.search(command)]


def run(program, text, folder):
    """Runs the page's commands in a folder; [(command, what it said)] of those that failed."""
    folder = Path(folder).resolve()
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    for link, target in (("bin/kvreplay", Path(program).resolve()), ("data", ROOT / "data")):
        (folder / link).unlink(missing_ok=True)
        (folder / link).symlink_to(target)
    path = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    failed = []
    for command in commands(text):
        again = f"{command} --force --quiet" if "--out " in command else f"{command} > printed"
        done = subprocess.run(["bash", "-ec", again], cwd=folder, env=path, stderr=subprocess.PIPE, encoding="utf-8")
        if done.returncode:
            failed.append((command, done.stderr))
    return failed


def value_of(kind, what, study, results):
    """What a mark holds; None where it stays as it is: quoted, or of the sample without results."""
    if kind == "table":
        return kl_table(study, what)
    if kind == "cells":
        return kl_cells(study, what)
    if kind == "kl":
        return kl_short(study, what)
    if kind == "answers":
        return answer_record.pairs_cells(study.answers[what], answer_record.PAIRS[what])
    if kind == "divisions":
        return divisions(study, what)
    if kind == "depth":
        return depth(study, what)
    if kind == "passkey":
        return passkey_answers(study) if what == "answers" else passkey(study, what)
    if kind == "perplexity":
        return perplexities(study, what)
    if kind == "transfer":
        return transfer(study, what)
    if kind == "nats":
        return nats(study, what)
    if kind == "sample":
        return FOUND[what](Path(results) / "results") if results else None
    if kind == "quoted":
        return None
    raise SystemExit(f"PAPERS.md: expected a mark that page.py knows, found {kind} {what}")


def fill(text, study, results):
    """The page with every mark filled that can be."""

    def filled(mark):
        kind, what, before, held, behind = mark.groups()
        value = value_of(kind, what, study, results)
        return f"<!-- {kind} {what} -->{before}{held if value is None else value}{before or behind}<!-- end -->"

    return MARK.sub(filled, text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", help="the kvreplay that runs the page's commands; none: only the study's marks")
    parser.add_argument("--work", help="where they run (default: a temporary folder)")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    text = PAGE.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as temporary:
        work = args.work or temporary
        for command, said in run(args.program, text, work) if args.program else ():
            print(f"{command}\n{said}", file=sys.stderr)
        filled = fill(text, Study(), work if args.program else None)
    if args.write:
        PAGE.write_text(filled, encoding="utf-8")
    else:
        for kind, what, _, held, _ in MARK.findall(filled):
            print(f"## {kind} {what}\n\n{held}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
