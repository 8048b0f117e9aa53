#!/usr/bin/env python3
"""`kvreplay conform` acquits kvpress' presses and names planted faults: python3 tests/peers/test_conform_kvpress.py [-v].

On a small random model; tests/peers/conform_kvpress.py asks it of real ones. Needs KVREPLAY=path/to/kvreplay, its Python package and
tests/peers/requirements.txt; without them nothing is tested, and the exit status is 77.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
PROGRAM = os.environ.get("KVREPLAY")
try:
    import kvpress  # noqa: F401
    import kvreplay
    import torch
    import transformers

    missing = "" if PROGRAM else "KVREPLAY names no kvreplay"
except ImportError as error:
    missing = str(error)
if missing:
    if __name__ != "__main__":
        raise unittest.SkipTest(missing)
    print(f"SKIPPED, nothing was tested: {missing}", file=sys.stderr)
    sys.exit(77)

import conform_kvpress as peers  # noqa: E402

LAYERS, HEADS, PROMPT = 4, 2, 300


def small_model():
    """Random, the same each time; logits of several units."""
    config = transformers.LlamaConfig(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=LAYERS,
                                      num_attention_heads=4, num_key_value_heads=HEADS, head_dim=32,
                                      initializer_range=0.3, attn_implementation="sdpa")  # fmt: skip
    torch.manual_seed(7)
    return transformers.LlamaForCausalLM(config).eval()


class ConformKvpress(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.work = Path(tempfile.mkdtemp(prefix="kvreplay-conform-"))
        cls.addClassCleanup(shutil.rmtree, cls.work)
        ids = torch.randint(3, 97, (PROMPT,), generator=torch.Generator().manual_seed(3)).tolist()
        cls.judge = peers.Judge(small_model(), ids, cls.work, PROGRAM)

    def test_no_press_is_accused(self):
        for policy, make in peers.GENUINE.items():
            for ratio in (0.25, 0.5):
                with self.subTest(policy, ratio=ratio):
                    verdict = self.judge(policy, ratio, make(ratio))
                    self.assertTrue(verdict["ok"], verdict["text"])

    def test_faults_are_named(self):
        for fault in peers.FAULTS:
            with self.subTest(fault.name):
                press = peers.Faulty(fault.right(0.5 if fault.ratio else 0.0), fault.wrong, lambda layer: layer != 1)
                verdict = self.judge(fault.policy, 0.5 if fault.ratio else 0.0, press, fault.cache, fault.options)
                self.assertTrue(peers.found_in(verdict, fault.named), peers.said(verdict))

    def test_what_is_kept_while_generating(self):
        with kvreplay.kept_of(self.judge.model) as kept, peers.GENUINE["snapkv"](0.5)(self.judge.model):
            self.judge.model.generate(self.judge.ids, max_new_tokens=4, do_sample=False, pad_token_id=0)
        self.assertEqual(kept.mask().shape, (LAYERS, HEADS, PROMPT))
        self.assertEqual({len(positions) for heads in kept.layers.values() for positions in heads}, {PROMPT // 2})
        self.assertTrue(kvreplay.conform(self.work / "dump", "snapkv", kept, cache=kept, sigma=0.5, semantics="kvpress"))
        self.assertFalse(kvreplay.conform(self.work / "dump", "knorm", kept, sigma=0.5, semantics="kvpress", variants=0))

    def test_what_is_read_twice_is_the_second(self):
        with torch.no_grad(), kvreplay.kept_of(self.judge.model) as kept:
            for length in (PROMPT, PROMPT - 9):
                with peers.GENUINE["knorm"](0.5)(self.judge.model):
                    self.judge.model(self.judge.ids[:, :length], past_key_values=transformers.DynamicCache())
        self.assertEqual(kept.mask().shape[2], PROMPT - 9)

    def test_one_cache_alone(self):
        cache = transformers.DynamicCache()
        with torch.no_grad(), kvreplay.kept_of(cache) as kept, peers.GENUINE["knorm"](0.5)(self.judge.model):
            self.judge.model(self.judge.ids, past_key_values=cache)
            self.judge.model(self.judge.ids[:, :90], past_key_values=transformers.DynamicCache())
        self.assertEqual(kept.mask().sum(-1).tolist(), [[PROMPT // 2] * HEADS] * LAYERS)

    def test_a_cache_of_other_numbers_has_no_positions(self):
        press = peers.Faulty(peers.GENUINE["knorm"](0.5), peers.in_2_not_4_bits, lambda layer: True)
        with torch.no_grad(), kvreplay.kept_of(self.judge.model) as kept, press(self.judge.model):
            self.judge.model(self.judge.ids, past_key_values=transformers.DynamicCache())
        with self.assertRaisesRegex(kvreplay.InputError, "layer 0, head 0: expected keys or values that the cache was given"):
            kept.mask()
        said = str(kvreplay.conform(self.work / "dump", "none", cache=kept))
        self.assertTrue(re.search("keys in 2 bits per channel, groups of 32", said), said)

    def test_the_lines_of_the_page_run_as_written(self):
        text = (Path(__file__).resolve().parents[2] / "analysis/conform/CONFORM.md").read_text(encoding="utf-8")
        (lines,) = (block for block in re.findall(r"^```py\n(.*?)^```", text, re.S | re.M) if "MODEL" in block)
        self.judge.model.save_pretrained(self.work / "MODEL")
        (self.work / "DUMP").symlink_to(self.work / "dump")
        (self.work / "dump" / "tokens.json").write_text(json.dumps({"ids": [*self.judge.ids[0].tolist(), *[3] * peers.STEPS]}))
        run = subprocess.run([sys.executable, "-c", lines], cwd=self.work, capture_output=True, text=True)
        self.assertTrue(run.stdout.startswith(f"conforms: {LAYERS * HEADS} heads keep exactly what snapkv keeps"), run.stdout + run.stderr)

    def test_without_a_prompt(self):
        with kvreplay.kept_of(self.judge.model) as kept:
            pass
        for save in (kept.mask, lambda: kept.save_cache(self.work / "none")):
            with self.assertRaisesRegex(kvreplay.InputError, "expected a prompt that the model reads within it, found none"):
                save()


if __name__ == "__main__":
    unittest.main()
