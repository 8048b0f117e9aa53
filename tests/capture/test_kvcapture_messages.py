#!/usr/bin/env python3
"""kvcapture.py --messages, and several prompts for a model that is read once.

  KVREPLAY=build/release/bin/kvreplay python3 tests/capture/test_kvcapture_messages.py [-v] [Class.test]

capture_case.py says what that needs.
"""
import json
import re
from unittest import mock

# First: skips where numpy, torch or transformers is missing.
from capture_case import DECODE, Case, build, files, manifest_of, said, main

import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

import kvcapture
from conversations import Conversation, read_conversations
from kvcapture import CaptureError
from prompt_tokens import Tokenizer as Wrapped

# Every role, tool and call becomes a word of its own.
TEMPLATE = ("{% if tools %}w40 {% for tool in tools %}{{ tool.function.name }} {% endfor %}{% endif %}"
            "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('a system turn comes first') }}{% endif %}"
            "{{ {'system': 'w41', 'user': 'w42', 'assistant': 'w43', 'tool': 'w44'}[m.role] }} {{ m.content }} "
            "{% for call in m.tool_calls or [] %}w45 {{ call.function.name }} {{ call.function.arguments.x }} {% endfor %}w46 {% endfor %}"
            "{% if add_generation_prompt %}w43 {% endif %}{% if enable_thinking %}w47 {% endif %}")
ASKED = [{"role": "system", "content": "w1 w2"}, {"role": "user", "content": "w3 w4 w5"}]
FRAMED = [41, 1, 2, 46, 42, 3, 4, 5, 46, 43]


class Template(Case):
    """A model with a tokenizer of words, w0 to w59, and a template for conversations."""

    def setUp(self):
        super().setUp()
        self.model = build("llama", pad_token_id=None)
        self.model.save_pretrained(self.folder / "model")
        words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(60)}, unk_token="w0"))
        words.pre_tokenizer = pre_tokenizers.Whitespace()
        whole = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", eos_token="w59")
        whole.chat_template = TEMPLATE
        whole.save_pretrained(self.folder / "model")
        self.tokenizer = Wrapped(whole)

    def write(self, name, content):
        path = self.folder / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)

    def main(self, *arguments):
        return said(kvcapture.main, ["--model", str(self.folder / "model"), "--decode", str(DECODE), *map(str, arguments)])

    def ids(self, folder):
        return json.loads((folder / "tokens.json").read_text())["ids"]


