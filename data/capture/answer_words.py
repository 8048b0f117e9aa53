"""Finds references in answers of any script, by the rule of README.md (Questions and answers). Needs nothing but Python."""
from __future__ import annotations

import re
import unicodedata

# Scripts without spaces between words, or with attached particles: the first words of their characters' Unicode names.
RUNNING = {"CJK", "IDEOGRAPHIC", "BOPOMOFO", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "HANGUL", "THAI", "LAO", "KHMER", "MYANMAR"}
PLAIN = str.maketrans({**dict.fromkeys("‘’‚‛′ʼʻ´", "'"), **dict.fromkeys("“”„‟″«»", '"'), **dict.fromkeys("‐‑‒–−", "-"), "٫": ".", "٬": ",", "٪": "%", "⁄": "/"})
# Replacements before NFKC, which turns "10²" into "102", "3½" into "31/2" and the space between thousands into an ordinary one.
KEEPS_APART = ((re.compile("(?<=[0-9])，(?=[0-9])"), ", "), (re.compile(r"(?<=\d)[\u00a0\u2007\u2009\u202f](?=\d{3}(?!\d))"), "'"),
               (re.compile("(?<=\\d)(?=[²³¹⁰-₉¼-¾⅐-↉])"), "_"))
# Digits with separators: one number, or a list of them.
DIGITS = re.compile(r"(?<!\d)(?<!\d[.,'])\d+(?:[.,']\d+)+")
THOUSANDS = re.compile(r"[1-9]\d{0,2}(?:(?:,\d{3})+|(?:'\d{3})+)(?:\.\d+)?|[1-9]\d?(?:,\d{2})+,\d{3}(?:\.\d+)?|[1-9]\d{0,2}(?:\.\d{3}){2,}")
DECIMAL_COMMA = re.compile(r"(?!\d{4,},\d{4})\d+,\d+|[1-9]\d{0,2}(?:(?:\.\d{3})+|(?:'\d{3})+),\d+")
DATE = re.compile(r"\d{1,2}\.\d{1,2}\.\d{4}|\d{4}\.\d{1,2}\.\d{1,2}")
# A number must not continue with digits on either side, nor follow a sign. A point and zeros may follow a whole number.
NUMBER_BEGINS = r"(?<!\d\.)(?<!(?<![\w.)\]])\.)(?<!(?<![\w-])-)(?<!(?<![\w-])-[$€£¥₹₩₽])(?<!\de[+-])"
NUMBER_ENDS, WHOLE_NUMBER_ENDS = r"(?!\.\d)", r"(?!\.(?!0+(?!\.?\d))\d)"


def normalized(text: str) -> str:
    """Normalizes characters, case and numbers of an answer or a reference, for comparison."""
    text = "".join(map(_visible, text)).translate(PLAIN)
    for pattern, replacement in KEEPS_APART:
        text = pattern.sub(replacement, text)
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold()).translate(PLAIN)
    text = text.replace("i\u0307", "i").replace("ı", "i")  # Turkish has a different case pairing
    text = re.sub(r"\d", lambda digit: str(int(digit[0])), text)
    text = DIGITS.sub(_number, re.sub(r"(?<=\d)\s+(?=[%‰])", "", text))
    return " ".join(text.split())


def contains(text: str, reference: str) -> bool:
    """True if a normalized text contains a normalized reference as whole words or a whole number. False for an empty reference."""
    if not reference:
        return False
    begins = NUMBER_BEGINS if reference[0].isdigit() else ""
    whole = re.search(r"(?<![\d.])\d+$", reference)
    ends = "" if not reference[-1].isdigit() else WHOLE_NUMBER_ENDS if whole else NUMBER_ENDS
    for found in re.finditer(f"{begins}(?={re.escape(reference)}{ends})", text):
        begin, end = found.start(), found.start() + len(reference)
        lengthened = unicodedata.category(text[end : end + 1] or " ").startswith("M")  # a mark belongs to the letter before
        if not (lengthened or _joined(text[:begin][-1:], reference[0]) or _joined(text[end : end + 1], reference[-1])):
            return True
    return False


def _visible(c: str) -> str:
    """Removes format characters. Separates signs that are spelled with letters (™, №, ㎏) from adjacent words."""
    category = unicodedata.category(c)
    if category == "Cf" or "\ufe00" <= c <= "\ufe0f":
        return ""
    if category != "So":
        return c
    spelled = unicodedata.normalize("NFKC", c)
    return " " * spelled[0].isalnum() + c + " " * spelled[-1].isalnum()


def _number(digits: re.Match[str]) -> str:
    run, text = digits[0], digits.string
    behind_letter, before_letter = (re.fullmatch("[a-z_]", c) for c in (text[: digits.start()][-1:], text[digits.end() : digits.end() + 1]))
    if THOUSANDS.fullmatch(run) and not (behind_letter and before_letter):  # as in "c2,616f", the end and the beginning of two codes
        return run.replace(".", "") if run.count(".") > 1 else re.sub("[,']", "", run)
    if DECIMAL_COMMA.fullmatch(run) and not behind_letter and not (before_letter and run.find(",") > 3):
        return re.sub("[.']", "", run).replace(",", ".")
    return run.replace(".", ". ") if DATE.fullmatch(run) else run.replace(",", ", ")


def _joined(beside: str, edge: str) -> bool:
    """True if the character next to a reference belongs to the word at the reference's edge."""
    in_word = beside.isalnum() or beside == "_" or unicodedata.category(beside or " ").startswith("M")
    return in_word and not _running(beside) and not _running(edge)


def _running(c: str) -> bool:
    return unicodedata.name(c, "").split(" ")[0] in RUNNING
