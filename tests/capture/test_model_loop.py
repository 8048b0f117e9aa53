#!/usr/bin/env python3
"""The model in the loop against models that are made otherwise: a Llama in float64 from the definitions, transformers'
own attention under a mask, and its own cache, physically gathered.

  KVREPLAY_MODEL=path/to/pystdlib-lm python3 tests/capture/test_model_loop.py [-v] [Class.test]

capture_case.py says what that needs.
"""

import json
import sys
import types
import unittest
from pathlib import Path

# First: skips where numpy, torch or transformers is missing.
from capture_case import DECODE, MODEL, MODELS, PROMPT, SAMPLE, build, turned, main, prompt

import numpy as np
import torch
import transformers

from dump_files import CaptureError
from changed_cache import Change
from number_formats import kivi
from model_loop import ROOM, ModelLoop, figures, figures_of_steps
from plain_loop import evicting

T = PROMPT + DECODE
IDS = prompt(T)[0].tolist()
ATTEND = [
    name for name in MODELS if not name.startswith(("phi 3", "llama, eager"))
]  # phi 3: its rotation changes behind position 42


def kept_sets(layers: int, heads: int, seed: int, share: float = 0.4, l: int = PROMPT) -> np.ndarray:
    """[layers, heads, l], another number of tokens in every head."""
    rng = np.random.default_rng(seed)
    return rng.random((layers, heads, l)) < share * rng.uniform(0.5, 1.5, (layers, heads, 1))