class Messages(Template):
    def framed(self, content):
        """The ids of the prompt and of the answer."""
        return [[i for i, _, _ in self.tokenizer.spans(part)] for part in self.one(content).frame(self.tokenizer, "chat.json")]

    def one(self, content):
        found, = read_conversations(self.write("chat.json", content))
        return found

    def test_every_turn_is_framed(self):
        call = {"id": "1", "type": "function", "function": {"name": "w6", "arguments": '{"x": "w7"}'}}
        turns = [*ASKED, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "tool_call_id": "1", "content": "w8"}]
        expected = [*FRAMED[:-1], 43, 45, 6, 7, 46, 44, 8, 46, 43]
        self.assertEqual(self.framed(turns), [expected, []])
        tools = [{"type": "function", "function": {"name": "w9", "parameters": {}}}]
        request = {"model": "m", "messages": turns, "tools": tools, "temperature": 0.2}
        for found in (request, {"custom_id": "a", "body": request}, [request]):
            self.assertEqual(self.framed(found), [[40, 9, *expected], []])
        self.assertEqual(self.framed({"messages": ASKED, "chat_template_kwargs": {"enable_thinking": True}}), [[*FRAMED, 47], []])

    def test_parts_of_text_are_one_text(self):
        parts = [{"type": "text", "text": "w3 w4"}, {"type": "text", "text": "w5"}]
        self.assertEqual(self.framed([ASKED[0], {"role": "user", "content": parts}])[0], FRAMED)
        self.assertEqual(self.one([ASKED[0], {"role": "user", "content": parts}]).messages[1]["content"], "w3 w4\nw5")

    def test_a_last_answer_is_decoded(self):
        answered = [*ASKED, {"role": "assistant", "content": "w10 w11 w12 w13"}]
        self.assertEqual(self.framed(answered), [FRAMED, [10, 11, 12, 13, 46]])
        chat = self.write("chat.json", answered)
        status, text = self.main("--messages", chat, "--out", self.dump, "--any-prompt")
        self.assertEqual(status, 0, text)
        self.assertEqual(self.ids(self.dump), [*FRAMED, 10, 11, 12, 13, 46])
        self.assertEqual(manifest_of(self.dump)["prompt_len"], len(FRAMED))
        status, text = self.main("--messages", chat, "--out", self.dump, "--any-prompt", "--force", "--decode", 2)
        self.assertEqual((status, self.ids(self.dump)), (0, [*FRAMED, 10, 11]), text)

    def test_what_the_model_answers(self):
        status, text = self.main("--messages", self.write("chat.json", ASKED), "--out", self.dump, "--any-prompt")
        self.assertEqual(status, 0, text)
        self.assertEqual((self.ids(self.dump)[:len(FRAMED)], len(self.ids(self.dump))), (FRAMED, len(FRAMED) + DECODE))

    def test_what_is_no_conversation(self):
        user = {"role": "user", "content": "w1"}
        for content, pattern in (("no json", "chat.json: expected JSON, found "), ([], "messages: a list of .*, found "),
                                 ({"prompt": "w1", "n": 1}, "messages: a list of .*, found prompt, n"),
                                 ([user, "w1"], 'message 1: expected an object with a "role", found w1'), ([user, {"content": "w1"}], "message 1: expected"),
                                 ([{"role": "user"}], "message 0: content: expected a text, found none"),
                                 ([{"role": "user", "content": [{"type": "image_url"}]}], "content: expected text, found a part of type image_url"),
                                 ([user, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
                                  "message 1: tool_calls: f's arguments: expected JSON"), ({"messages": [user], "tools": {}}, "tools: expected a list"),
                                 ('{"messages": []}\n{"messages": []}\n', "chat.json, line 1: expected messages"),
                                 (json.dumps([user]) + "\n{\n", "chat.json, line 2: expected JSON")):
            with self.subTest(pattern), self.assertRaisesRegex(CaptureError, pattern):
                read_conversations(self.write("chat.json", content))

    def test_what_the_template_refuses(self):
        for content, pattern in (([ASKED[1], ASKED[0]], "the model's chat template takes, found a system turn comes first"),
                                 ([{"role": "assistant", "content": "w1"}], "somebody else begins, found only the assistant's turn")):
            with self.subTest(pattern), self.assertRaisesRegex(CaptureError, f"chat.json: expected a conversation that {pattern}"):
                self.framed(content)
        with mock.patch.object(self.tokenizer.own, "chat_template", None):
            with self.assertRaisesRegex(CaptureError, "chat.json: expected a tokenizer with a chat template, found none"):
                self.framed(ASKED)
        self.tokenizer.own.chat_template = "{% for m in messages %}{{ m.content }} {{ loop.length }}{% endfor %}"
        with self.assertRaisesRegex(CaptureError, "expected an answer that the template has behind the prompt"):
            self.framed([*ASKED, {"role": "assistant", "content": "w1"}])

    def test_nothing_is_hidden_in_a_default(self):
        self.assertEqual(Conversation.of_user("w1"), Conversation([{"role": "user", "content": "w1"}], None, {}))


class Several(Template):
    def setUp(self):
        super().setUp()
        text = " ".join(f"w{i}" for i in range(1, 31))
        self.prompts = [self.write(f"{name}.txt", f"{text} w{i}") for i, name in enumerate(("a", "b", "c"), 31)]

    def test_each_is_the_dump_that_it_would_be_alone(self):
        """The model is read once. Each dump is independent of the prompts before, with one prompt per line or per file."""
        with mock.patch.object(kvcapture.Request, "load", autospec=True, side_effect=kvcapture.Request.load) as reading:
            status, text = self.main("--prompt", *self.prompts[:2], "--prompt", self.prompts[2], "--out", self.dump)
        self.assertEqual((status, reading.call_count), (0, 1), text)
        self.assertRegex(text, r"^reading model \(\d+ MB\)\n")
        for name, path in zip("abc", self.prompts):
            status, text = self.main("--prompt", path, "--out", self.folder / name)
            self.assertEqual(status, 0, text)
            self.assertEqual(files(self.dump / name, "**/*.*"), files(self.folder / name, "**/*.*"))
        self.assertEqual(sorted(path.name for path in self.dump.iterdir()), ["a", "b", "c"])

    def test_a_conversation_in_every_line(self):
        requests = [{"messages": [{"role": "user", "content": " ".join(f"w{j}" for j in range(i, i + 15))}]} for i in (1, 2)]
        status, text = self.main("--messages", self.write("log.jsonl", "".join(json.dumps(x) + "\n" for x in requests)), "--out", self.dump)
        self.assertEqual(status, 0, text)
        for i in (0, 1):
            self.assertEqual(self.ids(self.dump / f"log-0{i}")[:18], [42, *range(i + 1, i + 16), 46, 43])

    def test_the_others_go_on(self):
        """The others go on if a prompt is rejected, before the model is read or while it reads."""
        few, none = self.write("few.txt", "w1"), str(self.folder / "none.txt")
        taken = kvcapture.feed

        def fails(model, ids, *rest):
            if ids[-1] == 32:
                raise CaptureError("layer 0, k: expected numbers that are finite, found a NaN or an infinity")
            return taken(model, ids, *rest)

        with mock.patch.object(kvcapture, "feed", fails):
            status, text = self.main("--prompt", few, none, *self.prompts, "--out", self.dump)
        self.assertEqual(status, 2)
        lines = [line for line in text.splitlines() if line.startswith("kvcapture: ")]
        for line, pattern in zip(lines, (r"none.txt: .*No such file", r"few: .*few.txt: expected a text of at least 16 tokens",
                                         r"b: layer 0, k: expected .*; .*dump/b is incomplete: capture again with --force, or",
                                         r"3 of 5 prompts failed: .*none.txt, few, b$"), strict=True):
            self.assertRegex(line, f"kvcapture: .*{pattern}")
        for name in "ac":
            self.judge(self.dump / name)
        self.assertTrue(manifest_of(self.dump / "b")["incomplete"])
        status, text = self.main("--prompt", few, none, "--out", self.folder / "nothing")
        self.assertEqual((status, "reading model" in text), (2, False), text)

    def test_resume_takes_what_is_missing(self):
        with mock.patch.object(kvcapture, "feed", side_effect=KeyboardInterrupt):
            self.assertEqual(self.main("--prompt", *self.prompts, "--out", self.dump)[0], 130)
        self.assertTrue(manifest_of(self.dump / "a")["incomplete"])
        status, text = self.main("--prompt", *self.prompts, "--out", self.dump)
        self.assertRegex(text, r"a: .*found a dump whose capture was interrupted \(--force captures it again\)")
        self.assertEqual(status, 2)
        before = files(self.dump / "b", "**/*.*")
        status, text = self.main("--prompt", *self.prompts, "--out", self.dump, "--resume")
        self.assertEqual(status, 0, text)
        self.judge(self.dump / "a")
        self.assertEqual((files(self.dump / "b", "**/*.*"), "dump/b: 3 layers" in text), (before, False))
        with mock.patch.object(kvcapture.Request, "load", side_effect=AssertionError("the model is not needed")):
            self.assertEqual(self.main("--prompt", *self.prompts, "--out", self.dump, "--resume")[0], 0)
        status, text = self.main("--prompt", *self.prompts, "--out", self.dump, "--resume", "--gradients", "1")
        self.assertEqual((status, len(files(self.dump, "*/layer_*/g_future.npy"))), (0, 9), text)

    def test_names_of_their_own(self):
        (self.folder / "other").mkdir()
        status, text = self.main("--prompt", self.prompts[0], self.write("other/a.md", "w1"), "--out", self.dump)
        self.assertEqual(status, 2)
        self.assertRegex(text, "^kvcapture: --out: expected prompts whose files have names of their own, .*, found a twice\n$")

    def test_estimate(self):
        status, text = self.main("--prompt", *self.prompts, "--estimate", "--gradients", "2")
        self.assertEqual(status, 0, text)
        self.assertNotIn("reading model", text)
        sizes = [int(size.replace(",", "")) for size in re.findall(r"total +([\d,]+) bytes", text)]
        self.assertEqual((len(sizes), sum(sizes[:3])), (4, sizes[3]))
        self.assertEqual(len(re.findall(r"(?m)^capture: time +[\d.]+ minutes on this cpu, about$", text)), 4)
        self.assertEqual(len(re.findall(r"\(a first pass without --gradients and --gradients-nll: [\d.]+; --resume adds them\)", text)), 4)


if __name__ == "__main__":
    main()
