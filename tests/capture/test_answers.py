#!/usr/bin/env python3
"""Questions with known answers: how they are made, captured, and judged over changed caches."""
import csv
import itertools
import json
import random
import re
import subprocess
import tempfile
import unicodedata
import unittest
from collections import Counter
from pathlib import Path
from unittest import mock

# First: skips where numpy, torch or transformers is missing.
from capture_case import KVREPLAY, PROMPT, Case, build, main, manifest_of, prompt, said

import numpy as np
import transformers

import answer_tasks
import kvcapture
import kvvalidate
from answer_tasks import LABELED, TASKS, Haystack, read_samples, samples, score, stays_right
from answer_statistics import auc, auc_interval, curve, holm, mcnemar, safe_below, wilson
from answers import Judge, Question
from capture_tasks import Framed
from changed_cache import Change
from dump_files import CaptureError
from model_loop import ModelLoop, figures_of_steps
from plain_loop import evicting
from test_model_loop import BruteForce, kept_sets

HAY = Haystack.of("hay", " ".join(f"Sentence number {i} says nothing of interest." for i in range(200)))


def first(task, characters=4000, seed=0):
    return next(samples(task, 1, HAY, lambda sample: len(sample.context) <= characters, seed))


class Tasks(unittest.TestCase):
    def test_every_task_has_its_answer_where_it_says(self):
        for task in TASKS:
            for seed in range(3):
                sample = first(task, 9000, seed)
                with self.subTest(task, seed=seed):
                    self.assertEqual(sample.task, task)
                    for reference in sample.references:
                        self.assertEqual(score(sample.context, [reference]), 1.0)
                    for begin, end in sample.needles:
                        self.assertRegex(sample.context[begin:end], r"(?s)^(The registered|VAR|In \d|The \S+ was|def).*[\d.]$")
                    told = " ".join(sample.context[begin:end] for begin, end in sample.needles)
                    if task.startswith(("niah", "vt", "document", "code")):
                        self.assertEqual(score(told, sample.references), 1.0)
                    self.assertEqual(score(sample.question + sample.prefix, sample.references[1:]) if len(sample.references) > 1 else 0, 0)

    def test_needles_of_what_is_asked_say_the_key_of_the_question(self):
        for task in ("niah_single_2", "niah_multikey_1", "niah_multikey_3", "niah_multivalue"):
            sample = first(task)
            for begin, end in sample.needles:
                key = re.match(r"The registered \w+ of (\S+) is", sample.context[begin:end])[1]
                self.assertIn(f" {key} ", sample.question)
                self.assertEqual(sample.context.count(f" {key} "), len(sample.references))

    def test_variables_follow_from_each_other(self):
        sample = first("vt")
        value = {}
        for begin, end in sample.needles:
            name, of = re.match(r"VAR (\w+) = (?:VAR )?(\w+)\.", sample.context[begin:end]).groups()
            value[name] = value.get(of, of)
        self.assertEqual(set(value), set(sample.references))
        self.assertEqual(len(set(value.values())), 1)
        self.assertIn(next(iter(value.values())), sample.question)

    def test_common_and_frequent_words_are_those_that_stand_most_often(self):
        common = first("cwe", 9000)
        counts = Counter(re.findall(r"\d+\. (\S+)", common.context))
        self.assertEqual({word for word, n in counts.items() if n == 30}, set(common.references))
        self.assertEqual(set(counts.values()), {3, 30})
        frequent = first("fwe")
        ranked = Counter(re.findall(r"\b[a-z]{6}\b", frequent.context.partition("\n\n")[2])).most_common(4)
        self.assertEqual([word for word, _ in ranked[:3]], list(frequent.references))
        self.assertGreater(ranked[2][1], ranked[3][1])

    def test_tasks_of_longbench_s_shapes_have_the_answers_that_their_texts_give(self):
        for seed in range(8):
            sample = first("few_shot", 6000, seed)
            shots = re.findall(r"Question: (.*?) Label: (\w+)\.", sample.context)
            kind_of = lambda asked: next(kind for kind, ways in LABELED.items()  # noqa: E731
                                         if any(re.fullmatch(re.escape(way).replace(r"\{\}", r"\w+"), asked) for way in ways))
            labels = {kind: {label for asked, label in shots if kind_of(asked) == kind} for kind in LABELED}
            self.assertTrue(all(len(found) == 1 for found in labels.values()))
            self.assertEqual(labels[kind_of(sample.question.partition("? ")[2])], {*sample.references})
            self.assertGreater(len(shots), 40)
            sample = first("passage_count", 6000, seed)
            texts = re.findall(r"Paragraph \d+: (.*)", sample.context)
            self.assertEqual(sample.references, (str(len(set(texts))),))
            self.assertLess(len(set(texts)), len(texts))
            sample = first("passage_retrieval", 6000, seed)
            (begin, end), = sample.needles
            self.assertRegex(sample.context[begin:end], r"^The \S+ was exchanged for the \S+\.$")
            self.assertEqual(sample.context[:begin].rpartition("Paragraph ")[2].partition(":")[0], sample.references[0])
            self.assertIn(sample.context[begin:end].split()[1], sample.question)
            sample = first("code_completion", 6000, seed)
            program = {}
            exec(sample.context.partition("\n\n")[2], program)
            self.assertEqual(str(program[re.search(r"assert (\w+)\(", sample.question)[1]]()), sample.references[0])
            sample = first("document_qa", 6000, seed)
            self.assertEqual(score(sample.context.replace(sample.context[slice(*sample.needles[0])], ""), sample.references), 0)

    def test_a_sample_is_drawn_by_its_seed_and_number_and_as_long_as_fits(self):
        self.assertEqual(first("niah_multikey_1"), first("niah_multikey_1"))
        self.assertNotEqual(first("niah_multikey_1").references, first("niah_multikey_1", seed=1).references)
        two = list(samples("vt", 2, HAY, lambda sample: len(sample.context) <= 3000))
        self.assertNotEqual(*(sample.references for sample in two))
        for task in TASKS:
            for most in (5000, 8000):
                sample = first(task, most)
                self.assertTrue(0.9 * most < len(sample.context) <= most, (task, most, len(sample.context)))

    def test_what_never_fits_is_one_line(self):
        with self.assertRaisesRegex(CaptureError, "vt, sample 0: expected one that fits into --length, found one that does not"):
            first("vt", 20)

    def test_scores(self):
        self.assertEqual(score("It is 4719283.", ["4719283"]), 1.0)
        self.assertEqual(score("It is 14719283 or 47192830 or x4719283", ["4719283"]), 0.0)
        self.assertEqual(score("AMBER-acorn, and more", ["amber-acorn", "bold-cabin"]), 0.5)
        self.assertEqual(score("a+b", ["a+b"]), 1.0)  # no pattern
        self.assertEqual(score("", ["x"]), 0.0)
        self.assertEqual(score("any", ["\u200b"]), 0.0)  # of nothing that is seen

    def test_spellings_of_one_text_are_equal(self):
        for one, other in (("café Müller", unicodedata.normalize("NFD", "café Müller")), ("Murphy's law", "Murphy’s law"), ("Straße", "STRASSE"), ("fish", "ﬁsh"),
                           ("Ὀδυσσεύς", "ὈΔΥΣΣΕΎΣ"), ("İstanbul", "istanbul"), ("ısparta", "ISPARTA"), ("GPT-4", "ＧＰＴ‑４"), ("München", "Mün\u00adchen"), ("New York", "New\n York"),
                           ('"да"', "«Да»"), ("ガクセイ", "ｶﾞｸｾｲ"), ("H2O", "H₂O"), ("1/2", "½"), ("42%", "٤٢ ٪"), ("42°C", "４２℃"), ("it's", "it´s")):
            with self.subTest(one):
                self.assertEqual([score(f"It is {one}, yes", [other]), score(f"It is {other}, yes", [one])], [1, 1])

    def test_a_number_is_not_found_inside_another(self):
        for number, others in (("1", "1,500km 1.5km 1,5km"), ("42", "42.5 42,5 42,5km -42 −42 -$42 -₹42 1,042 1.42 .42 2.42.1 user_42@x.org 420 x42 42nd 42e3 1e-42 42² 42½ 1'042 1\u202f042"),
                               ("500", "1,500,000 1.500.000 1'500'000 15,00,500 Rs1,500 約1,500,000人 1\u00a0500\u00a0000 ５００,０００"),
                               ("2.0", "2.0.1 12.0 2.05 -2.0 v2.0"), ("042", "1,042. 42 .042"), ("102", "10²"), ("31", "3½"), ("2.1", "2.1.0 2.10")):
            for other in others.split(" "):
                with self.subTest(number, other=other):
                    self.assertEqual(score(f"It is {other} here", [number]), 0)
                    self.assertEqual(score(other, [other]), 1)

    def test_numbers_of_one_value_are_equal(self):
        for number, others in (("42", "42. 42.0 42.00 +42 $42 42% COVID-42 (42) ...42 10-42 42/100 [42,43,44] 1999-42-03 ４２ ४२ ٤٢ 42㎏ №42 42\ufe0f 42，43 42円 约42年 서울42"),
                               ("1042", "1,042 1'042 1’042 1\u202f042 １,０４２ ١٬٠٤٢ 1,042.0"), ("1,042", "1042"), ("1500000", "1,500,000 15,00,000 1.500.000 1\u00a0500\u00a0000"),
                               ("1500.25", "1,500.25 1.500,25 1'500.25 1500,25"), ("-7", "-7 −7 -7.0"), ("1042.5", "١٬٠٤٢٫٥ 1,042.5"), ("2024", "24.12.2024 2024.12.24 2024-12-24 (2024)"),
                               ("4719283", "4719283,5528110 5528110,4719283,1234567 **4719283**,"), ("0.5", "0.5 0,5")):
            for other in others.split(" "):
                with self.subTest(number, other=other):
                    self.assertEqual(score(f"It is {other} here", [number]), 1)

    def test_lists_without_spaces_are_no_numbers(self):
        codes = ("3b1f9d55-0000-4e5c-8a77-aaaa12345c55", "3b1f9d55-0000-4e5c-8a77-000012345655", "02994443-31cc-f2fc-d7da-ef433e0ca2ae", "0299a4a3-9c1d-11aa-8b8b-0123456789ab", "616f7776-8136-31a0-6ce2-514eddbcece2")
        for order in itertools.permutations(codes):
            self.assertEqual(score(",".join(order), codes), 1)
        self.assertEqual(score("4719283,5528110,1234567", ["4719283", "5528110", "1234567"]), 1)

    def test_words_of_scripts_without_spaces_are_found_in_running_text(self):
        for answer, found, lacking in (("答案是北京。", "北京", "上海"), ("東京2020です", "東京|2020|東京2020", "202"), ("정답은 서울입니다.", "서울", "부산"),
                                       ("คำตอบคือกรุงเทพครับ", "กรุงเทพ", "เชียงใหม่"), ("រាជធានីភ្នំពេញគឺ", "ភ្នំពេញ", "សៀមរាប"), ("ວຽງຈັນແມ່ນ", "ວຽງຈັນ", "ປາກເຊ"), ("ရန်ကုန်မြို့", "ရန်ကုန်", "ရန"),
                                       ("GPT-4는 iPhone을", "GPT-4|iPhone|GPT", "Phone|iPhon"), ("नई दिल्ली है", "दिल्ली|नई", "दिल|ली"), ("café cafe\u0301s", "café", "cafe|caf"),
                                       ("Murphy’s l’eau C++ iPhone™", "Murphy|eau|C++|iPhone", "Murph|au")):
            for word in found.split("|"):
                self.assertEqual(score(answer, [word]), 1, (answer, word))
            for word in lacking.split("|"):
                self.assertEqual(score(answer, [word]), 0, (answer, word))

    def test_an_answer_is_right_early_only_where_nothing_can_change_it(self):
        for text, reference, right in (("It is 42", "42", False), ("It is 42.", "42", False), ("It is 42. ", "42", True), ("It is 42 k", "42", True), ("cafe", "cafe", False),
                                       ("cafe ", "cafe", True), ("北京", "北京", False), ("北京。", "北京", True), ("caf\ufffd", "caf", False), ("1\u00a0", "1", False)):
            self.assertEqual(stays_right(text, [reference]), right, (text, reference))

    def test_lines_of_a_file_end_at_line_feeds_alone(self):
        row = {"context": "one\u2028two\u2029three\x85four", "question": "why?", "references": ["5512"]}
        lines = [json.dumps(row, ensure_ascii=False), json.dumps({**row, "question": "who?"}, ensure_ascii=False)]
        for end in ("\n", "\r\n", "\n\n"):
            with tempfile.TemporaryDirectory() as name:
                path = Path(name) / "mine.jsonl"
                path.write_bytes((end.join(lines) + end).encode())
                self.assertEqual([(s.context, s.question) for s in read_samples(str(path), "mine")], [(row["context"], "why?"), (row["context"], "who?")])
                path.write_bytes((end.join(lines) + end + "{").encode())
                with self.assertRaisesRegex(CaptureError, f"line {1 + 2 * end.count(chr(10))}: expected an object"):
                    read_samples(str(path), "mine")

    def test_a_haystack_of_python_is_the_same_each_time(self):
        own = Haystack.own()
        self.assertEqual(own, Haystack.own())
        self.assertGreater(len(own.sentences), 1000)
        self.assertEqual([own.sentences[3], own.sentences[4]], own.some(type("At", (random.Random,), {"randrange": lambda *_: 3})(), 2))

    def test_a_broken_file_of_samples_is_one_line(self):
        good = {"context": "c", "question": "q", "references": ["r"]}
        for line, pattern in (
            ("{", "mine.jsonl, line 2: expected an object with context, question and references"),
            ("[1]", "line 2: expected an object .*, found list"),
            (json.dumps({**good, "context": " "}), "line 2: context: expected a text"),
            (json.dumps({**good, "question": 3}), "line 2: question: expected a text, found 3"),
            (json.dumps({**good, "references": []}), "line 2: references: expected texts, one of them at least, found \\[\\]"),
            (json.dumps({**good, "references": [""]}), "line 2: references"),
            (json.dumps({**good, "references": ["\u00ad"]}), "line 2: references"),
            (json.dumps({**good, "prefix": 1}), "line 2: prefix"),
            (json.dumps({**good, "longest": 0}), "line 2: longest: expected a number of tokens, found 0"),
        ):
            with self.subTest(line), tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                path = folder / "mine.jsonl"
                path.write_text(json.dumps(good) + "\n" + line + "\n")
                with self.assertRaisesRegex(CaptureError, pattern):
                    read_samples(str(path), "mine")
        with tempfile.TemporaryDirectory() as name:
            path = Path(name) / "none.jsonl"
            path.write_text("\n")
            with self.assertRaisesRegex(CaptureError, "expected a JSON object a line, found none"):
                read_samples(str(path), "none")


