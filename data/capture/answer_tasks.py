"""Questions whose answers can be checked: RULER's tasks (arXiv 2404.06654) that need no download, in words of our own, tasks of
LongBench's shapes made of local text, and those of a user's file.

  for sample in samples("niah_multikey_1", 10, Haystack.own(), fits=lambda sample: count(sample) <= 2048):
      print(sample.context, sample.question, sample.prefix, sample.references)

Every sample is drawn by its seed, task and number alone, and is as long as it fits. Needs nothing but Python.
"""
from __future__ import annotations

import hashlib
import importlib
import json
import random
import re
import string
from functools import partial
from typing import Callable, Iterator, NamedTuple, Sequence

from answer_words import contains, normalized
from dump_files import CaptureError, read_text, require

# Keys are two of these words, values one, and lists are made of them.
NOUNS = """
acorn actor album anchor apple archer arrow atlas attic autumn badge bakery balcony bamboo banner barrel basket beacon beaver
bench berry bicycle blanket blossom border bottle branch bridge brook bucket button cabin cactus camera canal candle canyon
carpet castle cedar cellar chapel cherry chimney circle clover cobbler coffee comet compass copper coral corner cotton cradle
cricket crystal curtain cymbal dagger daisy desert diamond dolphin donkey dragon drawer eagle easel elbow ember engine falcon
farmer feather fender fiddle flower forest fossil fountain garden garlic garnet geyser ginger glacier goblet granite guitar
hammer harbor harvest hazel helmet heron hollow hornet island ivory jacket jasmine jungle kettle kitten ladder lantern lemon
lettuce lizard locket magnet mantle maple marble meadow melon mirror mitten mosaic mountain museum napkin needle nickel noodle
novel nutmeg oasis ocean olive onion orchard otter oyster paddle palace panther parrot pasture peanut pebble pencil pepper
pigeon pillow planet plaza plum pocket pony poplar potter prairie puzzle quarry quill rabbit raven ribbon river rocket saddle
salmon sandal satchel scarf shadow shovel signal silver sparrow spider spruce stable station statue stirrup summer sunset swan
teacup temple thimble thistle thunder tiger timber tomato tower tractor trumpet tulip tunnel turtle valley velvet violin walnut
walrus whistle willow window winter wizard yogurt zebra zipper
""".split()
QUALITIES = """
amber ancient bold brave brief bright brisk broad calm careful clever cloudy cold crisp curious dusty eager early empty faint
fancy fluffy fragile frosty gentle golden grand green heavy hidden hollow honest humble jolly keen late lively lonely loud
lucky mellow merry mild misty modest narrow nimble noble odd pale patient plain polite proud purple quick quiet rapid rare
rough round rusty scarlet shallow sharp shiny silent simple sleepy slender smooth snowy solid steady stormy sturdy subtle
sunny sweet swift tall tender tidy tiny twisted vast vivid warm wild wise young
""".split()
NOISE = ("The wind moves over the field. The road is long and the sky is clear. Somebody closes a door. "
         "Here is a step, and there is another.")
LARGEST = 1 << 20  # units of a sample


class Sample(NamedTuple):
    task: str
    context: str
    question: str
    prefix: str  # of the answer
    references: tuple[str, ...]
    needles: tuple[tuple[int, int], ...] = ()  # characters of the context that the answer stands in
    longest: int = 128  # tokens of an answer at most