def random_last_rows(layers: int, heads: int, seed: int) -> np.ndarray:
    """[layers, heads, T]: a third of the prompt is left when decoding begins, and at every row a token leaves, its own at
    times."""
    rng = np.random.default_rng(seed)
    last = np.full((layers, heads, T), T)
    for place in np.ndindex(layers, heads):
        held = list(rng.permutation(PROMPT))
        for p in [held.pop() for _ in range(2 * PROMPT // 3)]:
            last[place][p] = PROMPT - 1
        for i in range(PROMPT, T):
            held.append(i)
            last[place][held.pop(rng.integers(len(held)))] = i
    return last


def read_back(x: np.ndarray, bits: int) -> np.ndarray:
    """A group of numbers, as sim/cache/FORMATS.md quantizes it."""
    m, s = x.min(), (x.max() - x.min()) / (2**bits - 1)
    return m + s * np.floor((x - m) / s + 0.5) if s else x


class BruteForce:
    """A Llama in float64 from its weights. The rows from l on attend, in query head h, over themselves and over what
    `cache(layer, h, k, v)` leaves of the prompt's keys and values; or every row i over what `cache.at(layer, h, i)` lists."""

    def __init__(self, weights, config):
        self.w = {name: np.asarray(x, np.float64) for name, x in weights.items()}
        self.config = config
        self.rope = {
            "style": "half",
            "theta": float(getattr(config, "rope_theta", None) or config.rope_parameters["rope_theta"]),
        }

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.config.rms_norm_eps) * self.w[name]

    def log_p(self, ids, l, cache):
        """[steps, vocabulary]"""
        x, w, c = self.w["model.embed_tokens.weight"][ids], self.w, self.config
        n_q, n_kv, d, n = c.num_attention_heads, c.num_key_value_heads, c.head_dim, len(ids)
        for layer in range(c.num_hidden_layers):
            at = f"model.layers.{layer}."
            h = self.norm(x, at + "input_layernorm.weight")
            q, k, v = ((h @ w[f"{at}self_attn.{p}_proj.weight"].T).reshape(n, -1, d).transpose(1, 0, 2) for p in "qkv")
            q, k = turned(q, self.rope, 0), turned(k, self.rope, 0)
            o = np.zeros((n, n_q, d))
            for head in range(n_q):
                g = head // (n_q // n_kv)
                listed = getattr(cache, "at", None)
                mine = None if listed else cache(layer, head, k[g, :l].copy(), v[g, :l].copy())
                for i in range(n):
                    keys, values = (
                        (k[g, listed(layer, head, i)], v[g, listed(layer, head, i)])
                        if listed
                        else
                        (k[g, : i + 1], v[g, : i + 1])
                        if i < l
                        else (np.concatenate((held, own[g, l : i + 1])) for held, own in zip(mine, (k, v)))
                    )
                    z = keys @ q[head, i] / np.sqrt(d)
                    a = np.exp(z - z.max())
                    o[i, head] = a / a.sum() @ values
            x = x + o.reshape(n, -1) @ w[at + "self_attn.o_proj.weight"].T
            h = self.norm(x, at + "post_attention_layernorm.weight")
            gate, up = (h @ w[f"{at}mlp.{p}_proj.weight"].T for p in ("gate", "up"))
            x = x + (gate / (1 + np.exp(-gate)) * up) @ w[at + "mlp.down_proj.weight"].T
        z = self.norm(x[l:], "model.norm.weight") @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T
        z = z - z.max(-1, keepdims=True)
        return z - np.log(np.exp(z).sum(-1, keepdims=True))

    def figures(self, ids, l, cache):
        """As validate.csv names them."""
        p, q = self.log_p(ids, l, lambda layer, head, k, v: (k, v)), self.log_p(ids, l, cache)
        kl = (np.exp(p) * (p - q)).sum(-1)
        added = [p[i, ids[l + 1 + i]] - q[i, ids[l + 1 + i]] for i in range(len(ids) - l - 1)]
        low, high = np.sort(kl)[[int(np.floor(0.95 * (len(kl) - 1))), int(np.ceil(0.95 * (len(kl) - 1)))]]
        return {
            "kl": kl.sum() / len(kl),
            "kl_median": np.median(kl),
            "kl_p95": low + (0.95 * (len(kl) - 1) % 1) * (high - low),
            "dnll": sum(added) / len(added),
            "perplexity": np.exp(-np.mean([q[i, ids[l + 1 + i]] for i in range(len(added))])),
            "same_top1": np.mean(p.argmax(-1) == q.argmax(-1)),
            "accept": np.minimum(np.exp(p), np.exp(q)).sum(-1).mean(),
        }


class AgainstBruteForce(unittest.TestCase):
    """Every kind of change, to 1e-4 of the KL."""

    def agree(self, change_of, cache):
        model = build("llama", num_hidden_layers=3)
        brute = BruteForce({name: x.numpy() for name, x in model.state_dict().items()}, model.config)
        with ModelLoop(model) as loop:
            full = loop.read(IDS, PROMPT)
            found = figures(full, loop.feed({layer: change_of(layer) for layer in range(3)}), IDS[PROMPT + 1 :])
        expected = brute.figures(IDS, PROMPT, cache)
        self.assertGreater(expected["kl"], 1e-3)  # something has changed
        for name, value in expected.items():
            self.assertLess(abs(found[name] - value), 1e-4 * max(abs(value), expected["kl"]), (name, found, expected))

    def test_kept_sets(self):
        kept = kept_sets(3, 2, seed=1)
        self.agree(
            lambda layer: Change(kept=kept[layer]),
            lambda layer, h, k, v: (k[kept[layer, h // 2]], v[kept[layer, h // 2]]),
        )

    def test_a_cache_of_its_own_for_every_query_head(self):
        kept = kept_sets(3, 4, seed=2)
        self.agree(
            lambda layer: Change(kept=kept[layer]), lambda layer, h, k, v: (k[kept[layer, h]], v[kept[layer, h]])
        )

    def test_caches_that_evict_while_decoding(self):
        for heads in (2, 4):
            last = random_last_rows(3, heads, seed=9)
            at = lambda layer, h, i: [p for p in range(i + 1) if last[layer, h * heads // 4, p] >= i]
            self.agree(lambda layer: Change(last=last[layer]), types.SimpleNamespace(at=at))

    def test_steps_that_read_some_of_what_is_kept(self):
        for heads in (2, 4):
            rng, kept = np.random.default_rng(13), kept_sets(3, heads, seed=14, share=0.8)
            read = rng.random((3, heads, DECODE, PROMPT)) < 0.4
            seen = lambda layer, g, i: [p for p in range(PROMPT) if kept[layer, g, p] and read[layer, g, i - PROMPT, p]]
            at = lambda layer, h, i: (
                list(range(i + 1)) if i < PROMPT else [*seen(layer, h * heads // 4, i), *range(PROMPT, i + 1)]
            )
            self.agree(lambda layer: Change(kept=kept[layer], read=read[layer]), types.SimpleNamespace(at=at))

    def test_pruned_and_quantized_kept_sets(self):
        """What a key lost is not stored: it does not widen the steps of its channel."""
        rng, kept = np.random.default_rng(10), kept_sets(3, 2, seed=11, share=0.9)
        pruned, recent = rng.random((3, 2, 16)) < 0.5, 6

        def cache(layer, h, k, v):
            mine, lost = kept[layer, h // 2], pruned[layer, h // 2]
            k, v = k[mine], v[mine]
            for begin in range(0, (len(k) - 3) // 5 * 5, 5):
                for c in range(16):
                    rows = [n for n in range(begin, begin + 5) if not (lost[c] and n < len(k) - recent)]
                    if rows:
                        k[rows, c] = read_back(k[rows, c], 4)
            k[: len(k) - recent, lost] = 0
            for row in range(len(k) - 3):
                for begin in range(0, 16, 5):
                    v[row, begin : begin + 5] = read_back(v[row, begin : begin + 5], 4)
            return k, v

        self.agree(lambda layer: Change(kept=kept[layer], pruned=pruned[layer], recent=recent, stored=kivi(4, 5, 3)), cache)

    def test_nothing_kept(self):
        kept = np.zeros((2, PROMPT), bool)
        self.agree(lambda layer: Change(kept=kept), lambda layer, h, k, v: (k[:0], v[:0]))

    def test_pruned_channels(self):
        for heads in (2, 4):
            pruned = np.random.default_rng(3).random((3, heads, 16)) < 0.5

            def cache(layer, h, k, v):
                k[: PROMPT - 7, pruned[layer, h * heads // 4]] = 0
                return k, v

            self.agree(lambda layer: Change(pruned=pruned[layer], recent=7), cache)

    def test_quantized_caches(self):
        kept = kept_sets(3, 2, seed=4, share=0.8)
        for bits, group, residual in ((2, 4, 5), (4, 5, 3), (2, 3, 0)):  # of 16 channels: the last group may be shorter

            def cache(layer, h, k, v):
                k, v = k[kept[layer, h // 2]], v[kept[layer, h // 2]]
                old = max(len(k) - residual, 0)
                for begin in range(0, old - group + 1, group):
                    for c in range(16):
                        k[begin : begin + group, c] = read_back(k[begin : begin + group, c], bits)
                for row in range(old):
                    for begin in range(0, 16, group):
                        v[row, begin : begin + group] = read_back(v[row, begin : begin + group], bits)
                return k, v

            self.agree(lambda layer: Change(kept=kept[layer], stored=kivi(bits, group, residual)), cache)

    @unittest.skipUnless(MODEL, "KVREPLAY_MODEL is not set")
    def test_the_sample_model(self):
        from safetensors.numpy import load_file

        l, ids = 300, json.loads((SAMPLE / "tokens.json").read_text())["ids"][:340]
        model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
        brute = BruteForce(load_file(Path(MODEL) / "model.safetensors"), model.config)
        for share in (0.9, 0.3):
            kept = kept_sets(6, 2, 5, share, l)
            with ModelLoop(model) as loop:
                found = figures(
                    loop.read(ids, l), loop.feed({layer: Change(kept=kept[layer]) for layer in range(6)}), ids[l + 1 :]
                )
            expected = brute.figures(ids, l, lambda layer, h, k, v: (k[kept[layer, h // 2]], v[kept[layer, h // 2]]))
            self.assertLess(abs(found["kl"] / expected["kl"] - 1), 1e-4, (found, expected))
            self.assertLess(abs(found["dnll"] - expected["dnll"]), 1e-4)


class AgainstTransformers(unittest.TestCase):
    """The models' own attention: windows, soft caps, scales and sinks are theirs."""

    def test_keeping_everything_changes_nothing(self):
        for name in ATTEND:
            with self.subTest(name):
                with ModelLoop(build(name)) as loop:
                    full = loop.read(IDS, PROMPT)  # which compares it with the model's own pass, too
                    every = {i: Change(kept=np.ones((len(layer.k), PROMPT), bool)) for i, layer in loop.layers.items()}
                    again = loop.feed(every)
                self.assertLess(np.abs(figures_of_steps(full, again)[0]).max(), 1e-6)

    def test_equals_the_models_own_attention_under_a_mask(self):
        """One mask for all layers of a kind, as transformers takes them; another for every head."""
        for name in ("llama", "qwen 3", "mistral", "gemma 2", "gemma 3", "gpt-oss", "cohere (interleaved)", "gpt 2"):
            with self.subTest(name):
                model = build(name)
                model.set_attn_implementation("eager")
                config, key, query = model.config, np.arange(T), np.arange(T)[:, None]
                n_q = config.num_attention_heads
                n_kv = n_q if name == "gpt 2" else config.num_key_value_heads
                kept = kept_sets(1, n_kv, seed=6)[0]
                holds = np.ones((n_kv, T, T), bool)
                holds[:, PROMPT:, :PROMPT] = kept[:, None]
                masks = {}
                for kind, window in (
                    ("full_attention", T),
                    ("sliding_attention", getattr(config, "sliding_window", None) or T),
                ):
                    seen = np.repeat(holds & (key <= query) & (key > query - window), n_q // n_kv, axis=0)
                    masks[kind] = torch.where(torch.from_numpy(seen), 0.0, torch.finfo(torch.float32).min)[None]
                mask = masks if name in ("gemma 2", "gemma 3", "gpt-oss") else masks["sliding_attention"]
                with torch.no_grad():
                    expected = model(input_ids=torch.tensor([IDS]), attention_mask=mask, use_cache=False).logits[
                        0, PROMPT:
                    ]
                with ModelLoop(model) as loop:
                    full = loop.read(IDS, PROMPT)
                    found = loop.feed({i: Change(kept=kept) for i in loop.layers})
                self.assertLess((found - expected).abs().max(), 1e-5 * expected.abs().max())
                self.assertGreater((found - full).abs().max(), 1e-2 * expected.abs().max())

    def test_equals_a_physically_gathered_cache(self):
        """transformers' own cache with 11 of the prompt's tokens left, others in every layer and head."""
        for name in (
            "llama",
            "llama 3 rope",
            "qwen 2",
            "qwen 3",
            "cohere (interleaved)",
            "gpt 2",
            "glm (partial, interleaved)",
        ):
            with self.subTest(name):
                model, rng, kept = build(name), np.random.default_rng(8), {}
                with torch.no_grad():
                    cache = model(input_ids=torch.tensor([IDS[:PROMPT]]), use_cache=True).past_key_values
                    for i, layer in enumerate(cache.layers):
                        n_kv = layer.keys.shape[1]
                        at = np.sort(np.stack([rng.permutation(PROMPT)[:11] for _ in range(n_kv)]))
                        kept[i] = np.zeros((n_kv, PROMPT), bool)
                        np.put_along_axis(kept[i], at, True, axis=1)
                        rows = torch.from_numpy(at)[None, :, :, None]
                        layer.keys = layer.keys.gather(2, rows.expand(-1, -1, -1, layer.keys.shape[3]))
                        layer.values = layer.values.gather(2, rows.expand(-1, -1, -1, layer.values.shape[3]))
                    seen = torch.cat((torch.ones(DECODE, 11), torch.tril(torch.ones(DECODE, DECODE))), dim=1)
                    mask = torch.where(seen > 0, 0.0, torch.finfo(torch.float32).min)[None, None]
                    at = torch.arange(PROMPT, T)
                    expected = model(
                        input_ids=torch.tensor([IDS[PROMPT:]]),
                        past_key_values=cache,
                        position_ids=at[None],
                        attention_mask=mask,
                    ).logits[0]
                with ModelLoop(model) as loop:
                    loop.read(IDS, PROMPT)
                    found = loop.feed({i: Change(kept=kept[i]) for i in kept})
                self.assertLess((found - expected).abs().max(), 1e-5 * expected.abs().max())

    def test_equals_a_cache_that_really_evicts_at_every_step(self):
        """transformers' own cache, gathered anew behind every decoded token; fed at once under a mask, and a token at a time
        by caches that say the same."""
        for name in ("llama", "qwen 2", "qwen 3", "cohere (interleaved)", "gpt 2"):
            with self.subTest(name):
                model = build(name)
                n_kv = model.config.num_attention_heads if name == "gpt 2" else model.config.num_key_value_heads
                last = random_last_rows(model.config.num_hidden_layers, n_kv, seed=12)
                expected = evicting(model, IDS, [PROMPT] + [1] * DECODE, Recorded(last).left)[PROMPT:]
                with ModelLoop(model) as loop:
                    loop.read(IDS, PROMPT)
                    at_once = loop.feed({i: Change(last=last[i]) for i in loop.layers})
                    caches = {i: Recorded(last, i, [PROMPT] + [1] * DECODE) for i in loop.layers}
                    one_by_one = loop.feed_growing(caches)
                for found in (at_once, one_by_one):
                    self.assertLess((found - expected).abs().max(), 1e-5 * expected.abs().max())

    def test_equals_a_prompt_that_is_read_in_blocks_over_a_cut_cache(self):
        """All later blocks and layers see what a cut left: their keys and values are others than the whole prompt's."""
        chunks = [7] * 5 + [5, DECODE]
        for name in ("llama", "qwen 3", "glm (partial, interleaved)"):
            with self.subTest(name):
                model, last = build(name), np.full((3, 2, T), T)
                rng = np.random.default_rng(13)
                for place in np.ndindex(3, 2):
                    held = []
                    for begin in range(0, PROMPT, 7):
                        end = min(begin + 7, PROMPT)
                        held = list(rng.permutation(held + list(range(begin, end))))
                        while len(held) > 11:
                            last[place][held.pop()] = end - 1
                expected = evicting(model, IDS, chunks, Recorded(last).left)[PROMPT:]
                caches = {i: Recorded(last, i, chunks[:-1]) for i in range(3)}
                with ModelLoop(model) as loop:
                    loop.read(IDS, PROMPT)
                    found = loop.feed_growing(caches)
                    whole = loop.feed({i: Change(kept=last[i, :, :PROMPT] == T) for i in range(3)})
                self.assertLess((found - expected).abs().max(), 1e-5 * expected.abs().max())
                self.assertGreater((found - whole).abs().max(), 1e-3 * expected.abs().max())
                self.assertTrue(all(cache.size == PROMPT for cache in caches.values()))

    def test_logits_come_chunk_by_chunk_of_a_text_that_was_only_begun(self):
        model = build("llama")
        with torch.no_grad():
            expected = model(input_ids=torch.tensor([IDS])).logits[0, 1:]
        with ModelLoop(model) as loop:
            loop.begin(IDS, 1)
            caches = {i: Recorded(np.full((3, 2, T), T), i, [9] * (T // 9) + [T % 9]) for i in range(3)}
            chunks = [*loop.grow(caches)]
        self.assertEqual([len(chunk) for chunk in chunks], [8] + [9] * (T // 9 - 1) + [T % 9])
        self.assertLess((torch.cat(chunks) - expected).abs().max(), 1e-5 * expected.abs().max())

    def test_a_change_of_one_layer_leaves_those_before_it(self):
        kept, seen = np.zeros((2, PROMPT), bool), []
        model = build("llama")
        for block in model.model.layers:
            block.register_forward_pre_hook(
                lambda _, args, kwargs: seen.append((args or tuple(kwargs.values()))[0]), with_kwargs=True
            )
        with ModelLoop(model) as loop:
            loop.read(IDS, PROMPT)
            streams = []
            for changes in ({}, {1: Change(kept=kept)}):
                seen.clear()
                loop.feed(changes)
                streams.append([x.clone() for x in seen])
        same = [torch.equal(a, b) for a, b in zip(*streams)]
        self.assertEqual(same, [True, True, False])

    def test_the_model_is_as_before(self):
        model = build("mistral")
        with torch.no_grad():
            before = model(input_ids=torch.tensor([IDS])).logits
        with ModelLoop(model) as loop:
            loop.read(IDS, PROMPT)
        with torch.no_grad():
            self.assertTrue(torch.equal(before, model(input_ids=torch.tensor([IDS])).logits))

    def test_a_model_that_feeding_at_once_would_change_is_refused(self):
        """Attention that looks at how many rows it is called with is none that can be fed again."""
        model = build("llama")
        own = model.model.layers[1].self_attn.forward

        def odd(hidden_states, **called):
            return own(hidden_states * (1 + 0.1 * (hidden_states.shape[1] == DECODE)), **called)

        model.model.layers[1].self_attn.forward = odd
        with self.assertRaisesRegex(
            CaptureError, "expected the same from decoding steps fed .*, found .* nats between them"
        ):
            with ModelLoop(model) as loop:
                loop.read(IDS, PROMPT)


class Recorded:
    """Caches whose evictions are known beforehand."""

    def __init__(self, last, layer=0, chunks=()):
        self.last, self.layer, self.chunks, self.size = last, layer, list(chunks), 0
        self.heads = last.shape[1]

    @property
    def next_rows(self):
        return self.chunks[0] if self.chunks else 0

    def add(self, q, k, v):
        assert q.shape[1] == k.shape[1] == v.shape[1] == self.chunks.pop(0)
        self.size += q.shape[1]
        return self.left(self.layer, self.size)

    def left(self, layer, size, *_):
        return [np.flatnonzero(head == size - 1) for head in self.last[layer]]


class TakesAndGoesOn(unittest.TestCase):
    """Of every kind of attention: a prompt whose keys and values are a dump's, and text that the model goes on with."""

    def test_a_prompt_that_is_taken_is_one_that_was_read(self):
        for name in ATTEND:
            with self.subTest(name), ModelLoop(build(name)) as loop:
                loop.read(IDS, T - 1)
                every = {i: layer.k[:, PROMPT:].clone() for i, layer in loop.layers.items()}
                full = loop.read(IDS, PROMPT)
                had = {i: (layer.k.numpy().copy(), layer.v.numpy().copy()) for i, layer in loop.layers.items()}
                rules = {i: layer._replace(k=None, v=None, sinks=None) for i, layer in loop.layers.items()}
                taken = loop.take(IDS, PROMPT, had.__getitem__)
                self.assertLess(np.abs(figures_of_steps(full, taken)[0]).max(), 1e-6)
                for i, k in every.items():
                    np.testing.assert_allclose(loop.decoded[i][:, :-1], k, atol=2e-4 * float(k.abs().max()))
                    self.assertEqual(loop.layers[i]._replace(k=None, v=None, sinks=None), rules[i])
                kept = kept_sets(1, 1, 3)[0]
                changes = {1: Change(kept=np.repeat(kept, len(loop.layers[1].k), 0))}
                found = loop.feed(changes)
                loop.read(IDS, PROMPT)
                self.assertLess(np.abs(figures_of_steps(loop.feed(changes), found)[0]).max(), 1e-6)

    def test_what_it_says_is_what_it_would_predict(self):
        """Of two caches of which one goes on from an earlier position, and for longer."""
        for name in ATTEND:
            with self.subTest(name), ModelLoop(build(name)) as loop:
                loop.read(IDS, PROMPT)
                heads, starts, lengths = len(loop.layers[0].k), (2, 4), (ROOM + 3, 5)
                changes = [{i: Change(kept=kept_sets(1, heads, 5 + i + 7 * j)[0]) for i in range(3)} for j in range(2)]
                texts, said = [], []
                for start, changed in zip(starts, changes):
                    logits = loop.feed(changed)
                    loop.fed.cut(PROMPT + start)
                    texts.append(loop.fed)
                    said.append([int(logits[start - 1].argmax())])
                loop.generate(texts, said, lambda number: len(said[number]) >= lengths[number])
                self.assertEqual(tuple(map(len, said)), lengths)
                for start, changed, mine in zip(starts, changes, said):
                    loop.read([*IDS[: PROMPT + start], *mine], PROMPT)
                    self.assertEqual(loop.feed(changed).argmax(-1)[start - 1 : -1].tolist(), mine)
                before = [list(x) for x in said]
                loop.generate(texts, said, lambda number: True)
                self.assertEqual(said, before)

    def test_biases_and_values_of_a_compensated_cache_stay_while_it_goes_on(self):
        model = build("llama")
        rng = np.random.default_rng(4)
        from kvresults import Compensated
        with ModelLoop(model) as loop:
            loop.read(IDS, PROMPT)
            some = np.sort(rng.permutation(PROMPT)[:15])
            held = [Compensated(tokens=some, keys=None, values=rng.normal(size=(15, 16)).astype(np.float32),
                                bias=rng.normal(size=15).astype(np.float32)) for _ in range(2)]
            changes = {i: Change(held=held) for i in range(3)}
            said = [int(loop.feed(changes)[0].argmax())]
            loop.fed.cut(PROMPT + 1)
            loop.generate([loop.fed], [said], lambda _: len(said) == 3)
            loop.read([*IDS[: PROMPT + 1], *said], PROMPT)
            self.assertEqual(loop.feed(changes).argmax(-1)[:3].tolist(), said)


class Figures(unittest.TestCase):
    def test_of_hand_made_distributions(self):
        full = torch.log(torch.tensor([[0.5, 0.5], [0.9, 0.1], [0.2, 0.8]]))
        changed = torch.log(torch.tensor([[0.25, 0.75], [0.9, 0.1], [0.6, 0.4]]))
        found = figures(full, changed, [0, 1])
        kl = [0.5 * np.log(2) + 0.5 * np.log(2 / 3), 0.0, 0.2 * np.log(1 / 3) + 0.8 * np.log(2)]
        self.assertAlmostEqual(found["kl"], np.mean(kl), places=7)
        self.assertAlmostEqual(found["kl_median"], np.median(kl), places=7)
        self.assertAlmostEqual(found["dnll"], np.log(2) / 2, places=7)  # the third step's follower is not known
        self.assertAlmostEqual(found["perplexity"], (0.25 * 0.1) ** -0.5, places=5)
        self.assertAlmostEqual(found["same_top1"], 1 / 3)  # of equals the first is the likeliest
        self.assertAlmostEqual(found["accept"], (0.75 + 1 + 0.6) / 3, places=6)
        self.assertIsNone(figures(full, changed, [])["perplexity"])

    def test_more_steps_than_are_looked_at_at_once(self):
        logits = torch.randn(2, 100, 13, generator=torch.Generator().manual_seed(1))
        following = list(range(13)) * 7 + [0] * 8
        p, q = logits.double().log_softmax(-1).numpy()
        found = figures(*logits, following)
        self.assertAlmostEqual(found["kl"], (np.exp(p) * (p - q)).sum(-1).mean(), places=12)
        self.assertAlmostEqual(found["dnll"], np.mean([(p - q)[i, j] for i, j in enumerate(following)]), places=12)

    def test_one_step_has_no_dnll(self):
        self.assertIsNone(figures(torch.ones(1, 3), torch.ones(1, 3), [])["dnll"])


if __name__ == "__main__":
    main()
