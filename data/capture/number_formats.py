"""What is read of the numbers of a cache that is stored in fewer bits: sim/cache/FORMATS.md, in PyTorch. Arrays are
[tokens, numbers of a head], changed in place."""

from __future__ import annotations

import functools
import math
from typing import Callable, NamedTuple

import numpy as np
import torch


class Stored(NamedTuple):
    """How a layer's keys and values are stored: formats by their names."""

    k: str = "16"
    v: str = "16"
    keys: str = "channel"  # what groups of 2 to 8 bits of keys lie along; or "token"
    turned: tuple[int, int] = (0, 0)  # sizes of the Hadamard matrices that turn keys and values; 0: none
    group: int = 32
    residual: int = 128
    centered: int | np.ndarray | None = None  # first position of the mean that is subtracted from keys, or vectors
    # [heads, d]; None: none is
    scales: tuple[float, float] = (1.0, 1.0)  # of keys and values in fp8 and int8
    interleaved: bool = False  # formats of llama.cpp hold channels c and d/2 + c of a key side by side


def kivi(bits: int, group: int = 32, residual: int = 128) -> Stored:
    return Stored(str(bits), str(bits), group=group, residual=residual)


def center_of(k: torch.Tensor, stored: Stored, head: int = 0) -> torch.Tensor | None:
    """The vector that the format subtracts from a head's keys: the mean of a prompt's [l, d], or a given one; None: none."""
    if stored.centered is None or stored.k == "16":
        return None
    if isinstance(stored.centered, np.ndarray):
        return torch.as_tensor(stored.centered[head]).to(k)
    return k[stored.centered :].double().mean(0).to(k.dtype) if stored.centered < len(k) else torch.zeros_like(k[0])


def quantize(k: torch.Tensor, v: torch.Tensor, lost: torch.Tensor | None, stored: Stored, center: torch.Tensor | None = None) -> None:
    """Keys [n, d] of the cache's tokens but for those numbers that are `lost`, which are not stored, and values [n, d_v]."""
    old = max(len(k) - stored.residual, 0)
    whole = old // stored.group * stored.group if stored.keys == "channel" and uniform(stored.k) else old
    if center is not None:
        k[:whole] -= center
    mine, gone = k[:whole], None if lost is None else lost[:whole]
    if stored.interleaved and of_ggml(stored.k):
        mine = mine[:, (order := interleaved(k.shape[1]))]
    read_back(mine, stored.k, stored.turned[0], stored.group, stored.keys == "channel", gone, stored.scales[0])
    if stored.interleaved and of_ggml(stored.k):
        k[:whole, order] = mine
    if center is not None:
        k[:whole] += center
    read_back(v[:old], stored.v, stored.turned[1], stored.group, False, None, stored.scales[1])


def token_by_token(stored: Stored) -> bool:
    """True if every key and value is stored when it is made: no group of tokens, no recent ones that stay as they are."""
    return stored.k == stored.v == "16" or stored.residual == 0 and not (stored.keys == "channel" and uniform(stored.k))


def uniform(name: str) -> bool:
    return name.isdigit() and name != "16"


def of_ggml(name: str) -> bool:
    return name.startswith("q")


def interleaved(d: int) -> torch.Tensor:
    """The channels of a key in llama.cpp's order: 0, d/2, 1, d/2 + 1, ..."""
    return torch.arange(d).reshape(2, -1).T.reshape(-1)


def read_back(x: torch.Tensor, name: str, turned: int, group: int, along_tokens: bool, lost: torch.Tensor | None = None,
              scale: float = 1.0) -> None:
    if name == "16" or not x.numel():
        return
    if turned:
        x.copy_(turn(x, turned))
    if not uniform(name):
        x.copy_(FORMATS[name](x) if scale == 1 else FORMATS[name](x.double() / scale) * scale)
    elif along_tokens:
        groups = (-1, group, x.shape[1])
        x.copy_(on_grid(x.reshape(groups), 1, int(name), None if lost is None else lost.reshape(groups)).reshape(x.shape))
    else:
        for begin in range(0, x.shape[1], group):
            at = slice(begin, begin + group)
            x[:, at] = on_grid(x[:, at], 1, int(name), None if lost is None else lost[:, at])
    if turned:
        x.copy_(turn(x, turned))


def turn(x: torch.Tensor, size: int) -> torch.Tensor:
    """Every `size` numbers by the orthonormal Hadamard matrix (Sylvester's)."""
    blocks = x.double().reshape(len(x), -1, size)
    return (blocks @ hadamard(size).to(blocks)).reshape(x.shape).to(x.dtype)


@functools.lru_cache(maxsize=None)
def hadamard(size: int) -> torch.Tensor:
    h = torch.ones(1, 1, dtype=torch.float64)
    while len(h) < size:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)])
    return h / math.sqrt(size)


def on_grid(x: torch.Tensor, axis: int, bits: int, lost: torch.Tensor | None = None) -> torch.Tensor:
    """x read back from 2^bits steps between the smallest and the largest along an axis, both of which stay; what is lost
    takes no part."""
    wide, last = x.double(), 2**bits - 1
    ends = (wide, wide) if lost is None else (wide.masked_fill(lost, math.inf), wide.masked_fill(lost, -math.inf))
    low, high = ends[0].amin(axis, keepdim=True), ends[1].amax(axis, keepdim=True)
    step = (high - low) / last
    place = torch.floor((wide - low) / step + 0.5)
    read = torch.where(place >= last, high, low + step * place)
    read = torch.where(step > 0, read, wide)
    return (read if lost is None else torch.where(lost, wide, read)).to(x.dtype)


def in_blocks(x: torch.Tensor, size: int) -> torch.Tensor:
    return x.reshape(len(x), -1, size or x.shape[1])