class Haystack(NamedTuple):
    """Sentences in which needles are hidden."""

    source: str
    sentences: Sequence[str]
    hash: str

    @staticmethod
    def own() -> Haystack:
        """The help of Python: its version decides what it says."""
        topics = importlib.import_module("pydoc_data.topics").topics
        return Haystack.of("pydoc_data.topics", "\n".join(topics[name] for name in sorted(topics)))

    @staticmethod
    def of(source: str, text: str) -> Haystack:
        sentences = [" ".join(found.split()) for found in re.split(r"(?<=[.!?])\s+|\n\s*\n", text)]
        prose = [sentence for sentence in sentences if len(re.findall(r"[^\W\d_]|[ ,.]", sentence)) > 0.9 * len(sentence) > 18]
        sentences = prose or sentences  # tables and code make poor hay
        require(any(sentences), source, "a text with sentences", "none")
        return Haystack(source, sentences, hashlib.sha256("\n".join(sentences).encode()).hexdigest()[:16])

    def some(self, draw: random.Random, count: int) -> list[str]:
        """Adjacent sentences, from anywhere on; behind the last comes the first."""
        begin = draw.randrange(len(self.sentences))
        return [self.sentences[(begin + i) % len(self.sentences)] for i in range(count)]


def hidden(draw: random.Random, sentences: list[str], needles: Sequence[str], asked: Sequence[int],
           begin: str) -> tuple[str, tuple[tuple[int, int], ...]]:
    """A text in which the needles stand between sentences, in an order of their own, and where those asked for are."""
    places = sorted((draw.randrange(len(sentences) + 1), i) for i in draw.sample(range(len(needles)), len(needles)))
    parts, spans, at, length = [begin], {}, 0, len(begin)
    for place, i in [*places, (len(sentences), None)]:
        for part in sentences[at:place] + ([] if i is None else [needles[i]]):
            parts.append(part)
            length += 1 + len(part)
        at = place
        if i is not None:
            spans[i] = (length - len(needles[i]), length)
    return " ".join(parts), tuple(spans[i] for i in asked)


def number(draw: random.Random) -> str:
    return str(draw.randrange(10**6, 10**7))


def word_pair(draw: random.Random) -> str:
    return f"{draw.choice(QUALITIES)}-{draw.choice(NOUNS)}"


def code(draw: random.Random) -> str:
    """As long as a UUID, and written like one."""
    text = f"{draw.getrandbits(128):032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def distinct(draw: random.Random, kind: Callable[[random.Random], str], count: int) -> list[str]:
    found: dict[str, None] = {}
    while len(found) < count:
        found[kind(draw)] = None
    return list(found)


