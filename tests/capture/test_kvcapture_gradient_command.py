#!/usr/bin/env python3
"""kvcapture.py --gradients as a command: interruptions, what is refused, the estimate.

  KVREPLAY=build/release/bin/kvreplay python3 tests/capture/test_kvcapture_gradient_command.py [-v] [Class.test]

capture_case.py says what that needs.
"""
import json
import re
from unittest import mock

# First: skips where numpy, torch or transformers is missing.
from capture_case import DECODE, PROMPT, Case, build, files, prompt, said, main

import torch

import gradient_progress
import kvcapture
from capture_estimate import graph_bytes
from gradient_progress import Job, plan
from model_attention import config_shape
from output_gradients import FedAgain


class CommandLine(Case):
    def setUp(self):
        super().setUp()
        build("qwen 2").save_pretrained(self.folder / "model")
        (self.folder / "ids.json").write_text(json.dumps(prompt()[0].tolist()))
        self.model = ["--model", str(self.folder / "model"), "--out", str(self.dump)]
        self.arguments = [*self.model, "--ids", str(self.folder / "ids.json"), "--decode", str(DECODE)]
        self.asked = ["--gradients", "3", "--rows", "future,window=5", "--gradients-nll"]

    def test_one_command_or_an_interruption_and_another(self):
        status, text = said(kvcapture.main, [*self.arguments, *self.asked])
        self.assertEqual(status, 0, text)
        self.assertRegex(text, "layer 2: whole, .*; g_future of 3 x 6 rows; g_window of 3 x 5 rows; g_nll of 6 rows\n")
        self.judge(self.dump)
        whole = files(self.dump)
        write, calls = gradient_progress.GradientProgress.write, []

        def twice(*arguments):
            calls.append(arguments)
            if len(calls) > 2:
                raise KeyboardInterrupt
            write(*arguments)

        with mock.patch.object(gradient_progress.GradientProgress, "write", twice):
            status, text = said(kvcapture.main, [*self.arguments, *self.asked, "--force"])
        self.assertEqual(status, 130)
        self.assertRegex(text, r"\nkvcapture: interrupted; .*dump's gradients are incomplete \(--resume goes on\)\n$")
        status, text = said(kvcapture.main, ["--check", str(self.dump)])
        self.assertEqual(status, 1)
        self.assertIn("gradients: incomplete, they were interrupted (--resume goes on)\n", text)
        for command in ([*self.model, *self.asked, "--resume"], [*self.arguments, *self.asked, "--resume"]):
            status, text = said(kvcapture.main, command)
            self.assertEqual(status, 0, text)
            self.assertEqual(files(self.dump), whole)
        status, text = said(kvcapture.main, [*self.model, *self.asked, "--resume", "--seed"])
        self.assertEqual(status, 2)

    def test_resume_where_nothing_is_there_begins(self):
        status, text = said(kvcapture.main, [*self.arguments, *self.asked, "--resume"])
        self.assertEqual(status, 0, text)
        self.assertEqual(len(files(self.dump)), 9)

    def test_one_line_and_status_2(self):
        self.assertEqual(said(kvcapture.main, self.arguments)[0], 0)
        (self.folder / "other.json").write_text(json.dumps(prompt()[0].tolist()[:-1] + [5]))
        other = [*self.model, "--ids", str(self.folder / "other.json")]
        for command, pattern in (
            (
                [*other, *self.asked, "--resume"],
                "other.json: expected the 40 tokens of the dump's prompt, found 40 that differ",
            ),
            (
                [*self.model, *self.asked, "--resume", "--dtype", "float16"],
                "--dtype: expected the dump's float32, found float16",
            ),
            ([*self.arguments, "--rows", "window"], "--rows: expected --gradients, found none"),
            ([*self.arguments, "--gradients-nll", "--rows", "window"], "--rows: expected --gradients, found none"),
            ([*self.model, "--resume"], "expected --prompt, --messages, --ids or --task, found none"),
            ([*self.arguments, "--gradients", "0"], "--gradients: expected at least 1 sample, found 0"),
            ([*self.arguments, "--gradients", "x"], "argument --gradients: invalid int value"),
            (
                [*self.arguments, "--gradients", "1", "--rows", "window=41", "--force"],
                "--rows window: expected 1 to 40",
            ),
            ([*self.arguments, "--gradients", "1", "--decode", "0", "--force"], "expected decoding steps, found none"),
            ([*self.arguments, *self.asked], "dump: expected an empty folder"),
            ([*self.model, *self.asked], "expected --prompt, --messages, --ids or --task, found none"),
        ):
            with self.subTest(pattern):
                before = files(self.dump, "**/*.*")
                status, text = said(kvcapture.main, command)
                self.assertEqual((status, text.count("\n")), (2, 1), text)
                self.assertRegex(text, f"^kvcapture: .*{pattern}")
                self.assertEqual(files(self.dump, "**/*.*"), before)

    def test_estimate(self):
        status, text = said(kvcapture.main, [*self.arguments, *self.asked, "--estimate"])
        self.assertEqual(status, 0, text)
        self.assertFalse(self.dump.exists())
        self.assertRegex(
            text,
            r"\ngradients: memory +[\d,]+ bytes in float32, about, besides the model's [\d,]+\n"
            r"capture: time +\d+\.\d minutes on this cpu, about\n"
            r"gradients: time +\d+\.\d minutes more on this cpu, about\n"
            r" +\(a first pass without --gradients .*: \d+\.\d; --resume adds them\)\n",
        )
        total = int(re.search(r"total +([\d,]+) bytes", text)[1].replace(",", ""))
        self.assertEqual(said(kvcapture.main, [*self.arguments, *self.asked])[0], 0)
        self.assertEqual(total, sum(path.stat().st_size for path in self.dump.glob("*/*.npy")))

    def test_estimated_memory_is_what_the_graph_keeps(self):
        """Within half and twice; wide enough that the tensors that are not counted are small."""
        wide = dict(hidden_size=128, intermediate_size=384, vocab_size=997)
        for name in ("llama", "llama, eager", "qwen 3", "gemma 2", "gemma 3", "phi (partial)"):
            model, ids = build(name, **wide), prompt(PROMPT + 60)[0].tolist()
            again, kept = FedAgain(model, "float32", [0, 1, 2]), {}

            def keep(x):
                if not isinstance(x, torch.nn.Parameter):
                    kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes(), x
                return x

            again.read(ids[:PROMPT])
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
                again.feed(ids[PROMPT:], PROMPT)
            weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
            found = sum(size for at, (size, _) in kept.items() if at not in weights)
            job = Job("future", PROMPT, PROMPT + 60, 1, False)
            estimated = graph_bytes(model.config, config_shape(model.config), job, "float32")
            with self.subTest(name):
                self.assertTrue(0.5 < estimated / found < 2, (estimated, found))


class Plans(Case):
    def test_rows(self):
        self.assertEqual(plan(2, "future", False, 10, 14, 14), [Job("future", 10, 14, 2, False)])
        self.assertEqual(
            plan(2, "window", True, 10, 14, 14), [Job("future", 10, 14, 0, True), Job("window", 0, 10, 2, False)]
        )
        self.assertEqual(
            plan(2, "window,future", False, 50, 54, 44),
            [Job("future", 50, 54, 2, False), Job("window", 18, 50, 2, False)],
        )
        self.assertEqual(plan(2, "window", False, 50, 54, 9), [Job("window", 45, 50, 2, False)])
        self.assertEqual(plan(2, "window=3", False, 50, 50, 9), [Job("window", 47, 50, 2, False)])


if __name__ == "__main__":
    main()
