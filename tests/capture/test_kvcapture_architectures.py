#!/usr/bin/env python3
"""kvcapture on a small random model of every architecture in data/capture/ARCHITECTURES.md, which is kept true by this.

  python3 tests/capture/test_kvcapture_architectures.py [-v]
  python3 tests/capture/test_kvcapture_architectures.py --table      # what the page is to say

capture_case.py says what that needs. Of an architecture that the installed transformers lacks nothing is tested; another version than
the page's may word differently.
"""
import sys
import tempfile
import unittest
from pathlib import Path

# First: skips where numpy, torch or transformers is missing.
from capture_case import EXPERTS, LINEAR, MAMBA, MLA, PROMPT, ROOT, SMALL, CaptureError, arrays, manifest_of, normed, prompt, said, turned

import numpy as np
import torch
import transformers
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import kvcapture
from kvcapture import capture
from model_attention import is_softmax, layer_kinds

PAGE = ROOT / "data" / "capture" / "ARCHITECTURES.md"
SIZES = {**SMALL, **EXPERTS, "hidden_size": 64, "initializer_range": 0.1, "n_routed_experts": 4, "n_group": 1, "topk_group": 1,
         "n_shared_experts": 1, "first_k_dense_replace": 1, "moe_num_experts": 4, "moe_k": 2}
ENCODER = {"is_decoder": False}
DECODER = {"is_decoder": True}
ARCHITECTURES = {
    "afmoe": {"layer_types": ["full_attention"] * 3, "num_shared_experts": 0, "num_dense_layers": 3},
    "apertus": {}, "arcee": {}, "aria_text": {}, "bamba": {**MAMBA, "attn_layer_indices": [1, 2]}, "bert": ENCODER, "bert-generation": DECODER,
    "biogpt": {}, "bitnet": {}, "bloom": {}, "camembert": DECODER, "cohere": {}, "cohere2": {"sliding_window": 9}, "cwm": {},
    "deepseek_v2": MLA, "deepseek_v3": MLA, "doge": {}, "dots1": {}, "electra": DECODER, "ernie": DECODER, "ernie4_5": {},
    "ernie4_5_moe": {"moe_layer_start_index": 1, "moe_layer_end_index": 2, "moe_layer_interval": 1},
    "exaone4": {"sliding_window": 9, "sliding_window_pattern": 2}, "exaone_moe": {},
    "falcon_h1": {**MAMBA, "mamba_d_ssm": 128, "attention_out_multiplier": 0.7, "ssm_out_multiplier": 0.3}, "flex_olmo": {}, "gemma": {},
    "gemma2": {"attn_logit_softcapping": 3.0, "sliding_window": 9}, "gemma3_text": {"sliding_window": 9},
    "gemma3n_text": {"num_hidden_layers": 4, "num_kv_shared_layers": 1, "layer_types": ["sliding_attention", "full_attention"] * 2,
                     "sliding_window": 9, "vocab_size_per_layer_input": 97, "hidden_size_per_layer_input": 8, "intermediate_size": [48] * 4,
                     "activation_sparsity_pattern": [0.0] * 4, "laurel_rank": 4},
    "glm": {}, "glm4": {}, "glm4_moe": {}, "glm4_moe_lite": MLA,
    "glm_moe_dsa": {**MLA, "index_topk": 16, "index_n_heads": 2, "index_head_dim": 16}, "gpt2": {}, "gpt_bigcode": {}, "gpt_neox": {},
    "gpt_oss": {"sliding_window": 9}, "gptj": {"rotary_dim": 8}, "granite": {"residual_multiplier": 0.22}, "granitemoe": {"residual_multiplier": 0.22},
    "granitemoehybrid": {**MAMBA, "residual_multiplier": 0.22, "layer_types": ["mamba", "attention", "attention"],
                         "shared_intermediate_size": 32}, "granitemoeshared": {"residual_multiplier": 0.22}, "helium": {},
    "hunyuan_v1_dense": {}, "hunyuan_v1_moe": {"moe_topk": 2}, "jais2": {},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False, "mamba_d_state": 4, "mamba_dt_rank": 4},
    "jetmoe": {"kv_channels": 16}, "lfm2": {"full_attn_idxs": [0, 2]},
    "lfm2_moe": {"layer_types": ["full_attention", "conv", "full_attention"], "num_dense_layers": 1}, "llama": {},
    "llama4_text": {"intermediate_size_mlp": 48, "interleave_moe_layer_step": 1, "attention_chunk_size": 128},
    "longcat_flash": {**MLA, "num_layers": 2, "ffn_hidden_size": 48, "expert_ffn_hidden_size": 16, "zero_expert_num": 2, "moe_topk": 2},
    "minimax": {"layer_types": ["full_attention", "linear_attention", "full_attention"], "block_size": 16}, "minimax_m2": {},
    "ministral": {}, "ministral3": {}, "mistral": {"sliding_window": 9}, "mixtral": {}, "modernbert": {"local_attention": 8},
    "modernbert-decoder": {"local_attention": 8}, "nanochat": {}, "nemotron": {}, "olmo": {}, "olmo2": {}, "olmo3": {}, "olmoe": {},
    "opt": {"word_embed_proj_dim": 64, "ffn_dim": 48}, "persimmon": {}, "phi": {}, "phi3": {}, "phimoe": {}, "qwen2": {}, "qwen2_moe": {},
    "qwen3": {}, "qwen3_5_text": LINEAR, "qwen3_moe": {}, "qwen3_next": {**LINEAR, "decoder_sparse_step": 1}, "roberta": DECODER,
    "seed_oss": {}, "smollm3": {}, "solar_open": {}, "stablelm": {}, "starcoder2": {}, "vaultgemma": {"sliding_window": 9, "attn_logit_softcapping": 3.0},
    "xlm-roberta": DECODER, "youtu": MLA,
    "zamba2": {"num_key_value_heads": 4, "num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid"] * 2, "mamba_d_state": 8,
               "mamba_ngroups": 1, "n_mamba_heads": 8, "mamba_headdim": 16, "num_mem_blocks": 1, "use_mem_rope": True, "head_dim": 32, "attention_head_dim": 32},
}