def needles(draw: random.Random, size: int, haystack: Haystack, *, stack: str = "text", keys: int = 1, values: int = 1,
            asked: int = 1, key: Callable = word_pair, value: Callable = number) -> Sample:
    """Keys with values each, hidden among `size` sentences of the haystack (stack "text"), of noise ("noise"), or of other
    needles ("needles")."""
    count = keys + (size if stack == "needles" else 0)
    named = distinct(draw, key, count)
    of_key = [distinct(draw, value, values) for _ in named]
    what = "number" if value is number else "code"
    all_needles = [f"The registered {what} of {name} is {found}." for name, mine in zip(named, of_key) for found in mine]
    chosen = [i for i in range(len(all_needles)) if i // values < asked]
    sentences = {"text": haystack.some, "noise": lambda _, n: [NOISE] * n, "needles": lambda *_: []}[stack](draw, size)
    begin = f"Registered {what}s are hidden in the following text. Remember them: there will be a question about them.\n\n"
    context, spans = hidden(draw, sentences, all_needles, chosen, begin)
    names = " and ".join((", ".join(named[: asked - 1]), named[asked - 1])) if asked > 1 else named[0]
    references = tuple(found for mine in of_key[:asked] for found in mine)
    if len(references) == 1:
        question, prefix = f"What is the registered {what} of {names} in the text?", f"The registered {what} of {names} is"
    else:
        question = f"What are all the registered {what}s of {names} in the text?"
        prefix = f"The registered {what}s of {names} are"
    return Sample("", context, question, prefix, references, spans, 32 * len(references) if value is number else 64)


def variables(draw: random.Random, size: int, _haystack: Haystack, *, hops: int = 4) -> Sample:
    """RULER's variable tracking: a chain of assignments among `size` stretches of noise."""
    names = distinct(draw, lambda d: "".join(d.choice(string.ascii_uppercase) for _ in range(5)), hops + 1)
    value = str(draw.randrange(10**4, 10**5))
    chain = [f"VAR {names[0]} = {value}."] + [f"VAR {b} = VAR {a}." for a, b in zip(names, names[1:])]
    places = sorted(draw.randrange(size + 1) for _ in chain)
    parts, spans = ["Follow the assignments of variables that are hidden in the following text.\n\n"], []
    for i, place in enumerate(range(size + 1)):
        for link in (chain[k] for k in range(len(chain)) if places[k] == place):
            begin = sum(map(len, parts)) + len(parts)
            spans.append((begin, begin + len(link)))
            parts.append(link)
        if i < size:
            parts.append(NOISE)
    question = f"Which variables have the value {value}, assigned directly or through others? Name all {hops + 1} of them."
    prefix = f"The {hops + 1} variables that have the value {value} are"
    return Sample("", " ".join(parts), question, prefix, tuple(names), tuple(spans), 48)


def common_words(draw: random.Random, size: int, _haystack: Haystack, *, common: int = 10, often: int = 30, seldom: int = 3) -> Sample:
    """RULER's common words: ten that stand `often` times in a list with `size` others, each `seldom` times."""
    single = sorted({*NOUNS, *QUALITIES})
    draw.shuffle(single)
    others = (single[common:] + distinct(draw, word_pair, max(size - len(single), 0) + common))[:size]
    listed = single[:common] * often + others * seldom
    draw.shuffle(listed)
    context = "Here is a numbered list of words. Some stand in it much more often than the others.\n\n" + " ".join(
        f"{i + 1}. {word}" for i, word in enumerate(listed))
    return Sample("", context, f"Which {common} words stand most often in the list?",
                  f"The {common} words that stand most often in the list are:", tuple(single[:common]), (), 96)


def frequent_words(draw: random.Random, size: int, _haystack: Haystack, *, alpha: float = 2.0, asked: int = 3) -> Sample:
    """RULER's frequent words: made-up words, the k-th as frequent as k^-alpha; the first is filled by dots."""
    made = distinct(draw, lambda d: "".join(d.choice(string.ascii_lowercase) for _ in range(6)), 200)
    weights = [(k + 1) ** -alpha for k in range(1 + len(made))]
    counts = [round((60 + size) * weight / sum(weights)) for weight in weights]  # of fewer than 60 words, some asked for are as frequent
    listed = ["..."] * counts[0] + [word for word, count in zip(made, counts[1:]) for _ in range(count)]
    draw.shuffle(listed)
    context = "Here is a coded text. Track how often each coded word stands in it; the dots mean nothing.\n\n" + " ".join(listed)
    return Sample("", context, f"Which {asked} coded words stand most often in the text? Leave out the dots.",
                  f"The {asked} coded words that stand most often in the text are", tuple(made[:asked]), (), 32)


# Tasks of LongBench's shapes (arXiv 2308.14508), of local text.

LABELED = {  # kinds of questions, each with ways to ask
    "a number": ("How many {}s are in the {}?", "How much does the {} beside the {} weigh?"),
    "a place": ("Where is the {} of the {} kept?", "In which town was the {} found beside a {}?"),
    "a person": ("Who carried the {} to the {}?", "Which painter chose a {} and a {}?"),
    "a time": ("When did the {} reach the {}?", "In which year was the {} lost with its {}?"),
    "a reason": ("Why was the {} hidden below the {}?", "For what reason do a {} and a {} match?"),
}


def document(draw: random.Random, size: int, haystack: Haystack) -> Sample:
    """Single-document QA: one paragraph of a text tells a story; a question asks for one of its facts in other words."""
    maker, new, old, gift = distinct(draw, lambda d: d.choice(NOUNS).capitalize(), 4)
    year, price = str(draw.randrange(1700, 1990)), str(draw.randrange(110, 990))
    story = (f"In {year} the clockmaker {maker} gave up her workshop in {old}. She bought an empty mill in {new} for {price} crowns, "
             f"and the first clock that she made there was a present for her neighbour {gift}.")
    asked = {"To which town did the clockmaker move?": new, "Which town did the clockmaker leave?": old,
             "How many crowns did the mill cost?": price, "Who was given the first clock from the mill?": gift}
    question = draw.choice(sorted(asked))
    context, spans = hidden(draw, haystack.some(draw, size), [story], [0], "Read the following document.\n\n")
    return Sample("", context, question, "The answer is", (asked[question],), spans, 32)


def classes(draw: random.Random, size: int, _haystack: Haystack) -> Sample:
    """Few-shot classification: questions, each with a made-up name of the kind of its answer, which only the examples give away."""
    names = dict(zip(LABELED, distinct(draw, lambda d: "".join(d.choice(string.ascii_lowercase) for _ in range(5)), len(LABELED))))

    def example(kind: str) -> str:
        return draw.choice(LABELED[kind]).format(draw.choice(NOUNS), draw.choice(NOUNS))

    kinds = [*LABELED, *(draw.choice(list(LABELED)) for _ in range(size))]
    asked = draw.choice(list(LABELED))
    context = "Every question has a label. Learn the labels from the examples.\n\n" + "\n".join(
        f"Question: {example(kind)} Label: {names[kind]}." for kind in kinds)
    return Sample("", context, f"What is the label of this question? {example(asked)}", "The label is", (names[asked],), (), 24)


def passages(draw: random.Random, haystack: Haystack, count: int, sentences: int = 3) -> list[str]:
    """Different ones, as far as the haystack has so many."""
    return [" ".join(haystack.some(draw, sentences)) for _ in range(count)]


def passage_retrieval(draw: random.Random, size: int, haystack: Haystack) -> Sample:
    """Numbered paragraphs; a question quotes a sentence that was added to one of them and asks for its number."""
    texts = passages(draw, haystack, size + 2)
    at, (owner, thing) = draw.randrange(len(texts)), distinct(draw, word_pair, 2)
    clue = f"The {owner} was exchanged for the {thing}."
    parts, spans = ["Here are numbered paragraphs."], ()
    for i, text in enumerate(texts):
        part = f"Paragraph {i + 1}: {text}"
        if i == at:
            begin = sum(len(one) + 2 for one in parts) + len(part) + 1
            part, spans = f"{part} {clue}", ((begin, begin + len(clue)),)
        parts.append(part)
    return Sample("", "\n\n".join(parts), f"In which paragraph was the {owner} exchanged? Give its number.", "It was in paragraph",
                  (str(at + 1),), spans, 16)


def passage_count(draw: random.Random, size: int, haystack: Haystack) -> Sample:
    """Numbered paragraphs, some of which stand there again: how many different ones are there?"""
    texts = passages(draw, haystack, size + 2, sentences=1)
    listed = list(dict.fromkeys(texts))
    different = max(2 * len(listed) // 3, 1)
    listed = listed[:different] + [draw.choice(listed[:different]) for _ in range(len(texts) - different)]
    draw.shuffle(listed)
    context = "Here are numbered paragraphs. Some stand there more than once.\n\n" + "\n\n".join(
        f"Paragraph {i + 1}: {text}" for i, text in enumerate(listed))
    return Sample("", context, "How many different paragraphs are there, if each is counted once?", "The number of different paragraphs is",
                  (str(different),), (), 16)


def completion(draw: random.Random, size: int, _haystack: Haystack) -> Sample:
    """Code completion: the last line of a program calls one of its functions, whose constant is to be written."""
    names = [pair.replace("-", "_") for pair in distinct(draw, word_pair, size + 4)]
    values = distinct(draw, number, len(names))
    at, begin = draw.randrange(len(names)), "The following is a Python program.\n\n"
    lines = [f"def {name}():\n    return {value}\n" for name, value in zip(names, values)]
    before = len(begin) + sum(len(line) + 1 for line in lines[:at])
    return Sample("", begin + "\n".join(lines), f"Complete the last line of the program: assert {names[at]}() ==", f"assert {names[at]}() ==",
                  (values[at],), ((before, before + len(lines[at]) - 1),), 24)


TASKS: dict[str, Callable[[random.Random, int, Haystack], Sample]] = {
    "niah_single_1": partial(needles, stack="noise"),
    "niah_single_2": needles,
    "niah_single_3": partial(needles, value=code),
    "niah_multikey_1": partial(needles, keys=4),
    "niah_multikey_2": partial(needles, stack="needles"),
    "niah_multikey_3": partial(needles, stack="needles", key=code, value=code),
    "niah_multivalue": partial(needles, values=4),
    "niah_multiquery": partial(needles, keys=4, asked=4),
    "vt": variables,
    "cwe": common_words,
    "fwe": frequent_words,
    "document_qa": document,
    "few_shot": classes,
    "passage_retrieval": passage_retrieval,
    "passage_count": passage_count,
    "code_completion": completion,
}


def samples(task: str, count: int, haystack: Haystack, fits: Callable[[Sample], bool], seed: int = 0) -> Iterator[Sample]:
    """The first so many of a task, each with as many units around its needles as fit."""
    for index in range(count):
        make = partial(made, task, seed, index, haystack)
        require(fits(make(0)), f"{task}, sample {index}", "one that fits into --length", "one that does not, however small")
        size = 1
        while size < LARGEST and fits(make(size)):
            size *= 2
        low, high = size // 2, size
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(make(middle)) else (low, middle)
        yield make(low)


def made(task: str, seed: int, index: int, haystack: Haystack, size: int) -> Sample:
    return TASKS[task](random.Random(f"{task}/{seed}/{index}"), size, haystack)._replace(task=task)


def read_samples(path: str, name: str) -> list[Sample]:
    """A user's: a JSON object a line with context, question, references and, if wanted, prefix and longest."""
    found = []
    for number_of, line in enumerate(read_text(path).split("\n"), 1):  # not at U+2028 and its like, which JSON has within texts
        if not line.strip():
            continue
        where, wanted = f"{path}, line {number_of}", "an object with context, question and references"
        try:
            row = json.loads(line)
        except ValueError as error:
            raise CaptureError(f"{where}: expected {wanted}, found {error}") from None
        require(isinstance(row, dict), where, wanted, type(row).__name__)
        for key in ("context", "question"):
            require(isinstance(row.get(key), str) and row[key].strip(), f"{where}: {key}", "a text", row.get(key, "none"))
        references = row.get("references")
        references = [references] if isinstance(references, str) else references
        good = isinstance(references, list) and references and all(isinstance(one, str) and normalized(one) for one in references)
        require(good, f"{where}: references", "texts, one of them at least", references)
        prefix, longest = row.get("prefix", ""), row.get("longest", 64)
        require(isinstance(prefix, str), f"{where}: prefix", "a text", prefix)
        require(type(longest) is int and longest > 0, f"{where}: longest", "a number of tokens", longest)
        found.append(Sample(name, row["context"], row["question"], prefix, tuple(references), (), longest))
    require(found, path, "a JSON object a line", "none")
    return found


def score(answer: str, references: Sequence[str]) -> float:
    """The share of the references that an answer contains, as whole words or numbers."""
    text = normalized(answer)
    return sum(contains(text, normalized(reference)) for reference in references) / len(references)


def stays_right(answer: str, references: Sequence[str]) -> bool:
    """True if the answer stays right however it goes on. Its last word, number or letter may still be incomplete."""
    return not answer.endswith("\ufffd") and all(score(answer + more, references) == 1 for more in ("x", "500", "\u0301"))
