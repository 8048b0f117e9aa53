"""`kvcapture.py --estimate`: the bytes of the files, the memory that gradients take, and the minutes."""
from __future__ import annotations

import time
from typing import Any

import torch

from capture_request import Prompt, Request, auto_class, one_line_errors
from dump_files import ASKING, QUERIES, Shape, layer_files, npy_bytes
from gradient_progress import Job
from model_attention import config_shape

OVERHEAD = 2.5  # time by that of the products with the weights alone: attention, norms, writing; measured on SmolLM2-135M
BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
ROWS, READ = 128, 1 << 26  # of the product that a pass over many rows is measured by; bytes of a step's, more than caches hold


def print_estimate(request: Request) -> None:
    """Prints the estimate of every prompt; with --task, of the longest possible question."""
    blocks, prompts = without_weights(request.whole), request.prompts or [request.longest]
    speed, totals = Speed(request, sum(parameter.numel() for parameter in blocks.parameters())), []
    for prompt in prompts:
        if prompts[1:]:
            print(f"{prompt.name}: {prompt.prompt_len} + {prompt.decode} positions")
        jobs = prompt.jobs() if not request.args.task else []
        size = print_bytes(request, prompt, jobs, blocks)
        if jobs:
            print_memory(request, prompt, jobs, speed.weights)
        totals.append((size, *speed.seconds(prompt, jobs)))
        print_minutes(request, *totals[-1][1:])
    if prompts[1:]:
        size, *seconds = map(sum, zip(*totals))
        print(f"all {len(prompts)} prompts\n{'total':<38}{size:>20,} bytes")
        print_minutes(request, *seconds)
    print(f"The minutes are at the {2e-9 * speed.products:,.0f} GFLOP/s and {1e-9 * speed.bytes:,.0f} GB/s that this {request.device} "
          "comes to now, without those of reading the model.")


def print_bytes(request: Request, prompt: Prompt, jobs: list[Job], blocks: torch.nn.Module) -> int:
    shape, count, dtype = config_shape(request.config), len(prompt.layers), request.dtype
    files = {} if prompt.resumed else layer_files(shape, prompt.prompt_len + prompt.decode, prompt.queries, dtype)
    absent = {"gate": not gated(blocks, shape), "residual_norm": normed_behind(blocks)}
    files = {name: file for name, file in files.items() if not absent.get(name)}
    for job in jobs:
        files.update({name: (kind, dtype) for name, kind in job.files(shape.n_q, shape.d_v).items()})
    if request.args.repeat:
        files[QUERIES] = ((shape.n_q, prompt.prompt_len, shape.d), dtype)
        files[ASKING] = ((prompt.prompt_len,), "float32")
    sizes = {name: count * npy_bytes(*kind) for name, kind in files.items()}
    for name, size in sizes.items():
        print(f"{name:<14}{count} x {str(list(files[name][0])):<24}{size:>20,} bytes")
    print(f"{'total':<38}{sum(sizes.values()):>20,} bytes in {dtype}, besides manifest.json and tokens.json")
    return sum(sizes.values())


def print_memory(request: Request, prompt: Prompt, jobs: list[Job], weights: int) -> None:
    shape, config, compute = config_shape(request.config), request.config, request.compute
    memory = max(graph_bytes(config, shape, job, compute) + logits_bytes(config, job, compute) for job in jobs)
    memory += config.num_hidden_layers * cache_bytes(shape, prompt.prompt_len, compute)
    print(f"{'gradients: memory':<38}{round(memory, -6):>20,} bytes in {compute}, about, besides the model's {weights * BYTES[compute]:,}")


def print_minutes(request: Request, first: float, gradients: float) -> None:
    def line(what: str, seconds: float, rest: str) -> None:
        print(f"{what:<38}{seconds / 60:>20,.1f} minutes{rest}, about")

    if first or not gradients:
        line("capture: time", first, f" on this {request.device}")
    if gradients:
        line("gradients: time", gradients, f" more on this {request.device}")
        if first:
            print(f"{'':<38}{'':>20} (a first pass without --gradients and --gradients-nll: {first / 60:,.1f}; --resume adds them)")


class Speed:
    """Measures a model's speed on this machine, with matrix products of the sizes in its passes."""

    def __init__(self, request: Request, weights: int):
        self.request, self.weights = request, weights
        width, dtype, size = request.config.hidden_size, getattr(torch, request.compute), BYTES[request.compute]
        self.products = ROWS * products_a_second(width, 4 * width, ROWS, dtype, request.device)  # multiplications
        self.bytes = size * products_a_second(width, READ // (size * width), 1, dtype, request.device)

    def seconds(self, prompt: Prompt, jobs: list[Job]) -> tuple[float, float]:
        """Seconds of the capture, second reading included, and seconds of the gradients."""
        rows, pass_of_weights = prompt.prompt_len, OVERHEAD * self.weights
        read = 0 if prompt.resumed else rows
        again = 2 * rows if self.request.args.repeat else 0
        steps = 0 if prompt.resumed else prompt.decode * BYTES[self.request.compute] / self.bytes
        passes = sum((job.passes + 1) * (job.end - job.first) for job in jobs) + (rows if jobs else 0)
        return pass_of_weights * ((read + again) / self.products + steps), pass_of_weights * passes / self.products


def products_a_second(inner: int, outer: int, rows: int, dtype: torch.dtype, device: str) -> float:
    """Weights per second of a product of `rows` rows: the fastest product within half a second, as other work on the machine slows
    it least. The first product, which also starts the device, does not count."""
    a, b = (torch.ones(*size, dtype=dtype, device=device) for size in ((rows, inner), (inner, outer)))
    float((a @ b)[0, 0])  # waits for the device
    seconds, end = [], time.monotonic() + 0.5
    while len(seconds) < 3 or time.monotonic() < end:
        begin = time.monotonic()
        float((a @ b)[0, 0])
        seconds.append(time.monotonic() - begin)
    return b.numel() / min(seconds)


def without_weights(config: Any) -> torch.nn.Module:
    with one_line_errors(), torch.device("meta"):
        return auto_class(config).from_config(config)


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
