#!/usr/bin/env python3
"""kvreplay keeps what kvpress keeps and scores what OBCache's pseudo-code scores: python3 tests/peers/test_peers.py [-v].

Needs KVREPLAY=path/to/kvreplay and tests/peers/requirements.txt; without them nothing is tested, and the exit status is 77. The questions
that are timed need the Python package besides. Half a minute on an idle machine.
"""

import io
import os
import shutil
import sys
import tempfile
import unittest
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

sys.dont_write_bytecode = True
PROGRAM = os.environ.get("KVREPLAY")
try:
    import numpy as np

    import peers

    missing = peers.MISSING or ("" if PROGRAM else "KVREPLAY names no kvreplay")
except ImportError as error:
    missing = str(error)
if missing:
    if __name__ != "__main__":
        raise unittest.SkipTest(missing)
    print(f"SKIPPED, nothing was tested: {missing}", file=sys.stderr)
    sys.exit(77)

import agreement  # noqa: E402
import presses  # noqa: E402

times = peers.times
SAMPLE = peers.ROOT / "data/samples/pystdlib-lm"
LAYERS, HEADS = 6, 2


class Case(unittest.TestCase):
    def setUp(self):
        self.work = Path(tempfile.mkdtemp(prefix="kvreplay-peers-"))
        self.addCleanup(shutil.rmtree, self.work)


class Agreement(Case):
    def test_everything_compared_is_equal(self):
        found = {one.kvreplay: one for one in agreement.compare(SAMPLE, PROGRAM, self.work)}
        for name, one in found.items():
            with self.subTest(name):
                self.assertTrue(one.fine, one.unlike[:3])
                self.assertEqual(one.tied, 0)  # this dump has none: every position was compared
        for name in (*agreement.POLICIES, *(f"budget --method {method}" for method in agreement.METHODS.values())):
            self.assertEqual(found.pop(name).of, len(agreement.RATIOS) * LAYERS * HEADS)
        self.assertEqual(found.pop("channels --method think").of, len(agreement.CHANNEL_RATIOS) * LAYERS * HEADS)
        self.assertEqual([one.of for one in found.values()], [LAYERS * HEADS] * 2 * len(agreement.obcache.NAMES))


class Differences(Case):
    """What the comparison above must not overlook."""

    def setUp(self):
        super().setUp()
        self.sides = agreement.Sides(SAMPLE, PROGRAM, self.work)
        self.run = self.sides.run

    def changed_run(self, file, change):
        """From now on kvreplay's results have an array that change() was let loose on."""

        def run(*arguments):
            folder = self.run(*arguments)
            array = np.load(folder / file)
            change(array)
            np.save(folder / file, array)
            return folder

        self.sides.run = run

    def exchanged_run(self, file, head, at):
        """From now on kvreplay's results have a set in which the element `at` of those in it and of those not in it trade places."""

        def exchange(chosen):
            chosen[head, [np.flatnonzero(chosen[head])[at], np.flatnonzero(chosen[head] == 0)[at]]] ^= True

        self.changed_run(file, exchange)

    def test_one_token_exchanged_for_another(self):
        self.exchanged_run("layer_03/kept/snapkv-kvpress-prefill-179.npy", head=1, at=100)
        found = {one.kvreplay: one for one in agreement.evictions(self.sides)}
        self.assertEqual([name for name, one in found.items() if not one.fine], ["snapkv"])
        self.assertEqual((found["snapkv"].equal, found["snapkv"].of), (35, 36))
        self.assertRegex(found["snapkv"].unlike[0], "^ratio 0.8, layer 3, KV head 1: position [0-9]+, kept by (kvpress|kvreplay) only$")

    def test_another_semantics(self):
        folder = self.run("paper", "evict", "--policy", "snapkv,h2o", "--sigma", "0.5")
        for name in ("snapkv", "h2o"):
            compared = agreement.Compared(name, name, "kept sets")
            for at, (want, _, tied) in enumerate(self.sides.pressed(name, 0.5)):
                got = self.sides.layer_array(folder, at, "kept", f"{name}-paper-prefill-448.npy")
                agreement.compare_kept(compared, want, tied, got, "")
            self.assertLess(compared.equal, compared.of)

    def test_a_score_that_is_a_little_off(self):
        def change(key):
            key[0, 5] += 1e-8 * key[0].max()

        self.changed_run("layer_02/tokens/key.npy", change)
        self.assertEqual({one.kvreplay.split(",")[0] for one in agreement.token_scores(self.sides) if not one.fine}, {"key"})

    def test_a_channel_pruned_in_anothers_place(self):
        self.exchanged_run("layer_00/channels/think-0.4.npy", head=0, at=0)
        (found,) = agreement.channels(self.sides)
        self.assertEqual((found.equal, found.of), (47, 48))

    def test_equal_scores_are_not_compared(self):
        kept, scores = np.array([[True, True, False, False]]), np.array([[3.0, 1.0, 1.0, 0.0]])
        self.assertEqual(presses.tied(kept, scores, False).tolist(), [[False, True, True, False]])
        compared = agreement.Compared("", "", "")
        agreement.compare_kept(compared, kept, presses.tied(kept, scores, False), np.array([[1, 0, 1, 0]]), "")
        self.assertTrue(compared.fine)
        self.assertFalse(agreement.same_ranking(np.array([3.0, 2.0, 1.0]), np.array([3.0, 1.0, 2.0])))


