"""What stands between the outputs of a layer's heads and the residual stream: a gate or a norm, the output projection, a
number.

A few tokens pass through the model several times, while every attention returns what it is told to. Where the heads'
outputs go is seen by what changes: the projection is the first product with a weight of their size whose factor does,
and what it reads where the heads return ones is what their outputs are multiplied by before it, unless a module in
between proves to be their root mean square norm. What the projection returns is then replaced, and looked for in what
the block's other modules are called with.
"""
from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable, Iterator, NamedTuple

import torch
from transformers.pytorch_utils import Conv1D

from dump_files import TOLERANCES, Shape

LIKE_A_NUMBER = 0.1  # of what is added, which a norm makes differ by half of it
SAME_NUMBER = {"bfloat16": 4e-3, "float16": 5e-4, "float32": 1e-5}  # of a multiplier


class OutputNorm(NamedTuple):
    """Of all heads' outputs x of a row: x weight / sqrt(mean(x^2) + eps)."""

    eps: float
    weight: torch.Tensor  # [n_q d_v]

    def of(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, n_q d_v] in float64, of as many numbers of any shape"""
        x = x.double().reshape(-1, len(self.weight))
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight.double()


@dataclass
class OutputPath:
    """A layer's."""

    projection: torch.nn.Module | None = None  # what the heads' outputs go through
    weight: torch.Tensor | None = None  # [n_q, d_v, d_model], of a projection that does no more than multiply with it
    gated: bool = False  # are the heads' outputs multiplied by something before?
    norm: OutputNorm | None = None  # or what norms them
    wo_note: str = ""  # why there is no weight
    multiplier: float = 1.0  # of what the projection returns, before it is added to the residual stream
    residual_note: str = ""  # why the block's input is not what it is added to

    def wo(self) -> torch.Tensor:
        """[n_q, d_v, d_model]: what is returned is sum_h (o_h gate_h) wo_h, or sum_h (o_h / rms) wo_h, rms of all heads."""
        if self.norm is None:
            return self.weight
        return self.weight.double() * self.norm.weight.double().reshape(*self.weight.shape[:2], 1)


class Call(NamedTuple):
    """Of one of a block's modules: the first tensors that it took and returned."""

    module: torch.nn.Module
    input: torch.Tensor
    output: torch.Tensor
    behind: bool  # the attention function


@dataclass
class Pass:
    """Of a block: what it was called with, what its heads returned, what it called and what it returned."""

    stream: torch.Tensor | None = None  # [1, rows, d_model]
    heads: torch.Tensor | None = None  # [1, rows, n_q, d_v]
    calls: list[Call] = field(default_factory=list)
    returned: Any = None


class Site:
    """A layer's attention module, the block that holds it, and what is to be returned in it."""

    def __init__(self, module: torch.nn.Module, block: torch.nn.Module | None, shape: Shape):
        self.module, self.block, self.shape = module, module if block is None else block, shape
        self.names = {part: name for name, part in self.block.named_modules()}
        self.around = {part for part in self.block.modules() if part is not module and module in part.modules()}
        self.answer: Callable[[torch.Tensor], torch.Tensor] = uneven  # by the heads
        self.replaced: torch.nn.Module | None = None
        self.by: torch.Tensor | None = None  # what that returns once the heads have answered
        self.seen = Pass()

    def heads_return(self, values: torch.Tensor) -> torch.Tensor:
        """values, and what is returned in their place: [1, rows, n_q, d_v]."""
        self.seen.heads = self.answer(values)
        return self.seen.heads

    def hooks(self, first: Pass | None) -> Iterator[Any]:
        """first: what the block returned then it returns again, so that no layer sees what another's heads are told."""
        def end(_block, _args, output):
            self.seen.returned = clone(output)
            return clone(first.returned) if first else None

        yield self.block.register_forward_pre_hook(self._begin, with_kwargs=True)
        for part in self.names.keys() - self.around:
            yield part.register_forward_hook(self._note, with_kwargs=True)
        yield self.block.register_forward_hook(end)

    def _begin(self, _block, args, kwargs) -> None:
        x = first_tensor(args, kwargs.values())
        self.seen = Pass(stream=None if x is None or x.dim() != 3 else x.clone())

    def _note(self, module, args, kwargs, output):
        behind = self.seen.heads is not None
        replaces = module is self.replaced and self.by is not None and behind
        if replaces:
            output = (self.by.clone(), *output[1:]) if isinstance(output, tuple) else self.by.clone()
        took, made = first_tensor(args, kwargs.values()), first_tensor(as_tuple(output))
        sizes = {x.numel() for x in (self.seen.stream, self.seen.heads) if x is not None}
        matters = took is not None and made is not None and (sizes & {took.numel(), made.numel()} or module is self.module)
        if matters:  # those of other sizes would take much memory
            self.seen.calls.append(Call(module, took.clone(), made.clone(), behind))
        return output if replaces else None


