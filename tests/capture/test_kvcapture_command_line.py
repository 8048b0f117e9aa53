#!/usr/bin/env python3
"""kvcapture.py as a command: estimates, decoding, full disks, interruptions.

  KVREPLAY=build/release/bin/kvreplay python3 tests/capture/test_kvcapture_command_line.py [-v] [Class.test]

capture_case.py says what that needs.
"""
import json
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from unittest import mock

# First: skips where numpy, torch or transformers is missing.
from capture_case import DECODE, PROMPT, ROOT, Case, arrays, build, manifest_of, prompt, said, main

import numpy as np
import torch
import transformers

import attention_capture
import dump_files
import kvcapture


class CommandLine(Case):
    def setUp(self):
        super().setUp()
        build("gemma 2", torch.bfloat16, initializer_range=0.1).save_pretrained(self.folder / "model")
        (self.folder / "ids.json").write_text(json.dumps(prompt()[0].tolist()))
        self.arguments = ["--model", str(self.folder / "model"), "--ids", str(self.folder / "ids.json"), "--decode", str(DECODE)]

    def main(self, *arguments: str):
        return said(kvcapture.main, [*self.arguments, *arguments])

    def test_estimate_is_what_is_written(self):
        for options in ([], ["--window", "7"], ["--layers", "0,2"], ["--dtype", "float32", "--window", "40", "--layers", "1"]):
            with self.subTest(options=options):
                status, text = self.main("--estimate", *options)
                self.assertEqual(status, 0, text)
                total = int(re.search(r"total +([\d,]+) bytes", text)[1].replace(",", ""))
                self.assertFalse(self.dump.exists())
                status, text = self.main("--out", str(self.dump), "--force", *options)
                self.assertEqual(status, 0, text)
                self.judge(self.dump)
                self.assertEqual(total, sum(path.stat().st_size for path in self.dump.glob("*/*.npy")))
                shutil.rmtree(self.dump)

    def test_dtype_is_the_checkpoints(self):
        self.main("--out", str(self.dump))
        self.assertEqual(manifest_of(self.dump)["dtype"], "bfloat16")
        self.assertIn("computed in bfloat16, eager attention", manifest_of(self.dump)["origin"])

    def test_greedy_sampled_and_given(self):
        runs = {"greedy": [], "again": [], "sampled": ["--sample", "5"], "sampled again": ["--sample", "5"], "other": ["--sample", "6"]}
        ids = {}
        for name, options in runs.items():
            status, text = self.main("--out", str(self.folder / name), *options)
            self.assertEqual(status, 0, text)
            ids[name] = json.loads((self.folder / name / "tokens.json").read_text())["ids"]
            self.assertEqual((len(ids[name]), ids[name][:PROMPT]), (PROMPT + DECODE, prompt()[0].tolist()))
        self.assertEqual(ids["greedy"], ids["again"])
        self.assertEqual(ids["sampled"], ids["sampled again"])
        self.assertEqual(len({tuple(ids[name]) for name in ("greedy", "sampled", "other")}), 3)
        self.arguments[3] = str(self.folder / "sampled" / "tokens.json")
        status, text = self.main("--out", str(self.folder / "given"), "--prompt-len", str(PROMPT))
        self.assertEqual(status, 0, text)
        for layer in range(3):
            for name, array in arrays(self.folder / "given", layer).items():
                self.assertTrue(np.array_equal(array, arrays(self.folder / "sampled", layer)[name]))

    def test_text_prompt(self):
        from tokenizers import Tokenizer, models, pre_tokenizers
        words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(97)}, unk_token="w0"))
        words.pre_tokenizer = pre_tokenizers.Whitespace()
        transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(self.folder / "model")
        (self.folder / "prompt.txt").write_text("w5 w9 w5 w44")
        self.arguments[2:4] = ["--prompt", str(self.folder / "prompt.txt")]
        status, text = self.main("--out", str(self.dump), "--decode", "3", "--any-prompt")
        self.assertEqual(status, 0, text)
        self.judge(self.dump)
        tokens = json.loads((self.dump / "tokens.json").read_text())
        self.assertEqual(tokens["ids"][:4], [5, 9, 5, 44])
        self.assertEqual(tokens["text"], [f"w{i}" for i in tokens["ids"]])

    def test_nothing_ends_the_decoding(self):
        model = build("llama")
        with torch.no_grad():
            model.lm_head.weight.zero_()
            model.lm_head.weight[2] = 1  # the end token, whenever the sum is positive; token 0, the padding, otherwise
        model.save_pretrained(self.folder / "ends")
        self.arguments[1] = str(self.folder / "ends")
        self.assertEqual(self.main("--out", str(self.dump))[0], 0)
        self.assertEqual(manifest_of(self.dump)["total_len"], PROMPT + DECODE)

    def test_a_disk_that_fills_up(self):
        """From one of its files on, none may grow beyond ten bytes."""

        def limited(size):
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

        def limited_from(name, function):
            def called(path, *rest):
                if str(path).endswith(name):
                    limited(10)
                return function(path, *rest)
            return called

        before = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        self.addCleanup(limited, before)
        allocate, write_json = dump_files.allocate, dump_files.write_json
        for name in ("layer_00/q.npy", "layer_01/k.npy", "layer_02/wo.npy", "tokens.json"):
            with self.subTest(name):
                with mock.patch.object(attention_capture, "allocate", limited_from(name, allocate)), \
                     mock.patch.object(attention_capture, "write_json", limited_from(name, write_json)):
                    status, text = self.main("--out", str(self.dump), "--force")
                limited(before)
                self.assertEqual(status, 2, text)
                again = "; .*dump is incomplete: capture again with --force, or .*\n$" if name != "tokens.json" else ""
                self.assertRegex(text, f"\nkvcapture: .*{name}: expected room for [0-9,]+ bytes, found File too large{again}")
                self.assertTrue(manifest_of(self.dump)["incomplete"])
                self.assertFalse((self.dump / name).exists())
                self.assertEqual(list(self.dump.glob("**/*.new")), [])
                self.assertEqual(said(kvcapture.main, ["--check", str(self.dump)])[0], 1)
        self.assertEqual(self.main("--out", str(self.dump), "--force")[0], 0)

    def test_ctrl_c(self):
        script = ROOT / "data" / "capture" / "kvcapture.py"
        command = [sys.executable, script, *self.arguments, "--decode", "210", "--out", self.dump]
        heeded = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}  # a job in the background ignores it
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **heeded) as process:
            while not (self.dump / "layer_02" / "o.npy").exists() and process.poll() is None:
                time.sleep(0.002)
            process.send_signal(signal.SIGINT)
            text = process.stdout.read()
        self.assertEqual(process.returncode, 130, text)
        self.assertRegex(text, "\nkvcapture: interrupted; .* is incomplete: capture again with --force, or with --resume, .*\n$")
        self.assertNotIn("Traceback", text)
        self.assertTrue(manifest_of(self.dump)["incomplete"])
        self.assertEqual(said(kvcapture.main, ["--check", str(self.dump)])[0], 1)

    def test_interruption(self):
        with mock.patch.object(kvcapture, "feed", side_effect=KeyboardInterrupt):
            status, text = self.main("--out", str(self.dump))
        self.assertEqual(status, 130)
        self.assertRegex(text, "\nkvcapture: interrupted; .* is incomplete: capture again with --force, or with --resume, .*\n$")
        self.assertEqual(said(kvcapture.main, ["--check", str(self.dump)])[0], 1)

    def test_one_line_and_status_2(self):
        (self.folder / "words.txt").write_text("not ids")
        (self.folder / "big.txt").write_text("5 97")
        for change, pattern in ((["--model", "/no/such/model"], "no/such/model"), (["--ids", str(self.folder / "words.txt")], "token ids"),
                                (["--ids", str(self.folder / "big.txt")], "ids of 0 to 96, found 5 to 97"), (["--layers", "7"], "0 to 2"),
                                (["--decode", "999"], "at most the model's 256"), (["--prompt-len", "39"], "and 6 ids behind it"),
                                (["--ids", "/no/such/file"], "/no/such/file: expected a file that can be read, found No such file"),
                                (["--layers", "one"], "--layers"),
                                (["--layers", "0-1-2"], "0,3-5, found 0-1-2")):
            with self.subTest(change=change):
                given = self.arguments[:2] + self.arguments[4:] if change[0] == "--ids" else self.arguments
                status, text = said(kvcapture.main, [*given, "--out", str(self.dump), *change])
                self.assertEqual((status, text.count("\n")), (2, 1), text)
                self.assertRegex(text, "^kvcapture: .*" + pattern)
        self.assertEqual(said(kvcapture.main, ["--check", str(self.folder)])[0], 2)


if __name__ == "__main__":
    main()
