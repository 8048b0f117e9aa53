"""kvreplay.GrowingCaches on the rows of a dump, which it is told chunk by chunk, against what evict() and the program evict
of the whole dump.

  PYTHONPATH=build/release/python python3 tests/python/test_growing_caches.py

Needs NumPy (without: nothing is tested, exit status 77).
"""
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
try:
    import numpy as np
except ImportError:
    print("skipped: needs numpy", file=sys.stderr)
    sys.exit(77)

import kvreplay

N_Q, N_KV, D, D_V, L, STEPS = 4, 2, 8, 6, 50, 14
T, WINDOW = L + STEPS, 23
DECODING = ("h2o", "h2o+joint", "tova+value", "snapkv+caote", "streaming", "keydiff", "knorm", "snapkv[window=5,recent=3]")


def arrays(seed=1):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(heads, T, width)) * 2 for heads, width in ((N_Q, D), (N_KV, D), (N_KV, D_V))]


def grown(q, k, v, steps=STEPS, **options):
    """The last row that sees each position, [heads, T], of numbers that come when their turn comes."""
    caches = kvreplay.GrowingCaches(N_Q, N_KV, D, D_V, L, steps, precision="f64", **options)
    last, begin = np.full((caches.heads, L + steps), L + steps), 0
    while begin < L + steps:
        end = begin + (caches.next_rows or L + steps - begin)
        for head, left in zip(last, caches.add(*(x[:, begin:end] for x in (q, k, v)))):
            head[left] = end - 1
        begin = end
    assert caches.size == L + steps
    return last


class GrowingCaches(unittest.TestCase):
    def test_decoding_evicts_what_the_program_evicts(self):
        q, k, v = arrays()
        with tempfile.TemporaryDirectory() as place:
            dump = Path(place) / "dump"
            (dump / "layer_00").mkdir(parents=True)
            for name, x in zip("qkv", (q, k, v)):
                np.save(dump / "layer_00" / f"{name}.npy", x)
            for facts in ({}, {"sliding_window": WINDOW}, {"logit_softcap": 3.0}):
                (dump / "manifest.json").write_text(json.dumps({"prompt_len": L, **facts}))
                for more, options in (([], {}), (["--per-query-head"], {"per_query_head": True}), (["--decode-window", "4"], {"decode_window": 4})):
                    out = Path(place) / "out"
                    subprocess.run([kvreplay.program(), "evict", dump, "--out", out, "--policy", ",".join(DECODING), "--budget", "12", "--phase",
                                    "decode,append-only,decode:3", "--precision", "f64", "--force", "--quiet", "--backend", "cpu", *more], check=True)
                    results = kvreplay.open_results(out)
                    for policy in DECODING:
                        for phase in ("decode", "append-only", "decode:3"):
                            with self.subTest(policy, phase=phase, **facts, **options):
                                found = grown(q, k, v, policy=policy, budget=12, phase=phase, **facts, **options)
                                np.testing.assert_array_equal(found, results.last_rows(f"{policy}-paper-{phase.replace(':', '_')}-12", layer=0))
                                self.assertTrue((found < T).sum(axis=1).min() > L - 13)

    def test_blocks_evict_what_evict_evicts(self):
        q, k, v = arrays(2)
        for policy in ("h2o", "tova", "snapkv", "snapkv+caote", "h2o+key", "keydiff", "knorm", "streaming", "snapkv[window=16,pool=3]", "knorm[page=4]",
                       "snapkv[window=3,page=5,page_by=max]"):
            for block in (1, 7, 16, 60):
                for options in ({}, {"per_query_head": True}, {"sliding_window": WINDOW}, {"semantics": "kvpress"}):
                    if policy == "tova" and "semantics" in options:
                        continue  # one ranking for the layer, which no block has
                    with self.subTest(policy, block=block, **options):
                        facts = {key: options[key] for key in ("sliding_window",) if key in options}
                        asked = {"policy": policy, "keep": "30%", "phase": f"blockwise:{block}", **options}
                        layer = kvreplay.Layer(q, k, v, L, **facts)
                        kept = kvreplay.evict(layer, precision="f64", **{key: x for key, x in asked.items() if key not in facts}).kept
                        last = grown(q, k, v, **asked)
                        np.testing.assert_array_equal(last[:, :L] == T, kept)
                        self.assertTrue((last[:, L:] == T).all())  # nothing leaves behind the prompt
                        gone = last[last < T] + 1
                        self.assertTrue(np.all((gone % block == 0) | (gone == L)))

    def test_what_comes_later_decides(self):
        """Numbers that differ from the dump's change what leaves: they are looked at when they come."""
        q, k, v = arrays(3)
        before = grown(q, k, v, policy="h2o", budget=12, phase="decode")
        k[:, L + 2] *= 5
        after = grown(q, k, v, policy="h2o", budget=12, phase="decode")
        earlier = lambda last: np.where(last < L + 2, last, T)
        np.testing.assert_array_equal(earlier(before), earlier(after))
        self.assertFalse(np.array_equal(before, after))

    def test_refusals(self):
        q, k, v = arrays()
        with self.assertRaisesRegex(kvreplay.InputError, "phase: expected blockwise:N, decode, decode:N or append-only, found prefill"):
            kvreplay.GrowingCaches(N_Q, N_KV, D, D_V, L, STEPS, policy="h2o", budget=12)
        with self.assertRaisesRegex(kvreplay.InputError, "exact search looks at the whole prompt"):
            kvreplay.GrowingCaches(N_Q, N_KV, D, D_V, L, STEPS, policy="greedy_exact", budget=12, phase="decode")
        caches = kvreplay.GrowingCaches(N_Q, N_KV, D, D_V, L, 1, policy="h2o", budget=12, phase="decode")
        with self.assertRaisesRegex(kvreplay.InputError, "q: expected the next 50 rows, found 3"):
            caches.add(q[:, :3], k[:, :3], v[:, :3])
        with self.assertRaisesRegex(kvreplay.InputError, "k"):
            caches.add(q[:, :L], k[:, : L - 1], v[:, :L])
        caches.add(q[:, :L], k[:, :L], v[:, :L])
        caches.add(*(x[:, L : L + 1] for x in (q, k, v)))
        with self.assertRaisesRegex(kvreplay.InputError, "q: expected no more rows, found 1"):
            caches.add(*(x[:, L : L + 1] for x in (q, k, v)))
        with self.assertRaisesRegex(kvreplay.InputError, "finite|NaN|nan"):
            kvreplay.GrowingCaches(N_Q, N_KV, D, D_V, L, 1, policy="h2o", budget=12, phase="decode").add(q[:, :L] * np.nan, k[:, :L], v[:, :L])


if __name__ == "__main__":
    unittest.main()
