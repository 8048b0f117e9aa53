"""The Python package against the program, against NumPy in float64, and on what it must refuse.

  PYTHONPATH=build/release/python python3 tests/python/test_package.py

Needs NumPy (without: nothing is tested, exit status 77).
"""
import copy
import csv
import importlib.util
import inspect
import json
import multiprocessing
import os
import pickle
import pydoc
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import types
import unittest
from unittest import mock
from pathlib import Path

sys.dont_write_bytecode = True
try:
    import numpy as np
except ImportError:
    print("skipped: needs numpy", file=sys.stderr)
    sys.exit(77)

import kvreplay
from reference import Attention

ROOT = Path(__file__).resolve().parents[2]
DUMP = ROOT / "data/samples/pystdlib-lm"
LAYER, PROMPT = 2, 896
METHODS = ("none", "mass", "values", "fit", "mean", "cam", "d2o", "kvmerger", "keepkv", "merging_press")
ROPE = {"style": "half", "theta": 10000.0, "rotary_dim": 64}


def sample(dtype=None):
    arrays = [np.load(DUMP / f"layer_{LAYER:02d}" / f"{name}.npy") for name in ("q", "k", "v", "wo")]
    return [array if dtype is None else array.astype(dtype) for array in arrays]


class Program(unittest.TestCase):
    """The numbers of the program on the sample, to the byte."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.folders = {}
        for precision in ("f32", "f64"):
            for command in ("tokens --metrics attn,joint,caote,expected_attention,exact_remove,oracle_future",
                            "evict --policy h2o,tova,snapkv[window=16],snapkv[page=16],snapkv[page=64,page_heads=layer],keydiff,expected_attention,oracle_exact --keep 0.2",
                            f"evict --policy snapkv,keydiff --keep 0.2 --semantics kvpress --compensate {','.join(METHODS)}",
                            "channels --ratio 0.5 --method think,iap,output,convex", "budget --order snapkv --sigma 0.8"):
                name, *options = command.split()
                name = "compensate" if "--compensate" in options else name
                out = Path(cls.folder.name) / f"{name}-{precision}"
                layers = [] if name == "budget" else ["--layers", str(LAYER)]
                subprocess.run([kvreplay.program(), command.split()[0], DUMP, "--out", out, *options, *layers, "--precision", precision, "--quiet"],
                               check=True)
                cls.folders[name, precision] = out

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def layer(self, dtype):
        q, k, v, wo = sample(dtype)
        return kvreplay.Layer(q, k, v, PROMPT, rope=ROPE, wo=wo)

    def each(self):
        # Halves are converted, floats used where they lie: the same numbers.
        for precision, dtype in (("f32", None), ("f32", np.float32), ("f64", None), ("f64", np.float64)):
            with self.subTest(precision=precision, dtype=dtype):
                yield precision, self.layer(dtype)

    def array(self, name, precision, file):
        return np.load(self.folders[name, precision] / f"layer_{LAYER:02d}" / file)

    def test_token_metrics(self):
        for precision, layer in self.each():
            names = ("attn", "joint", "caote", "expected_attention", "exact_remove", "oracle_future")
            found = kvreplay.token_metrics(layer, metrics=names, precision=precision)
            self.assertEqual(set(found), set(names))
            for name in names:
                want = self.array("tokens", precision, f"tokens/{name}.npy")
                self.assertEqual((found[name].dtype, found[name].tobytes()), (want.dtype, want.tobytes()), name)

    def test_evict_and_output_error(self):
        for precision, layer in self.each():
            with open(self.folders["evict", precision] / "evictions.csv", newline="") as file:
                rows = list(csv.DictReader(file))
            for policy in ("h2o", "tova", "snapkv[window=16]", "snapkv[page=16]", "snapkv[page=64,page_heads=layer]", "keydiff",
                           "expected_attention", "oracle_exact"):
                found = kvreplay.evict(layer, policy=policy, keep=0.2, precision=precision)
                self.assertEqual(found.kept.sum(1).tolist(), [found.tokens] * len(found.kept))
                self.assertEqual(found.tokens, {"snapkv[page=16]": 176, "snapkv[page=64,page_heads=layer]": 128}.get(policy, 179))
                want = self.array("evict", precision, f"kept/{policy}-paper-prefill-{found.tokens}.npy")
                self.assertEqual(found.kept.tobytes(), want.tobytes(), policy)
                for on in ("window", "future"):
                    error = kvreplay.output_error(layer, keep=found, rows=on, precision=precision)
                    figures = {"output_error": error.output_error, "layer_output_error": error.layer_output_error}
                    want = {row["metric"]: row["value"] for row in rows
                            if row["policy"] == policy and row["rows"] == on and row["layer"] and not row["kv_head"]}
                    self.assertEqual({name: str(float(want[name])) for name in figures},
                                     {name: str(value) for name, value in figures.items()}, policy)
                    heads = [float(row["value"]) for row in rows if row["policy"] == policy and row["rows"] == on
                             and row["kv_head"] and row["metric"] == "output_error"]
                    self.assertEqual(heads, error.heads["output_error"].tolist())
                    self.assertEqual(error.median_head, np.median(heads))
                    self.assertIn(f"({error.median_head} in the median head)", repr(error))

    def test_formats_of_caches(self):
        asked = {"k4v2": {"keys": "token", "residual": 32}, "q8_0": {}, "4": {"group": 64}, "q4_0": {"center": "k:4"}}
        for bits, options in asked.items():
            for rotate in ("none", "hadamard"):
                said = {"bits": bits, "rotate": rotate, **options}
                out = Path(self.folder.name) / f"formats-{bits}-{rotate}"
                words = [word for name, value in said.items() for word in (f"--{name}", str(value))]
                subprocess.run([kvreplay.program(), "evict", DUMP, "--out", out, "--policy", "snapkv,none", "--keep", "0.2", "--layers", str(LAYER),
                                "--quiet", *words], check=True)
                with open(out / "evictions.csv", newline="") as file:
                    written = {(row["policy"].split("~")[0], row["rows"], row["kv_head"]): float(row["value"]) for row in csv.DictReader(file)
                               if row["metric"] == "output_error" and row["layer"]}
                layer = self.layer(None)
                for policy, kept in (("snapkv", kvreplay.evict(layer, policy="snapkv", keep=0.2)), ("none", None)):
                    for rows in ("window", "future"):
                        found = kvreplay.output_error(layer, keep=kept, rows=rows, **said)
                        self.assertEqual([found.output_error, *found.heads["output_error"]],
                                         [written[policy, rows, head] for head in ("", "0", "1")], (said, policy, rows))

    def test_names_in_another_spelling(self):
        layer = self.layer(None)
        for given, canonical in ("SnapKV", "snapkv"), ("H2O+Joint[Window=16]", "h2o+joint[window=16]"), ("Score:KNorm", "score:knorm"):
            found = kvreplay.evict(layer, policy=given, keep=0.2, semantics="Paper", phase="Prefill")
            self.assertEqual((found.policy, found.semantics, found.phase), (canonical, "paper", "prefill"))
        with self.assertRaisesRegex(kvreplay.InputError, "unknown policy 'StreamingLLM'; did you mean 'streaming'"):
            kvreplay.evict(layer, policy="StreamingLLM", keep=0.2)

    def test_formats_that_cannot_be(self):
        layer = self.layer(None)
        kept = kvreplay.evict(layer, policy="snapkv", keep=0.2)
        held = kvreplay.compensate(layer, keep=kept, method="fit")
        for given, said in (({"keep": kept, "bits": "5x"}, "bits"), ({"bits": "4,8"}, "bits"), ({"keep": kept, "rotate": "hadamard"}, "bits"),
                            ({"keep": held, "bits": 4}, "bits"), ({"bits": 4, "rotate": "hadamard:48"}, "rotate")):
            with self.assertRaisesRegex(kvreplay.InputError, said):
                kvreplay.output_error(layer, **given)

    def test_compensate(self):
        for precision, layer in self.each():
            results = kvreplay.open_results(self.folders["compensate", precision])
            # As a table has it: nothing where a figure has no value.
            written = {(row["policy"], row["method"], row["rows"], row["metric"], row["kv_head"]): float(row["value"])
                       for row in results.rows("compensation") if row["layer"] and row["value"]}
            for policy in ("snapkv", "keydiff"):
                kept = kvreplay.evict(layer, policy=policy, keep=0.2, semantics="kvpress", precision=precision)
                for method in METHODS:
                    found = kvreplay.compensate(layer, keep=kept, method=method, precision=precision)
                    self.assertEqual(found.method, method)
                    self.assertEqual(found.reference, "shifted" if method in ("mass", "values", "fit") else None)
                    self.assertEqual([np.isnan(found.lambda_[0]), np.isnan(found.mu[0])],
                                     [method not in ("mass", "fit"), method not in ("values", "fit")])
                    if method != "none":
                        held = results.compensated(f"{policy}-kvpress-prefill-{kept.tokens}-{method}", LAYER)
                        for mine, theirs in zip(found.held, held):
                            for one, other in zip(mine, theirs):
                                self.assertEqual(one is None, other is None, method)
                                if one is not None:
                                    self.assertEqual(one.dtype, np.int32 if one is mine.tokens else float if precision == "f64" else np.float32)
                                    self.assertEqual((one.shape, one.astype(other.dtype).tobytes()), (other.shape, other.tobytes()), method)
                    want = [written[policy, method, "", "bytes", str(head)] for head in range(len(found.held))]
                    self.assertEqual(found.bytes.tolist(), want, method)
                    for rows, split in found.split.items():
                        for name, heads in split.heads.items():
                            for head, value in [("", getattr(split, name)), *enumerate(heads.tolist())]:
                                want = written.get((policy, method, rows, name, str(head)), float("nan"))
                                self.assertEqual(str(value), str(want), (method, rows, name))
                    there = {rows for one, two, rows, name, _ in written if (one, two) == (policy, method) and name == "output_error"}
                    self.assertEqual(set(found.split), there if found.reference else there - {"reference"})
                    for rows in ("window", "future"):
                        error = kvreplay.output_error(layer, keep=found, rows=rows, precision=precision)
                        self.assertEqual([error.output_error, error.layer_output_error, *error.heads["output_error"]],
                                         [written[policy, method, rows, "output_error", ""], written[policy, method, rows, "layer_output_error", ""],
                                          *(written[policy, method, rows, "output_error", str(head)] for head in range(2))], method)

    def test_channels(self):
        for precision, layer in self.each():
            found = kvreplay.channel_interaction(layer, outputs=True, precision=precision)
            self.assertEqual(np.asarray(found).tobytes(), self.array("channels", precision, "channels/interaction.npy").tobytes())
            self.assertEqual(found.outputs.tobytes(), self.array("channels", precision, "channels/output_interaction.npy").tobytes())
            for method in ("think", "iap", "output", "convex"):
                chosen = kvreplay.select_channels(found, method=method, ratio=0.5)
                self.assertEqual(chosen.pruned.tobytes(), self.array("channels", precision, f"channels/{method}-0.5.npy").tobytes())
                if method != "convex":
                    self.assertEqual(chosen.order.tobytes(), self.array("channels", precision, f"channels/{method}_order.npy").tobytes())
            alone = kvreplay.select_channels(np.asarray(found), method="iap", ratio=0.5)
            self.assertTrue((alone.pruned == kvreplay.select_channels(found, method="iap", ratio=0.5).pruned).all())
            self.assertEqual(found.diagonal.tobytes(), np.einsum("hcc->hc", found.logits).tobytes())
            diagonal = kvreplay.channel_interaction(layer, diagonal=True, precision=precision)
            np.testing.assert_allclose(diagonal.diagonal, found.diagonal, rtol=1e-12)
            np.testing.assert_allclose(diagonal.key_sq, found.key_sq, rtol=1e-12)
            self.assertIsNone(diagonal.logits)
            for method in ("think", "magnitude"):
                chosen, want = (kvreplay.select_channels(h, method=method, ratio=0.5) for h in (diagonal, found))
                self.assertEqual(chosen.pruned.tobytes(), want.pruned.tobytes())
                self.assertEqual(chosen.order.tobytes(), want.order.tobytes())
                self.assertIsNone(chosen.reconstruction_error)
                self.assertIn("channels pruned", chosen._repr_html_())
            for refused in (lambda: kvreplay.select_channels(diagonal, method="iap", ratio=0.5), lambda: np.asarray(diagonal),
                            lambda: kvreplay.channel_interaction(layer, diagonal=True, outputs=True)):
                with self.assertRaises(kvreplay.InputError):
                    refused()

    def test_allocate(self):
        results = kvreplay.open_results(self.folders["budget", "f32"])
        budgets = [row for row in results.rows("budgets") if row["kv_head"] not in ("", None)]
        for method in ("uniform", "pyramid", "lu", "optimal"):
            pinned = 4 + 32  # of LU-KV's setting, in every head
            found = kvreplay.allocate(results.curves("snapkv"), method=method, sigma=0.8, floor=pinned / 896)
            want = [int(row["budget"]) for row in budgets if row["method"] == method]
            self.assertEqual(found.budgets.ravel().tolist(), want, method)
            with open(self.folders["budget", "f32"] / f"head_budgets/snapkv-{method}-0.8.json") as file:
                shares = json.load(file)
            self.assertEqual(list(found.head_budgets().items()), list(shares.items()), method)
            self.assertEqual(list(found.head_budgets(range(3, 9)))[0], "L3H0")
        self.assertEqual(kvreplay.allocate(results.curves("snapkv"), 100, method="optimal").budgets.sum(), 100)


class Bfloat:
    """What ml_dtypes' arrays show."""

    dtype = types.SimpleNamespace(name="bfloat16")

    def __init__(self, values):
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        self.bits = ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16).astype(np.uint16)

    def view(self, name):
        assert name == "uint16"
        return self.bits

    def numbers(self):
        return (self.bits.astype(np.uint32) << 16).view(np.float32)