def find_output_paths(sites: dict[int, Site], feed: Callable[[], object], config: Any,
                      compute: str) -> dict[int, OutputPath]:
    """Of the layers of these sites, whose heads return what those say while feed() passes the same tokens through the
    model that computes in the dtype `compute`."""
    def run(firsts: dict[int, Pass]) -> dict[int, Pass]:
        with contextlib.ExitStack() as stack:
            for i, site in sites.items():
                for hook in site.hooks(firsts.get(i)):
                    stack.callback(hook.remove)
            feed()
        return {i: site.seen for i, site in sites.items()}

    first = run({})
    for site in sites.values():
        site.answer = torch.ones_like
    ones = run(first)
    paths, outputs = {}, {}
    for i, site in sites.items():
        site.answer = uneven
        paths[i] = find_projection(site, i, first[i], ones[i], TOLERANCES[compute])
        site.replaced = paths[i].projection or site.module
        site.by = outputs[i] = some_output(first[i], site.replaced)
        first[i].calls = ones[i].calls = []
    added = run(first)
    for site in sites.values():
        site.by = None if site.by is None else torch.zeros_like(site.by)
    nothing = run(first)
    for i, site in sites.items():
        site.replaced = site.by = None
        found = find_multiplier(site, i, added[i], nothing[i], outputs[i], TOLERANCES[compute])
        if isinstance(found, str):
            paths[i].residual_note = f"no residual_norm: layer {i} {found}"
        else:
            paths[i].multiplier = number_of(found, config, SAME_NUMBER[compute])
    return paths


def uneven(values: torch.Tensor) -> torch.Tensor:
    """Rows of many lengths, so that no norm goes for a gate."""
    scales = torch.linspace(0.5, 2.0, values.shape[1], device=values.device).to(values.dtype)
    return values * scales[None, :, None, None]


def find_projection(site: Site, layer: int, first: Pass, ones: Pass, tolerance: float) -> OutputPath:
    """first: what was called where the heads returned their values; ones: where they returned ones."""
    shape, path = site.shape, OutputPath()
    size = (shape.n_q * shape.d_v, shape.d_model)
    for call, other in paired(first, ones):
        weight = weight_of(call.module, size) if call.behind else None
        whole = call.input.shape == other.input.shape and call.input.numel() == first.heads.numel()
        if weight is not None and whole and not near(call.input, other.input, tolerance):
            break
    else:
        path.wo_note = f"no wo: layer {layer} has no plain weight that its heads' outputs are multiplied with"
        return path
    path.projection, name = call.module, site.names[call.module].rpartition(".")[2]
    factor = other.input.reshape(first.heads.shape)
    bias = getattr(call.module, "bias", None)
    product = call.input.double() @ weight.double() + (0.0 if bias is None else bias.detach().double())
    returned = next((c.output for c in first.calls if c.module is site.module), call.output)
    inside = call.module in site.module.modules()
    multiplied = near(call.input.reshape(factor.shape), first.heads * factor, tolerance)
    path.norm = None if multiplied else find_norm(first, call, tolerance)
    if not multiplied and path.norm is None:
        path.wo_note = f"no wo: layer {layer} {before(site, first, ones, call)} before {name}"
    elif not near(call.output.double(), product, tolerance):
        path.wo_note = f"no wo: {name} of layer {layer} does more than multiply with its weight"
    elif inside and not near(returned, call.output, tolerance):
        path.wo_note = f"no wo: layer {layer} changes what {name} makes of its heads' outputs"
    else:
        path.weight = weight.reshape(shape.n_q, shape.d_v, shape.d_model)
        path.gated = multiplied and not bool((factor == 1).all())
    return path