def fp16(x: torch.Tensor) -> torch.Tensor:
    return x.half().to(x.dtype)


def inverse_of(step: torch.Tensor) -> torch.Tensor:
    return torch.where(step != 0, 1 / step, 0)


def signed(x: torch.Tensor, bits: int) -> torch.Tensor:
    """ggml's q4_0 and q5_0."""
    b, half = in_blocks(x.float(), 32), 2 ** (bits - 1)
    end = b.gather(2, b.abs().argmax(2, keepdim=True))
    step = end / -half
    code = torch.clamp(torch.trunc(b * inverse_of(step) + (half + 0.5)), max=2 * half - 1)
    return ((code - half) * fp16(step)).reshape(x.shape).to(x.dtype)


def offset(x: torch.Tensor, bits: int) -> torch.Tensor:
    """ggml's q4_1 and q5_1."""
    b = in_blocks(x.float(), 32)
    low, high, last = b.amin(2, keepdim=True), b.amax(2, keepdim=True), 2**bits - 1
    step = (high - low) / last
    code = torch.clamp(torch.trunc((b - low) * inverse_of(step) + 0.5), max=last)
    return (code * fp16(step) + fp16(low)).reshape(x.shape).to(x.dtype)


def q8_0(x: torch.Tensor) -> torch.Tensor:
    b = in_blocks(x.float(), 32)
    step = b.abs().amax(2, keepdim=True) / 127
    y = b * inverse_of(step)
    code = torch.sign(y) * torch.floor(y.abs() + 0.5)  # halves away from 0
    return (code * fp16(step)).reshape(x.shape).to(x.dtype)


def small_float(x: torch.Tensor, mantissa: int, least: int, most: float) -> torch.Tensor:
    """To the nearest float of so many bits, ties to even; no larger than `most`."""
    exponent = torch.frexp(x).exponent.clamp(min=least + 1) - 1
    step = torch.ldexp(torch.ones_like(x), exponent - mantissa)
    return (torch.round(x / step) * step).clamp(-most, most)


def e4m3(x: torch.Tensor) -> torch.Tensor:
    return small_float(x, 3, -6, 448)


def e2m1(x: torch.Tensor) -> torch.Tensor:
    return small_float(x, 1, 0, 6)


def int8(x: torch.Tensor) -> torch.Tensor:
    return torch.round(x).clamp(-128, 127)


def over(x: torch.Tensor, scale: torch.Tensor, read: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    return torch.where(scale > 0, read(x / scale) * scale, 0)


def per_token(x: torch.Tensor, most: float, read: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    wide = x.double()
    return over(wide, (wide.abs().amax(1, keepdim=True) / most).float().double(), read).to(x.dtype)


def mx(x: torch.Tensor, element_exponent: int, read: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    b = in_blocks(x.double(), 32)
    largest = b.abs().amax(2, keepdim=True)
    exponent = (torch.frexp(largest).exponent - 1 - element_exponent).clamp(-127, 127)
    scale = torch.where(largest > 0, torch.ldexp(torch.ones_like(largest), exponent), 0)
    return over(b, scale, read).reshape(x.shape).to(x.dtype)


def nvfp4(x: torch.Tensor) -> torch.Tensor:
    b = in_blocks(x.double(), 16)
    whole = b.abs().max() / (448 * 6)
    if whole == 0:
        return x.clone()
    return over(b, e4m3(b.abs().amax(2, keepdim=True) / 6 / whole) * whole, e2m1).reshape(x.shape).to(x.dtype)


@functools.lru_cache(maxsize=None)
def gaussian_levels(bits: int) -> torch.Tensor:
    """Lloyd and Max's for N(0, 1): every level the mean of what is nearest to it."""
    normal = torch.distributions.Normal(torch.zeros((), dtype=torch.float64), 1.0)
    levels = torch.linspace(-3, 3, 2**bits, dtype=torch.float64)
    for _ in range(5000):
        ends = torch.cat([levels.new_tensor([-40.0]), (levels[1:] + levels[:-1]) / 2, levels.new_tensor([40.0])])
        density, below = normal.log_prob(ends).exp(), torch.special.ndtr(ends)
        levels = (density[:-1] - density[1:]) / (below[1:] - below[:-1])
    return levels


def tq(x: torch.Tensor, bits: int) -> torch.Tensor:
    wide, size = x.double(), x.shape[1]
    norm = wide.norm(dim=1, keepdim=True)
    levels = gaussian_levels(bits).to(wide) / math.sqrt(size)
    direction = turn(torch.where(norm > 0, wide / norm, 0), size)
    code = levels[torch.bucketize(direction, (levels[1:] + levels[:-1]) / 2, right=True)]
    return torch.where(norm > 0, turn(code, size) * (fp16(norm) / code.norm(dim=1, keepdim=True)), 0).to(x.dtype)


FORMATS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "q8_0": q8_0,
    "q5_1": functools.partial(offset, bits=5),
    "q5_0": functools.partial(signed, bits=5),
    "q4_1": functools.partial(offset, bits=4),
    "q4_0": functools.partial(signed, bits=4),
    "fp8": lambda x: e4m3(x.double()).to(x.dtype),
    "fp8_per_token_head": lambda x: per_token(x, 448, e4m3),
    "int8_per_token_head": lambda x: per_token(x, 127, int8),
    "int8": lambda x: int8(x.double()).to(x.dtype),
    "mxfp8": lambda x: mx(x, 8, e4m3),
    "mxfp4": lambda x: mx(x, 2, e2m1),
    "nvfp4": nvfp4,
    "tq2": functools.partial(tq, bits=2),
    "tq3": functools.partial(tq, bits=3),
    "tq4": functools.partial(tq, bits=4),
}
