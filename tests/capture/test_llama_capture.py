#!/usr/bin/env python3
"""`kvreplay capture` of a small random GGUF file, against kvcapture.py --gguf on its tokens.

  KVREPLAY=build/release/bin/kvreplay python3 tests/capture/test_llama_capture.py [-v] [Class.test]

Skipped where the program was built without llama.cpp, and where the packages of test_kvcapture_gguf.py are missing.
KVREPLAY_GGUF=FILE:FILE names further GGUF files, each of which is captured and verified.
"""
import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from capture_case import KVREPLAY, ROPE, Case, arrays, build, main, manifest_of, said
from test_kvcapture_gguf import PIECES, TEXT, small_model, write_gguf

import kvcapture
import kvvalidate
import numpy as np
from kvresults import open_results


CHATML = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
MESSAGES = [{"role": "system", "content": "be thin"}, {"role": "user", "content": "the hen"}, {"role": "assistant", "content": "in the tent"}]
FRAMED = "<|im_start|>system\nbe thin<|im_end|>\n<|im_start|>user\nthe hen<|im_end|>\n<|im_start|>assistant\n"


def kl_of(results):
    """KL written, by policy."""
    with open(results / "validate.csv", encoding="utf-8", newline="") as file:
        return {row["policy"]: float(row["value"]) for row in csv.DictReader(file) if (row["metric"], row["protocol"]) == ("kl", "written")}


def program(*arguments):
    return subprocess.run([KVREPLAY, *map(str, arguments)], capture_output=True, text=True)


def without_llama():
    """True where the program was built without llama.cpp. It has to say so in one line, with the way to build it."""
    refused = program("capture", __file__, "--prompt", __file__, "--estimate")
    if "no llama.cpp" not in refused.stderr:
        return False
    if refused.returncode != 2 or refused.stderr.count("\n") != 1 or "-DKVREPLAY_CAPTURE=ON" not in refused.stderr:
        sys.exit(f"expected exit code 2 and one line with -DKVREPLAY_CAPTURE=ON, found {refused.returncode}: {refused.stderr}")
    return True


if KVREPLAY is None or without_llama():
    print("SKIPPED, no capture was tested: kvreplay was built without llama.cpp", file=sys.stderr)
    sys.exit(77)


def architectures():
    """Those of the program's table."""
    header = Path(__file__).resolve().parents[2] / "analysis" / "capture" / "architectures.hpp"
    return re.findall(r'"([^"]+)"', re.search(r"kArchitectures\[\] = \{(.*?)\};", header.read_text(), re.S)[1])


