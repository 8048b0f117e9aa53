"""What a dump's gradients are to be, how far they are, and their files: under temporary names until all are whole."""
from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, NamedTuple

import numpy as np

from dump_check import StoredArray, as_float64, read_manifest
from dump_files import PROGRESS, CaptureError, allocate, npy_bytes, read_json, require, write_json
from prompt_tokens import read_ids

WINDOW = 32  # rows of --rows window, as many as kvreplay's --window


class Job(NamedTuple):
    """Rows that are fed again: positions first to end - 1, and what is wanted of them."""
    kind: str  # future or window
    first: int
    end: int
    samples: int
    nll: bool

    @property
    def passes(self) -> int:
        return self.samples + self.nll

    def files(self, n_q: int, d_v: int) -> dict[str, tuple[int, ...]]:
        """Names and shapes, in each layer."""
        rows = self.end - self.first
        sampled = {f"g_{self.kind}": (n_q, self.samples, rows, d_v)} if self.samples else {}
        return {**sampled, **({"g_nll": (n_q, rows, d_v)} if self.nll else {})}


def read_rows(text: str) -> dict[str, int | None]:
    """future,window or future,window=64: the kinds, with the number of rows where one is said."""
    found: dict[str, int | None] = {}
    for part in text.split(","):
        kind, equals, number = part.partition("=")
        counted = kind == "window" and number.isdecimal() and len(number) < 10
        fits = counted if equals else kind in ("future", "window")
        require(fits and kind not in found, "--rows", "future, window, window=64 or two of them", text)
        found[kind] = int(number) if equals else None
    return found


def plan(samples: int, rows: str, nll: bool, prompt_len: int, T: int, T_q: int) -> list[Job]:
    """The jobs, for a dump of T positions whose last T_q have queries."""
    require(samples >= 0 and (samples or nll), "--gradients", "a number of samples of at least 1", samples)
    kinds = read_rows(rows) if samples else {}
    future = "future" in kinds or nll
    require(not future or prompt_len < T, "gradients of the future rows", "decoding steps", "none")
    jobs = [Job("future", prompt_len, T, samples if "future" in kinds else 0, nll)] if future else []
    if "window" in kinds:
        count, most = kinds["window"], T_q - (T - prompt_len)
        count = min(WINDOW, most) if count is None else count
        require(1 <= count <= most, "--rows window", f"1 to {most} prompt positions that have queries", count)
        jobs.append(Job("window", prompt_len - count, prompt_len, samples, False))
    return jobs


class Dump:
    """A whole dump, as far as gradients need to know it."""

    def __init__(self, folder: Path):
        self.folder, self.manifest = folder, read_manifest(folder / "manifest.json", 0)
        whole = not self.manifest.get("incomplete")
        require(whole, folder, "a whole dump", "an interrupted capture (--force begins again)")
        self.prompt_len, self.T, count = (self.manifest.get(key) for key in ("prompt_len", "total_len", "n_layers"))
        whole = all(type(x) is int and x >= 1 for x in (self.prompt_len, self.T, count)) and self.prompt_len <= self.T
        require(whole, folder / "manifest.json", "prompt_len, total_len and n_layers", (self.prompt_len, self.T, count))
        self.layers = self.manifest.get("layers", list(range(count)))
        fits = isinstance(self.layers, list) and all(type(i) is int and i >= 0 for i in self.layers)
        require(fits and len(self.layers) == count, folder / "manifest.json", f"{count} layers", self.layers)
        self.ids = read_ids(str(folder / "tokens.json"))
        require(len(self.ids) == self.T, folder / "tokens.json", f"{self.T} ids", len(self.ids))
        o = self.array(0, "o")
        (self.n_q, self.T_q, self.d_v), self.dtype = o.shape, "bfloat16" if o.dtype == np.uint16 else o.dtype.name

    def array(self, layer: int, name: str) -> StoredArray:
        """Of a layer of the dump: k or v [n_kv, T, channels] or o [n_q, T_q, d_v]."""
        with self._of_layer(layer):
            return StoredArray(self.layer(layer) / f"{name}.npy")

    def rows(self, layer: int, name: str, rows: Iterable[int] | slice) -> np.ndarray:
        """[heads, rows, channels] of such an array, in float64"""
        with self._of_layer(layer):
            return as_float64(StoredArray(self.layer(layer) / f"{name}.npy").rows(rows))

    @contextlib.contextmanager
    def _of_layer(self, layer: int) -> Iterator[None]:
        """What is wrong inside is said of this layer."""
        try:
            yield
        except CaptureError as error:
            raise CaptureError(f"{self.layer(layer)}: {error}") from None

    def layer(self, layer: int) -> Path:
        return self.folder / f"layer_{layer:02}"

    def has(self, name: str) -> bool:
        """In every layer?"""
        return all((self.layer(i) / f"{name}.npy").is_file() for i in range(len(self.layers)))


