#!/usr/bin/env python3
"""Scales of fp8 and int8 caches from the prompts of dumps, for `kvreplay evict --scales FILE` on other prompts, and for vLLM.

  kv_scales.py DUMP ... --out scales.safetensors [--most 448]

Writes a safetensors file with tensors model.layers.N.self_attn.k_scale and v_scale, float32 [1]: the largest magnitude of a layer's
keys, or values, over all prompts, over the largest number of the format (--most: 448 of fp8, 127 of int8). vLLM and SGLang read these
tensors in a model's checkpoint. Needs numpy.
"""
from __future__ import annotations

import argparse
import json
import struct
import sys
from pathlib import Path

import numpy as np

from dump_check import StoredArray, as_float64
from dump_files import CaptureError, one_line, read_json, require


def largest(dumps: list[Path]) -> np.ndarray:
    """[layers, 2]: of the prompts' keys and values."""
    found = None
    for dump in dumps:
        manifest = read_json(dump / "manifest.json")
        l, layers = manifest["prompt_len"], manifest["n_layers"]
        whole = manifest.get("layers") in (None, list(range(layers)))
        require(whole, dump, "a dump of all layers", f"layers {manifest.get('layers')}")
        arrays = ([StoredArray(dump / f"layer_{layer:02}" / f"{name}.npy") for name in "kv"] for layer in range(layers))
        mine = np.array([[np.abs(as_float64(array.rows(slice(0, l)))).max() for array in both] for both in arrays])
        require(found is None or len(found) == layers, dump, "the layers of the others", layers)
        found = mine if found is None else np.maximum(found, mine)
    return found


def write_scales(path: Path, scales: np.ndarray) -> None:
    """[layers, 2], of keys and values."""
    names = [f"model.layers.{layer}.self_attn.{side}_scale" for layer in range(len(scales)) for side in "kv"]
    header = {name: {"dtype": "F32", "shape": [1], "data_offsets": [4 * n, 4 * n + 4]} for n, name in enumerate(names)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + scales.astype("<f4").tobytes())


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dumps", nargs="+", type=Path, metavar="DUMP")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE.safetensors")
    parser.add_argument("--most", type=float, default=448, metavar="X", help="the largest number of the format (default 448, of fp8)")
    args = parser.parse_args(arguments)
    try:
        require(args.most > 0, "--most", "a number above 0", args.most)
        found = largest(args.dumps)
        require((found > 0).all(), args.dumps[0], "keys and values that are not all 0", "others")
        write_scales(args.out, found / args.most)
    except (CaptureError, OSError, KeyError) as error:
        print(f"kv_scales: {one_line(error)}", file=sys.stderr)
        return 2
    print(f"{one_line(args.out)}: {len(found)} layers; keys up to {found[:, 0].max():.4g}, values up to {found[:, 1].max():.4g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
