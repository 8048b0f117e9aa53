#!/usr/bin/env python3
"""The pages in PAGES are in plain English: sentences of at most 40 words (25 on average), table cells of at most 20, no fragment that
opens with What, Whether, Whose, How or That, and no private words. README.md fits on two screens. Offenders are listed as FILE:LINE.

  python3 tests/release/test_plain_english.py
"""
import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "AGENTS.md", ".github/CONTRIBUTING.md", ".github/SECURITY.md", "analysis/GLOSSARY.md", "analysis/README.md",
         "analysis/RESULTS-FORMAT.md", "analysis/budgets/BUDGETS.md", "analysis/commands/COMMANDS.md", "analysis/conform/CONFORM.md",
         "analysis/package/INSTALL.md", "analysis/python/README.md", "analysis/recommend/RECOMMEND.md", "analysis/report/REPORT.md",
         "analysis/results/COMPARING.md", "analysis/run/MACHINES.md", "analysis/verify/VERIFY.md", "data/DUMP-FORMAT.md",
         "data/capture/README.md", "data/samples/README.md", "sim/README.md", "sim/cache/CURES.md", "sim/cache/FORMATS.md",
         "sim/channels/CHANNELS.md", "sim/compensation/COMPENSATION.md", "sim/cuda/GPU.md", "sim/eviction/POLICIES.md",
         "sim/loss/LOSS.md", "sim/tokens/METRICS.md", "tests/research/ANSWERS.md", "tests/research/LEVERS.md", "tests/research/README.md",
         "tests/research/RECIPES.md", "viewer/DASHBOARD.md", "viewer/README.md")
LONGEST, MEAN, CELL = 40, 25, 20  # words
OPENINGS = re.compile(r"(What(?! if\b)|Whether|Whose|How|That)\b")  # but for questions, and the panel What if
PRIVATE = re.compile(r"\b(told|settled|veil|dear|dearer|foretells?|whoever|for want of)\b", re.I)
README_CHARACTERS, README_LINES = 7000, 100

FENCE = re.compile(r"\s*```")
MARKED = re.compile(r"<!-- (?!/|end\b)[^>]+ -->\s*$"), re.compile(r"<!-- (/|end\b)")  # a table that the program or a script writes
ITEM = re.compile(r"\s*([-*+]|\d+\.) ")
ABBREVIATION = re.compile(r"\b(e\.g|i\.e|et al|vs|cf|approx)\.$")


def plain(text):
    """Without markup: a piece of code counts as one word, a link as its text, a picture as nothing."""
    text = re.sub(r"<[^>]+>", "", re.sub(r"(`+)(.+?)\1", " code ", text))
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    return re.sub(r"(?<!\w)[*_]+|[*_]+(?!\w)", "", re.sub(r"\[([^\]]*)\]\([^)\s]*\)", r"\1", text))


def blocks(text):
    """Kind (heading, cell, text) and lines, as (number, line), of everything outside of code and of generated tables."""
    block, skip = [], None
    for number, line in enumerate(text.split("\n") + [""], 1):
        begins = FENCE.match(line) or MARKED[0].match(line)
        if skip is not None or begins:
            if skip is None:
                skip = FENCE if FENCE.match(line) else MARKED[1]
            elif skip.match(line):
                skip = None
            line = ""
        edge = not line.strip() or line.startswith(("#", "|", "    ")) or ITEM.match(line)
        if edge and block:
            yield "text", block
            block = []
        if line.startswith("#"):
            yield "heading", [(number, line.lstrip("# "))]
        elif line.startswith("|"):
            for cell in re.split(r"(?<!\\)\|", re.sub(r"(`+)(.+?)\1", "`code`", line))[1:-1]:
                if not re.fullmatch(r"[\s:-]*", cell):
                    yield "cell", [(number, cell)]
        elif line.strip() and not line.startswith("    "):
            item = ITEM.match(line)
            block.append((number, line[item.end() if item else 0:]))


def sentences(block):
    """Every sentence of a block, with the number of the line on which it begins."""
    words, starts = [], []
    joined = plain("\n".join(line for _, line in block))
    for (number, _), line in zip(block, joined.split("\n")):
        for word in line.split():
            words.append(word)
            starts.append(number)
    begin = 0
    for i, word in enumerate(words):
        ends = re.search(r"[.!?][\"')\]]*$", word) and not ABBREVIATION.search(word)
        if i + 1 == len(words) or ends:
            yield starts[begin], words[begin:i + 1]
            begin = i + 1


