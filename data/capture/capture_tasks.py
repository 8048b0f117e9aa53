"""kvcapture.py --task: a dump of every question that the model answers rightly, its own answer behind it.

A sample is framed as the model's chat template has it and read up to the prefix of the answer; then the model answers,
greedily. Right answers leave FOLDER/<task>-<number>/, a dump whose manifest has

  prompt_ends   {"context": N, "question": N}: the tokens of the prompt that ends before the question, which is the dump's
                prompt_len, and behind it (kvreplay --prompt-len question)
  task          {"name", "sample", "references", "answer": the text, "longest": its tokens at most, "spans": {"needles": [[begin, end], ..], "question",
                "prefix", "answer": [begin, end]}}: positions

tasks.csv has all samples, the wrong ones too, and what was answered, tasks.json what they were drawn by.
"""
from __future__ import annotations

import csv
import math
import time
from pathlib import Path
from typing import Any, Callable, Iterator, NamedTuple

from answer_tasks import TASKS, Haystack, Sample, read_samples, samples, score, stays_right
from dump_files import prepare_folder, read_json, read_text, require, write_json

COLUMNS = ("task", "sample", "tokens", "score", "right", "answer")
LENGTH = 2048  # tokens of a sample, its answer included
MARK = "\x02"  # between context and question, of which a template sees one text


class Framed(NamedTuple):
    """A sample as the model reads it."""

    ids: list[int]
    prompt_ends: dict[str, int]
    spans: dict[str, Any]

    @staticmethod
    def of(sample: Sample, tokenizer: Any) -> Framed:
        content = sample.context + MARK + "\n\n" + sample.question
        chat = tokenizer.chat(content)
        before, *behind = (chat or content + "\n").split(MARK)
        require(len(behind) == 1, sample.task, "a context and a question that the chat template has once", f"{len(behind)} marks between them")
        behind, begin = behind[0], max(before.find(sample.context), 0)  # a template may strip a context, then one without needles
        context, question, prefix = tokenizer.spans(before), tokenizer.spans(behind), tokenizer.spans(sample.prefix)
        first = [] if chat else list(tokenizer.begin)
        ends = len(first) + len(context), len(first) + len(context) + len(question)
        needles = [within(context, begin + a, begin + b, len(first)) for a, b in sample.needles]
        ids = first + [i for part in (context, question, prefix) for i, _, _ in part]
        return Framed(ids, dict(zip(("context", "question"), ends)),
                      {"needles": needles, "question": list(ends), "prefix": [ends[1], len(ids)]})


def within(tokens: list[tuple[int, int, int]], begin: int, end: int, first: int) -> list[int]:
    """The positions of the tokens that hold characters begin .. end - 1, where the tokens begin at position `first`."""
    inside = [at for at, (_, a, b) in enumerate(tokens) if a < end and b > begin]
    return [first + inside[0], first + inside[-1] + 1]


class Task(NamedTuple):
    """A task and its samples, and what they are made of."""

    name: str
    samples: Iterator[Sample]
    source: dict[str, Any]


def read_tasks(args: Any, tokenizer: Any, longest: int) -> list[Task]:
    """Those that --task names: a JSON-lines file of one's own, or of TASKS."""
    length = args.length or LENGTH
    require(0 < length <= longest, "--length", f"at most the model's {longest} positions", length)
    require(args.samples > 0, "--samples", "at least 1", args.samples)
    names = args.task.split(",")

    def fits(sample: Sample) -> bool:
        return len(Framed.of(sample, tokenizer).ids) + sample.longest <= length

    if any(name not in TASKS for name in names):
        path = Path(args.task)
        require(path.is_file(), "--task", f"a file, or some of {', '.join(TASKS)}", args.task)
        own = read_samples(args.task, path.stem)[: args.samples]
        for number, sample in enumerate(own):
            size = len(Framed.of(sample, tokenizer).ids) + sample.longest
            require(size <= length, f"{path}, sample {number}", f"at most {length} tokens with its answer (--length)", size)
        return [Task(path.stem, iter(own), {"source": path.name})]
    hay = Haystack.of(Path(args.haystack).name, read_text(args.haystack)) if args.haystack else Haystack.own()
    source = {"haystack": hay.source, "haystack_sha256": hay.hash, "seed": args.seed, "length": length}
    return [Task(name, samples(name, args.samples, hay, fits, args.seed), source) for name in names]