def laid_out(random, values):
    """The same numbers in another order in memory."""
    way = random.integers(5)
    if way == 0:
        return np.ascontiguousarray(values)
    if way == 1:
        return np.ascontiguousarray(values.transpose(1, 0, 2)).transpose(1, 0, 2)
    if way == 2:
        return np.repeat(values, 2, axis=1)[:, ::2]
    if way == 3:
        return np.ascontiguousarray(values[:, ::-1, ::-1])[:, ::-1, ::-1]
    return np.ascontiguousarray(values)[None]


class Reference(unittest.TestCase):
    def near(self, found, want, tolerance, what):
        error, size = np.linalg.norm(found - want), np.linalg.norm(want)
        self.assertLessEqual(error, tolerance * size + 1e-30, what)

    def test_random_layers(self):
        random = np.random.default_rng(19)
        for case in range(300):
            n_kv, group, d, d_v = random.integers(1, [4, 4, 21, 21])
            T = int(random.integers(1, 25))
            T_q = int(random.integers(1, T + 1))
            l = int(random.integers(T - T_q + 1, T + 1))
            window = int(random.integers(1, 9))
            dtype = random.choice(["float16", "bfloat16", "float32", "float64"])
            facts = {"scale": random.choice([None, 0.7]), "sliding_window": random.choice([None, 5]),
                     "logit_softcap": random.choice([None, 3.0]), "causal": random.choice([None, True, False])}
            facts = {name: value for name, value in facts.items() if value is not None}
            if random.integers(2):
                facts["sink_logit"] = random.normal(size=n_kv * group)
            if facts.get("causal") is False and "sliding_window" in facts and random.integers(2):
                facts["sliding_window_two_sided"] = True
            numbers, arrays = [], []
            for heads, rows, columns, size in ((n_kv * group, T_q, d, 3), (n_kv, T, d, 1), (n_kv, T, d_v, 1)):
                values = size * random.normal(size=(heads, rows, columns))
                if dtype == "bfloat16":
                    arrays.append(Bfloat(values))
                    numbers.append(arrays[-1].numbers())
                else:
                    numbers.append(values.astype(dtype))
                    arrays.append(laid_out(random, numbers[-1]))
            want = Attention(*numbers, **facts)
            precision, tolerance = ("f64", 1e-9) if random.integers(2) else ("f32", 1e-4)
            with self.subTest(case=case, dtype=dtype, precision=precision, T=T, T_q=T_q, l=l, window=window, **facts):
                layer = kvreplay.Layer(*arrays, l, **facts)
                found = kvreplay.token_metrics(layer, metrics=("attn", "joint", "exact_remove"), window=window, precision=precision)
                for name, values in want.metrics(l, window).items():
                    for g in range(n_kv):
                        self.near(found[name][g], values[g], tolerance, name)
                kept = random.random((n_kv, l)) < 0.5
                rows = (l, T) if T > l and random.integers(2) else (max(l - window, T - T_q), l)
                error = kvreplay.output_error(layer, keep=kept, rows=rows, precision=precision).output_error
                self.near(np.sqrt(error), np.sqrt(want.output_error(kept, rows)), 10 * tolerance, "output_error")

    def test_own_scores_and_forms_of_kept_sets(self):
        random = np.random.default_rng(3)
        q, k, v = (random.normal(size=(n, 40, 8)).astype(np.float32) for n in (4, 2, 2))
        score = random.normal(size=(2, 30))
        want = np.zeros((2, 30), bool)
        for head in range(2):
            want[head, np.argsort(-score[head])[:7]] = True
        found = kvreplay.evict(q, k, v, 30, keep=7, score=score)
        self.assertTrue((found.kept == want).all())
        pinned = np.where(score >= np.sort(score)[:, -3:-2], np.inf, np.where(score < 0, -np.inf, score))  # ranks are all that counts
        self.assertTrue((kvreplay.evict(q, k, v, 30, keep=7, score=pinned).kept == want).all())
        seen = []
        self.assertTrue((kvreplay.evict(q, k, v, 30, keep=7, score=lambda *prompt: seen.extend(prompt) or score).kept == want).all())
        for found_array, array in zip(seen, (q, k, v)):
            self.assertEqual(found_array.tobytes(), array[:, :30].tobytes())  # nothing of what comes after the prompt
        halves = [Bfloat(array) for array in (q, k, v)]
        for given, want_seen in (((halves[0], halves[1], halves[2]), [half.numbers() for half in halves]),):
            seen.clear()
            prompt_of = lambda self: self.arrays  # noqa: E731  a Bfloat has no slices
            with mock.patch.object(kvreplay.Layer, "prompt", prompt_of):
                kvreplay.evict(*given, keep=7, score=lambda *prompt: seen.extend(prompt) or prompt[2][..., 0])
            self.assertEqual([(array.dtype, array.tobytes()) for array in seen], [(np.dtype(np.float32), array.tobytes()) for array in want_seen])
        late = kvreplay.Layer(q[:, 25:], k, v, 30)
        self.assertEqual([array.shape[1] for array in late.prompt()], [5, 30, 30])
        named = kvreplay.evict(q, k, v, 30, keep=7, score={"own": score}, policy="snapkv+own[window=4]")
        self.assertTrue(named.kept[:, -4:].all())
        errors = [kvreplay.output_error(q, k, v, keep, prompt_len=30).output_error
                  for keep in (found, found.kept, found.sets, [set(one.tolist()) for one in found.sets])]
        errors += [kvreplay.output_error(q, k, v, 30, keep=found).output_error, kvreplay.output_error(q, k, v, np.int64(30), keep=found.kept).output_error,
                   kvreplay.output_error(q, k, v, found).output_error, kvreplay.output_error(q, k, v, keep=found).output_error]
        self.assertEqual(len(set(errors)), 1)
        both = kvreplay.output_error(q, k, v, np.stack([found.kept, np.ones_like(want)]), prompt_len=30)
        self.assertEqual(both.output_error.tolist(), [errors[0], 0.0])
        self.assertEqual(kvreplay.evict(q, k, v, 30, keep=7, policy="h2o", per_query_head=True).kept.shape, (4, 30))
        # Of query heads told apart each is kept by its own score, or by its KV head's.
        apart = np.stack([score[0], -score[0], score[1], -score[1]])
        lowest = np.zeros((2, 30), bool)
        for head in range(2):
            lowest[head, np.argsort(score[head])[:7]] = True
        for of_heads, wanted in ((apart, np.stack([want[0], lowest[0], want[1], lowest[1]])), (score, np.repeat(want, 2, axis=0))):
            for given in (of_heads, lambda q, k, v, of_heads=of_heads: of_heads):
                kept = kvreplay.evict(q, k, v, 30, keep=7, score=given, per_query_head=True).kept
                self.assertTrue((kept == wanted).all())
        # Infinite ones are kept first and last, and integers are numbers.
        ranks = np.argsort(np.argsort(score))
        self.assertTrue((kvreplay.evict(q, k, v, 30, keep=7, score=ranks).kept == want).all())
        pinned = np.where(ranks < 4, np.inf, np.where(ranks > 26, -np.inf, score))
        self.assertTrue((kvreplay.evict(q, k, v, 30, keep=7, score=pinned).kept == ((ranks < 4) | ((ranks > 23) & (ranks < 27)))).all())
        # A cache that lost positions is seen through a window as they stand in the sequence.
        there = np.r_[0:10, 20:40]
        cache = kvreplay.Layer(q[:, 20:], k[:, there], v[:, there], sliding_window=15, positions=there)
        hidden = np.zeros((2, 30), bool)
        hidden[:, [*range(20 - 14 + 10, 30)]] = True
        full = kvreplay.Layer(q[:, 20:], k, v, sliding_window=15)
        self.assertTrue((kvreplay.token_metrics(cache, metrics="attn", window=1)["attn"][:, 15:] ==
                         kvreplay.token_metrics(full, metrics="attn", window=1)["attn"][:, 25:]).all())

    def test_compensated_caches(self):
        random = np.random.default_rng(8)
        q, k, v = (random.normal(size=(n, 60, 6)) for n in (4, 2, 2))
        layer = kvreplay.Layer(2 * q, k, v, 50, rope={"style": "half", "theta": 100.0})
        kept = random.random((2, 50)) < [[0.3], [0.5]]
        found = kvreplay.compensate(layer, keep=kept, precision="f64")
        by_sets = kvreplay.compensate(layer, keep=[np.flatnonzero(head) for head in kept], precision="f64")
        self.assertEqual([head.tolist() for head in found.tokens], [np.flatnonzero(head).tolist() for head in kept])
        for head in range(2):
            self.assertEqual(found.values[head].tobytes(), by_sets.values[head].tobytes())
        self.assertEqual(found.keys, [None, None])
        # Brute force over the decoding steps, with biases and values.
        attention, change, full = Attention(2 * q, k, v), 0.0, 0.0
        for head in range(4):
            g, values = head // 2, v[head // 2].copy()
            bias = np.r_[np.full(50, -np.inf), np.zeros(10)]
            bias[found.tokens[g]], values[found.tokens[g]] = found.bias[g], found.values[g]
            for i in range(50, 60):
                z = attention.row(head, i)[1]
                o = attention.output(head, z)
                change += ((attention.weights(head, z + bias) @ values - o) ** 2).sum()
                full += (o ** 2).sum()
        self.near(kvreplay.output_error(layer, keep=found, precision="f64").output_error, change / full, 1e-9, "output_error")
        self.near(found.split["future"].output_error, change / full, 1e-9, "split")
        # What is whole stays as it is, and nothing stays nothing.
        for keep, tokens in ((np.ones((2, 50), bool), 50), (np.zeros((2, 50), bool), 0)):
            one = kvreplay.compensate(layer, keep=keep)
            self.assertEqual([len(head) for head in one.tokens], [tokens] * 2)
            self.assertEqual(kvreplay.output_error(layer, keep=one).output_error,
                             kvreplay.output_error(layer, keep=keep).output_error)
        # Without a rotation the window is what there is, and that is said.
        bare = kvreplay.compensate(q, k, v, 50, keep=kept, window=16)
        self.assertEqual((bare.reference, bare.notes), ("window", ["fits look at the last 16 queries of the prompt, which are not shifted: "
                                                                  "no rope is given"]))
        self.assertEqual(kvreplay.compensate(q, k, v, 50, keep=kept, window=16, reference="window").notes, [])

    def test_gates(self):
        """What stands between the heads and W_O counts behind it, in a Layer and in a dump's."""
        random = np.random.default_rng(12)
        q, k, v = (random.normal(size=(1, n, 24, 5)) for n in (4, 2, 2))
        wo, gate = random.normal(size=(1, 4, 5, 7)), random.random((1, 4, 24, 5))
        with tempfile.TemporaryDirectory() as folder:
            for name, array in {"q": q, "k": k, "v": v, "wo": wo, "gate": gate}.items():
                np.save(Path(folder) / f"{name}.npy", array)
            (Path(folder) / "manifest.json").write_text(json.dumps({"prompt_len": 18}))
            of_dump = kvreplay.Dump(folder)[0]
        attention, kept = Attention(q[0], k[0], v[0]), random.random((2, 18)) < 0.5
        importance, change, full = np.zeros((4, 18)), np.zeros((6, 7)), np.zeros((6, 7))
        for head in range(4):
            values = v[0, head // 2]
            gone = np.r_[~kept[head // 2], np.zeros(6, bool)]
            for i in range(18, 24):
                z = attention.row(head, i)[1]
                written = (values * gate[0, head, i]) @ wo[0, head]
                importance[head] = np.maximum(importance[head], np.linalg.norm(attention.weights(head, z)[:, None] * written, axis=-1)[:18])
                full[i - 18] += attention.weights(head, z) @ written
                change[i - 18] += attention.weights(head, np.where(gone, -np.inf, z)) @ written - attention.weights(head, z) @ written
        for layer in (of_dump, kvreplay.Layer(q[0], k[0], v[0], 18, wo=wo[0], gate=gate[0])):
            for precision, tolerance in (("f64", 1e-12), ("f32", 1e-5)):
                found = kvreplay.token_metrics(layer, metrics="oracle_importance", precision=precision)["oracle_importance"]
                self.near(found, importance.reshape(2, 2, 18).sum(1), tolerance, "oracle_importance")
                error = kvreplay.output_error(layer, keep=kept, precision=precision).layer_output_error
                self.near(error, (change ** 2).sum() / (full ** 2).sum(), tolerance, "layer_output_error")
            self.assertTrue(any("a gate stands between" in note for note in layer.notes))
        best = np.argsort(-importance.reshape(2, 2, 18).sum(1), axis=-1)[:, :5]
        found = kvreplay.evict(of_dump, policy="oracle", keep=5).kept
        self.assertEqual([set(np.flatnonzero(head)) for head in found], [set(head) for head in best])

    def test_a_norm_before_the_projection(self):
        """A row's outputs of all heads are divided by their root mean square, which changes with them."""
        random, eps = np.random.default_rng(13), 0.05
        q, k, v, wo = (random.normal(size=(1, *shape)) for shape in ((4, 24, 5), (2, 24, 5), (2, 24, 5), (4, 5, 7)))
        norm = {"kind": "rms", "eps": eps}
        with tempfile.TemporaryDirectory() as folder:
            for name, array in {"q": q, "k": k, "v": v, "wo": wo}.items():
                np.save(Path(folder) / f"{name}.npy", array)
            (Path(folder) / "manifest.json").write_text(json.dumps({"prompt_len": 18, "output_norm": norm}))
            of_dump = kvreplay.Dump(folder)[0]
        attention, kept = Attention(q[0], k[0], v[0]), random.random((2, 18)) < 0.5
        outputs = np.zeros((2, 6, 4, 5))
        for head in range(4):
            gone = np.r_[~kept[head // 2], np.zeros(6, bool)]
            for i in range(18, 24):
                z = attention.row(head, i)[1]
                outputs[:, i - 18, head] = attention.output(head, z), attention.output(head, np.where(gone, -np.inf, z))
        normed = outputs / np.sqrt((outputs ** 2).mean((2, 3), keepdims=True) + eps)
        full, left = np.einsum("nrhv,hvm->nrm", normed, wo[0])
        for layer in (of_dump, kvreplay.Layer(q[0], k[0], v[0], 18, wo=wo[0], output_norm=norm)):
            for precision, tolerance in (("f64", 1e-12), ("f32", 1e-5)):
                error = kvreplay.output_error(layer, keep=kept, precision=precision).layer_output_error
                self.near(error, ((left - full) ** 2).sum() / (full ** 2).sum(), tolerance, "layer_output_error")
            self.assertTrue(any("a norm of all heads' outputs stands" in note for note in layer.notes))
        plain = kvreplay.token_metrics(kvreplay.Layer(q[0], k[0], v[0], 18), metrics="oracle_importance")
        np.testing.assert_array_equal(kvreplay.token_metrics(of_dump, metrics="oracle_importance")["oracle_importance"],
                                      plain["oracle_importance"])
        with self.assertRaisesRegex(ValueError, 'output_norm: kind: expected "rms", found "layer"'):
            kvreplay.Layer(q[0], k[0], v[0], wo=wo[0], output_norm={"kind": "layer", "eps": eps})

    def test_gradients_and_projection(self):
        random = np.random.default_rng(4)
        q, k, v = (random.normal(size=(n, 24, 6)) for n in (2, 1, 1))
        wo, g = random.normal(size=(2, 6, 5)), random.normal(size=(2, 3, 4, 6))
        layer = kvreplay.Layer(q, k, v, 20, wo=wo, g_future=g, g_nll=g[:, 0])
        kept = random.random((1, 20)) < 0.5
        found = kvreplay.output_error(layer, keep=kept, precision="f64")
        attention, gone = Attention(q, k, v), np.r_[~kept[0], np.zeros(4, bool)]
        change, full = np.zeros((2, 2, 4, 6))
        for head in range(2):
            for row in range(4):
                z = attention.row(head, 20 + row)[1]
                full[head, row] = attention.output(head, z)
                change[head, row] = attention.output(head, np.where(gone, -np.inf, z)) - full[head, row]
        project = lambda x: (np.einsum("hrv,hvm->rm", x, wo) ** 2).sum()
        self.near(found.layer_output_error, project(change) / project(full), 1e-9, "layer_output_error")
        dots = np.einsum("hsrv,hrv->hsr", g, change)
        self.near(found.loss_row, (dots ** 2).mean(1).sum() / 2 / 4, 1e-9, "loss_row")
        self.near(found.loss_step, (dots.sum(0) ** 2).mean(0).sum() / 2 / 4, 1e-9, "loss_step")
        self.near(found.loss_joint, (dots.sum((0, 2)) ** 2).mean() / 2 / 4, 1e-9, "loss_joint")
        self.near(found.dnll, dots[:, 0].sum() / 4, 1e-9, "dnll")


class Refusals(unittest.TestCase):
    def setUp(self):
        random = np.random.default_rng(1)
        self.q, self.k, self.v = (random.normal(size=(n, 10, 4)).astype(np.float32) for n in (4, 2, 2))

    def refused(self, says, call):
        with self.assertRaises(kvreplay.InputError) as caught:
            call()
        self.assertIn(says, str(caught.exception))
        self.assertNotIn("\n", str(caught.exception))
        self.assertIsInstance(caught.exception, ValueError)

    def test_arrays(self):
        q, k, v = self.q, self.k, self.v
        bad, far = k.copy(), v.copy()
        bad[1, 3, 2], far[0, 5, 1] = np.nan, np.inf
        for says, arrays in (
                ("v: expected shape [2, 10, 4] (n_kv, T, d_v) as k implies, found shape [2, 9, 4]", (q, k, v[:, :9])),
                ("shape [n_kv, T, d], or with a leading batch of 1, found shape [10, 4]", (q, k[0], v)),
                ("a multiple of the 2 KV heads in k, found 3 query heads", (q[:3], k, v)),
                ("queries for at most the 9 positions in k, found 10 queries", (q, k[:, :9], v[:, :9])),
                ("prompt length: expected 1 to 10, the positions of the dump, found 11", (q, k, v, 11)),
                ("prompt length: expected 1 to 10, the positions of the dump, found 0", (q, k, v, 0)),
                ("k: expected extents of at least 1, found shape [2, 0, 4]", (q, k[:, :0], v)),
                ("q: expected float16, bfloat16, float32 or float64 numbers, found int64", (q.astype(int), k, v)),
                ("q: expected float16, bfloat16, float32 or float64 numbers, found complex64", (q.astype(np.complex64), k, v)),
                ("q: expected an array", ([[[1.0]]], k, v)),
                ("q: expected an array", ("text", k, v)),
                ("k for each of 1 layers", (q, None, v))):
            with self.subTest(says):
                self.refused(says, lambda: kvreplay.Layer(*arrays))
        for layout in (np.asarray, lambda x: x[:, ::-1][:, ::-1], lambda x: np.asfortranarray(x)):
            self.refused("k: expected finite values, found NaN at layer 0, KV head 1, position 3, channel 2",
                         lambda: kvreplay.token_metrics(q, layout(bad), v))
            self.refused("v: expected finite values, found infinity", lambda: kvreplay.token_metrics(q, k, layout(far)))
        self.refused("finite values, found infinity (or a value beyond float32)",
                     lambda: kvreplay.token_metrics(q, k.astype(float) * 1e300, v))

    def test_only_what_is_asked_for_is_looked_at(self):
        q, k, v = self.q, self.k, self.v
        bad = {"q": q.copy(), "k": k.copy(), "v": v.copy()}
        for array in bad.values():
            array[1, 3, 2] = np.nan
        for metrics in ("knorm", "keydiff", "attn,attn_sq", "knorm,attn"):
            for window in (1, 5):
                with self.subTest(metrics, window=window):
                    ask = lambda *arrays: kvreplay.token_metrics(*arrays, metrics=metrics, window=window)
                    want, found = ask(q, k, v), ask(bad["q"], k, bad["v"])  # row 3 is none of the window's
                    self.assertTrue(all(want[m].tobytes() == found[m].tobytes() for m in metrics.split(",")))
                    self.refused("k: expected finite values, found NaN at layer 0, KV head 1, position 3, channel 2", lambda: ask(q, bad["k"], v))
        self.refused("v: expected finite values, found NaN", lambda: kvreplay.token_metrics(q, k, bad["v"], metrics="joint"))
        self.refused("v: expected finite values, found NaN", lambda: kvreplay.token_metrics(q, k, bad["v"], metrics="attn,joint"))
        for policy, semantics in (("knorm", "paper"), ("keydiff", "paper"), ("keydiff", "kvpress"), ("tova", "kvpress"), ("snapkv", "paper")):
            with self.subTest(policy, semantics=semantics):
                ask = lambda *arrays: kvreplay.evict(*arrays, policy=policy, semantics=semantics, keep=5, window=2).kept.tobytes()
                self.assertEqual(ask(q, k, v), ask(bad["q"], k, bad["v"]))
                self.refused("k: expected finite values, found NaN at layer 0, KV head 1, position 3", lambda: ask(q, bad["k"], v))
        kvreplay.evict(q, bad["k"], bad["v"], policy="streaming", keep=5)
        for options in ({}, {"diagonal": True}):
            ask = lambda *arrays: kvreplay.channel_interaction(*arrays, semantics="kvpress", window=5, **options)
            self.assertEqual(ask(q, k, v).diagonal.tobytes(), ask(bad["q"], k, bad["v"]).diagonal.tobytes())
            self.refused("k: expected finite values, found NaN at layer 0, KV head 1, position 3", lambda: ask(q, bad["k"], v))
        self.refused("v: expected finite values, found NaN", lambda: kvreplay.channel_interaction(q, k, bad["v"], recent=2, outputs=True))

    def test_device_arrays(self):
        class OnDevice:  # as a tensor on a GPU says where it is; its bytes are never looked at
            def __dlpack_device__(self):
                return 2, 0

            def __dlpack__(self, **_):
                raise BufferError("on a device")

            def __array__(self):
                raise TypeError("on a device")
        if kvreplay.why_no_cuda():
            self.refused(f"q: expected an array in the host's memory, found one on device 2:0, and {kvreplay.why_no_cuda()}",
                         lambda: kvreplay.Layer(OnDevice(), self.k, self.v))

    def test_options(self):
        layer = kvreplay.Layer(self.q, self.k, self.v, 8)
        kept = np.ones((2, 8), bool)
        for says, call in (
                ("prompt length: expected 1 to 10, the positions of the dump, found 11", lambda: kvreplay.Layer(self.q, self.k, self.v, 11)),
                ("prompt length: expected a whole number, found 7.5", lambda: kvreplay.Layer(self.q, self.k, self.v, 7.5)),
                ("prompt length: expected 1 to 10", lambda: kvreplay.Layer(self.q, self.k, self.v, 10**30)),
                ("prompt length: expected a whole number, found '8'", lambda: kvreplay.Layer(self.q, self.k, self.v, "8")),
                ("scale", lambda: kvreplay.Layer(self.q, self.k, self.v, scale="big")),
                ("scale: expected finite numbers, found inf", lambda: kvreplay.Layer(self.q, self.k, self.v, scale=1e999)),
                ("logit_softcap: expected finite numbers, found nan", lambda: kvreplay.Layer(self.q, self.k, self.v, logit_softcap=np.nan)),
                ("sink_logit: expected finite numbers", lambda: kvreplay.Layer(self.q, self.k, self.v, sink_logit=[0, np.inf, 0, 0])),
                ("sliding_window_two_sided: expected \"causal\": false",
                 lambda: kvreplay.Layer(self.q, self.k, self.v, sliding_window=3, sliding_window_two_sided=True)),
                ("gate: expected shape [4, 10, 4]", lambda: kvreplay.Layer(self.q, self.k, self.v, wo=np.ones((4, 4, 5)), gate=np.ones((4, 10, 3)))),
                ("rope: unknown key \"rotary_dims\"; did you mean", lambda: kvreplay.Layer(self.q, self.k, self.v, rope={"style": "half", "rotary_dims": 2})),
                ("sink_logit", lambda: kvreplay.Layer(self.q, self.k, self.v, sink_logit=[1.0])),
                ("rope", lambda: kvreplay.Layer(self.q, self.k, self.v, rope={"style": "odd"})),
                ("positions: expected 10 of them", lambda: kvreplay.Layer(self.q, self.k, self.v, positions=[1, 2])),
                ("positions: expected each above the one before", lambda: kvreplay.Layer(self.q[:, 5:], self.k, self.v, positions=[1] * 10)),
                ("metrics: unknown metric 'atn'; did you mean 'attn'", lambda: kvreplay.token_metrics(layer, metrics="atn")),
                ("window: expected a whole number of at least 1, a share of the prompt as 5%, or all, found '0'", lambda: kvreplay.token_metrics(layer, window=0)),
                ("expected_attention is unavailable: it needs the rotary embedding: no rope is given", lambda: kvreplay.token_metrics(layer, metrics="expected_attention")),
                ("precision: expected f32 or f64 or tensor, found 'f16'", lambda: kvreplay.token_metrics(layer, precision="f16")),
                ("threads: expected a whole number from 1 to 4096, found '0'", lambda: kvreplay.token_metrics(layer, threads=0)),
                ("policy: unknown policy 'snap'; did you mean 'snapkv'", lambda: kvreplay.evict(layer, policy="snap", keep=0.5)),
                ("policy: expected one, found none", lambda: kvreplay.evict(layer, keep=0.5)),
                ("keep: expected one, found none", lambda: kvreplay.evict(layer, policy="h2o")),
                ("sigma: expected one, found 2", lambda: kvreplay.evict(layer, policy="h2o", sigma="0,8")),
                ("budget: expected a whole number of at least 1, or a share as 20%, found '0'; a comma separates budgets",
                 lambda: kvreplay.evict(layer, policy="h2o", budget="0,2")),
                ("keep: expected one, found 2", lambda: kvreplay.evict(layer, policy="h2o", keep=[0.2, 0.3])),
                ("keep: expected at most 8 tokens, the prompt's length, found 9", lambda: kvreplay.evict(layer, policy="h2o", keep=9)),
                ("phase: expected prefill or blockwise:N, found decode", lambda: kvreplay.evict(layer, policy="h2o", keep=4, phase="decode")),
                ("scale: expected finite numbers, found nan", lambda: kvreplay.Layer(self.q, self.k, self.v, scale=float("nan"))),
                ("sink_logit: expected finite numbers", lambda: kvreplay.Layer(self.q, self.k, self.v, sink_logit=np.full(4, -np.inf))),
                ("rope: expected finite numbers", lambda: kvreplay.Layer(self.q, self.k, self.v, rope={"style": "half", "theta": np.inf})),
                ("prompt length: expected a whole number, found 7.6", lambda: kvreplay.Layer(self.q, self.k, self.v, 0.76 * 10)),
                ("prompt length: expected a whole number, found True", lambda: kvreplay.Layer(self.q, self.k, self.v, True)),
                ("positions: expected a whole number, found 0.0", lambda: kvreplay.Layer(self.q, self.k, self.v, positions=np.arange(10.0))),
                ("score mine: expected numbers, found NaN at layer 0, head 0, position 0",
                 lambda: kvreplay.evict(layer, keep=4, score=np.full((2, 8), np.nan))),
                ("score mine: expected integers that float64 tells apart, as all up to 2^53, found 9007199254740993",
                 lambda: kvreplay.evict(layer, keep=4, score=np.full((2, 8), 2**53 + 1))),
                ("score mine: expected integers that float64 tells apart, as all up to 2^53, found -9007199254740993",
                 lambda: kvreplay.evict(layer, keep=4, score=np.full((2, 8), -2**53 - 1))),
                ("score mine: expected an array without masked entries",
                 lambda: kvreplay.evict(layer, keep=4, score=np.ma.masked_equal(np.arange(16.0).reshape(2, 8), 3))),
                ("q: expected an array: NumPy's, torch's or any with DLPack or the buffer protocol, found ndarray of >f4",
                 lambda: kvreplay.Layer(self.q.astype(">f4"), self.k, self.v)),
                ("found ndarray of >f4, big-endian (x.astype(x.dtype.newbyteorder('=')) swaps its bytes)", lambda: kvreplay.Layer(self.q.astype(">f4"), self.k, self.v)),
                ("k: expected an array: NumPy's, torch's or any with DLPack or the buffer protocol, found ndarray of float32, packed: numbers of 4 bytes stand 5 apart",
                 lambda: kvreplay.Layer(self.q, np.zeros((2, 10, 4), [("a", "u1"), ("x", "<f4")])["x"], self.v)),
                ("structured with fields ('a', 'x') (take one of them)", lambda: kvreplay.Layer(self.q, np.zeros((2, 10, 4), [("a", "u1"), ("x", "<f4")]), self.v)),
                ("found ndarray of float128" if np.dtype(np.longdouble).itemsize == 16 else "found", lambda: kvreplay.Layer(self.q.astype(np.longdouble), self.k, self.v)),
                ("found ndarray of object", lambda: kvreplay.Layer(self.q, self.k, self.v.astype(object))),
                ("score mine: expected an array", lambda: kvreplay.evict(layer, keep=4, score=np.ones((2, 8), ">f8"))),
                ("score mine: expected numbers, found NaN at layer 0, head 1, position 3",
                 lambda: kvreplay.evict(layer, keep=4, score=np.where(np.arange(16).reshape(2, 8) == 11, np.nan, 1))),
                (r"score mine: expected shape [2, 8] or [4, 8], found shape [3, 8]",
                 lambda: kvreplay.evict(layer, keep=4, score=np.ones((3, 8)), per_query_head=True)),
                ("score mine: expected shape [2, 8], found shape [4, 8]", lambda: kvreplay.evict(layer, keep=4, score=np.ones((4, 8)))),
                ("score mine: expected shape [2, 8], found shape [2, 9]", lambda: kvreplay.evict(layer, keep=4, score=np.ones((2, 9)))),
                ("score: expected a name that tables can hold, found 'True'", lambda: kvreplay.evict(layer, keep=4, score={"True": np.ones((2, 8))})),
                ("score: expected a name that tables can hold, found 'INF'", lambda: kvreplay.evict(layer, keep=4, score={"INF": np.ones((2, 8))})),
                ("score: expected a name of its own, found 'attn', which is taken", lambda: kvreplay.evict(layer, keep=4, score={"attn": np.ones((2, 8))})),
                ("keep: expected shape [2, 8] (KV heads, tokens of the prompt) or [cases, 2, 8], found shape [2, 7]", lambda: kvreplay.output_error(layer, keep=kept[:, :7])),
                ("policy: expected a policy that evicts, found 'quest[page=2]', which keeps the whole prompt and reads less (kvreplay evict measures it)",
                 lambda: kvreplay.evict(layer, keep=4, policy="quest[page=2]")),
                ("or [cases, 2, 8], found shape [8]", lambda: kvreplay.output_error(layer, keep=kept[0])),
                ("keep: expected one kept set, [2, 8], found shape [8]", lambda: kvreplay.compensate(layer, keep=kept[0])),
                ("prompt_len: expected a whole number beside keep, found ndarray", lambda: kvreplay.output_error(self.q, self.k, self.v, kept, keep=kept)),
                ("prompt length: expected a whole number, found 2.5", lambda: kvreplay.output_error(self.q, self.k, self.v, 2.5, keep=kept)),
                ("interaction: expected shape [n, d, d] or [d, d], found shape [4]", lambda: kvreplay.select_channels(np.ones(4), method="iap", ratio=0.5)),
                ("interaction: expected shape [n, d, d] or [d, d], found shape [3, 4]", lambda: kvreplay.select_channels(np.ones((3, 4)), method="iap", ratio=0.5)),
                ("curves: expected shape [layers, n_kv, l + 1] or [n_kv, l + 1], found shape [4]", lambda: kvreplay.allocate(np.ones(4), 1, method="lu")),
                ("scores: expected shape [2, 3], found shape [2, 4]", lambda: kvreplay.allocate(np.ones((2, 4)), 3, method="ada", scores=np.ones((2, 4)))),
                ("k: expected none beside a Layer, which has its own, found one", lambda: kvreplay.evict(layer, self.k, keep=4, policy="h2o")),
                ("scale: expected none beside a Layer, which has its own, found one", lambda: kvreplay.evict(layer, keep=4, policy="h2o", scale=2.0)),
                ("keep: expected booleans, found float64", lambda: kvreplay.output_error(layer, keep=kept.astype(float))),
                ("keep: expected positions from 0 to 7", lambda: kvreplay.output_error(layer, keep=[[1], [8]])),
                ("keep: expected positions of 2 KV heads, found 1", lambda: kvreplay.output_error(layer, keep=[[1]])),
                ("keep: expected bool", lambda: kvreplay.output_error(layer)),
                ("keep: expected one kept set, [2, 8], found shape [2, 2, 8]", lambda: kvreplay.compensate(layer, keep=np.stack([kept] * 2))),
                ("method: expected some of none, mass", lambda: kvreplay.compensate(layer, keep=kept, method="fits")),
                ("method: expected one, found 2", lambda: kvreplay.compensate(layer, keep=kept, method="fit,mass")),
                ("reference: shifted is unavailable: no rope is given", lambda: kvreplay.compensate(layer, keep=kept, reference="shifted")),
                ("reference-rows: expected a whole number of at least 1", lambda: kvreplay.compensate(layer, keep=kept, reference_rows=0)),
                ("keep: expected bool", lambda: kvreplay.compensate(layer)),
                ("keep: expected what 2 KV heads hold, found that of 1",
                 lambda: kvreplay.output_error(layer, keep=kvreplay.compensate(layer, keep=kept).held[:1])),
                ("tokens: expected ascending positions from 0 to 4, found 5",
                 lambda: kvreplay.output_error(self.q, self.k, self.v, kvreplay.compensate(layer, keep=kept), prompt_len=5)),
                ("layers: expected 1 numbers, found 2",
                 lambda: kvreplay.allocate(np.array([[1.0, 0.0]]), 1, method="lu").head_budgets([0, 1])),
                ("rows: expected window, future or (first, end), found 'all'", lambda: kvreplay.output_error(layer, keep=kept, rows="all")),
                ("rows: expected positions with a query, 0 to 10", lambda: kvreplay.output_error(layer, keep=kept, rows=(9, 11))),
                ("recent: expected 0 to 7 of the prompt's 8 keys", lambda: kvreplay.channel_interaction(layer, recent=8)),
                ("method: output is unavailable", lambda: kvreplay.select_channels(np.eye(4), method="output", ratio=0.5)),
                ("interaction: expected symmetric", lambda: kvreplay.select_channels(np.triu(np.ones((4, 4))), method="iap", ratio=0.5)),
                ("curves: expected losses that never rise", lambda: kvreplay.allocate(np.array([[0.0, 1.0]]), 1, method="lu")),
                ("total: expected 0 to 1 tokens", lambda: kvreplay.allocate(np.array([[1.0, 0.0]]), 2, method="lu")),
                ("total: expected it, or keep, sigma or budget, found neither", lambda: kvreplay.allocate(np.array([[1.0, 0.0]]), method="lu")),
                ("no such dump: expected a dump folder, found no such file or folder", lambda: kvreplay.analyze("no such dump", out="nowhere"))):
            with self.subTest(says):
                self.refused(says, call)
        if kvreplay.why_no_cuda():
            self.refused("backend cuda: " + kvreplay.why_no_cuda(), lambda: kvreplay.token_metrics(layer, backend="cuda"))


class Keywords(unittest.TestCase):
    """One list serves a function's help and the check of its keywords."""

    def setUp(self):
        random = np.random.default_rng(1)
        self.arrays = tuple(random.normal(size=(n, 10, 4)).astype(np.float32) for n in (4, 2, 2))
        kept, layer = np.ones((2, 8), bool), (*self.arrays, 8)
        self.listed = {  # with the options that the library reads, what else a call needs, and keywords that the docstring's text describes
            kvreplay.evict: ("evict", layer, {"policy": "h2o", "keep": 4}, {"score"}),
            kvreplay.output_error: ("output_error", layer, {"keep": kept}, {"keep", "rows"}),
            kvreplay.token_metrics: ("token_metrics", layer, {}, set()),
            kvreplay.compensate: ("compensate", layer, {"keep": kept}, {"keep"}),
            kvreplay.channel_interaction: ("channel_interaction", layer, {"recent": 2}, {"outputs", "diagonal"}),
            kvreplay.select_channels: ("select_channels", (np.eye(4),), {"method": "iap", "ratio": 0.5}, set()),
            kvreplay.allocate: ("allocate", (np.array([[1.0, 0.0]]), 1), {"method": "lu"}, {"scores"}),
            kvreplay.GrowingCaches: ("growing_caches", (4, 2, 4, 4, 8, 2), {"policy": "h2o", "budget": 4, "phase": "decode"}, set())}

    @staticmethod
    def keywords(function):
        parameters = inspect.signature(getattr(function, "__init__") if isinstance(function, type) else function).parameters
        return {name for name, one in parameters.items() if one.kind is one.KEYWORD_ONLY}

    @staticmethod
    def options(query, function):
        return kvreplay._options.listed(query, kvreplay._options.keywords_of(getattr(function, "__init__") if isinstance(function, type) else function))

    @staticmethod
    def help(function):
        return pydoc.render_doc(function, renderer=pydoc.plaintext)

    def test_what_help_lists_is_taken_and_what_is_taken_is_listed(self):
        for function, (query, _, _, described) in self.listed.items():
            options = self.options(query, function)
            with self.subTest(function.__name__):
                text = self.help(function)
                listed = set(re.findall(r"^(?: *\|)?\s+(\w+): ", text.split("where they are not given]:")[1].split("Method resolution")[0], re.M)) & self.keywords(function)
                self.assertEqual({name for name, _ in options}, self.keywords(function) - described)
                self.assertEqual(listed, self.keywords(function) - described)
                for name in described:
                    self.assertRegex(function.__doc__, rf"\b{name}\b")
        text = self.help(kvreplay.Layer)
        for name in kvreplay._layer.LAYER:
            self.assertRegex(text, rf"(?m)^ *\|? +{name}  ")
        for name in kvreplay.__all__:
            function = getattr(kvreplay, name)
            if isinstance(function, types.FunctionType):
                with self.subTest(name):
                    text = function.__doc__
                    self.assertEqual([one for one in inspect.signature(function).parameters if not re.search(rf"\b{one}\b", text)
                                      and not (one == "layer" and "as Layer takes them" in text)], [])

    def test_every_option_is_read_and_refuses_nonsense_by_its_name(self):
        for function, (query, arguments, needed, _) in self.listed.items():
            function(*arguments, **needed)
            for name, _ in self.options(query, function):
                with self.subTest(function.__name__, option=name), self.assertRaises(kvreplay.InputError) as caught:
                    function(*arguments, **{**needed, name: "?!"})
                self.assertRegex(str(caught.exception), rf"\b{name}\b|\b{name.replace('_', '-')}\b")
                self.assertNotIn("unknown option", str(caught.exception))

    def test_a_typo_is_told_by_the_functions_name(self):
        layer = kvreplay.Layer(*self.arrays, 8)
        for call, typo, meant in ((kvreplay.evict, "windwo", "window"), (kvreplay.output_error, "kep", "keep"), (kvreplay.token_metrics, "metric", "metrics"),
                                  (kvreplay.compensate, "metod", "method"), (kvreplay.channel_interaction, "diagnoal", "diagonal"),
                                  (kvreplay.Layer, "sliding_windw", "sliding_window"), (kvreplay.select_channels, "metod", "method"), (kvreplay.allocate, "sigmma", "sigma"),
                                  (kvreplay.GrowingCaches, "decode_windw", "decode_window"), (kvreplay.press, "polciy", "policy"), (kvreplay.kept_of, "modell", "model"),
                                  (kvreplay.Dump, "prompt_lenn", "prompt_len"), (kvreplay.open_results, "dumpp", "dump"), (kvreplay.set_threads, "thread", "threads"),
                                  (kvreplay.evict, "logit_sofcap", "logit_softcap")):
            with self.subTest(call.__name__), self.assertRaises(kvreplay.InputError) as caught:
                call(layer, **{typo: 3})
            self.assertIn(f"{call.__name__}: unknown option '{typo}'; did you mean '{meant}'", str(caught.exception))
            self.assertIsInstance(caught.exception, TypeError)  # as Python's own
        for call, arguments, typo, meant in ((kvreplay.analyze, (DUMP, "nowhere"), "polisy", "--policy"), (kvreplay.compare, ("nowhere",), "lefft", "--left"),
                                             (kvreplay.conform, (DUMP, "snapkv"), "kep", "--keep"), (kvreplay.recommend, ("nowhere", "20%"), "enginee", "engine")):
            with self.subTest(call.__name__), self.assertRaisesRegex(kvreplay.InputError, f"unknown option '--{typo}'; did you mean .*'{meant}'"):
                call(*arguments, **{typo: 3})

    def test_a_checker_takes_what_works(self):
        if not importlib.util.find_spec("mypy"):
            self.skipTest("needs mypy")
        good = """
import numpy as np, kvreplay
layer: kvreplay.Layer = kvreplay.Dump("d", "question")[2]
some: list[kvreplay.Layer] = kvreplay.Dump("d")[0:2]
def norms(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray: return np.linalg.norm(v, axis=-1)
kept: kvreplay.Eviction = kvreplay.evict(layer, keep="20%", window="5%", sinks=4, recent="all", score=norms)
a: np.ndarray = kvreplay.token_metrics(layer, window="5%", metrics="attn")["attn"]
x: float = kvreplay.compensate(layer, keep=kept, window=16).split["future"].bound
kvreplay.output_error(*layer.arrays, 896, keep=kept, bits=4, rows=(1, 2))
kvreplay.GrowingCaches(4, 2, 8, 8, 60, 4, policy="h2o", budget=8, phase="decode", window="5%")
with kvreplay.press(score=norms, keep="20%", window="5%")(None), kvreplay.kept_of(None): pass
"""
        bad = "import kvreplay\nkvreplay.press('h2o', windwo=3)\nkvreplay.evict(1, window=[2])\nkvreplay.select_channels(1, metod=3)\n"
        with tempfile.TemporaryDirectory() as folder:
            for name, text, errors in (("good.py", good, []), ("bad.py", bad, ["2", "3", "4"])):
                (Path(folder) / name).write_text(text)
                run = subprocess.run([sys.executable, "-m", "mypy", "--follow-imports=silent", "--cache-dir", f"{folder}/cache", name], cwd=folder, text=True,
                                     capture_output=True, env={**os.environ, "MYPYPATH": str(Path(kvreplay.__file__).parents[1])})
                self.assertEqual(re.findall(r":(\d+): error", run.stdout), errors, run.stdout + run.stderr)


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def length_of(one):
    return kvreplay.evict(one if isinstance(one, kvreplay.Layer) else one[0] if one else None, policy="streaming", keep=5).kept.shape[1]


class Process(unittest.TestCase):
    def setUp(self):
        random = np.random.default_rng(2)
        self.arrays = [random.normal(size=(n, 64, 16)).astype(np.float32) for n in (2, 1, 1)]

    def test_nothing_leaks(self):
        kept = np.ones((1, 60), bool)

        def calls(n):
            for _ in range(n):
                kvreplay.token_metrics(*self.arrays, 60, metrics="attn", threads=1)
                kvreplay.output_error(*self.arrays, kept, prompt_len=60, threads=1)
                try:
                    kvreplay.token_metrics(*self.arrays, 60, metrics="none")
                except kvreplay.InputError:
                    pass
        calls(1000)
        before = resident()
        calls(10000)
        self.assertLess(resident() - before, 2 << 20)
        counts = [sys.getrefcount(array) for array in self.arrays]
        calls(1)
        self.assertEqual(counts, [sys.getrefcount(array) for array in self.arrays])

    def test_threads_at_once(self):
        kvreplay.set_threads(2)
        want = kvreplay.token_metrics(*self.arrays, 60)
        wrong = []

        def work():
            for _ in range(50):
                found = kvreplay.token_metrics(*self.arrays, 60)
                wrong.extend(name for name in want if found[name].tobytes() != want[name].tobytes())
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])
        self.assertEqual(kvreplay.threads(), 2)
        kvreplay.set_threads(None)

    def test_a_call_starts_from_its_own_options(self):
        q, k, v, _ = sample()
        layer = kvreplay.Layer(q, k, v, PROMPT)

        def kept(**options):
            return kvreplay.evict(layer, keep=0.2, **options).kept

        class Name:  # whose text asks for something else meanwhile
            def __str__(self):
                kept(policy="h2o", sinks=9)
                return "snapkv"

        plain = kept(policy="snapkv")
        self.assertFalse(np.array_equal(kept(policy="snapkv", window=8, sinks=20), plain))
        np.testing.assert_array_equal(kept(policy="snapkv"), plain)
        with self.assertRaises(ValueError):
            kept(policy="snapkv", window=8, sinks="many")
        np.testing.assert_array_equal(kept(policy="snapkv"), plain)
        np.testing.assert_array_equal(kept(policy=Name()), plain)
        own = {"policy": "score:mine", "score": {"mine": np.zeros((layer.n_kv, PROMPT))}}
        kept(**own)
        with self.assertRaises(ValueError):
            kept(policy="score:mine")

    def test_a_fork_computes_on(self):
        want = kvreplay.token_metrics(*self.arrays, 60, threads=2)["joint"].tobytes()
        child = os.fork()
        if child == 0:
            os._exit(0 if kvreplay.token_metrics(*self.arrays, 60, threads=2)["joint"].tobytes() == want else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_interrupt(self):
        script = """if True:
            import os, signal, sys, threading, time
            import numpy as np, kvreplay
            q, k, v = (np.random.default_rng(0).normal(size=(n, 6000, 64)).astype(np.float32) for n in (8, 4, 4))
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            begin = time.monotonic()
            try:
                for _ in range(1000):
                    kvreplay.token_metrics(q, k, v, window=6000)
            except KeyboardInterrupt:
                assert time.monotonic() - begin < 10, time.monotonic() - begin
                print(kvreplay.token_metrics(q[:, :9], k[:, :9], v[:, :9])["attn"].shape)
            """
        run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        self.assertEqual((run.stdout, run.stderr), ("(4, 9)\n", ""))

    def test_program_and_results(self):
        with tempfile.TemporaryDirectory() as folder:
            results = kvreplay.analyze(DUMP, out=Path(folder) / "out", only=["tokens"], layers=1, **{"tokens.metrics": "attn,exact_remove"})
            self.assertEqual(np.asarray(results.tokens("attn", layer=1)).shape, (2, PROMPT))
        run = subprocess.run([sys.executable, "-m", "kvreplay", "--version"], capture_output=True, text=True)
        self.assertIn(f"kvreplay {kvreplay.__version__}", run.stdout)

    def test_dumps(self):
        dump = kvreplay.Dump(DUMP)
        self.assertEqual((len(dump), dump.n_q, dump.n_kv, dump.prompt_len, len(dump.texts)), (6, 4, 2, PROMPT, dump.T))
        self.assertIn("6 layers of 4 query heads on 2 KV heads, d = 64, a prompt of 896 tokens and 128 decoding steps", repr(dump))
        layer = dump[LAYER]
        self.assertEqual(repr(layer), "Layer: 4 query heads on 2 KV heads, d = 64, a prompt of 896 tokens and 128 decoding steps")
        q, k, v, wo = sample()
        for found, want in zip(layer.arrays, (q, k, v)):
            self.assertEqual((found.dtype, found.tobytes()), (np.dtype(np.float32), want.astype(np.float32).tobytes()))
        by_hand = kvreplay.Layer(q, k, v, PROMPT, rope=ROPE, wo=wo)
        for policy in ("snapkv", "expected_attention"):
            kept = [kvreplay.evict(one, policy=policy, keep=0.2).kept for one in (layer, by_hand)]
            self.assertEqual(kept[0].tobytes(), kept[1].tobytes())
            errors = [kvreplay.output_error(one, keep=kept[0]).layer_output_error for one in (layer, by_hand)]
            self.assertEqual(errors[0], errors[1])
        self.assertEqual(dump[-1].arrays[0].tobytes(), dump[5].arrays[0].tobytes())
        self.assertEqual(sum(1 for _ in dump), 6)
        self.assertEqual(kvreplay.Dump(DUMP, 500)[0].prompt_len, 500)
        with self.assertRaisesRegex(kvreplay.InputError, "prompt length: expected a number: prompt_ends .* names no end, found 'question'"):
            kvreplay.Dump(DUMP, "question")
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(DUMP, folder, dirs_exist_ok=True)
            path = Path(folder) / "manifest.json"
            path.write_text(json.dumps({**json.loads(path.read_text()), "prompt_ends": {"question": 700}}))
            self.assertEqual(kvreplay.Dump(folder, "question")[0].prompt_len, 700)
        for index in (6, -7):
            with self.assertRaises(IndexError):
                dump[index]
        with self.assertRaisesRegex(kvreplay.InputError, "no/such"):
            kvreplay.Dump("no/such")

    def test_results_compare_by_content(self):
        layer, other = kvreplay.Layer(*self.arrays, 60), kvreplay.Layer(*(array[:, ::-1] for array in self.arrays), 60)
        curves = np.sort(np.random.default_rng(0).random((2, 2, 61)), -1)[..., ::-1]
        kept = kvreplay.evict(layer, policy="knorm", keep=7)
        for make in (lambda of: kvreplay.evict(of, policy="knorm", keep=7), lambda of: kvreplay.output_error(of, keep=kept), lambda of: kvreplay.compensate(of, keep=kept),
                     lambda of: kvreplay.compensate(of, keep=kept).split["window"], kvreplay.channel_interaction,
                     lambda of: kvreplay.select_channels(kvreplay.channel_interaction(of), method="iap", ratio=0.5),
                     lambda of: kvreplay.allocate(curves if of is layer else curves[:, ::-1] ** 2, method="optimal", sigma=0.5), lambda of: kvreplay.token_metrics(of, metrics="attn")):
            one, again, another = make(layer), make(layer), make(other)
            with self.subTest(type(one).__name__):
                self.assertTrue(one == again and not one != again)
                self.assertTrue(one != another and not one == another)
                self.assertFalse(one == "text")
                self.assertTrue(pickle.loads(pickle.dumps(one)) == one)
                if not isinstance(one, dict):
                    self.assertEqual(len({one, again, another}), 2)

    def test_layers_and_dumps_pickle(self):
        random = np.random.default_rng(4)
        q, k, v, wo = (random.normal(size=shape).astype(np.float32) for shape in ((2, 24, 6), (1, 24, 6), (1, 24, 6), (2, 6, 5)))
        facts = {"scale": 0.3, "sliding_window": 9, "sink_logit": np.array([0.1, 0.2]), "wo": wo, "g_nll": random.normal(size=(2, 4, 6)),
                 "rope": {"style": "half", "theta": 100.0}, "logit_softcap": 5.0}
        kept = random.random((1, 20)) < 0.5
        layer = kvreplay.Layer(q, k, v, 20, **facts)
        for again in (pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer), pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(layer))))):
            self.assertEqual(repr(again), repr(layer))
            self.assertEqual(repr(kvreplay.output_error(again, keep=kept).__dict__), repr(kvreplay.output_error(layer, keep=kept).__dict__))
            self.assertEqual(kvreplay.token_metrics(again, metrics="expected_attention"), kvreplay.token_metrics(layer, metrics="expected_attention"))
        dump = kvreplay.Dump(os.path.relpath(DUMP), 500)
        with multiprocessing.get_context("spawn").Pool(1) as pool:  # as joblib's workers begin
            self.assertEqual(pool.map(length_of, [dump, layer]), [500, 20])
            with self.assertRaises(kvreplay.InputError):
                pool.map(length_of, [None])
        self.assertEqual([one.prompt_len for one in (*dump[0:2], *dump[5:1:-3])], [500] * 4)
        self.assertEqual([len(dump[:]), len(dump[-1:]), len(dump[9:])], [6, 1, 0])
        self.assertEqual(dump[4:][1].arrays[0].tobytes(), dump[np.int64(5)].arrays[0].tobytes())
        for wrong in ("a", 1.0, None):
            with self.assertRaises(TypeError):
                dump[wrong]

    def test_import_needs_numpy_alone(self):
        code = "import sys, kvreplay; print([name for name in ('pandas', 'matplotlib', 'torch') if name in sys.modules])"
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        self.assertEqual((run.stdout, run.stderr), ("[]\n", ""))

    def test_dumps_of_every_kind(self):
        """What a manifest says of a layer a Layer of the dump does."""
        random = np.random.default_rng(5)
        q, k, v = (random.normal(size=(2, heads, 20, 8)) for heads in (4, 2, 2))
        manifest = {"prompt_len": 16, "scale": 0.5, "sliding_window": [None, 6], "logit_softcap": 4.0,
                    "sink_logit": random.normal(size=(2, 4)).tolist(),
                    "rope": {"style": "interleaved", "theta": 100.0, "rotary_dim": 4}}
        gradients = {"g_future": random.normal(size=(2, 4, 3, 4, 8)), "g_window": random.normal(size=(2, 4, 3, 5, 8)),
                     "g_nll": random.normal(size=(2, 4, 4, 8))}
        with tempfile.TemporaryDirectory() as folder:
            for name, array in {"q": q, "k": k, "v": v, **gradients}.items():
                np.save(Path(folder) / f"{name}.npy", array)
            (Path(folder) / "manifest.json").write_text(json.dumps(manifest))
            dump = kvreplay.Dump(folder)
            for number in range(2):
                own = {**manifest, "sliding_window": manifest["sliding_window"][number], "sink_logit": manifest["sink_logit"][number]}
                by_hand = kvreplay.Layer(q[number], k[number], v[number], own.pop("prompt_len"), **own,
                                         **{name: array[number] for name, array in gradients.items()})
                for rows in ("window", "future"):
                    kept = random.random((2, 16)) < 0.5
                    figures = [kvreplay.output_error(one, keep=kept, rows=rows, window=5, precision="f64") for one in (dump[number], by_hand)]
                    self.assertIsNotNone(figures[0].loss_row)
                    self.assertEqual(repr(figures[0].__dict__), repr(figures[1].__dict__))
                metrics = [kvreplay.token_metrics(one, metrics="expected_attention", precision="f64")["expected_attention"]
                           for one in (dump[number], by_hand)]
                self.assertEqual(metrics[0].tobytes(), metrics[1].tobytes())
            self.assertIsNone(kvreplay.output_error(kvreplay.Dump(folder, 15)[0], keep=np.ones((2, 15), bool), rows="window").loss_row)
            encoder = {"causal": False, "sliding_window": [None, 6], "sliding_window_two_sided": True}
            (Path(folder) / "manifest.json").write_text(json.dumps({"prompt_len": 16, **encoder}))
            for number, window in enumerate((None, 6)):
                want = Attention(q[number], k[number], v[number], causal=False, sliding_window=window, sliding_window_two_sided=True)
                kept = random.random((2, 16)) < 0.5
                error = kvreplay.output_error(kvreplay.Dump(folder)[number], keep=kept, precision="f64").output_error
                self.assertAlmostEqual(error, want.output_error(kept, (16, 20)), places=12)

    def test_scores_of_dumps_and_verdicts(self):
        with tempfile.TemporaryDirectory() as folder:
            here = Path(folder)
            for name in ("one/text", "two/text"):
                subprocess.run([kvreplay.program(), "synth", here / name, "--layers", "2", "--prompt", "64", "--decode", "8",
                                "--seed", str(len(name) + ord(name[0])), "--quiet"], check=True)
            dumps = [kvreplay.Dump(here / name) for name in ("one/text", "two/text")]
            options = {"only": "evict", "policy": "snapkv,score:norm", "sigma": 0.5}
            run = kvreplay.analyze(dumps, here / "out", score={"norm": lambda q, k, v: np.linalg.norm(k, axis=-1)}, **options)
            self.assertEqual(sorted(run.dumps), ["text", "text-2"])
            for name, dump in zip(("text", "text-2"), dumps):
                for number, layer in enumerate(dump):
                    keys = np.linalg.norm(layer.arrays[1][:, :64], axis=-1)
                    want = np.zeros((dump.n_kv, 64), bool)
                    for head in range(dump.n_kv):
                        want[head, np.argsort(-keys[head].astype(float), kind="stable")[:32]] = True
                    self.assertTrue((np.asarray(run.dumps[name].kept("score_norm-paper-prefill-32", number)) == want).all())
            verdict = kvreplay.compare(run, left={"policy": "score:norm"}, right={"policy": "snapkv"})
            self.assertIn("A / B", str(verdict))
            self.assertIn("output_error", {row["metric"] for row in verdict.tables["prompts"]})
            found = kvreplay.recommend(run, ["60%", 0.55], out=here / "{bytes}.json", without="text-2")
            self.assertIn("within 60% of the bytes", str(found))
            self.assertEqual([one["share"] for one in found.recommendations], [0.6, 0.55])
            self.assertEqual([(one["text"], one["bytes"]) for one in found.front], [("score:norm, kept 50 %", 0.5)])
            self.assertEqual(json.loads((here / "60.json").read_text())["layers"][1]["policy"], "snapkv")
            self.assertIn("llama-server", str(kvreplay.recommend(kvreplay.analyze(dumps, here / "bits", only="evict", policy="none", **{
                "evict.bits": "16,q8_0"}), "60%", engine="llama.cpp")))
            with self.assertRaisesRegex(kvreplay.InputError, "bytes: expected a share as 20% or 0.2"):
                kvreplay.recommend(run, 2)
            # A run that goes on: the scores are the same, wherever they were written.
            kvreplay.analyze(dumps, here / "out", score={"norm": lambda q, k, v: np.linalg.norm(k, axis=-1)}, resume=True, **options)
            for score, said in ((np.zeros(3), "expected text or a function"), (lambda q, k, v: k[0], "expected shape \[.*\] for layer 0"),
                                ("norm=none.npy", "none.npy"),
                                (lambda q, k, v: 2**53 + np.argsort(v[..., 0]), "expected integers that float64 tells apart"),
                                (lambda q, k, v: np.ma.masked_less(v[..., 0], 0), "expected an array without masked entries")):
                with self.assertRaisesRegex(kvreplay.InputError, said):
                    kvreplay.analyze(dumps, here / "other", score=score if isinstance(score, str) else {"norm": score}, **options)
            short = kvreplay.analyze(kvreplay.Dump(dumps[0].path, 50), here / "short", score={"norm": lambda q, k, v: v[..., 0]}, **options)
            self.assertEqual(np.asarray(short.kept("score_norm-paper-prefill-25", 0)).shape, (2, 50))
            with self.assertRaisesRegex(kvreplay.InputError, "prompt_len: expected one for all dumps"):
                kvreplay.analyze([kvreplay.Dump(dumps[0].path, 50), kvreplay.Dump(dumps[1].path, 40)], here / "other", **options)
            with self.assertRaisesRegex(kvreplay.InputError, "nothing"):
                kvreplay.compare(run, left={"policy": "nothing"}, right={"policy": "snapkv"})

    def test_notebooks_show_results(self):
        layer = kvreplay.Layer(*self.arrays, 60)
        found = kvreplay.evict(layer, policy="snapkv", keep=0.2)
        interaction = kvreplay.channel_interaction(layer)
        curves = np.sort(np.random.default_rng(0).random((2, 2, 61)), -1)[..., ::-1]
        for shown, said in ((kvreplay.token_metrics(layer, metrics="attn"), "TokenMetrics: attn of"), (found, "Eviction: snapkv"),
                            (kvreplay.output_error(layer, keep=found), "OutputError"),
                            (kvreplay.compensate(layer, keep=found), "Compensation: fit (fitted to window rows) of 12 tokens in each of 1 heads"),
                            (kvreplay.output_error(layer, keep=np.stack([found.kept] * 2)), "case 1"), (interaction, "Interaction: "),
                            (kvreplay.channel_interaction(layer, diagonal=True), "the diagonal alone"),
                            (kvreplay.select_channels(interaction, method="iap", ratio=0.5), "channels pruned"),
                            (kvreplay.allocate(curves, method="lu", sigma=0.5), "Allocation: ")):
            html = shown._repr_html_()
            self.assertIn(said, html)
            if importlib.util.find_spec("matplotlib") and not isinstance(shown, (kvreplay.OutputError, kvreplay.Compensation)):
                self.assertIn("data:image/png;base64,", html)
            self.assertLess(len(repr(shown)), 200)

    def test_the_documented_example(self):
        text = (ROOT / "analysis/python/README.md").read_text(encoding="utf-8")
        code = text.split("```python\n")[1].split("```")[0]
        with tempfile.TemporaryDirectory() as folder:
            for path, short in (("data/samples", str(ROOT / "data/samples")), ("results/batch", f"{folder}/batch"),
                                ("force=True", 'force=True, only="evict,budget", order="snapkv", policy="snapkv,score:norms"')):
                self.assertIn(path, code)
                code = code.replace(path, short)
            names = {}
            exec(code, names)
            self.assertEqual((names["m"]["joint"].shape, names["s"].pruned.shape, names["b"].budgets.shape), ((2, 896), (2, 64), (6, 2)))

    def test_scripts_are_modules(self):
        from kvreplay import capture, results, validate
        self.assertIs(results.open_results, kvreplay.open_results)
        self.assertTrue(callable(capture.main) and callable(validate.main))

    def test_torch(self):
        try:
            import torch
        except ImportError:
            self.skipTest("needs torch")
        want = kvreplay.token_metrics(*self.arrays, 60, metrics="joint")["joint"]
        tensors = [torch.from_numpy(array).requires_grad_() for array in self.arrays]
        self.assertEqual(kvreplay.token_metrics(*tensors, 60, metrics="joint")["joint"].tobytes(), want.tobytes())
        halves = [tensor.detach().to(torch.bfloat16) for tensor in tensors]
        floats = [tensor.float() for tensor in halves]
        self.assertEqual(kvreplay.token_metrics(*halves, 60, metrics="joint")["joint"].tobytes(),
                         kvreplay.token_metrics(*floats, 60, metrics="joint")["joint"].tobytes())


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    unittest.main()