class Letters:
    """A tokenizer whose tokens are the characters' numbers, modulo the vocabulary of the random models."""

    begin, ends = [1], {2}

    def spans(self, text):
        return [(ord(c) % 97, i, i + 1) for i, c in enumerate(text)]

    def chat(self, content):
        return f"[{content}]>"

    def join(self, ids):
        return " ".join(f"w{i}" for i in ids)

    def text(self, i):
        return f"w{i} "


class Frames(unittest.TestCase):
    def test_where_everything_stands(self):
        sample = answer_tasks.Sample("t", "hay NEEDLE hay", "why?", "it is", ("x",), ((4, 10),))
        for chat in (True, False):
            letters = Letters()
            letters.chat = Letters().chat if chat else lambda content: None
            framed = Framed.of(sample, letters)
            with self.subTest(chat):
                text = "[hay NEEDLE hay\n\nwhy?]>it is" if chat else "\1hay NEEDLE hay\n\nwhy?\nit is"
                self.assertEqual(framed.ids, [ord(c) % 97 for c in text])
                self.assertEqual([text[a:b] for a, b in framed.spans["needles"]], ["NEEDLE"])
                for name, found in (("question", "\n\nwhy?]>" if chat else "\n\nwhy?\n"), ("prefix", "it is")):
                    self.assertEqual(text[slice(*framed.spans[name])], found)
                self.assertEqual(text[: framed.prompt_ends["context"]][-3:], "hay")
                self.assertEqual(framed.prompt_ends["question"], framed.spans["prefix"][0])


