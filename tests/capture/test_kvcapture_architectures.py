#!/usr/bin/env python3
"""kvcapture on a small random model of every architecture in data/capture/ARCHITECTURES.md, which is kept true by this.

  python3 tests/capture/test_kvcapture_architectures.py [-v]
  python3 tests/capture/test_kvcapture_architectures.py --write PYTHON PYTHON    # the page's table, by interpreters with the pinned and
                                                                                   # the newest release of transformers

capture_case.py says what that needs.
"""
import json
import subprocess
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
ABSENT, OTHERWISE = "absent", "; with "  # from a version; what another version has
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
    "apertus1p5_text": {}, "cohere2_moe": {}, "diffllama": {}, "exaone": {}, "gemma4_text": {}, "hy_v3": {}, "hyperclovax": {},
    "internlm3": {}, "iquestcoder": {}, "kolibri1": {}, "laguna": {}, "lara_mini": {}, "lfm3": {}, "mellum": {},
    "minimax_m3_vl_text": {}, "nemotron_h": {}, "olmo_hybrid": {}, "phi4_multimodal": {}, "recurrent_gemma": {}, "sarvam_moe": {},
}


ARCHITECTURES = dict(sorted(ARCHITECTURES.items()))  # by name


def build(kind):
    """A random model, and those of its layers that attend by a softmax; None where transformers has no such architecture."""
    names = {**modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES, **modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES}
    if ARCHITECTURES[kind] is ENCODER:
        names.update(modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES)
    if kind not in names or not hasattr(transformers, names[kind]):
        return None
    torch.manual_seed(7)
    implementation = "eager" if kind in ("gemma2", "vaultgemma", "gpt_oss", "bloom", "gptj", "nemotron", "recurrent_gemma") else "sdpa"
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


def cells():
    """The table cells of each architecture with the installed transformers; None if it lacks the architecture."""
    found = {}
    for kind in ARCHITECTURES:
        with tempfile.TemporaryDirectory(prefix="kvcapture-") as place:
            found[kind] = None if build(kind) is None else taken(kind, Path(place) / "dump")
    return found


def table(by_version):
    """The page's table, from cells by version, the newest last: a column of results per version, then facts of the newest version,
    with deviations of older ones."""
    *others, newest = by_version
    head = ["architecture", *(f"transformers {version}" for version in by_version), "wo", "residual_norm, output_multiplier", "rope"]
    lines = [head, ["---"] * len(head)]
    for kind in ARCHITECTURES:
        captured = [ABSENT if of[kind] is None else of[kind][0] for of in by_version.values()]
        rest = by_version[newest][kind] or next((of[kind] for of in by_version.values() if of[kind]), [""] * 4)
        more = [cell + "".join(f"{OTHERWISE}{version}: {by_version[version][kind][at]}" for version in others
                               if (by_version[version][kind] or [""] * 4)[at] not in ("", cell))
                for at, cell in enumerate(rest) if at]
        lines.append([f"`{kind}`", *captured, *more])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def read_page():
    """The versions of the page's table, and its rows by architecture."""
    rows = [[cell.strip() for cell in line.strip().strip("|").replace("\\|", "\0").split(" | ")] for line in PAGE.read_text().splitlines()
            if line.startswith("| ")]
    versions = [cell.removeprefix("transformers ") for cell in rows[0] if cell.startswith("transformers ")]
    return versions, {row[0].strip("`"): [cell.replace("\0", "\\|") for cell in row[1:]] for row in rows[2:]}


class Architectures(unittest.TestCase):
    def test_the_page(self):
        """A version on the page must match word for word; any other must capture what the page's newest version captures."""
        versions, page = read_page()
        at = versions.index(transformers.__version__) if transformers.__version__ in versions else None
        self.assertEqual(list(page), list(ARCHITECTURES))
        for kind, row in page.items():
            captured, rest = row[:len(versions)], row[len(versions):]
            with self.subTest(kind), tempfile.TemporaryDirectory(prefix="kvcapture-") as place:
                if build(kind) is None:
                    self.assertIn(at is None or captured[at], (True, ABSENT))
                    continue
                found = taken(kind, Path(place) / "dump")
                if at is None:
                    if captured[-1] != ABSENT:
                        self.assertEqual(found[0].split()[0], captured[-1].split()[0], found[0])
                    continue
                self.assertEqual(found[0], captured[at])
                for cell, mine in zip(rest, found[1:], strict=True) if any(found[1:]) else ():
                    newest, *others = cell.split(OTHERWISE)
                    self.assertEqual(mine, dict(other.split(": ", 1) for other in others).get(versions[at], newest))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--cells"]:
        print(json.dumps({transformers.__version__: cells()}))
    elif sys.argv[1:2] == ["--write"]:
        said_by = [subprocess.run([python, __file__, "--cells"], stdout=subprocess.PIPE, check=True).stdout for python in sys.argv[2:]]
        by_version = {version: found for text in said_by for version, found in json.loads(text.splitlines()[-1]).items()}
        before = PAGE.read_text().split("| architecture |")[0]
        PAGE.write_text(before + table(by_version))
    else:
        unittest.main()