class LlamaCapture(Case):
    def setUp(self):
        super().setUp()
        self.file, self.text = self.folder / "small.gguf", self.folder / "text.txt"
        self.text.write_text(TEXT)
        write_gguf(self.file, small_model())
        self.arguments = ["capture", self.file, "--prompt", self.text, "--decode", 6, "--out", self.dump]

    def captured(self, *more):
        done = program(*self.arguments, *more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def refused(self, pattern, *arguments):
        done = program(*(arguments or self.arguments))
        self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)
        self.assertRegex(done.stderr, pattern)
        self.assertFalse(self.dump.exists())
        self.assertEqual(list(self.folder.glob("*.capturing")), [])

    def test_equals_the_capture_by_transformers(self):
        self.captured("--dtype", "float32")
        verified = program("verify", self.dump)
        self.assertEqual(verified.returncode, 0, verified.stdout + verified.stderr)
        tokens, manifest = json.loads((self.dump / "tokens.json").read_text()), manifest_of(self.dump)
        other = self.folder / "other"
        status, text = said(kvcapture.main, ["--gguf", str(self.file), "--ids", str(self.dump / "tokens.json"), "--prompt-len",
                                             str(manifest["prompt_len"]), "--decode", "6", "--out", str(other)])
        self.assertEqual(status, 0, text)
        self.assertEqual(json.loads((other / "tokens.json").read_text())["ids"], tokens["ids"])
        theirs = manifest_of(other)
        self.assertEqual((manifest["prompt_len"], manifest["scale"], manifest["rope"]["theta"]),
                         (theirs["prompt_len"], theirs["scale"], theirs["rope"]["theta"]))
        for layer in range(3):
            mine, expected = arrays(self.dump, layer), arrays(other, layer)
            for name in "qkvo":
                x, y = mine[name], expected[name]
                if name in "qk" and manifest["rope"]["style"] != theirs["rope"]["style"]:  # pairs to halves
                    x = np.concatenate([x[..., 0::2], x[..., 1::2]], axis=-1)
                self.assertLess(np.linalg.norm(x - y) / np.linalg.norm(y), 1e-5, (layer, name))

    def test_float16_is_what_attention_read(self):
        self.assertIn("o follows from the files", self.captured())
        self.assertEqual(arrays(self.dump, 0)["k"].dtype, np.float16)
        self.assertEqual(program("verify", self.dump).returncode, 0)
        ids = json.loads((self.dump / "tokens.json").read_text())["ids"]
        self.assertEqual(len(ids), manifest_of(self.dump)["total_len"])

    def test_some_layers_several_prompts_and_a_text_to_decode(self):
        other = self.folder / "other.txt"
        other.write_text(TEXT[:60])
        self.captured("--prompt", other, "--layers", "0,2", "--continue", self.text)
        for name in ("text", "other"):
            self.assertEqual(manifest_of(self.dump / name)["layers"], [0, 2])
            self.assertEqual(program("info", self.dump / name).returncode, 0)
        text, other = (json.loads((self.dump / name / "tokens.json").read_text())["text"] for name in ("text", "other"))
        self.assertEqual(text[-6:], other[-6:])  # the beginning of the text
        self.assertEqual("".join(other[-6:]).strip(), TEXT[:len("".join(other[-6:]).strip())])

    def with_template(self, template=CHATML):
        write_gguf(self.file, small_model(), change=lambda writer: writer.add_chat_template(template))

    def texts(self, name=""):
        """The text of the prompt, without the token that begins it, and of the decoding steps."""
        tokens, l = json.loads((self.dump / name / "tokens.json").read_text())["text"], manifest_of(self.dump / name)["prompt_len"]
        return "".join(tokens[1:l]).lstrip(" "), "".join(tokens[l:])

    def test_conversations_are_framed_by_the_model_s_template(self):
        self.with_template()
        chat = self.folder / "chat.json"
        self.arguments[2:4] = ["--messages", chat]
        chat.write_text(json.dumps(MESSAGES))
        self.arguments[5] = 99
        self.captured()
        self.assertEqual(self.texts(), (FRAMED, "in the tent<|im_end|>\n"))
        asked = {"messages": [*MESSAGES[:-1], {"role": "user", "content": [{"type": "text", "text": "where"}]}]}
        chat.write_text(f"{json.dumps({'body': {'messages': MESSAGES}})}\n\n{json.dumps(asked)}\n")
        self.arguments[5] = 2
        self.captured("--force")
        self.assertEqual(self.texts("chat-00")[0], FRAMED)
        self.assertEqual(self.texts("chat-01")[0], FRAMED.replace("<|im_start|>assistant", "<|im_start|>user\nwhere<|im_end|>\n<|im_start|>assistant"))
        self.assertEqual(manifest_of(self.dump / "chat-00")["total_len"] - manifest_of(self.dump / "chat-00")["prompt_len"], 2)
        chat.write_text("where\n\n")
        self.arguments[2:4] = ["--chat", "--prompt", chat]
        self.arguments[-1] = self.dump = self.folder / "said"
        self.captured()
        self.assertEqual(self.texts()[0], "<|im_start|>user\nwhere<|im_end|>\n<|im_start|>assistant\n")

    def test_conversations_that_cannot_be_framed_are_one_line(self):
        chat = self.folder / "chat.json"
        self.arguments[2:4] = ["--messages", chat]
        chat.write_text(json.dumps(MESSAGES))
        self.refused("expected a model with a chat template, found none")
        self.with_template("{{ messages }}")
        self.refused("expected a chat template that llama.cpp knows .*, found another")
        self.with_template()
        call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f"}}]}
        for found, why in (({"a": 1}, "expected a list of"), ([], "expected a list of"), ([{"role": 1}], 'an object with a "role"'),
                           ([{"role": "user", "content": 3}], "message 0: content: expected a text, found 3"),
                           ([{"role": "user", "content": [{"type": "image"}]}], "found a part of type image"),
                           ([*MESSAGES[:2], call], "expected no tools"), ({"messages": MESSAGES, "tools": [{}]}, "expected no tools"),
                           (MESSAGES[2:], "somebody else begins")):
            chat.write_text(json.dumps(found))
            self.refused(why)
        chat.write_text('[{"role"')
        self.refused("chat.json")
        self.refused("no prompt-len", *self.arguments, "--prompt-len", 3)

    def test_resume_keeps_dumps_that_are_there(self):
        other = self.folder / "other.txt"
        other.write_text(TEXT[:60])
        self.arguments += ["--prompt", other, "--resume"]
        self.captured()
        before = {path: path.stat().st_mtime_ns for path in (self.dump / "text").rglob("*.npy")}
        shutil.rmtree(self.dump / "other")
        self.assertIn("there already", self.captured())
        self.assertEqual(before, {path: path.stat().st_mtime_ns for path in (self.dump / "text").rglob("*.npy")})
        self.assertTrue((self.dump / "other" / "manifest.json").exists())
        other.write_text(TEXT[5:60])
        done = program(*self.arguments)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)
        self.assertIn("tokens of the prompt, found others", done.stderr)

    def test_the_judge_of_formats_is_the_engine(self):
        rope = {"rope_theta": 500.0} if ROPE == "rope_scaling" else {ROPE: {"rope_type": "default", "rope_theta": 500.0}}
        model = build("llama", vocab_size=len(PIECES), hidden_size=128, head_dim=32, intermediate_size=96, rms_norm_eps=1e-5, **rope)
        write_gguf(self.file, model)
        status, text = said(kvcapture.main, ["--gguf", str(self.file), "--prompt", str(self.text), "--decode", "12", "--out", str(self.dump)])
        self.assertEqual(status, 0, text)
        results = self.folder / "results"
        done = program("evict", self.dump, "--policy", "none,snapkv", "--keep", "0.5", "--bits", "16,kq8_0v16,kq4_0v16,k16vq4_0,4", "--out", results)
        self.assertEqual(done.returncode, 0, done.stderr)
        status, text = said(kvvalidate.main, ["--model", str(self.file), "--results", str(results), "--written", "--policy", "none*"])
        self.assertEqual(status, 0, text)
        written = kl_of(results)
        done = program("capture", self.file, "--judge", results)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)
        self.assertIn("validate.csv: expected none (or --force)", done.stderr)
        done = program("capture", self.file, "--judge", results, "--force")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"none~4 +left out")
        engine = kl_of(results)
        self.assertEqual(list(engine), ["none~16", "none~kq8_0v16", "none~kq4_0v16", "none~k16vq4_0"])
        self.assertEqual(engine["none~16"], 0)
        for name in ("none~kq4_0v16", "none~k16vq4_0"):
            self.assertLess(abs(engine[name] / written[name] - 1), 0.2, (name, engine[name], written[name]))
        self.assertLess(engine["none~kq8_0v16"], engine["none~kq4_0v16"] / 10)
        self.assertEqual({len(kl) for kl in open_results(str(results)).kl_by_step().values()}, {12})
        self.assertEqual(program("report", results).returncode, 0)
        write_gguf(self.file, small_model())
        (self.dump / "manifest.json").rename(self.dump / "other.json")
        done = program("capture", self.file, "--judge", results, "--force")
        self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)

    def test_estimate_writes_nothing(self):
        out = self.captured("--estimate")
        self.assertRegex(out, r"\d+ \+ 6 positions, 3 layers, \d+ bytes, about \d+\.\d minutes")
        self.assertFalse(self.dump.exists())
        size = int(out.split(" bytes")[0].split()[-1])
        self.captured()
        self.assertEqual(size, sum(path.stat().st_size - 128 for path in self.dump.glob("*/*.npy")))

    def test_what_cannot_be_captured_is_one_line(self):
        whole = self.file.read_bytes()
        (self.folder / "half.gguf").write_bytes(whole[:len(whole) // 2])
        (self.folder / "empty.txt").write_text("")
        (self.folder / "long.txt").write_text(TEXT * 50)
        rest = self.arguments[2:]
        self.refused("expected a GGUF file, found none", "capture", self.folder / "none.gguf", *rest)
        self.refused("expected a whole GGUF file", "capture", self.text, *rest)
        self.refused("expected a whole GGUF file", "capture", self.folder / "half.gguf", *rest)
        self.refused("expected a text, found no token", *self.arguments[:3], self.folder / "empty.txt", *rest[2:])
        self.refused("at most the 256 positions", *self.arguments[:3], self.folder / "long.txt", *rest[2:])
        self.refused("layers from 0 to 2", *self.arguments, "--layers", 7)
        self.dump.mkdir()
        (self.dump / "mine").write_text("")
        self.assertEqual(program(*self.arguments, "--force").returncode, 2)
        self.assertEqual([path.name for path in self.dump.iterdir()], ["mine"])

    def test_another_architecture_is_refused(self):
        whole = self.file.read_bytes().replace(b"llama.", b"gemma.").replace(
            b"general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0llama", b"general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0gemma")
        self.file.write_bytes(whole)
        self.refused("one of the architectures llama, qwen2, .*, found gemma ")

    def test_named_files(self):
        for file in filter(None, os.environ.get("KVREPLAY_GGUF", "").split(":")):
            with self.subTest(file=file):
                done = program("capture", file, *self.arguments[2:], "--force")
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(program("verify", self.dump, "--tokens", 8).returncode, 0)


if __name__ == "__main__":
    main()
