#!/usr/bin/env python3
"""The few lines of NumPy in data/DUMP-FORMAT.md that write a dump, as they stand there.

  KVREPLAY=build/release/bin/kvreplay python3 tests/capture/test_write_dump.py [-v] [Class.test]

Needs numpy (without: exit status 77). The test of tensors is skipped without torch, the program's without KVREPLAY.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

try:
    import numpy as np
except ImportError as missing:
    print(f"SKIPPED, nothing was tested: {missing}", file=sys.stderr)
    sys.exit(77)
try:
    import torch
except ImportError:
    torch = None

ROOT = Path(__file__).resolve().parents[2]
KVREPLAY = os.environ.get("KVREPLAY")
PAGE = (ROOT / "data" / "DUMP-FORMAT.md").read_text(encoding="utf-8")
SNIPPET = re.search(r"## Writing one from NumPy\n\n((?:(?:    .*)?\n)+)", PAGE)[1]
exec(textwrap.dedent(SNIPPET))  # defines write_dump


def layers(number=lambda x: x):
    draw = np.random.default_rng(3)

    def some(*shape):
        return number(draw.standard_normal(shape).astype(np.float32))

    return [{"q": some(4, 20, 8), "k": some(2, 20, 8), "v": some(2, 20, 8), "wo": some(4, 8, 32)} for _ in range(2)]


class WriteDump(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="write-dump-")
        self.addCleanup(folder.cleanup)
        self.dump = Path(folder.name) / "dump"

    def written(self, layer, name):
        return np.load(self.dump / f"layer_{layer:02}" / f"{name}.npy")

    def test_arrays(self):
        write_dump(self.dump, layers(), 15, 0.25, theta=500.0)
        for layer, arrays in enumerate(layers()):
            for name, array in arrays.items():
                np.testing.assert_array_equal(self.written(layer, name), array.astype(np.float16))
        manifest = json.loads((self.dump / "manifest.json").read_text())
        rope = {"style": "half", "theta": 500.0}
        self.assertEqual(manifest, {"model": "dump", "prompt_len": 15, "scale": 0.25, "rope": rope})

    @unittest.skipUnless(KVREPLAY, "KVREPLAY is not set")
    def test_kvreplay_reads_it(self):
        write_dump(self.dump, layers(), 15, 0.25)
        done = subprocess.run([KVREPLAY, "info", self.dump], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    @unittest.skipUnless(torch, "the package torch is missing")
    def test_tensors(self):
        for dtype in (torch.bfloat16, torch.float32):
            tensors = layers(lambda x: torch.from_numpy(x).to(dtype).requires_grad_())
            write_dump(self.dump, tensors, 15, 0.25)
            for name, tensor in tensors[1].items():
                np.testing.assert_array_equal(self.written(1, name), tensor.detach().to(torch.float16).numpy())

    def test_what_float16_cannot_hold_is_refused(self):
        for number in (70000.0, -np.inf, np.nan):
            with self.subTest(number), np.errstate(over="ignore"):
                some = layers()
                some[1]["v"][1, 3, 2] = number
                with self.assertRaisesRegex(ValueError, "^layer 1, v: expected numbers within float16's 65504, found "):
                    write_dump(self.dump, some, 15, 0.25)
                self.assertFalse((self.dump / "manifest.json").exists())


if __name__ == "__main__":
    unittest.main()
