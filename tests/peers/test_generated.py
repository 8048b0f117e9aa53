#!/usr/bin/env python3
"""kvreplay keeps what kvpress leaves in a generating model's cache: python3 tests/peers/test_generated.py [-v].

On a small random model; tests/peers/generated.py asks it of a real one. Needs KVREPLAY=path/to/kvreplay and
tests/peers/requirements.txt; without them nothing is tested, and the exit status is 77.
"""

import os
import shutil
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.dont_write_bytecode = True
PROGRAM = os.environ.get("KVREPLAY")
try:
    import kvpress
    import numpy as np
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

import generated  # noqa: E402
import presses  # noqa: E402

LAYERS, HEADS, PROMPT = 3, 2, 160
RATIOS = (0.25, 0.5)


def small_model(dtype=torch.float32):
    """Random, the same each time; logits of several units."""
    config = transformers.LlamaConfig(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=LAYERS,
                                      num_attention_heads=4, num_key_value_heads=HEADS, head_dim=16,
                                      initializer_range=0.3, attn_implementation="sdpa")  # fmt: skip
    torch.manual_seed(7)
    return transformers.LlamaForCausalLM(config).to(dtype).eval()


class Generated(unittest.TestCase):
    def setUp(self):
        self.work = Path(tempfile.mkdtemp(prefix="kvreplay-generated-"))
        self.addCleanup(shutil.rmtree, self.work)
        self.ids = np.random.default_rng(3).integers(3, 97, PROMPT).tolist()

    def compare(self, *arguments, dtype=torch.float32):
        return list(generated.compare(small_model(dtype), self.ids, PROGRAM, self.work, *arguments))

    def test_every_press_leaves_what_kvreplay_keeps(self):
        found = self.compare(tuple(generated.PRESSES), RATIOS)
        asked = {(name, ratio) for name in generated.PRESSES for ratio in RATIOS}
        self.assertEqual({(one.policy, one.ratio) for one in found}, asked)
        for one in found:
            with self.subTest(one.policy, ratio=one.ratio):
                self.assertEqual((one.unlike, one.differ), ([], one.ties))
                self.assertEqual(one.kept, LAYERS * HEADS * int(PROMPT * (1 - one.ratio)))

    def test_a_press_with_another_window(self):
        narrow = {"snapkv": lambda compression_ratio: kvpress.SnapKVPress(compression_ratio, window_size=32)}
        with mock.patch.dict(presses.PRESSES, narrow):
            (found,) = self.compare(("snapkv",), (0.5,))
        self.assertGreater(found.differ, found.ties)
        said = "^snapkv, ratio 0.5, layer [0-9]+, KV head [0-9]+: position [0-9]+ is kept by kvpress only$"
        self.assertRegex(found.unlike[0], said)

    def test_one_token_exchanged_for_another(self):
        own = generated.Replayed.kept

        def kept(replayed, name, budget):
            chosen = own(replayed, name, budget)
            head = chosen[1, 0]
            head[[np.flatnonzero(head)[0], np.flatnonzero(~head)[0]]] ^= True
            return chosen

        with mock.patch.object(generated.Replayed, "kept", kept):
            (found,) = self.compare(("keydiff",), (0.5,))
        self.assertEqual((found.differ, found.ties, len(found.unlike)), (1, 0, 1))

    def test_in_float16_tokens_are_counted(self):
        (found,) = self.compare(("snapkv",), (0.5,), dtype=torch.float16)
        self.assertEqual(found.kept, LAYERS * HEADS * PROMPT // 2)
        self.assertEqual(found.ties, 0)
        self.assertLess(found.differ, 0.05 * found.kept)

    def test_a_tie_is_an_exchange_within_rounding(self):
        want, got = np.array([[True, False, False]]), np.array([[False, True, False]])
        for near, ties in (([True, True, False], 1), ([True, False, True], 0), ([False, True, True], 0)):
            compared = generated.Compared("", 0.5)
            compared.note(want, got, np.array([near]), "")
            self.assertEqual((compared.differ, compared.ties, len(compared.unlike)), (1, ties, 1 - ties))


if __name__ == "__main__":
    unittest.main()