class GradientProgress:
    """One request for gradients of a dump, across interruptions."""

    def __init__(self, dump: Dump, jobs: list[Job], samples: int, seed: int, resume: bool):
        self.dump, self.path = dump, dump.folder / PROGRESS
        self.key = {"gradients": {"samples": samples, "labels": "model", "seed": seed}} if samples else {}
        request = {"samples": samples, "seed": seed, "jobs": [list(job) for job in jobs], "dtype": dump.dtype}
        former = dump.manifest.get("gradients")
        same = not former or not samples or {"gradients": former} == self.key
        require(same, f"{dump.folder}: gradients", former, self.key.get("gradients"))
        if self.path.exists():
            require(resume, dump.folder, "--resume, or --force", "gradients that were interrupted")
            self.state = read_state(self.path)
            require(self.state["request"] == request, self.path, f"the same request, {self.state['request']}", request)
        else:
            there = [name for job in jobs for name in job.files(1, 1) if dump.has(name)]
            require(resume or not there, dump.folder, "--resume, or --force", ", ".join(there))
            left = [job._replace(samples=0 if f"g_{job.kind}" in there else job.samples,
                                 nll=job.nll and "g_nll" not in there) for job in jobs]
            jobs = [list(job) for job in left if job.passes]
            self.state = {"request": request, "jobs": jobs, "done": {}, "labels": {}}
        self.jobs = [Job(*job) for job in self.state["jobs"]]

    @property
    def left(self) -> list[Job]:
        return [job for job in self.jobs if self.done(job) < job.passes]

    def done(self, job: Job) -> int:
        return self.state["done"].get(job.kind, 0)

    def labels(self, job: Job, draw: Callable[[], np.ndarray]) -> np.ndarray:
        """[samples, rows]: those drawn before the interruption, if any."""
        labels = self.state["labels"].get(job.kind) or draw().tolist()
        self.state["labels"][job.kind] = labels
        return np.array(labels, int).reshape(job.samples, job.end - job.first)

    def begin(self, job: Job) -> None:
        """Takes the room for a job's files, unless a former call did."""
        files, dtype = self._files(job), self.dump.dtype
        sizes = {path: npy_bytes(shape, dtype) for path, shape in files.items()}
        if self.done(job):
            for path, size in sizes.items():
                found = path.stat().st_size if path.is_file() else 0
                require(found == size, path, f"{size:,} bytes", f"{found:,}")
            return
        size, free = sum(sizes.values()), shutil.disk_usage(self.dump.folder).free
        require(free >= size, self.dump.folder, f"{size:,} bytes of free disk", f"{free:,}")
        try:
            for path, shape in files.items():
                allocate(path, shape, dtype)
        except CaptureError:
            for path in files:
                path.unlink(missing_ok=True)
            raise

    def write(self, job: Job, name: str, sample: int | None, gradients: Iterable[np.ndarray]) -> None:
        """One pass' gradients [n_q, rows, d_v], a layer at a time; then it counts as done."""
        for layer, gradient in enumerate(gradients):
            file = np.lib.format.open_memmap(self.dump.layer(layer) / f"{name}.new", mode="r+")
            (file if sample is None else file[:, sample])[:] = gradient
            file.flush()
        self.state["done"][job.kind] = self.done(job) + 1
        write_json(self.path, self.state)

    def finish(self) -> None:
        """Final names, then the manifest's word for them."""
        for job in self.jobs:
            for path in self._files(job):
                if path.exists():  # not where an interruption was between two names
                    os.replace(path, path.with_suffix(".npy"))
        write_json(self.dump.folder / "manifest.json", {**self.dump.manifest, **self.key})
        self.path.unlink(missing_ok=True)

    def _files(self, job: Job) -> dict[Path, tuple[int, ...]]:
        """Paths while they are written, and shapes."""
        files = job.files(self.dump.n_q, self.dump.d_v)
        folders = map(self.dump.layer, range(len(self.dump.layers)))
        return {folder / f"{name}.new": shape for folder in folders for name, shape in files.items()}


def read_state(path: Path) -> dict[str, Any]:
    try:
        state = read_json(path)
        kinds = {"request": dict, "jobs": list, "done": dict, "labels": dict}
        whole = all(isinstance(state[key], kind) for key, kind in kinds.items())
    except (CaptureError, KeyError, TypeError):
        whole = False
    require(whole, path, "what an interrupted run wrote", "something else (--force begins again)")
    return state