class Cut:
    """A layer's caches of two heads that lose what leaving() says, behind every 8 rows of the prompt."""

    heads = 2

    def __init__(self, layer, leaving):
        self.layer, self.leaving, self.held, self.size = layer, leaving, [np.zeros(0, int)] * 2, 0

    @property
    def next_rows(self):
        return 8 if self.size < PROMPT else 0

    def add(self, q, k, v):
        there = [np.append(head, np.arange(self.size, self.size + q.shape[1])) for head in self.held]
        self.size += q.shape[1]
        gone = self.leaving(self.layer, self.size, there, None)
        self.held = [head[~np.isin(head, left)] for head, left in zip(there, gone)]
        return gone


class Judged(unittest.TestCase):
    """Against a Llama in float64 from the definitions that decodes by itself."""

    ANSWER = 6

    def setUp(self):
        self.model = build("llama", num_hidden_layers=2)
        self.brute = BruteForce({name: x.numpy() for name, x in self.model.state_dict().items()}, self.model.config)
        self.ask(3)

    def ask(self, behind):
        """Makes a prompt, `behind` tokens after it, and the answer to both."""
        self.begin = PROMPT + behind
        self.ids = prompt(self.begin)[0].tolist()
        self.ids += self.said(lambda layer, head, k, v: (k, v), self.ANSWER)

    def said(self, cache, count):
        """The model's answer over such a cache. The prompt itself is read over the whole cache."""
        ids = self.ids[: self.begin]
        for _ in range(count):
            steps = len(ids) > PROMPT
            log_p = self.brute.log_p(ids, PROMPT if steps else PROMPT - 1, cache if steps else lambda layer, head, k, v: (k, v))
            ids = [*ids, int(log_p[-1].argmax())]
        return ids[self.begin :]

    def test_the_forced_pass_says_what_free_decoding_says(self):
        self.forced_and_free()

    def test_an_answer_may_begin_where_the_prompt_ends(self):
        self.ask(0)
        self.forced_and_free()
        with ModelLoop(self.model) as loop:
            full, changes = loop.read(self.ids, PROMPT), {0: Change(kept=kept_sets(2, 2, 1, share=0.2)[0])}
            kl = figures_of_steps(full, loop.feed(changes))[0]
            question = Question("t", ["w1"], (PROMPT, PROMPT + 1), [], 12)  # predicted by the prompt only
            found = Judge(question, loop, self.ids[: PROMPT + 1], PROMPT, Letters()).judge(changes, loop.feed(changes), kl, lambda layer: 2)
            self.assertEqual([found[name] for name in ("first_other", "nll", "margin", "kl_question", "kl_answer")], [None] * 5)
            self.assertEqual(found["answer"], f"w{self.ids[PROMPT]}")
            with self.assertRaisesRegex(CaptureError, f"to end where the answer begins, at position {PROMPT - 1}, or before, found {PROMPT} tokens"):
                Judge(question._replace(answer=(PROMPT - 1, PROMPT + 1)), loop, self.ids, PROMPT, Letters())

    def forced_and_free(self):
        begin = self.begin
        needle = (5, 9)
        flips = 0
        with ModelLoop(self.model) as loop:
            full = loop.read(self.ids, PROMPT)
            for seed in range(60):
                kept = kept_sets(2, 2, seed, share=1.4 - 0.01 * seed)
                changes = {i: Change(kept=kept[i]) for i in range(2)}
                logits = loop.feed(changes)
                steps = figures_of_steps(full, logits)
                free = self.said(lambda layer, head, k, v: (k[kept[layer, head // 2]], v[kept[layer, head // 2]]), 12)
                for references in (self.ids[begin : begin + 1], self.ids[begin : begin + self.ANSWER], self.ids[-1:]):
                    words = [f"w{i}" for i in references]
                    question = Question("t", words, (begin, len(self.ids)), [needle], 12)
                    judge = Judge(question, loop, self.ids, PROMPT, Letters())
                    logits = loop.feed(changes)
                    found = judge.judge(changes, logits, steps[0], lambda layer: 2)
                    judge.finish()
                    ended = free[: free.index(2)] if 2 in free else free
                    self.assertEqual(found["score"], score(Letters().join(ended), words), (seed, found, free))
                    self.assertEqual(found["right"], int(found["score"] == 1))
                    same = free[: self.ANSWER] == self.ids[begin:]
                    self.assertEqual(found["first_other"] is None, same)
                    self.assertEqual(found["margin"] > 0, same)
                    self.assertEqual(found["first_other"], next((i for i, (a, b) in enumerate(zip(free, self.ids[begin:])) if a != b), None))
                    self.assertEqual(found["needles_kept"], np.mean([kept[layer, head, 5:9].all() for layer in range(2) for head in range(2)]))
                flips += not same
        self.assertTrue(10 < flips < 60, flips)

    def test_the_model_goes_on_over_caches_that_it_cut_while_reading(self):
        flips = 0
        for seed in range(20):
            def leaving(layer, size, held, _attention, seed=seed):
                draw = random.Random(f"{seed}/{layer}/{size}")
                return [draw.sample(head.tolist(), 6 if size <= PROMPT else 0) for head in held]

            free = self.ids[: self.begin]
            for _ in range(self.ANSWER):
                logits = evicting(self.model, free, [8] * (PROMPT // 8) + [len(free) - PROMPT], leaving)
                free = [*free, int(logits[-1].argmax())]
            with ModelLoop(self.model) as loop:
                full = loop.read(self.ids, PROMPT)
                logits = loop.feed_growing({layer: Cut(layer, leaving) for layer in range(2)})
                with mock.patch.object(loop, "_forward_own", wraps=loop._forward_own) as passes:
                    again = loop.feed_growing({layer: Cut(layer, leaving) for layer in range(2)})
                self.assertTrue(np.array_equal(logits, again))
                self.assertEqual(passes.call_count, PROMPT // 8)  # all blocks but the first, which was read before, and the steps
                words = [f"w{i}" for i in free[self.begin :]]
                words = words[: words.index("w2")] if "w2" in words else words
                judge = Judge(Question("t", ["never"], (self.begin, len(self.ids)), [], self.ANSWER), loop, self.ids, PROMPT, Letters())
                found = judge.judge(None, logits, figures_of_steps(full, logits)[0], lambda layer: 2)
                judge.finish()
            self.assertEqual((found["answer"].split(), found["right"]), (words, 0))
            flips += found["first_other"] is not None
        self.assertTrue(5 < flips, flips)

    def test_figures_are_of_the_rows_that_predict_the_answer(self):
        begin = PROMPT + 3
        with ModelLoop(self.model) as loop:
            full = loop.read(self.ids, PROMPT)
            kept = kept_sets(2, 2, 1, share=0.5)
            changes = {i: Change(kept=kept[i]) for i in range(2)}
            logits = loop.feed(changes)
            kl = figures_of_steps(full, logits)[0]
            question = Question("t", ["w1"], (begin, len(self.ids)), [], 12)
            found = Judge(question, loop, self.ids, PROMPT, Letters()).judge(changes, logits, kl, lambda layer: 2)
        log_p = self.brute.log_p(self.ids, PROMPT, lambda layer, head, k, v: (k[kept[layer, head // 2]], v[kept[layer, head // 2]]))
        answer = self.ids[begin:]
        rows = log_p[2 : 2 + self.ANSWER]
        self.assertAlmostEqual(found["nll"], -np.mean(rows[range(self.ANSWER), answer]), delta=1e-4)
        self.assertAlmostEqual(found["kl_question"], kl[:2].mean())
        self.assertAlmostEqual(found["kl_answer"], kl[2 : 2 + self.ANSWER].mean())
        self.assertIsNone(found["needles_kept"])

    def test_what_only_the_dumps_steps_decide_is_not_gone_on_with(self):
        begin = PROMPT + 3
        with ModelLoop(self.model) as loop:
            full = loop.read(self.ids, PROMPT)
            read = np.zeros((2, len(self.ids) - PROMPT, PROMPT), bool)
            read[:, :, ::9] = True
            changes = {i: Change(read=read) for i in range(2)}
            logits = loop.feed(changes)
            question = Question("t", ["w1"], (begin, len(self.ids)), [(0, 1)], 12)
            found = Judge(question, loop, self.ids, PROMPT, Letters()).judge(changes, logits, figures_of_steps(full, logits)[0], lambda layer: 2)
        self.assertIsNotNone(found["first_other"])
        self.assertEqual((found["right"], found["score"], found["answer"]), (None, None, None))
        self.assertEqual(found["needles_kept"], 1.0)  # nothing is evicted


class Captured(Case):
    def save_model(self):
        from tokenizers import Tokenizer, models, pre_tokenizers
        words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(97)}, unk_token="w0"))
        words.pre_tokenizer = pre_tokenizers.Whitespace()
        build("llama", eos_token_id=None).save_pretrained(self.folder / "model")
        transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", eos_token="w7").save_pretrained(self.folder / "model")

    def run_it(self, rows, *more):
        path = self.folder / "mine.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return said(kvcapture.main, ["--model", str(self.folder / "model"), "--task", str(path), "--length", "80",
                                     "--out", str(self.folder / "out"), *more])

    def table(self):
        with open(self.folder / "out" / "tasks.csv", newline="") as file:
            return list(csv.DictReader(file))

    def test_right_answers_leave_a_dump_and_wrong_ones_a_row(self):
        self.save_model()
        question = {"context": " ".join(f"w{i}" for i in range(10, 40)), "question": "w52 w53", "prefix": "w60", "longest": 5}
        status, text = self.run_it([{**question, "references": ["nothing"]}])
        self.assertEqual((status, text), (0, "reading model (1 MB)\nmine: 0 of 1 answered rightly\n"))
        (row,) = self.table()
        self.assertEqual((row["right"], row["tokens"]), ("0", "33"), self.table())
        self.assertEqual(sorted(path.name for path in (self.folder / "out").iterdir()), ["tasks.csv", "tasks.json"])
        answer = row["answer"].split()
        status, text = self.run_it([{**question, "references": [answer[1]]}, {**question, "references": ["no"]}], "--force", "--gradients", "2")
        self.assertEqual((status, text), (0, "reading model (1 MB)\nmine: 1 of 2 answered rightly\n"))
        dump = self.folder / "out" / "mine-00"
        manifest = manifest_of(dump)
        self.assertEqual((manifest["prompt_len"], manifest["prompt_ends"]), (30, {"context": 30, "question": 32}))
        end = answer.index(answer[1]) + 2  # the token behind it shows where the word ends
        self.assertEqual(manifest["task"]["spans"], {"needles": [], "question": [30, 32], "prefix": [32, 33], "answer": [33, 33 + end]})
        self.assertEqual(manifest["total_len"], 33 + end)
        tokens = json.loads((dump / "tokens.json").read_text())
        self.assertEqual([f"w{i}" for i in tokens["ids"][33:]], answer[:end])
        self.assertEqual(np.load(dump / "layer_00" / "g_future.npy").shape, (4, 2, 3 + end, 16))
        self.judge(dump)
        (dump / "mine.txt").write_text("of somebody else")
        status, text = self.run_it([{**question, "references": ["no"]}], "--force")
        self.assertEqual((status, text.count("\n")), (2, 2))  # the first says that the model is read
        self.assertRegex(text, "mine-00: expected an empty folder, found mine.txt in it")
        (dump / "mine.txt").unlink()
        more = [{**question, "references": [answer[1]]}, {**question, "references": ["no"]}]
        self.assertEqual(self.run_it(more, "--force", "--gradients", "2")[0], 0)
        status, text = self.run_it([{**question, "references": ["no"]}], "--resume", "--length", "90")
        self.assertEqual((status, text.count("\n")), (2, 1))
        self.assertIn("cannot resume (--force begins again): length: expected 80, found 90", text)
        status, text = self.run_it([{**question, "references": ["no"]}])
        self.assertEqual((status, text.count("\n")), (2, 1))
        self.assertIn("expected no samples (--resume adds to them, --force begins again), found tasks.csv", text)
        before = (dump / "tokens.json").stat().st_mtime_ns
        more = [{**question, "references": [answer[1]]}, {**question, "references": ["no"]}, {**question, "references": [answer[0]]}]
        status, text = self.run_it(more, "--resume")
        self.assertEqual((status, text), (0, "reading model (1 MB)\nmine: 2 of 3 answered rightly\n"))
        self.assertEqual((dump / "tokens.json").stat().st_mtime_ns, before)

    @unittest.skipUnless(KVREPLAY, "KVREPLAY names no kvreplay")
    def test_answers_stand_beside_the_validation_of_results(self):
        self.save_model()
        question = {"context": " ".join(f"w{i}" for i in range(10, 40)), "question": "w52 w53", "prefix": "w60", "longest": 5}
        self.run_it([{**question, "references": ["no"]}])
        answer = self.table()[0]["answer"].split()
        self.run_it([{**question, "references": answer[:2]}], "--force")
        dump, model = self.folder / "out" / "mine-00", self.folder / "model"
        for ends, l in (((), 30), (("--prompt-len", "question"), 32)):
            results = self.folder / f"results-{l}"
            run = [KVREPLAY, "evict", dump, "--policy", "streaming,quest", "--keep", "90%,10%", "--window", "4", "--out", results, "--quiet", *ends]
            subprocess.run(run, check=True)
            self.assertEqual(json.loads((results / "summary.json").read_text())["dump"]["l"], l)
            status, text = said(kvvalidate.main, ["--model", str(model), "--results", str(results)])
            self.assertEqual(status, 0, text)
            with open(results / "answers.csv", newline="") as file:
                rows = list(csv.DictReader(file))
            with open(results / "validate.csv", newline="") as file:
                kl = {(row["policy"], row["budget"]) for row in csv.DictReader(file) if row["metric"] == "kl"}
            self.assertEqual({(row["policy"], row["budget"]) for row in rows}, kl)
            for row in rows:
                judged = row["policy"] == "streaming" or row["first_other"] == ""
                self.assertEqual(row["right"] != "", judged, row)
                self.assertEqual(float(row["margin"]) > 0, row["first_other"] == "")
                if row["first_other"] == "":
                    self.assertEqual(row["right"], "1")
            before = (results / "answers.csv").read_bytes()
            self.assertEqual(said(kvvalidate.main, ["--model", str(model), "--results", str(results), "--resume"])[0], 0)
            self.assertEqual((results / "answers.csv").read_bytes(), before)
        manifest = manifest_of(dump)
        del manifest["task"]["longest"]
        (dump / "manifest.json").write_text(json.dumps(manifest))
        status, text = said(kvvalidate.main, ["--model", str(model), "--results", str(results), "--force"])
        self.assertEqual(status, 2)
        self.assertRegex(text, "manifest.json: task: expected what kvcapture.py --task writes, found")

    @unittest.skipUnless(KVREPLAY, "KVREPLAY names no kvreplay")
    def test_folders_behind_a_refused_one_are_validated(self):
        self.save_model()
        question = {"context": " ".join(f"w{i}" for i in range(10, 40)), "question": "w52 w53", "longest": 4}
        self.run_it([{**question, "references": ["no"]}])
        answer = self.table()[0]["answer"].split()
        self.run_it([{**question, "references": answer[:1]}] * 2, "--force")
        results = [self.folder / name for name in ("first", "second", "third")]
        for folder, dump, ends in zip(results, ("mine-00", "mine-01", "mine-01"), ([], ["--prompt-len", "question"], ["--prompt-len", "question"])):
            run = [KVREPLAY, "evict", self.folder / "out" / dump, "--policy", "streaming", "--keep", "50%", "--window", "4", "--out", folder, "--quiet", *ends]
            subprocess.run(run, check=True)
        manifest = manifest_of(self.folder / "out" / "mine-00")
        del manifest["task"]["longest"]
        (self.folder / "out" / "mine-00" / "manifest.json").write_text(json.dumps(manifest))
        kept = next((results[1] / "layer_01" / "kept").glob("*.npy"))
        kept.write_bytes(kept.read_bytes()[:-1])
        status, text = said(kvvalidate.main, ["--model", str(self.folder / "model"), "--results", *map(str, results)])
        self.assertEqual(status, 2, text)
        self.assertRegex(text, f"(?m)^kvvalidate: {results[0]}: .*task: expected what kvcapture.py --task writes")
        self.assertRegex(text, f"(?m)^kvvalidate: {results[1]}.*kept.*")
        with open(results[2] / "answers.csv", newline="") as file:
            (row,) = csv.DictReader(file)
        self.assertEqual(row["kl_question"], "")  # the answer follows the prompt
        self.assertTrue(json.loads((results[2] / "validate.json").read_text())["finished"])
        self.assertFalse(json.loads((results[1] / "validate.json").read_text())["finished"])
        self.assertFalse((results[0] / "validate.json").exists())
        self.assertRegex(text, f"(?m)^{results[2]}: nats over the decoding steps")

    def test_a_log_says_how_far_it_is(self):
        self.save_model()
        rows = [{"context": " ".join(f"w{i}" for i in range(10, 40)), "question": "w52", "references": ["no"], "longest": 3}] * 2
        kvcapture.Progress.LOGGED, before = 0.0, kvcapture.Progress.LOGGED
        self.addCleanup(setattr, kvcapture.Progress, "LOGGED", before)
        _, text = self.run_it(rows)
        self.assertRegex(text, "(?m)^mine-00: 31 tokens, 1 of at most 10$")
        self.assertRegex(text, "(?m)^mine-01: 31 tokens, 2 of at most 10, \\d+ min left$")
        self.assertNotIn("\r", text)

    def test_bad_requests_are_one_line(self):
        self.save_model()
        row = {"context": " ".join(f"w{i}" for i in range(10, 90)), "question": "w50", "references": ["x"]}
        for arguments, pattern in (((["--task", "niah", "--length", "200"]), "--task: expected a file, or some of niah_single_1, .*, found niah"),
                                   ((["--task", "vt", "--length", "200", "--sample", "3"]), "--task: expected nothing that says .*, found --sample"),
                                   ((["--task", "vt", "--length", "200", "--samples", "0"]), "--samples: expected at least 1, found 0"),
                                   ((["--task", "vt", "--length", "4096"]), "--length: expected at most the model's 256 positions, found 4096")):
            status, text = said(kvcapture.main, ["--model", str(self.folder / "model"), "--out", str(self.folder / "out"), *arguments])
            self.assertEqual((status, text.count("\n")), (2, 1), text)
            self.assertRegex(text, pattern)
        status, text = self.run_it([row])
        self.assertEqual(status, 2)
        self.assertRegex(text, "mine.jsonl, sample 0: expected at most 80 tokens with its answer .--length., found 1")


class Statistics(unittest.TestCase):
    def test_wilsons_interval_holds_where_a_binomial_would_be_likely(self):
        for right, count, low, high in ((0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (4, 10, 0.1682, 0.6873), (50, 100, 0.4038, 0.5962)):
            np.testing.assert_allclose(wilson(right, count), (low, high), atol=5e-5)
        self.assertEqual(wilson(0, 0), (0.0, 1.0))

    def test_mcnemars_exact_test(self):
        self.assertEqual(mcnemar(0, 0), 1.0)
        self.assertEqual(mcnemar(0, 6), 2 / 2**6)
        self.assertAlmostEqual(mcnemar(2, 8), 2 * (1 + 10 + 45) / 2**10)
        self.assertEqual(mcnemar(3, 3), 1.0)

    def test_holm_corrects_for_the_number_of_tests(self):
        for found, expected in zip(holm([0.01, 0.04, 0.03, 0.5]), (0.04, 0.09, 0.09, 0.5)):
            self.assertAlmostEqual(found, expected)
        self.assertEqual(holm([0.6, 0.7]), [1.0, 1.0])
        self.assertEqual(holm([]), [])

    def test_auc_is_the_share_of_pairs(self):
        rng = np.random.default_rng(1)
        figure, flips = rng.integers(0, 6, 40).astype(float), rng.random(40) < 0.4
        pairs = [(a > b) + (a == b) / 2 for a in figure[flips] for b in figure[~flips]]
        self.assertAlmostEqual(auc(figure, flips), np.mean(pairs))
        self.assertTrue(np.isnan(auc(figure, flips & False)))
        self.assertEqual(auc_interval([1, 2, 3, 4], [False, False, True, True], "aabb")[0], 1.0)
        middle, low, high = auc_interval(figure, flips, np.arange(40))
        self.assertTrue(low < middle < high)

    def test_curves(self):
        bins = curve([0.01, 0.02, 0.3, 5], [True, True, False, False], (0, 0.1, 1, np.inf))
        self.assertEqual([(b.right, b.count) for b in bins], [(2, 2), (0, 1), (0, 1)])
        self.assertEqual(safe_below([0.01, 0.02, 0.3, 5], [True, True, False, False]), (0.3, 2))
        self.assertEqual(safe_below([0.01], [True]), (np.inf, 1))


if __name__ == "__main__":
    main()