def build(kind):
    """A random model, and those of its layers that attend by a softmax; None where transformers has no such architecture."""
    names = {**modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES, **modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES}
    if ARCHITECTURES[kind] is ENCODER:
        names.update(modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES)
    if kind not in names or not hasattr(transformers, names[kind]):
        return None
    torch.manual_seed(7)
    implementation = "eager" if kind in ("gemma2", "vaultgemma", "gpt_oss", "bloom", "gptj", "nemotron") else "sdpa"
    config = CONFIG_MAPPING[kind](**{**SIZES, **ARCHITECTURES[kind]}, attn_implementation=implementation)
    config._experts_implementation = "eager"
    model = getattr(transformers, names[kind])(config).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, x in model.named_parameters():
            if x.dim() == 1:
                x.add_(0.3 * torch.rand(x.shape, generator=generator))  # weights of norms, biases
    return model, [i for i, name in enumerate(layer_kinds(config)) if is_softmax(name)]


def taken(kind, folder):
    """A capture's cells of the table. Raises AssertionError where what it says is not what the modules did."""
    model, layers = build(kind)
    returned, keys = {}, {}
    try:
        with capture(model, folder, prompt_len=PROMPT, layers=layers) as running:
            for at, layer in enumerate(running.layers.values()):
                projection = layer.path.projection
                if projection is not None:
                    projection.register_forward_hook(lambda p, _, y, at=at: returned.update({at: without_bias(p, y)}))
                last = [getattr(layer.module, name, None) for name in ("k_norm", "k_layernorm", "k_proj")]
                last = next((part for part in last if isinstance(part, torch.nn.Module)), None)
                if last is not None and not getattr(layer.module, "qk_norm", None):  # a norm behind the rotation
                    last.register_forward_hook(lambda _, args, y, at=at: keys.update({at: y.detach().double()}))
            kvcapture.feed(model, prompt()[0].tolist(), [], 0, None)
    except CaptureError as error:
        return [f"refused: {error}".replace("|", "\\|"), "", "", ""]
    good, text = said(kvcapture.check, folder)
    assert good, text
    manifest = manifest_of(folder)
    for layer, expected in returned.items():
        x = arrays(folder, layer)
        if "wo" in x:
            found = np.einsum("htd,hdm->tm", normed(manifest, x["o"]) * x.get("gate", 1.0), x["wo"])
            expected = expected.reshape(found.shape).numpy()
            assert np.linalg.norm(found - expected) < 1e-4 * np.linalg.norm(expected), f"{kind}, wo of layer {layer}"
    rope = manifest.get("rope")
    for layer, before in (keys if rope else {}).items():
        k = arrays(folder, layer)["k"]
        source = manifest.get("cache_of", list(range(layer + 1)))[layer]
        before = before[0] if before.dim() == 3 else before[0] if before.shape[2] == len(k) or before.shape[1] != len(k) else before[0].transpose(0, 1)
        before = before.reshape(PROMPT, len(k), -1).transpose(0, 1).numpy() * getattr(model.config, "key_multiplier", 1.0)
        off = np.linalg.norm(turned(before, rope, layer) - k) / np.linalg.norm(k)
        assert off < 1e-4 or source != layer, f"{kind}, rope of layer {layer}: {off}"
    first = arrays(folder, 0)
    residual = f"times {manifest['output_multiplier']}" if "output_multiplier" in manifest else "yes"
    turns = rope and f"{rope['style']}, {rope['rotary_dim']} of {first['k'].shape[2]}"
    exact = "exact" if manifest["causal"] else "exact (encoder)"
    exact += f", layers {layers}" if len(layers) < len(layer_kinds(model.config)) else ""
    return [exact + (", shared caches" if "cache_of" in manifest else ""),
            manifest.get("wo_note", "with gate" if "gate" in first else "with norm" if "output_norm" in manifest else "yes").replace("no wo: ", ""),
            manifest.get("residual_note", residual).replace("no residual_norm: ", ""),
            (turns or manifest["rope_note"]).replace("no rope: ", "")]


def without_bias(projection, y):
    bias = getattr(projection, "bias", None)
    return y.detach().double() - (0.0 if bias is None else bias.detach().double())


def line(kind, cells):
    return f"| `{kind}` | {' | '.join(cells)} |"


class Architectures(unittest.TestCase):
    def test_the_page(self):
        page = PAGE.read_text()
        same = f"transformers {transformers.__version__}" in page
        for kind in ARCHITECTURES:
            with self.subTest(kind), tempfile.TemporaryDirectory(prefix="kvcapture-") as place:
                if build(kind) is None:
                    continue
                cells = taken(kind, Path(place) / "dump")
                if same:
                    self.assertIn(line(kind, cells), page.splitlines())


if __name__ == "__main__":
    if "--table" in sys.argv:
        for each in ARCHITECTURES:
            with tempfile.TemporaryDirectory(prefix="kvcapture-") as where:
                try:
                    print(line(each, taken(each, Path(where) / "dump")), flush=True)
                except Exception as error:
                    print(f"{each}: {type(error).__name__}: {str(error)[:300]}", flush=True)
    else:
        unittest.main()