class Answers:
    """tasks.csv: what was answered so far, and tasks.json, by what it was drawn."""

    def __init__(self, folder: Path, how: dict[str, Any], resume: bool, force: bool):
        """Rejects a folder with samples, unless resume or force is set, before a model is read. begin() writes."""
        self.folder, self.path, self.how, self.former = folder, folder / "tasks.csv", how, []
        self.rows: dict[tuple[str, str], dict[str, Any]] = {}
        if self.path.exists():
            require(resume or force, folder, "no samples (--resume adds to them, --force begins again)", self.path.name)
            with open(self.path, newline="", encoding="utf-8") as file:
                self.rows = {(row["task"], row["sample"]): row for row in csv.DictReader(file)}
            if force:
                self.former, self.rows = [self.dump(task, int(number)) for task, number in self.rows], {}
            else:
                before = read_json(folder / "tasks.json")
                for key, now in how.items():
                    was = before.get(key) if isinstance(before, dict) else before
                    require(was == now, f"{folder}: cannot resume (--force begins again): {key}", was, now)

    def begin(self) -> None:
        for dump in self.former:
            discard(dump)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / "tasks.json", self.how)

    def dump(self, task: str, number: int) -> Path:
        return self.folder / f"{task}-{number:02}"

    def add(self, row: dict[str, Any]) -> None:
        self.rows[row["task"], str(row["sample"])] = row
        new = self.path.with_suffix(".new")
        with open(new, "w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            table.writeheader()
            table.writerows(self.rows.values())
        new.replace(self.path)

    def summary(self) -> Iterator[str]:
        """A line a task: how many the model answers."""
        for task in dict.fromkeys(task for task, _ in self.rows):
            found = [row for (name, _), row in self.rows.items() if name == task]
            right = sum(str(row["right"]) == "1" for row in found)
            yield f"{task}: {right} of {len(found)} answered rightly"


def discard(dump: Path) -> None:
    """Removes a dump, but nothing that a capture did not write."""
    if dump.exists():
        prepare_folder(dump, force=True, size=0)
        dump.rmdir()


class Unanswered(Exception):
    """Ends a capture whose answer is wrong."""


def open_answers(tasks: list[Task], args: Any) -> Answers:
    how = {"model": Path(args.gguf or args.model).name, "length": args.length or LENGTH}
    for task in tasks:
        how |= {key: value for key, value in task.source.items() if key != "source"}
    return Answers(Path(args.out), how, args.resume, args.force)


def take_tasks(tasks: list[Task], answers: Answers, args: Any, tokenizer: Any, take: Callable, more: Callable,
               progress: Callable[[str], object]) -> None:
    """take(folder, ids, prompt_len, longest, enough, judge) captures the ids and an answer, which ends where `enough` says so of
    it, or after the longest, and has `judge` see it; more(folder) adds to a dump."""
    answers.begin()
    began, done = time.monotonic(), 0
    for task in tasks:
        for number, sample in enumerate(task.samples):
            if (task.name, str(number)) in answers.rows:
                continue
            folder, framed = answers.dump(task.name, number), Framed.of(sample, tokenizer)
            progress(f"{folder.name}: {len(framed.ids)} tokens, {left(began, done, args.samples * len(tasks))}")
            row = {"task": task.name, "sample": number, "tokens": len(framed.ids), "score": "", "right": 0, "answer": ""}

            def judge(ids: list[int]) -> None:
                text = tokenizer.join(ids)
                found = score(text, sample.references)
                row.update(score=f"{found:g}", right=int(found == 1), answer=text)
                if not row["right"]:
                    raise Unanswered

            begin = framed.prompt_ends["context"]
            try:
                take(folder, framed.ids, begin, sample.longest, lambda ids: stays_right(tokenizer.join(ids), sample.references), judge)
                path = folder / "manifest.json"
                manifest = read_json(path)
                spans = {**framed.spans, "answer": [len(framed.ids), manifest["total_len"]]}
                told = {"name": task.name, "sample": number, **task.source, "question": sample.question,
                        "references": sample.references, "answer": row["answer"], "longest": sample.longest, "spans": spans}
                write_json(path, {**manifest, "prompt_ends": framed.prompt_ends, "task": told})
                more(folder)
            except Unanswered:
                discard(folder)
            answers.add(row)
            done += 1


def left(began: float, done: int, count: int) -> str:
    """"3 of at most 80, 12 min left", by those that are done."""
    minutes = f", {math.ceil((time.monotonic() - began) / done * (count - done) / 60)} min left" if done else ""
    return f"{done + 1} of at most {count}{minutes}"
