#!/usr/bin/env python3
"""The files of gradients: what is asked for, interruptions, seeds, dtypes, and what is refused.

  KVREPLAY=build/release/bin/kvreplay python3 tests/capture/test_kvcapture_gradient_files.py [-v] [Class.test]

capture_case.py says what that needs.
"""

import errno
import json
import os
from unittest import mock

# First: skips where numpy, torch or transformers is missing.
from capture_case import DECODE, PROMPT, SMALL, CaptureError, Case, build, decode, files, manifest_of, prompt, said, main

import numpy as np
import torch
import transformers

import dump_files
import gradient_progress
import kvcapture
from dump_check import as_float64
from kvcapture import capture
from output_gradients import FedAgain, write_gradients

ASKED = dict(samples=3, rows="future,window=5", nll=True)
NAMES = ("g_future", "g_window", "g_nll")


class Stop(Exception):
    pass


class GradientFiles(Case):
    def taken(
        self, name: str = "llama", folder=None, dtype: torch.dtype = torch.float32, steps: int = DECODE, **options
    ):
        model = build(name, dtype)
        with capture(model, folder or self.dump, prompt_len=PROMPT, decode=steps, **options):
            decode(model, prompt(), steps)
        return model

    def stopped(self, model, after: int, **asked) -> None:
        """Writes gradients until the progress has been said `after` times."""
        with self.assertRaises(Stop):
            write_gradients(model, self.dump, **asked, progress=mock.Mock(side_effect=[None] * after + [Stop]))

    def test_shapes_and_the_manifest(self):
        model = self.taken()
        write_gradients(model, self.dump, **ASKED, seed=4)
        self.judge(self.dump)
        for layer in range(3):
            found = {name: np.load(self.dump / f"layer_{layer:02}" / f"{name}.npy") for name in NAMES}
            self.assertEqual([found[name].shape for name in NAMES], [(4, 3, 6, 16), (4, 3, 5, 16), (4, 6, 16)])
            self.assertTrue(all(x.dtype == np.float32 and x.flags.c_contiguous for x in found.values()))
        self.assertEqual(manifest_of(self.dump)["gradients"], {"samples": 3, "labels": "model", "seed": 4})
        self.assertEqual(files(self.dump, "**/*.new") | files(self.dump, "*.progress"), {})

    def test_seeds(self):
        model = self.taken()
        runs = {}
        for number, (samples, seed) in enumerate(((3, 0), (3, 0), (3, 1), (2, 0))):
            folder = self.folder / str(number)
            self.taken(folder=folder)
            write_gradients(model, folder, samples=samples, rows="future,window=5", seed=seed)
            runs[number] = files(folder)
        self.assertEqual(runs[0], runs[1])
        g = {number: np.load(self.folder / str(number) / "layer_01/g_future.npy") for number in runs}
        self.assertTrue(np.array_equal(g[0][:, :2], g[3]))  # a sample does not depend on how many there are
        self.assertFalse(any(np.array_equal(g[0][:, a], g[b][:, c]) for a, b, c in ((0, 2, 0), (0, 2, 1), (0, 0, 1))))

    def test_resumed_is_uninterrupted(self):
        model = self.taken()
        write_gradients(model, self.dump, **ASKED)
        whole, manifest = files(self.dump), manifest_of(self.dump)
        self.assertEqual(len(whole), 9)
        for after in range(9):  # the prompt, 1 + 3 passes of the decoding steps, 3 of the window
            if after == 8:
                break
            with self.subTest(after=after):
                self.taken(force=True)
                self.assertEqual(files(self.dump), {})
                self.stopped(model, after, **ASKED)
                self.assertEqual(files(self.dump), {})
                self.assertNotIn("gradients", manifest_of(self.dump))
                good, text = said(kvcapture.check, self.dump)
                self.assertEqual(good, after < 2, text)  # then a pass is done
                with self.subTest("twice"):
                    if after >= 2:
                        with self.assertRaisesRegex(
                            CaptureError, "expected --resume, or --force, found gradients that were"
                        ):
                            write_gradients(model, self.dump, **ASKED)
                        with self.assertRaisesRegex(CaptureError, "gradients.progress: expected the same request"):
                            write_gradients(model, self.dump, **{**ASKED, "samples": 2}, resume=True)
                write_gradients(model, self.dump, **ASKED, resume=True)
                self.assertEqual(files(self.dump), whole)
                self.assertEqual(manifest_of(self.dump), manifest)
                self.judge(self.dump)

    def test_interrupted_between_two_names(self):
        model = self.taken()
        write_gradients(model, self.dump, **ASKED)
        whole, replace = files(self.dump), os.replace
        for renamed in range(0, 9, 2):
            with self.subTest(renamed=renamed):
                self.taken(force=True)
                count = 0

                def until(source, target):
                    nonlocal count
                    count += str(target).endswith(".npy")
                    if count > renamed:
                        raise Stop
                    replace(source, target)

                with mock.patch.object(gradient_progress.os, "replace", until), self.assertRaises(Stop):
                    write_gradients(model, self.dump, **ASKED)
                self.assertEqual(len(files(self.dump)), renamed)
                self.assertFalse(said(kvcapture.check, self.dump)[0])
                with mock.patch.object(FedAgain, "feed", side_effect=AssertionError):  # nothing is computed again
                    write_gradients(model, self.dump, **ASKED, resume=True)
                self.assertEqual(files(self.dump), whole)
                self.judge(self.dump)

    def test_rows_that_are_added_later(self):
        model = self.taken()
        write_gradients(model, self.dump, **ASKED)
        whole = files(self.dump)
        self.taken(force=True)
        write_gradients(model, self.dump, samples=3)
        self.assertEqual({name.split("/")[1] for name in files(self.dump)}, {"g_future.npy"})
        with self.assertRaisesRegex(CaptureError, "expected --resume, or --force, found g_future"):
            write_gradients(model, self.dump, **ASKED)
        with self.assertRaisesRegex(CaptureError, "gradients: expected {'samples': 3, .*, found {'samples': 2"):
            write_gradients(model, self.dump, samples=2, rows="window=5")
        with self.assertRaisesRegex(CaptureError, "gradients: expected .*'seed': 0}, found .*'seed': 1}"):
            write_gradients(model, self.dump, samples=3, rows="window=5", seed=1)
        write_gradients(model, self.dump, **ASKED, resume=True)
        self.assertEqual(files(self.dump), whole)
        with mock.patch.object(FedAgain, "feed", side_effect=AssertionError):
            write_gradients(model, self.dump, **ASKED, resume=True)
        self.judge(self.dump)

    def test_nll_alone(self):
        model = self.taken()
        write_gradients(model, self.dump, nll=True)
        self.assertEqual({name.split("/")[1] for name in files(self.dump)}, {"g_nll.npy"})
        self.assertNotIn("gradients", manifest_of(self.dump))
        self.judge(self.dump)

    def test_one_sample_of_one_row(self):
        model = self.taken(steps=1)
        write_gradients(model, self.dump, samples=1, rows="future,window=1", nll=True)
        self.judge(self.dump)
        for layer in range(3):
            found = {name: np.load(self.dump / f"layer_{layer:02}" / f"{name}.npy") for name in NAMES}
            self.assertEqual([found[name].shape for name in NAMES], [(4, 1, 1, 16), (4, 1, 1, 16), (4, 1, 16)])
            self.assertTrue(found["g_future"].any() and found["g_window"].any())
            self.assertFalse(found["g_nll"].any())  # what followed the only step is not known

    def test_some_layers_and_some_queries(self):
        model = self.taken()
        write_gradients(model, self.dump, **ASKED)
        self.taken(folder=self.folder / "some", layers=[0, 2], window=7)
        write_gradients(model, self.folder / "some", **ASKED)
        self.judge(self.folder / "some")
        for mine, theirs in ((0, 0), (1, 2)):
            for name in NAMES:
                one = np.load(self.folder / "some" / f"layer_{mine:02}" / f"{name}.npy")
                self.assertTrue(np.array_equal(one, np.load(self.dump / f"layer_{theirs:02}" / f"{name}.npy")), name)

    def test_dtypes(self):
        """Coarser models and files: the labels may differ where a prediction does, the gradient of what followed is
        near."""
        write_gradients(self.taken("qwen 3"), self.dump, samples=1, nll=True)
        fine = [np.load(self.dump / f"layer_{layer:02}" / "g_nll.npy").astype(float) for layer in range(3)]
        ids = json.loads((self.dump / "tokens.json").read_text())["ids"]
        for compute, dtype, tolerance in (
            ("float32", "float16", 5e-3),
            ("float32", "bfloat16", 5e-2),
            ("float16", "float16", 3e-2),
            ("bfloat16", "bfloat16", 0.25),
            ("float16", "bfloat16", 6e-2),
        ):
            with self.subTest(compute=compute, dtype=dtype):
                model, folder = build("qwen 3", getattr(torch, compute)), self.folder / f"{compute}-{dtype}"
                with capture(model, folder, prompt_len=PROMPT, decode=DECODE, dtype=dtype):
                    kvcapture.feed(model, ids[:PROMPT], ids[PROMPT:], DECODE, None)
                write_gradients(model, folder, **ASKED)
                self.judge(folder)
                for layer in range(3):
                    found = np.load(folder / f"layer_{layer:02}" / "g_nll.npy")
                    self.assertEqual(found.dtype, dump_files.FILE_DTYPES[dtype])
                    off = np.linalg.norm(as_float64(found) - fine[layer]) / np.linalg.norm(fine[layer])
                    self.assertLess(off, tolerance, layer)

    def refuses(self, pattern: str, model, **asked) -> None:
        before = files(self.dump, "**/*.*")
        self.refused(pattern, lambda: write_gradients(model, self.dump, **asked))
        self.assertEqual(files(self.dump, "**/*.*"), before)

    def test_refusals(self):
        model = self.taken(window=7)
        self.refuses("--gradients: expected a number of samples of at least 1, found 0", model)
        self.refuses(
            "--rows window: expected 1 to 7 prompt positions that have queries, found 8",
            model,
            samples=1,
            rows="window=8",
        )
        self.refuses("--rows window: expected 1 to 7 .*, found 0", model, samples=1, rows="window=0")
        for rows in ("", "past", "future,future", "window=x", "future=5", "window=-1", "window=99999999999", "future,"):
            self.refuses("--rows: expected future, window, window=64 or two of them", model, samples=1, rows=rows)
        other = build("llama")
        with torch.no_grad():
            other.model.layers[1].self_attn.v_proj.weight *= 1.01
        self.refuses(
            r"layer_01: o of the future rows when they are fed again: expected what was captured, within 0.001 of its "
            r"norm, found \d.\de-0\d \(another model",
            other,
            samples=1,
        )
        self.refuses("expected a dump of layers 0 to 0, found layer 2", build("llama", num_hidden_layers=1), samples=1)
        model.train()
        model.config.attention_dropout = 0.1
        for layer in model.model.layers:
            layer.self_attn.attention_dropout = 0.1
        self.refuses("layer 0: expected no dropout in attention", model, samples=1)

    def test_no_decoding_steps(self):
        model = self.taken(steps=0)
        self.refuses("gradients of the future rows: expected decoding steps, found none", model, samples=1)
        self.refuses("gradients of the future rows: expected decoding steps, found none", model, nll=True)
        write_gradients(model, self.dump, samples=1, rows="window")
        self.judge(self.dump)
        self.assertEqual(np.load(self.dump / "layer_02" / "g_window.npy").shape, (4, 1, 32, 16))

    def test_a_rotation_that_changes_while_decoding(self):
        model = self.taken("phi 3 (long)")  # at 42
        self.refuses(
            "layer_0[01]: o of the future rows when they are fed again: .* or a rotation that changed", model, samples=1
        )

    def test_layers_without_attention(self):
        if not hasattr(transformers, "Qwen3NextConfig"):
            self.skipTest("transformers older than 4.57")
        linear = dict(linear_num_value_heads=2, linear_num_key_heads=2, linear_key_head_dim=8, linear_value_head_dim=8)
        experts = dict(
            num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=16
        )
        config = transformers.Qwen3NextConfig(
            **{**SMALL, "num_hidden_layers": 4}, **linear, **experts, decoder_sparse_step=1
        )
        torch.manual_seed(1)
        model = transformers.Qwen3NextForCausalLM(config).eval()
        with capture(model, self.dump, prompt_len=PROMPT, decode=DECODE, layers=[3]):
            decode(model, prompt())
        self.refuses(
            r"gradients: expected softmax attention in every layer, found 0 \(linear_attention\)", model, samples=1
        )

    def test_dumps_that_are_not_whole(self):
        model = self.taken()
        manifest, tokens = manifest_of(self.dump), (self.dump / "tokens.json").read_text()
        for path, text, pattern in (
            (
                "manifest.json",
                json.dumps({**manifest, "incomplete": True}),
                "a whole dump, found an interrupted capture",
            ),
            (
                "manifest.json",
                json.dumps({**manifest, "prompt_len": None}),
                "expected prompt_len, total_len and n_layers",
            ),
            (
                "manifest.json",
                json.dumps({**manifest, "prompt_len": 47}),
                "expected prompt_len, total_len and n_layers",
            ),
            ("manifest.json", json.dumps({**manifest, "layers": [0, "x", 2]}), "expected 3 layers, found"),
            ("tokens.json", "[1, 2, 3]", "tokens.json: expected 46 ids, found 3"),
            ("tokens.json", "", "expected token ids"),
            ("gradients.progress", "{", "expected --resume"),
            ("layer_00/o.npy", "x", "layer_00: o.npy: expected a whole"),
        ):
            with self.subTest(pattern):
                whole = (self.dump / path).read_bytes() if (self.dump / path).exists() else None
                (self.dump / path).write_text(text)
                self.refuses(pattern, model, samples=1)
                if path == "gradients.progress":
                    self.refuses(
                        "expected what an interrupted run wrote, found something else", model, samples=1, resume=True
                    )
                (self.dump / path).unlink() if whole is None else (self.dump / path).write_bytes(whole)
        self.assertEqual((self.dump / "tokens.json").read_text(), tokens)

    def test_an_unfinished_file_that_is_damaged(self):
        model = self.taken()
        self.stopped(model, 4, **ASKED)
        path = self.dump / "layer_01" / "g_future.new"
        whole = path.read_bytes()
        for damage in (whole[:-1], whole + b"x", None):
            path.unlink() if damage is None else path.write_bytes(damage)
            self.refuses(rf"g_future.new: expected {len(whole):,} bytes, found [\d,]+$", model, **ASKED, resume=True)

    def test_full_disk(self):
        model = self.taken()
        with mock.patch.object(gradient_progress.shutil, "disk_usage", return_value=mock.Mock(free=1000)):
            self.refuses("bytes of free disk, found 1,000", model, **ASKED)
        room = mock.Mock(side_effect=[None] * 4 + [OSError(errno.ENOSPC, "No space left on device")])
        with mock.patch.object(dump_files.os, "posix_fallocate", room):
            self.refuses("layer_02/g_future.new: expected room for .* No space left", model, **ASKED)


if __name__ == "__main__":
    main()