def find_norm(first: Pass, projection: Call, tolerance: float) -> OutputNorm | None:
    """The module that makes of the heads' outputs what the projection reads, where it is a root mean square norm of all
    of a row, of any length."""
    size = first.heads.shape[2] * first.heads.shape[3]
    for call in first.calls:
        if call.module is projection.module:
            break
        whole = call.input.numel() == call.output.numel() == first.heads.numel()
        between = whole and near(call.input, first.heads, tolerance) and near(call.output, projection.input, tolerance)
        norms = possible_norms(call.module, size, call.input) if between else []
        if norms:
            try:
                rows, made = some_rows(call, size)
            except TypeError:  # it takes more than its input
                break
            scale = made.norm(dim=-1)
            fits = (norm for norm in norms if bool(((norm.of(rows) - made).norm(dim=-1) <= tolerance * scale).all()))
            return next(fits, None)
    return None


def possible_norms(module: torch.nn.Module, size: int, like: torch.Tensor) -> list[OutputNorm]:
    """With what the module has that may be a weight [size] (or less 1, as Gemma's) and an eps."""
    weight = getattr(module, "weight", None)
    weight = torch.ones(size).to(like) if weight is None else weight.detach()
    found = [x for name, x in vars(module).items() if "eps" in name and (x is None or type(x) is float and x > 0)]
    eps = [torch.finfo(like.dtype).eps if x is None else x for x in found]
    return [OutputNorm(x, w) for x in eps for w in (weight, 1 + weight)] if weight.shape == (size,) else []


