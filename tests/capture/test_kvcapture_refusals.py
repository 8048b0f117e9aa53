#!/usr/bin/env python3
"""What kvcapture cannot capture, it refuses in one line.

  KVREPLAY=build/release/bin/kvreplay python3 tests/capture/test_kvcapture_refusals.py [-v] [Class.test]

capture_case.py says what that needs.
"""
import errno
from unittest import mock

# First: skips where numpy, torch or transformers is missing.
from capture_case import DECODE, PROMPT, SMALL, CaptureError, Case, build, decode, manifest_of, prompt, main

import torch
import transformers

import dump_files
from kvcapture import capture
from model_attention import choose_layers


class Refusals(Case):
    def run_in(self, model, ids, prompt_len=None, **options):
        with capture(model, self.dump, prompt_len=prompt_len or ids.shape[1], **options), torch.no_grad():
            model(input_ids=ids)

    def test_batch(self):
        self.refused("batch: expected one sequence, found 2", self.run_in, build("llama"), prompt().repeat(2, 1))
        self.assertTrue(manifest_of(self.dump)["incomplete"])

    def test_padding(self):
        for name in ("llama", "qwen 3"):
            model, ids = build(name), prompt()
            padded = torch.ones_like(ids)
            padded[0, :3] = 0
            with self.assertRaisesRegex(CaptureError, "mask at position .*padding"):
                with capture(model, self.folder / name, prompt_len=PROMPT), torch.no_grad():
                    model(input_ids=ids, attention_mask=padded)

    def test_a_bias_in_the_mask(self):
        model, ids = build("llama, eager"), prompt()
        bias = torch.zeros(1, 1, PROMPT, PROMPT).masked_fill(torch.ones(PROMPT, PROMPT).triu(1) > 0, torch.finfo(torch.float32).min)
        bias[..., 5, 3] = 0.5
        with self.assertRaisesRegex(CaptureError, "bias on the logits"):
            with capture(model, self.dump, prompt_len=PROMPT), torch.no_grad():
                for layer in model.model.layers:
                    layer.self_attn.register_forward_pre_hook(lambda m, a, k: (a, {**k, "attention_mask": bias}), with_kwargs=True)
                bias[..., 0, 0] = 0.5  # a row that is looked at
                model(input_ids=ids)

    def test_no_mask(self):
        model = build("qwen 3")
        with self.assertRaisesRegex(CaptureError, "expected a causal mask, found none"):
            with capture(model, self.dump, prompt_len=PROMPT), torch.no_grad():
                for layer in model.model.layers:
                    layer.self_attn.register_forward_pre_hook(lambda m, a, k: (a, {**k, "attention_mask": None}), with_kwargs=True)
                model(input_ids=prompt())

    def test_not_through_the_interface(self):
        config = transformers.BloomConfig(vocab_size=97, hidden_size=32, n_layer=2, n_head=2, attn_implementation="eager")
        self.refused("BloomForCausalLM: expected attention through the transformers attention interface, found nothing",
                     self.run_in, transformers.BloomForCausalLM(config).eval(), prompt())

    def test_dropout(self):
        model = build("llama", attention_dropout=0.1).train()
        self.refused("no dropout", self.run_in, model, prompt())

    def test_soft_cap_and_sdpa(self):
        model = build("gemma 2")
        model.config._attn_implementation = "sdpa"  # as older versions of transformers have it set
        self.refused("eager attention for a soft cap", self.run_in, model, prompt())
        self.assertEqual(model.config._attn_implementation, "sdpa")

    def test_another_attention(self):
        model = build("llama")
        model.set_attn_implementation("flex_attention")
        self.refused(r"attention implementation: expected eager or sdpa .*, found flex_attention", self.run_in, model, prompt())
        self.assertFalse(self.dump.exists())

    def test_an_encoder(self):
        config = transformers.BartConfig(d_model=32, encoder_layers=1, decoder_layers=1, vocab_size=97)
        self.refused("model type bart: expected a decoder-only model", choose_layers, config, None, 8, 0, None)

    def test_layers_without_attention(self):
        if not hasattr(transformers, "Qwen3NextConfig"):
            self.skipTest("transformers older than 4.57")
        linear = dict(linear_num_value_heads=2, linear_num_key_heads=2, linear_key_head_dim=8, linear_value_head_dim=8)
        experts = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=16)
        config = transformers.Qwen3NextConfig(**{**SMALL, "num_hidden_layers": 4}, **linear, **experts, decoder_sparse_step=1)
        torch.manual_seed(1)
        model = transformers.Qwen3NextForCausalLM(config).eval()
        self.refused(r"layers: .*found 0 \(linear_attention\), 1 .*, 2 \(linear_attention\)$", self.run_in, model, prompt())
        with capture(model, self.dump, prompt_len=PROMPT, decode=DECODE, layers=[3]):
            decode(model, prompt())
        self.judge(self.dump)
        self.assertEqual(manifest_of(self.dump)["layers"], [3])

    def test_folders(self):
        model = build("llama")
        self.dump.write_text("")
        self.refused("expected a folder, found a file", self.run_in, model, prompt(), force=True)
        self.dump.unlink()
        self.dump.mkdir()
        (self.dump / "mine.txt").write_text("")
        self.refused("an empty folder .*found mine.txt", self.run_in, model, prompt())
        self.refused("an empty folder, found mine.txt", self.run_in, model, prompt(), force=True)
        (self.dump / "mine.txt").unlink()
        self.run_in(model, prompt())
        self.refused("an empty folder", self.run_in, model, prompt())
        self.run_in(model, prompt(20), layers=[1], force=True)
        self.judge(self.dump)
        self.assertEqual(len(list(self.dump.glob("layer_*"))), 1)

    def test_full_disk(self):
        model = build("llama")
        with mock.patch.object(dump_files.shutil, "disk_usage", return_value=mock.Mock(free=1000)):
            self.refused("bytes of free disk, found 1,000", self.run_in, model, prompt())
        with mock.patch.object(dump_files.os, "posix_fallocate", side_effect=OSError(errno.ENOSPC, "No space left on device")):
            self.refused("layer_00/q.npy: expected room for .* No space left", self.run_in, model, prompt())

    def test_numbers_that_the_dtype_cannot_hold(self):
        model = build("llama")
        with torch.no_grad():
            model.model.layers[1].self_attn.v_proj.weight *= 1e6
        self.refused("layer 1, v: expected numbers that are finite in float16", self.run_in, model, prompt(), dtype="float16")

    def test_an_output_projection_that_the_dtype_cannot_hold(self):
        model = build("llama")
        with torch.no_grad():
            model.model.layers[1].self_attn.o_proj.weight *= 1e8
        self.refused("layer 1, wo: expected numbers that are finite in float16", self.run_in, model, prompt(), dtype="float16")

    def test_sizes(self):
        model = build("llama")
        self.refused("at most the model's 256 positions, found 257", capture, model, self.dump, prompt_len=250, decode=7)
        self.refused("prompt_len of at least 1 .*, found 0 and 7", capture, model, self.dump, prompt_len=0, decode=7)
        self.refused("window: expected 1 to the prompt's 40", capture, model, self.dump, prompt_len=40, window=41)
        self.refused("window: expected 1 to the prompt's 40", capture, model, self.dump, prompt_len=40, window=0)
        self.refused("dtype: expected bfloat16, float16, float32, found float64", capture, model, self.dump, prompt_len=4, dtype="float64")
        self.refused(r"some of 0 to 2, found \[1, 3\]", capture, model, self.dump, prompt_len=40, layers=[3, 1])
        self.refused("at most 30 positions", self.run_in, model, prompt(), 30)
        self.refused("expected 50 to 50 positions in every layer", self.run_in, model, prompt(), 50, force=True)

    def test_no_cache_and_a_static_cache(self):
        model, ids = build("llama"), prompt()
        with self.assertRaisesRegex(CaptureError, "a cache that grows"):
            with capture(model, self.dump, prompt_len=PROMPT, decode=60), torch.no_grad():
                model(input_ids=ids, use_cache=False)
                model(input_ids=torch.cat([ids, ids[:, :1]], 1), use_cache=False)
        with self.assertRaisesRegex(CaptureError, "a cache that grows"):
            with capture(model, self.folder / "static", prompt_len=PROMPT, decode=30), torch.no_grad():
                model(input_ids=ids, past_key_values=transformers.StaticCache(config=model.config, max_cache_len=64))

    def test_two_at_once(self):
        model = build("llama")
        with capture(model, self.dump, prompt_len=PROMPT):
            self.refused("one of a model at a time", self.run_in, model, prompt())
            decode(model, prompt(), 0)
        self.judge(self.dump)


if __name__ == "__main__":
    main()
