"""`kvcapture.py --estimate`: the bytes of the files, and the memory and time that gradients take."""
from __future__ import annotations

import time
from typing import Any

import torch

from capture_request import Request, auto_class, one_line_errors
from dump_files import ASKING, QUERIES, Shape, layer_files, npy_bytes
from gradient_progress import Job
from model_attention import config_shape

OVERHEAD = 2.5  # time by that of the products with the weights alone: attention, norms, writing; measured on SmolLM2-135M
BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


def print_estimate(request: Request) -> None:
    shape, count, dtype, jobs = config_shape(request.config), len(request.layers), request.dtype, request.jobs()
    T = request.prompt_len + request.decode
    files = {} if request.resumed else layer_files(shape, T, request.queries, dtype)
    blocks = without_weights(request.whole)
    absent = {"gate": not gated(blocks, shape), "residual_norm": normed_behind(blocks)}
    files = {name: file for name, file in files.items() if not absent.get(name)}
    for job in jobs:
        files.update({name: (kind, dtype) for name, kind in job.files(shape.n_q, shape.d_v).items()})
    if request.args.repeat:
        files[QUERIES] = ((shape.n_q, request.prompt_len, shape.d), dtype)
        files[ASKING] = ((request.prompt_len,), "float32")
    sizes = {name: count * npy_bytes(*kind) for name, kind in files.items()}
    for name, size in sizes.items():
        print(f"{name:<14}{count} x {str(list(files[name][0])):<24}{size:>20,} bytes")
    print(f"{'total':<38}{sum(sizes.values()):>20,} bytes in {dtype}, besides manifest.json and tokens.json")
    if jobs:
        weights = parameters(request.whole)
        config, compute = request.config, request.compute
        memory = max(graph_bytes(config, shape, job, compute) + logits_bytes(config, job, compute) for job in jobs)
        memory += config.num_hidden_layers * cache_bytes(shape, request.prompt_len, compute)
        print(f"{'gradients: memory':<38}{round(memory, -6):>20,} bytes in {compute}, about, besides the model's "
              f"{weights * BYTES[compute]:,}")
        rate = products_a_second(request)
        passes = sum((job.passes + 1) * (job.end - job.first) for job in jobs) + request.prompt_len
        seconds = OVERHEAD * weights * passes / rate
        print(f"{'gradients: time':<38}{round(seconds):>20,} seconds on this {request.device}, about, at the "
              f"{2e-9 * rate:,.0f} GFLOP/s that its products of matrices come to")


def without_weights(config: Any) -> torch.nn.Module:
    with one_line_errors(), torch.device("meta"):
        return auto_class(config).from_config(config)


def parameters(config: Any) -> int:
    return sum(parameter.numel() for parameter in without_weights(config).parameters())


def gated(model: torch.nn.Module, shape: Shape) -> bool:
    """By their names, are there projections to multiply the heads' outputs by? A capture finds out by what they do."""
    def width(module: torch.nn.Module, name: str) -> int:
        return getattr(getattr(module, name, None), "out_features", 0)

    queries, outputs = shape.n_q * shape.d, shape.n_q * shape.d_v
    attentions = [module for module in model.modules() if "attention" in type(module).__name__.lower()]
    return any(width(module, "q_proj") >= queries + outputs or width(module, "gate_proj") == outputs
               for module in attentions)


def normed_behind(model: torch.nn.Module) -> bool:
    """By their names, are there norms between the attention and the residual stream?"""
    for module in model.modules():
        norms = {name for name, _ in module.named_children() if name.endswith("norm")} - {"input_layernorm"}
        if norms & {"post_attention_layernorm", "post_self_attn_layernorm"} and len(norms) > 1:
            return True
    return False


def cache_bytes(shape: Shape, positions: int, dtype: str) -> int:
    """Of one layer's keys and values."""
    return shape.n_kv * positions * (shape.d + shape.d_v) * BYTES[dtype]


def graph_bytes(config: Any, shape: Shape, job: Job, dtype: str) -> int:
    """What a forward pass over a job's rows keeps for the backward passes, besides the logits. In a layer: four tensors
    as wide as the residual stream (its norms), three as the queries, three as the feed-forward; all keys and values,
    again for all query heads where these are more; and eager attention's weights, twice."""
    rows, keys, size = job.end - job.first, job.end, BYTES[dtype]
    feed_forward = getattr(config, "intermediate_size", None) or 4 * shape.d_model
    widths = 4 * shape.d_model + 3 * shape.n_q * shape.d + 3 * feed_forward
    heads = shape.n_kv + (shape.n_q if shape.n_q != shape.n_kv else 0)
    eager = getattr(config, "attn_logit_softcapping", None) or getattr(config, "model_type", "") == "gpt_oss"
    weights = 2 * shape.n_q * rows * keys * size if eager else 0
    layer = rows * widths * size + heads * keys * (shape.d + shape.d_v) * size + weights
    return config.num_hidden_layers * layer


def logits_bytes(config: Any, job: Job, dtype: str) -> int:
    """The logits, and in float32 their softmax and a gradient."""
    return (job.end - job.first) * config.vocab_size * (2 * BYTES[dtype] + 8)


def products_a_second(request: Request) -> float:
    """Multiplications of a product like those of the backward passes: the fastest of what half a second has time for, which
    other work on the machine slows least. The first one, which also starts the device, is not among them."""
    rows = max(job.end - job.first for job in request.jobs())
    width = request.config.hidden_size
    dtype = getattr(torch, request.compute)
    a, b = (torch.ones(*size, dtype=dtype, device=request.device) for size in ((rows, width), (width, 4 * width)))
    float((a @ b)[0, 0])  # waits for the device
    seconds, end = [], time.monotonic() + 0.5
    while len(seconds) < 3 or time.monotonic() < end:
        begin = time.monotonic()
        float((a @ b)[0, 0])
        seconds.append(time.monotonic() - begin)
    return a.shape[0] * b.numel() / min(seconds)