def some_rows(call: Call, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[rows, size], and what the module makes of them: their lengths differ, so that eps shows, and so do means and
    lengths of their parts, so that no other norm goes for one of all."""
    rows = torch.randn(call.input.numel() // size, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows = (rows + 1) * torch.linspace(0.5, 2, size, dtype=torch.float64)
    rows = (rows * 2.0 ** torch.linspace(-20, 4, len(rows), dtype=torch.float64)[:, None]).to(call.input)
    with torch.no_grad():
        made = first_tensor(as_tuple(call.module(rows.reshape(call.input.shape))))
    return rows, made.double().reshape(rows.shape)


def paired(one: Pass, two: Pass) -> Iterator[tuple[Call, Call]]:
    """The calls of a pass, each with that of the same module in the other: experts may differ."""
    others: dict[torch.nn.Module, list[Call]] = {}
    for call in two.calls:
        others.setdefault(call.module, []).append(call)
    for call in one.calls:
        if others.get(call.module):
            yield call, others[call.module].pop(0)


def before(site: Site, first: Pass, ones: Pass, projection: Call) -> str:
    """What happens to the heads' outputs before the projection, by the name of a module that reads them."""
    for call, other in paired(first, ones):
        if call.module is projection.module:
            break
        if call.behind and call.input.shape == other.input.shape and not torch.equal(call.input, other.input):
            norm = "norm" in type(call.module).__name__.lower()
            return f"{'norms' if norm else 'changes'} its heads' outputs ({site.names[call.module]})"
    return "changes its heads' outputs"


def some_output(first: Pass, module: torch.nn.Module) -> torch.Tensor | None:
    """For a module to return: random, its rows of many lengths about those of the block's input, so that no norm goes
    for a multiple."""
    made = next((call.output for call in first.calls if call.module is module and call.behind), None)
    if made is None or first.stream is None or made.numel() != first.stream.numel():
        return None
    x, generator = first.stream.double(), torch.Generator().manual_seed(0)
    drawn = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    drawn *= 4 ** (2 * torch.rand(*x.shape[:-1], 1, generator=generator, dtype=torch.float64) - 1)
    return (drawn.to(x.device) * x.square().mean().sqrt()).reshape(made.shape).to(made.dtype)


def find_multiplier(site: Site, layer: int, added: Pass, nothing: Pass, output: torch.Tensor | None,
                    tolerance: float) -> float | str:
    """m, where something behind the attention is x + m output, x the block's input, besides what other branches add; or
    what there is instead. added: what was called where the attention's output was `output`; nothing: where it was 0."""
    if output is None:
        return "has a block that is not called with the residual stream"
    x, a = nothing.stream.double(), output.double().reshape(nothing.stream.shape)
    behind = [(c.input, d.input, c.module) for c, d in paired(added, nothing) if c.behind]
    ends = (*(first_tensor(as_tuple(seen.returned)) for seen in (added, nothing)), site.block)
    normed = ""
    for with_a, without, module in (*behind, ends):
        if module is site.module or with_a is None or with_a.numel() != x.numel():
            continue
        y, rest = with_a.double().reshape(x.shape), without.double().reshape(x.shape)
        m = float(((y - rest) * a).sum() / a.square().sum())
        size, off = y.norm() + rest.norm(), (y - rest - m * a).norm()
        if not (off <= tolerance * size and off < LIKE_A_NUMBER * abs(m) * a.norm()):
            continue
        if near(rest, x, tolerance) or is_sum(rest - x, branches(site, nothing, x), tolerance * (size + x.norm())):
            return m
        if "norm" in type(module).__name__.lower() and not rest.any():
            normed = normed or site.names[module]
    if normed:
        return f"norms its attention's output ({normed}) before it is added to the residual stream"
    return "adds its attention's output to something else than its block's input"


def branches(site: Site, seen: Pass, x: torch.Tensor) -> list[torch.Tensor]:
    """What the modules right in a block made beside its attention, norms apart."""
    parts = {part for part in site.block.children() if "norm" not in type(part).__name__.lower()} - site.around
    made = [call.output.double().reshape(x.shape) for call in seen.calls
            if call.module in parts and call.module is not site.module and call.output.numel() == x.numel()]
    return [b for b in made if not near(b, x, 1e-3)]


def is_sum(x: torch.Tensor, parts: list[torch.Tensor], tolerance: torch.Tensor) -> bool:
    """Is x a sum of multiples of these?"""
    if not parts:
        return False
    columns = torch.stack([part.flatten() for part in parts], dim=1).cpu()
    found = torch.linalg.lstsq(columns, x.flatten()[:, None].cpu(), driver="gelsd").solution
    return bool((columns @ found - x.flatten()[:, None].cpu()).norm() <= tolerance.cpu())


def number_of(m: float, config: Any, tolerance: float) -> float:
    """m as the configuration has it, where one of its numbers is as near as that."""
    known = [float(x) for x in vars(config).values() if type(x) in (int, float)]
    best = min([1.0, *known], key=lambda x: abs(x - m))
    return best if abs(best - m) <= tolerance * abs(m) else float(f"{m:.6g}")


def weight_of(module: torch.nn.Module, size: tuple[int, int]) -> torch.Tensor | None:
    """[in, out] of a product with a plain weight of that size."""
    weight = getattr(module, "weight", None)
    if not torch.is_tensor(weight) or weight.is_meta or weight.dim() != 2:
        return None
    weight = weight.detach() if isinstance(module, Conv1D) else weight.detach().T
    return weight if tuple(weight.shape) == size else None


def first_tensor(*groups: Iterable[Any]) -> torch.Tensor | None:
    """The first of numbers among arguments, or in what is returned."""
    for x in (x for group in groups for x in group):
        if torch.is_tensor(x) and x.is_floating_point() and x.dim() >= 2:
            return x
    return None


def as_tuple(output: Any) -> tuple[Any, ...]:
    return output if isinstance(output, tuple) else (output,)


def clone(x: Any) -> Any:
    if isinstance(x, tuple):
        return tuple(map(clone, x))
    return x.clone() if torch.is_tensor(x) else x


def near(x: torch.Tensor, y: torch.Tensor, tolerance: float) -> bool:
    """To so much of their norm."""
    x, y = x.double(), y.double().reshape(x.shape)
    return bool((x - y).norm() <= tolerance * torch.maximum(x.norm(), y.norm()))
