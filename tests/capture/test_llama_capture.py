#!/usr/bin/env python3
"""`kvreplay capture` of a small random GGUF file, against kvcapture.py --gguf on its tokens.

  KVREPLAY=build/release/bin/kvreplay python3 tests/capture/test_llama_capture.py [-v] [Class.test]

Skipped where the program was built without llama.cpp, and where the packages of test_kvcapture_gguf.py are missing.
KVREPLAY_GGUF=FILE:FILE names further GGUF files, each of which is captured and verified.
"""
import json
import os
import subprocess
import sys

from capture_case import KVREPLAY, Case, arrays, main, manifest_of, said
from test_kvcapture_gguf import TEXT, small_model, write_gguf

import kvcapture
import numpy as np


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

    def test_estimate_writes_nothing(self):
        out = self.captured("--estimate")
        self.assertRegex(out, r"\d+ \+ 6 positions, 3 layers, \d+ bytes")
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
        self.refused("one of the architectures llama, qwen2, gemma3, found gemma")

    def test_named_files(self):
        for file in filter(None, os.environ.get("KVREPLAY_GGUF", "").split(":")):
            with self.subTest(file=file):
                done = program("capture", file, *self.arguments[2:], "--force")
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(program("verify", self.dump, "--tokens", 8).returncode, 0)


if __name__ == "__main__":
    main()
