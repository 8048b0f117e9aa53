#!/usr/bin/env python3
"""The tokenizer that gguf_file.py makes of a SentencePiece vocabulary: by hand, by law, against sentencepiece itself.

  python3 tests/capture/test_gguf_pieces.py [-v] [Class.test]

Needs nothing; where the package sentencepiece is missing, the comparison with it is skipped.
"""
import io
import random
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "data" / "capture"))
from gguf_file import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, Pieces  # noqa: E402

try:
    import sentencepiece
except ImportError:
    sentencepiece = None

TEXTS = ["", " ", "a", "The licence is a free, copyleft licence.", "  two  spaces   and\n\n\nlines\tand tabs ",
         "aaaaaaaaaaaaaaa aaaa aaa", "caf\u00e9 na\u00efve \u4f60\u597d \U0001f600 \u2581 x", "<b>bold</b><0x41>",
         "def f(x):\n    return x[0] + 1.25e-3\n", "\x00\x7f\u00ff"]


def vocabulary(*pieces, unknown=True, **options):
    """Of (piece, score) pairs, behind <unk>, <s> and </s>; other kinds as (piece, score, kind)."""
    rows = [("<unk>", 0, UNKNOWN), ("<s>", 0, CONTROL), ("</s>", 0, CONTROL)]
    rows += [row if len(row) == 3 else (*row, NORMAL) for row in pieces]
    return Pieces(*zip(*rows), unknown=0 if unknown else None, **options)


LETTERS = [(letter, -100) for letter in "abcd\u2581"]


class ByHand(unittest.TestCase):
    def pieces(self, tokenizer, text):
        return [tokenizer.text(i) for i in tokenizer.encode(text)]

    def test_the_union_with_the_highest_score_is_joined_first(self):
        plain = dict(space_prefix=False)
        self.assertEqual(self.pieces(vocabulary(("ab", -1), ("bc", -2), *LETTERS, **plain), "abc"), ["ab", "c"])
        self.assertEqual(self.pieces(vocabulary(("ab", -2), ("bc", -1), *LETTERS, **plain), "abc"), ["a", "bc"])
        # A unigram model, which sums the scores, would take abcd whole: no union leads there.
        self.assertEqual(self.pieces(vocabulary(("ab", -1), ("abcd", 0), *LETTERS, **plain), "abcd"), ["ab", "c", "d"])
        late = vocabulary(("ab", -1), ("cd", -3), ("abcd", -9), *LETTERS, **plain)
        self.assertEqual(self.pieces(late, "abcd"), ["abcd"])

    def test_the_leftmost_of_equals_is_joined_first(self):
        tokenizer = vocabulary(("aa", -1), *LETTERS, space_prefix=False)
        self.assertEqual(self.pieces(tokenizer, "aaaaa"), ["aa", "aa", "a"])

    def test_spaces(self):
        rows = (("\u2581a", -1), ("\u2581\u2581", -2), *LETTERS)
        self.assertEqual(self.pieces(vocabulary(*rows), "a  a"), [" a", " ", " a"])
        self.assertEqual(self.pieces(vocabulary(*rows, space_prefix=False), "a  b"), ["a", "  ", "b"])
        self.assertEqual(vocabulary(*rows).encode(""), [])

    def test_what_begins_a_text(self):
        self.assertEqual(vocabulary(*LETTERS, begin=[1], space_prefix=False).encode("a"), [1, 3])

    def test_whole_pieces_are_taken_the_longest_first_and_join_nothing(self):
        whole = [(piece, 0, USER_DEFINED) for piece in ("<b>", "<b>a", "  ")]
        tokenizer = vocabulary(*whole, ("\u2581a", -1), ("ab", -1), *LETTERS, space_prefix=False)
        self.assertEqual(self.pieces(tokenizer, "b<b>ab"), ["b", "<b>a", "b"])
        self.assertEqual(self.pieces(tokenizer, "b<b>ba</s>ab"), ["b", "<b>", "b", "a", "</s>", "ab"])
        self.assertEqual(self.pieces(tokenizer, "a   a"), ["a", "  ", " a"])

    def test_bytes(self):
        tokenizer = vocabulary(*LETTERS, *((f"<0x{i:02X}>", 0, BYTE) for i in range(256)), space_prefix=False)
        first = tokenizer.encode("<")[0]
        self.assertEqual(tokenizer.text(first), "<")
        ids = tokenizer.encode("a\u00e9b<0x41>")
        self.assertEqual([i - first + ord("<") for i in ids[1:3]], [0xC3, 0xA9])
        self.assertEqual(len(ids), 4 + len("<0x41>"))
        self.assertEqual(tokenizer.text(ids[1]), "\ufffd")

    def test_unknown(self):
        tokenizer = vocabulary(*LETTERS, ("x", 0, UNUSED), space_prefix=False)
        self.assertEqual(tokenizer.encode("axb"), [3, 0, 4])
        self.assertEqual(tokenizer.unknown, (0, "<unk>"))
        with self.assertRaisesRegex(ValueError, "'x' in the text: expected a piece"):
            vocabulary(*LETTERS, unknown=False, space_prefix=False).encode("axb")


@unittest.skipUnless(sentencepiece, "the package sentencepiece is missing")
class AgainstSentencePiece(unittest.TestCase):
    def trained(self, **options):
        model = io.BytesIO()
        lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=model, model_type="bpe", vocab_size=700, byte_fallback=True,
            normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2, num_threads=1, **options)
        theirs = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        everything = range(len(theirs))
        pieces, scores = [theirs.id_to_piece(i) for i in everything], [theirs.get_score(i) for i in everything]
        defined = options.get("user_defined_symbols", ())
        kinds = [BYTE if theirs.is_byte(i) else CONTROL if theirs.is_control(i) else UNKNOWN if theirs.is_unknown(i)
                 else USER_DEFINED if pieces[i] in defined else NORMAL for i in everything]
        prefix = options.get("add_dummy_prefix", True)
        mine = Pieces(pieces, scores, kinds, unknown=theirs.unk_id(), space_prefix=prefix)
        return mine, theirs

    def test_the_same_tokens(self):
        draw = random.Random(5)
        drawn = ["".join(draw.choice("abcdet  \n.<>-0\u00e9") for _ in range(200)) for _ in range(50)]
        texts = TEXTS + drawn + [(ROOT / "data" / "DUMP-FORMAT.md").read_text(encoding="utf-8")]
        defined = ["\u2581\u2581", "\u2581" * 3, "\n", "\n\n", "<b>"]
        for options in ({}, {"add_dummy_prefix": False}, {"user_defined_symbols": defined}):
            mine, theirs = self.trained(**options)
            for text in texts:
                with self.subTest(options=options, text=text[:60]):
                    self.assertEqual(mine.encode(text), theirs.encode(text))


class Laws(unittest.TestCase):
    def test_tokens_spell_the_text(self):
        draw = random.Random(3)
        alphabet = "abc <"
        pieces = {"".join(draw.choice("abc\u2581") for _ in range(draw.randint(2, 5))) for _ in range(200)}
        rows = [(piece, -draw.random()) for piece in sorted(pieces)] + LETTERS
        tokenizer = vocabulary(*rows, *((f"<0x{i:02X}>", 0, BYTE) for i in range(256)), space_prefix=False)
        for _ in range(300):
            text = "".join(draw.choice(alphabet) for _ in range(draw.randint(0, 60)))
            self.assertEqual("".join(map(tokenizer.text, tokenizer.encode(text))), text)


if __name__ == "__main__":
    unittest.main()
