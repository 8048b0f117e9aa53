#!/usr/bin/env python3
"""kvcapture.py --repeat: the queries of a second reading, against the model reading the prompt twice in one go.

  KVREPLAY=build/release/bin/kvreplay python3 tests/capture/test_kvcapture_second_reading.py [-v] [Class.test]

capture_case.py says what that needs.
"""
import json
from unittest import mock

# First: skips where numpy, torch or transformers is missing.
from capture_case import DECODE, PROMPT, Case, arrays, build, decode, files, main, manifest_of, prompt, said

import numpy as np
import torch

import kvcapture
import second_reading
from kvcapture import capture, write_second_reading


class SecondReadings(Case):
    def take(self, model, **named):
        ids = prompt()
        with capture(model, self.dump, prompt_len=PROMPT, decode=DECODE, **named):
            decode(model, ids)

    def twice(self, model, layers):
        """[layers] of [n_q, PROMPT, d]: the queries of the prompt's second copy in one pass over both."""
        ids = prompt()
        with capture(model, self.folder / "twice", prompt_len=2 * PROMPT, layers=layers, force=True):
            model(input_ids=torch.cat((ids, ids), dim=1))
        return [arrays(self.folder / "twice", at)["q"][:, PROMPT:] for at in range(len(layers))]

    def test_queries_are_those_of_the_prompt_twice(self):
        for name in ("llama", "llama, eager", "qwen 3", "mistral", "gemma 2", "gemma 3", "gpt-oss", "gpt 2",
                     "glm (partial, interleaved)", "smollm 3 (a layer does not turn)"):
            with self.subTest(name):
                model = build(name)
                self.take(model, force=True)
                count = manifest_of(self.dump)["n_layers"]
                said(write_second_reading, model, self.dump)
                self.assertEqual(manifest_of(self.dump)["reference_rows"], {"kind": "repeat"})
                want = self.twice(model, range(count))
                for layer in range(count):
                    found = arrays(self.dump, layer)["q_ref"]
                    self.assertEqual(found.shape, want[layer].shape)
                    off = np.linalg.norm(found - want[layer]) / np.linalg.norm(want[layer])
                    self.assertLess(off, 1e-4, f"layer {layer}")
                self.judge(self.dump)

    def test_norms_are_those_of_what_the_attention_is_called_with(self):
        for name in ("llama", "gemma 2", "gpt 2"):
            with self.subTest(name):
                model, ids = build(name), prompt()
                self.take(model, force=True)
                said(write_second_reading, model, self.dump)
                states = model(input_ids=torch.cat((ids, ids), dim=1), output_hidden_states=True).hidden_states
                blocks = model.transformer.h if name == "gpt 2" else model.model.layers
                for layer, block in enumerate(blocks):
                    norm = block.ln_1 if name == "gpt 2" else block.input_layernorm
                    want = norm(states[layer])[0, PROMPT:].detach().norm(dim=-1).numpy()
                    found = arrays(self.dump, layer)["h_ref_norm"]
                    self.assertEqual(found.shape, (PROMPT,))
                    self.assertLess(np.abs(found / want - 1).max(), 1e-4, f"layer {layer}")
                self.judge(self.dump)

    def test_some_layers_of_another_dtype(self):
        model = build("qwen 2")
        self.take(model, layers=[0, 2], dtype="bfloat16")
        write_second_reading(model, self.dump)
        found = arrays(self.dump, 1)["q_ref"]
        self.assertEqual(found.dtype, np.uint16)
        self.assertEqual(len(list(self.dump.glob("layer_*/q_ref.npy"))), 2)
        self.judge(self.dump)
        before = files(self.dump, "layer_*/q_ref.npy")
        self.refused("--resume, or --force", write_second_reading, model, self.dump)
        write_second_reading(model, self.dump, resume=True)
        self.assertEqual(files(self.dump, "layer_*/q_ref.npy"), before)

    def test_another_model_or_too_short_a_context_is_refused(self):
        self.take(build("llama"))
        self.refused("k of the prompt when it is read again", write_second_reading, build("qwen 2"), self.dump)
        short = build("llama", max_position_embeddings=2 * PROMPT - 1)
        self.refused("--repeat: expected a prompt of at most half the model's 79 positions", write_second_reading, short,
                     self.dump)
        self.assertEqual(list(self.dump.glob("layer_*/q_ref*")), [])
        self.assertNotIn("reference_rows", manifest_of(self.dump))

    def test_the_command(self):
        build("qwen 2").save_pretrained(self.folder / "model")
        (self.folder / "ids.json").write_text(json.dumps(prompt()[0].tolist()))
        model = ["--model", str(self.folder / "model"), "--out", str(self.dump)]
        arguments = [*model, "--ids", str(self.folder / "ids.json"), "--decode", str(DECODE)]
        status, text = said(kvcapture.main, [*arguments, "--repeat"])
        self.assertEqual(status, 0, text)
        self.assertRegex(text, "layer 2: whole, .*; q_ref of 40 rows\n")
        self.judge(self.dump)
        whole = files(self.dump, "layer_*/q_ref.npy")
        status, text = said(kvcapture.main, [*arguments, "--repeat", "--estimate"])
        self.assertRegex(text, r"q_ref +3 x \[4, 40, 16\] ")
        self.assertRegex(text, r"h_ref_norm +3 x \[40\] ")
        with mock.patch.object(second_reading, "to_file", side_effect=KeyboardInterrupt):
            status, text = said(kvcapture.main, [*arguments, "--repeat", "--force"])
        self.assertEqual(status, 130)
        self.assertRegex(text, r"interrupted; .*dump has no second reading \(--resume adds it\)\n$")
        self.assertEqual(list(self.dump.glob("layer_*/q_ref*")), [])
        status, text = said(kvcapture.main, [*model, "--repeat", "--resume"])
        self.assertEqual(status, 0, text)
        self.assertEqual(files(self.dump, "layer_*/q_ref.npy"), whole)
        (self.dump / "layer_01" / "q_ref.npy").unlink()
        status, text = said(kvcapture.main, ["--check", str(self.dump)])
        self.assertEqual(status, 1)
        self.assertIn("layer 1: q_ref.npy: missing\n", text)
        status, text = said(kvcapture.main, [*model, "--resume"])
        self.assertEqual(status, 2)
        self.assertIn("expected --prompt, --messages, --ids or --task, found none", text)


if __name__ == "__main__":
    main()