@unittest.skipUnless(times, "no Python package kvreplay")
class Times(Case):
    def test_both_are_asked_the_same(self):
        """What PyTorch keeps kvreplay keeps, in float32 on the tensors that are timed."""
        for shape in (times.Shape(256, 16, 2), times.Shape(96, 96, 3)):
            found = list(times.measure(shape, 1, rounds=1, seconds=0))
            self.assertEqual(len(found), 11 if shape.w < shape.l else 5)
            for one in found:
                with self.subTest(one["question"]):
                    self.assertGreater(one["kvreplay_ms"], 0)
                    if one["in_common"] is not None:
                        self.assertGreaterEqual(one["in_common"], 0.99)
        self.assertGreater(sum(one["in_common"] is not None for one in found), 0)

    def test_eager_scores_are_the_same_scores(self):
        tensors = times.Tensors(times.Shape(128, 24, 2))
        found = times.kvreplay.token_metrics(tensors.layer(), metrics=(*times.obcache.NAMES, "caote", "exact_remove"), window=24)
        asked = tensors.q[:, 104:], tensors.k[0], tensors.v[0], 104
        eager = dict(zip(times.obcache.NAMES, times.obcache.scores(*asked, 24)))
        eager["caote"], eager["exact_remove"] = times.obcache.caote(*asked), times.obcache.exact_remove(*asked, 16)
        for name, want in eager.items():
            np.testing.assert_allclose(found[name][0], want.numpy(), rtol=2e-4, atol=1e-6 * float(want.max()), err_msg=name)

    def test_what_pytorch_cannot_hold_is_said(self):
        question = times.Question("large", lambda: None, lambda: self.fail("was run"), gigabytes=1e6)
        result = times.turns(question, "cpu", 1, 0)
        self.assertIsNone(result["peer_ms"])
        self.assertIn("PyTorch: not run, 1000000 GB at once", result["note"])


class CommandLine(Case):
    def call(self, *arguments):
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(out):
            sys.argv = ["peers.py", *map(str, arguments)]
            try:
                return peers.main(), out.getvalue()
            except SystemExit as end:
                return end.code, out.getvalue()

    def test_one_line_for_what_cannot_be(self):
        self.assertEqual(self.call("--shape", "1,2")[0], "peers: --shape: expected l,w,G with w from 1 to l, found '1,2'")
        self.assertRegex(self.call("--kvreplay", "/no/such")[0], "^peers: /no/such: expected a program")


if __name__ == "__main__":
    unittest.main()