def offenders(name, text):
    """FILE:LINE and what is wrong there."""
    found, lengths = [], []
    for kind, block in blocks(text):
        for number, words in sentences(block):
            said = " ".join(words)
            count = sum(any(c.isalnum() for c in word) for word in words)
            at = f"{name}:{number}: "
            if kind == "text":
                lengths.append(count)
            if kind != "heading" and OPENINGS.match(said) and "?" not in said:
                found.append(f"{at}opens with {words[0]!r}: {said}")
            if count > LONGEST:
                found.append(f"{at}{count} words, expected at most {LONGEST}: {said}")
            for word in PRIVATE.findall(said):
                found.append(f"{at}the private word {word!r}: {said}")
        if kind == "cell" and (count := sum(any(c.isalnum() for c in word) for _, words in sentences(block) for word in words)) > CELL:
            found.append(f"{name}:{block[0][0]}: a cell of {count} words, expected at most {CELL}: {block[0][1].strip()}")
    if lengths and sum(lengths) / len(lengths) > MEAN:
        found.append(f"{name}:1: {sum(lengths) / len(lengths):.1f} words a sentence on average, expected at most {MEAN}")
    if name == "README.md":
        if len(text) > README_CHARACTERS:
            found.append(f"{name}:1: {len(text)} characters, expected at most {README_CHARACTERS}")
        if text.count("\n") > README_LINES:
            found.append(f"{name}:{README_LINES}: {text.count(chr(10))} lines, expected at most {README_LINES}")
    return found


class PlainEnglish(unittest.TestCase):
    def test_pages(self):
        found = []
        for page in PAGES:
            found += offenders(page, (ROOT / page).read_text(encoding="utf-8"))
        self.assertFalse(found, "\n" + "\n".join(found))


class Check(unittest.TestCase):
    """The check itself: planted offenders are found, at their lines, and nothing else is."""

    def lines(self, text, name="page.md"):
        return [line.split(": ", 1)[0] for line in offenders(name, text)]

    def test_openings(self):
        self.assertEqual(self.lines("# What is it?\n\nFine.\nWhat it is.\n\n- Whether it is.\n\n| That it is | fine |\n"),
                         ["page.md:4", "page.md:6", "page.md:8"])
        self.assertEqual(self.lines("A link [How it is made](a.md). `What` is code.\n\n```text\nWhat it says\n```\n"), [])
        self.assertEqual(self.lines("| What is lost? | *Which* head is it. |\n\n- **It** is **not** that.\n"), [])
        self.assertEqual(self.lines("- **What** is **not** that.\n"), ["page.md:1"])

    def test_length(self):
        self.assertEqual(self.lines("Short.\n\nOne\n" + "word " * 39 + ".\n"), [])
        self.assertEqual(self.lines("Short.\nIt is " + "word " * 39 + ".\n" + "Short. " * 20), ["page.md:2"])
        self.assertEqual(self.lines(("word " * 29 + "word. ") * 3), ["page.md:1"])  # on average
        self.assertEqual(self.lines("It is `" + "word " * 50 + "`. A [link](" + "w" * 99 + ").\n"), [])
        self.assertEqual(self.lines("| a | " + "word " * 21 + "|\n"), ["page.md:1"])

    def test_private_words(self):
        self.assertEqual(self.lines("Fine.\nIt is not told apart.\n\nA veil lies on it.\n"), ["page.md:2", "page.md:4"])
        self.assertEqual(self.lines("`told` and retold.\n\n```text\ntold\n```\n"), [])

    def test_generated_tables_are_left_out(self):
        self.assertEqual(self.lines("<!-- engines -->\n| told |\n<!-- /engines -->\n\nIt is told.\n"), ["page.md:5"])
        self.assertEqual(self.lines("<!-- recipes -->\n| told |\n<!-- end -->\n\nIt is told.\n"), ["page.md:5"])

    def test_the_readme_is_short(self):
        self.assertEqual(self.lines("Fine.\n" * 101, "README.md"), ["README.md:100"])
        self.assertEqual(self.lines("Fine. " * 1200, "README.md"), ["README.md:1"])


if __name__ == "__main__":
    unittest.main()
