#!/usr/bin/env python3
"""What kvcapture.py makes of a prompt's text: what it refuses, what it says, and how far it says it is.

  KVREPLAY=build/release/bin/kvreplay python3 tests/capture/test_kvcapture_prompts.py [-v] [Class.test]

capture_case.py says what that needs.
"""
import io
import json
from unittest import mock

# First: skips where numpy, torch or transformers is missing.
from capture_case import DECODE, Case, build, said, main

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

import kvcapture

WORDS = [f"w{i}" for i in range(60)]
LETTERS = list("abcdefghijklmnopqrstuvwxyz")


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Prompts(Case):
    """A model with a tokenizer of words: w0 to w59, whose first is the unknown one."""

    def setUp(self):
        super().setUp()
        self.model = build("llama", pad_token_id=None)  # whose embedding is zero
        self.model.save_pretrained(self.folder / "model")
        self.words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="w0"))
        self.words.pre_tokenizer = pre_tokenizers.Whitespace()
        self.save(self.words, unk_token="w0", eos_token="w7")
        self.arguments = ["--model", str(self.folder / "model"), "--prompt", str(self.folder / "text.txt"),
                          "--decode", str(DECODE), "--out", str(self.dump)]
        self.write(" ".join(f"w{i}" for i in range(1, 21)))

    def save(self, tokenizer, **special):
        whole = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
        whole.save_pretrained(self.folder / "model")

    def write(self, text):
        (self.folder / "text.txt").write_text(text)

    def main(self, *more):
        return said(kvcapture.main, [*self.arguments, *more])

    def refused_with(self, pattern, *more):
        status, text = self.main(*more)
        self.assertEqual((status, text.count("\n")), (2, 1), text)
        self.assertRegex(text, f"^kvcapture: .*text.txt: expected {pattern}")
        self.assertFalse(self.dump.exists())

    def accepted(self, *more):
        status, text = self.main(*more)
        self.assertEqual(status, 0, text)
        return json.loads((self.dump / "tokens.json").read_text())

    def test_few_tokens(self):
        self.write("w5 w9 " * 7 + "w5")
        self.refused_with(r"a text of at least 16 tokens \(--any-prompt .*\), found 15 of 44 characters")
        self.assertEqual(self.accepted("--any-prompt")["text"][:3], ["w5", "w9", "w5"])

    def test_sixteen_tokens(self):
        self.write("w5 w9 " * 8)
        self.assertEqual(len(self.accepted()["ids"]), 16 + DECODE)

    def test_a_tokenizer_that_knows_nothing(self):
        self.save(Tokenizer(models.BPE()), eos_token="w7")
        status, text = self.main()
        self.assertEqual((status, text.count("\n")), (2, 1), text)
        self.assertRegex(text, "^kvcapture: .*/model: expected a tokenizer with a vocabulary .*--ids.*, found one of 1 tokens\n$")

    def test_unknown_tokens(self):
        self.write("w5 w9 other words " * 10)
        self.refused_with(r"a text that the tokenizer knows \(--any-prompt .*\), found w0 for 20 of 40 tokens")
        self.assertEqual(self.accepted("--any-prompt")["ids"][:4], [5, 9, 0, 0])

    def test_unknown_tokens_that_the_text_names(self):
        self.write("w5 w9 w0 w3 " * 10)
        self.assertEqual(self.accepted()["ids"][:4], [5, 9, 0, 3])

    def test_one_token_a_letter(self):
        vocabulary = {piece: i for i, piece in enumerate(["<unk>", *LETTERS, "an"])}
        letters = Tokenizer(models.BPE(vocabulary, [("a", "n")], unk_token="<unk>"))
        letters.pre_tokenizer, letters.decoder = pre_tokenizers.Whitespace(), decoders.Fuse()
        self.save(letters, unk_token="<unk>")
        self.write("the quick brown fox jumps over the lazy dog " * 2)
        self.refused_with("a tokenizer that joins .*--any-prompt .*, found a token of its own for 70 of 70 letters")
        self.accepted("--any-prompt")
        self.write("an " * 40)
        self.accepted("--force")

    def test_ids_are_taken_as_they_are_and_have_texts_where_there_is_a_tokenizer(self):
        (self.folder / "ids.txt").write_text("5 0 0 9")
        self.arguments[2:4] = ["--ids", str(self.folder / "ids.txt")]
        self.assertEqual(self.accepted()["text"][:4], ["w5", "w0", "w0", "w9"])
        for path in (self.folder / "model").glob("*token*"):
            path.unlink()
        tokens = self.accepted("--force")
        self.assertEqual((len(tokens["ids"]), list(tokens)), (4 + DECODE, ["ids"]))

    def test_the_text_behind_the_prompt_is_decoded(self):
        self.write(" ".join(f"w{i}" for i in range(1, 51)))
        tokens = self.accepted("--prompt-len", "30")
        self.assertEqual(tokens["ids"], list(range(1, 31 + DECODE)))

    def marked(self, template):
        self.words.post_processor = processors.TemplateProcessing(single=template, special_tokens=[("w5", 5), ("w7", 7)])
        self.save(self.words, unk_token="w0", bos_token="w5", eos_token="w7")

    def test_a_prompt_that_its_tokenizer_ends(self):
        self.marked("w5 $A w7")
        self.write(" ".join(f"w{i}" for i in range(8, 28)))
        self.refused_with(r"a text that goes on \(--any-prompt .*\), found tokens that end with w7, which is not in it")
        self.assertEqual(self.accepted("--decode", "0")["ids"], [5, *range(8, 28), 7])  # as an encoder's is to be
        self.assertEqual(self.accepted("--any-prompt", "--force")["ids"][:22], [5, *range(8, 28), 7])
        self.marked("w5 $A")
        self.write(" ".join(f"w{i}" for i in range(8, 28)) + " w7")
        self.assertEqual(self.accepted("--force")["ids"][:22], [5, *range(8, 28), 7])  # where the text has it, it is meant

    def test_a_prompt_that_is_begun_twice(self):
        self.marked("w5 $A")
        text = " ".join(f"w{i}" for i in range(8, 28))
        self.write("w5 " + text)
        self.refused_with("a text without the w5 that its tokens begin with .*, found one more in it")
        self.assertEqual(self.accepted("--any-prompt")["ids"][:3], [5, 5, 8])
        self.write(text + " w5")
        self.assertEqual(self.accepted("--force")["ids"][:2], [5, 8])

    def test_numbers_that_are_nothing(self):
        for more, wanted in ((("--prompt-len", "0"), "text.txt: expected a prompt of 1 to 20 positions"),
                             (("--layers", ""), "--layers: expected something like 0,3-5"),
                             (("--layers", "2-0"), "--layers: expected some of 0 to 2, found 2-0"),
                             (("--window", "0"), "window: expected 1 to the prompt's 20 positions, found 0"),
                             (("--gradients", "0"), "--gradients: expected at least 1 sample, found 0")):
            status, text = self.main(*more)
            self.assertEqual((status, text.count("\n")), (2, 1), text)
            self.assertIn(wanted, text)

    def ends(self, *more):
        with torch.no_grad():
            self.model.lm_head.weight.zero_()
            self.model.lm_head.weight[7], self.model.lm_head.weight[8] = 1, -1  # one of the two, always
        self.model.save_pretrained(self.folder / "model")
        return self.main(*more)

    def test_end_of_text_is_said(self):
        configured = transformers.GenerationConfig(eos_token_id=[8, 90])
        self.model.generation_config = configured
        status, text = self.ends()
        self.assertEqual(status, 0, text)
        self.assertRegex(text, "kvcapture: the model ended the text at decoding step 0 of 6: ")
        self.write(" ".join(f"w{i}" for i in range(1, 51)))
        status, text = self.main("--prompt-len", "30", "--force")  # what is given, the model did not choose
        self.assertEqual(status, 0, text)
        self.assertNotIn("ended the text", text)

    def test_the_end_of_a_text_ends_the_dump(self):
        status, text = self.ends("--stop")
        self.assertEqual(status, 0, text)
        self.assertRegex(text, "kvcapture: the model ended the text at decoding step 1 of 6: there the dump ends")
        manifest = json.loads((self.dump / "manifest.json").read_text())
        self.assertEqual(manifest["total_len"], manifest["prompt_len"] + 1)

    def test_a_model_that_does_not_end_is_not_stopped(self):
        self.save(self.words, unk_token="w0", eos_token="w9")
        status, text = self.ends("--stop")
        self.assertEqual(status, 0, text)
        manifest = json.loads((self.dump / "manifest.json").read_text())
        self.assertEqual(manifest["total_len"], manifest["prompt_len"] + DECODE)

    def test_a_chat_frames_the_text(self):
        self.refused_chat(".*text.txt: expected a tokenizer with a chat template, found none")
        whole = transformers.PreTrainedTokenizerFast(tokenizer_object=self.words, unk_token="w0", eos_token="w7")
        whole.chat_template = "w50 {{ messages[0]['content'] }} w51{% if add_generation_prompt %} w52{% endif %}"
        whole.save_pretrained(self.folder / "model")
        status, text = self.main("--chat")
        self.assertEqual(status, 0, text)
        ids = json.loads((self.dump / "tokens.json").read_text())["ids"]
        self.assertEqual(ids[:23], [50, *range(1, 21), 51, 52])
        self.assertEqual(json.loads((self.dump / "manifest.json").read_text())["prompt_len"], 23)

    def refused_chat(self, pattern):
        status, text = self.main("--chat")
        self.assertEqual((status, text.count("\n")), (2, 1), text)
        self.assertRegex(text, f"^kvcapture: {pattern}")

    def test_no_end_of_text(self):
        self.save(self.words, unk_token="w0", eos_token="w9")
        status, text = self.ends()
        self.assertEqual(status, 0, text)
        self.assertNotIn("ended the text", text)

    def test_weights_that_are_missing(self):
        state = self.model.state_dict()
        del state["model.layers.1.mlp.up_proj.weight"]
        self.model.save_pretrained(self.folder / "model", state_dict=state)
        status, text = self.main()
        self.assertEqual(status, 2, text)
        self.assertRegex(text, "model: expected all of the model's weights, found none for 1 of .*layers.1.mlp.up_proj")

    def on_a_terminal(self):
        """The exit status and what a terminal was sent."""
        clock = mock.Mock(side_effect=range(1, 10**6))
        with mock.patch("sys.stderr", Terminal()) as screen, mock.patch("sys.stdout", io.StringIO()), \
             mock.patch.object(kvcapture.time, "monotonic", clock):
            return kvcapture.main(self.arguments), screen.getvalue()

    def test_a_refusal_stands_alone_on_its_line(self):
        self.write("w5")
        status, written = self.on_a_terminal()
        self.assertEqual(status, 2)
        self.assertRegex(written, "^\rreading .*\x1b\\[K\r\x1b\\[Kkvcapture: ")

    def test_progress_goes_to_a_terminal_only(self):
        status, written = self.on_a_terminal()
        self.assertEqual(status, 0)
        for line in ("reading ", "prompt to position 20 of 20, layer 3 of 3", "decoding step 1", "decoding step 6"):
            self.assertIn(f"\r{line}", written)
        self.assertRegex(written, "\r\x1b\\[K$")
        self.assertNotIn("\r", self.main("--force")[1])


if __name__ == "__main__":
    main()
