"""Arrays of a dump: every header field and size by extreme, cut, grown, flipped, replaced. Python's own reading of the
format says what a file holds; where that is the original, so must the results be."""

import functools
import math
import random
import struct

import damage
import npy
import samples
from judge import Expect
from trial import Case, undisturbed

LARGE = (2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64, 2**64 + 1, 10**30)
INFO = ("info", "dump", "--values", "--json")
TOKENS = samples.command_line("tokens", "out")
SHAPES = {"q": (4, 48, 8), "k": (2, 48, 8), "v": (2, 48, 8), "wo": (4, 8, 32), "o": (4, 48, 8)}


def shapes(name: str) -> dict:
    """Headers by the text of the shape."""
    h, t, d = SHAPES[name]
    texts = ["()", f"({h},)", f"({h}, {t})", f"({h}, {t}, {d}, 1)", f"(1, {h}, {t}, {d})", f"({h}, {d}, {t})",
             f"({h}, {t}, {d},)", f"[{h}, {t}, {d}]", f"{h}, {t}, {d}", str(h * t * d), f"({h * t * d},)",
             f"(0, {t}, {d})", f"({h}, 0, {d})", f"({h}, {t}, 0)", f"(-{h}, {t}, {d})", f"(-{h}, -{t}, {d})",
             f"({h}.0, {t}, {d})", f"('{h}', {t}, {d})", f"({h}L, {t}L, {d}L)", f"(0x{h}, {t}, {d})",
             f"({h}, {t}, 1e1)", f"({h}, 0{t}, {d})", f"(True, {t}, {d})", f"({h}, {t}, None)", "None", "'4'", "{}",
             f"({h} , {t} , {d} )", f"({h},,{t},{d})", f"({h} {t} {d})", f"({h}, {t}, {d}", f"{h}, {t}, {d})", "",
             "(" * 10000 + ")" * 10000, "(" + "1, " * 20000 + ")", f"({h}, {t}, {d}, " + "1, " * 60 + ")",
             f"({2**32}, {2**32}, {h * t * d})", f"({2**62}, 4, {h * t * d})", f"({h}, {t + 1}, {d})",
             f"({h}, {t - 1}, {d})", f"({h}, {t}, {d * 2})", f"({h * 2}, {t // 2}, {d})", f"(+{h}, {t}, {d})",
             f"({h}_0, {t}, {d})", f"(_, {t}, {d})", f"({h}, {t}, {d}); import os", f"({h}\0, {t}, {d})"]
    texts += [f"({n}, {t}, {d})" for n in LARGE] + [f"({h}, {n}, {d})" for n in LARGE]
    texts += [f"({h}, {t}, {n})" for n in LARGE] + [f"({n}, {n}, {n})" for n in LARGE]
    return {f"shape-{i}": npy.header(shape=text) for i, text in enumerate(texts)}


def descriptions(shape: str) -> dict:
    """Headers by the text of the other entries, and by the form of the whole."""
    descrs = [
        "'>f4'", "'=f4'", "'|f4'", "'f4'", "'<f2'", "'<f8'", "'>f8'", "'<f16'", "'<f3'", "'<f0'", "'<f-4'", "'<i4'",
        "'<u4'", "'<u2'", "'|V4'", "'|V2'", "'|V0'", "'<c8'", "'|O'", "'|S4'", "'<U1'", "'<M8[ns]'", "'?'", "''", "'f'",
        "'<'", "'<f'", "'float32'", "'<f99999999999999999999'", "'<f4 '", "' <f4'", "'<F4'", "4", "None",
        "[('a', '<f4')]", "('<f4', (2,))", "{'names': ['a']}", "'<f4", "<f4", "b'<f4'", "u'<f4'", "r'<f4'", "'<' 'f4'",
        "'\\x3cf4'", "'<f4\\0'", "'<f4\x1b[31m'", "'" + "f" * 60000 + "'", "[" * 5000 + "]" * 5000
    ]
    orders = [
        "True", "true", "0", "1", "None", "'C'", "", "False, 'fortran_order': True", "[]", "\"False\"", "Fals", "F"
    ]
    whole = {
        "empty": "", "braces": "{}", "list": "[]", "number": "1", "text": "'a'", "open": "{'descr': '<f4',",
        "closed-twice": npy.header(shape=shape) + "}", "behind": npy.header(shape=shape) + " 'x'",
        "double-quotes": npy.header(shape=shape).replace("'", '"'), "no-quotes": npy.header(shape=shape).replace(
            "'", ""), "no-descr": f"{{'fortran_order': False, 'shape': {shape}}}",
        "no-shape": "{'descr': '<f4', 'fortran_order': False}", "no-order": f"{{'descr': '<f4', 'shape': {shape}}}",
        "extra": npy.header(shape=shape, extra="'x': 1"), "shape-twice": npy.header(shape=shape, extra="'shape': (1,)"),
        "descr-twice": npy.header(shape=shape, extra="'descr': '<f8'"), "upper": npy.header(shape=shape).upper(),
        "tabs": npy.header(shape=shape).replace(" ", "\t"), "newlines": npy.header(shape=shape).replace(" ", "\n"),
        "carriage": npy.header(shape=shape) + "\r", "comment": npy.header(shape=shape) + " # no",
        "nul": npy.header(shape=shape) + "\0", "deep": "{'descr':" * 8000, "long-key": "{'" + "k" * 60000 + "': 1}",
        "escape": "{'\x1b[2J': 1}", "two-lines": "{'a\nb': 1}", "utf8": "{'déscr': '<f4'}"
    }
    texts = {f"descr-{i}": npy.header(descr=text, shape=shape) for i, text in enumerate(descrs)}
    texts |= {f"order-{i}": npy.header(order=text, shape=shape) for i, text in enumerate(orders)}
    return texts | {f"header-{name}": text for name, text in whole.items()}


def prefixes(text: str, data: bytes) -> dict:
    """Magic, version, length of the header and how it ends."""
    made = {f"magic-{i}": npy.file(text, data, magic=npy.MAGIC[:i] + b"?" + npy.MAGIC[i + 1:]) for i in range(6)}
    made |= {
        f"version-{a}.{b}": npy.file(text, data, version=(a, b)) for a in (0, 1, 2, 3, 4, 255) for b in (0, 1, 255)
    }
    size = len(npy.file(text, b"")) - 10
    for version in (1, 0), (2, 0), (3, 0):
        for length in (0, 1, size - 64, size - 1, size + 1, size + 64, 2**16 - 1, 2**31, 2**32 - 1):
            made[f"length-{version[0]}-{length}"] = npy.file(text, data, version=version, length=length)
    return made | {"no-padding": npy.file(text, data, pad=False), "no-newline": npy.file(text, data, end=b""),
                   "padding-1MB": npy.file(text + " " * 2**20, data, version=(2, 0)),
                   "padding-nul": npy.file(text + "\0" * 54, data), "latin1": npy.file(b"\xe9" + text.encode(), data)}


def numbers(text: str, data: bytes) -> dict:
    """Values that are none, at either end and inside; others that are extreme but numbers."""
    made = {}
    for name, value in {"nan": "nan", "inf": "inf", "minus-inf": "-inf", "max": 3.4e38, "tiny": 1e-45,
                        "zero": 0.0}.items():
        for where, at in {"first": 0, "middle": len(data) // 8 * 4, "last": len(data) - 4}.items():
            made[f"{name}-{where}"] = npy.file(text, data[:at] + struct.pack("<f", float(value)) + data[at + 4:])
        made[f"{name}-all"] = npy.file(text, struct.pack("<f", float(value)) * (len(data) // 4))
    swapped = b"".join(data[i:i + 4][::-1] for i in range(0, len(data), 4))
    wide = struct.pack(f"<{len(data) // 4}d", *struct.unpack(f"<{len(data) // 4}f", data))
    return made | {"big-endian": npy.file(text.replace("<f4", ">f4"), swapped),
                   "float64": npy.file(text.replace("<f4", "<f8"), wide)}  # another dtype, so other results may be


def contents(path: str, original: bytes, draw: random.Random) -> dict:
    """name -> damaged contents of the array at path."""
    name = path.split("/")[1].split(".")[0]
    text, data = npy.split(original)
    shape = str(SHAPES[name])
    texts = shapes(name) | descriptions(shape)
    made = {
        key: npy.file(value, data, version=(1, 0) if len(value) < 65000 else (2, 0)) for key, value in texts.items()
    }
    made |= prefixes(text, data) | numbers(text, data)
    made |= damage.cuts(original) | damage.growths(original) | damage.replacements(original)
    for i in range(40):
        made[f"flip-header-{i}"] = damage.flipped(original, draw.randrange(8 * 128))
    for i in range(20):
        made[f"flip-data-{i}"] = damage.flipped(original, draw.randrange(8 * 128, 8 * len(original)))
    return made


def judged_run(trial, arguments: tuple, expected: Expect, about: tuple):
    """info says the same of equal files; tokens writes the same results."""
    out = "out" if "out" in arguments else None
    want = undisturbed(trial.bench, samples.put_dump, arguments, out)
    trial.expect(expected, *arguments, out=out, want=want, about=about)


def expectation(original: bytes, changed: bytes, read_by_run: bool) -> Expect:
    """By the second opinion. What a command does not read it cannot refuse."""
    was, now = npy.read(original), npy.read(changed)
    if now is None:
        return Expect.REFUSED if read_by_run else Expect.SAME
    return Expect.SAME if now == was else Expect.EITHER


def with_contents(path: str, changed: bytes, arguments: tuple, trial):
    """One array with other contents."""
    samples.put_dump(trial)
    target = trial.root / "dump" / path
    original = target.read_bytes()
    target.write_bytes(changed)
    trial.guard(trial.root / "dump")
    everything = arguments == INFO or target.stem in "qkv"
    judged_run(trial, arguments, expectation(original, changed, everything), (path, path.split("/")[0], "layer "))


def with_broken(path: str, key: str, arguments: tuple, trial):
    """What is no array, and the line that says so."""
    samples.put_dump(trial)
    data, line = damage.broken("npy")[key]
    (trial.root / "dump" / path).write_bytes(data)
    trial.expect_line(line, *arguments, out="out" if "out" in arguments else None)


def with_stand_in(path: str, key: str, arguments: tuple, trial):
    """Something else in the place of an array."""
    samples.put_dump(trial)
    target = trial.root / "dump" / path
    damage.replace(target, damage.STAND_INS[key])
    optional = target.stem in ("o", "wo")
    expected = Expect.EITHER if optional and key == "removed" else Expect.REFUSED
    judged_run(trial, arguments, expected, (target.name, target.stem, "dump"))


def with_another(path: str, other: str, arguments: tuple, trial):
    """Another array of the dump in the place of one, as a link."""
    samples.put_dump(trial)
    target = trial.root / "dump" / path
    damage.replace(target, damage.link_to("../" + other))
    alike = target.name == other.split("/")[1] or {target.stem, other.split("/")[1][:1]} <= {"k", "v", "q", "o"}
    judged_run(trial, arguments, Expect.EITHER if alike else Expect.REFUSED, ("layer_", "dump"))


def with_file_beside(name: str, expected: Expect, arguments: tuple, trial):
    """A file that makes the dump ambiguous, or that does not."""
    samples.put_dump(trial)
    path = trial.root / "dump" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes((trial.root / "dump/layer_00/k.npy").read_bytes())
    judged_run(trial, arguments, expected, (name[:30], "dump", "layer"))


BESIDE = {"layer_00/k_00.npy": Expect.EITHER, "k_00.npy": Expect.REFUSED, "k.npy": Expect.REFUSED,
          "layer_01/k_0.npy": Expect.EITHER, "layer_1/k.npy": Expect.REFUSED, "layer_02/k.npy": Expect.REFUSED,
          "layer_99/k.npy": Expect.REFUSED, "k_9223372036854775807.npy": Expect.REFUSED,
          "k_9223372036854775808.npy": Expect.REFUSED, "layer_18446744073709551616/k.npy": Expect.REFUSED,
          "layer_-1/k.npy": Expect.EITHER, "layer_00/K.NPY": Expect.EITHER, "layer_00/notes.txt": Expect.ACCEPTED,
          "layer_00/.k.npy.swp": Expect.ACCEPTED, "layer_00/\x1b[31mk.npy": Expect.EITHER, "k_\n1.npy": Expect.EITHER,
          "k_1e9.npy": Expect.EITHER, "layer_00/k.npy.npz": Expect.EITHER, "x.npz": Expect.EITHER,
          "layer_00/" + "k" * 240 + ".npy": Expect.EITHER, "a.npz/k.npy": Expect.EITHER}


# name -> (shape of q, shape of k and v, manifest, parts of the line that refuses them)
AXES = {
    "swapped": ((96, 4, 8), (96, 4, 8), "{}", ("axes [heads, positions, d]", "96 heads of 4 positions")),
    "swapped-batch": ((1, 96, 4, 8), (1, 96, 4, 8), "{}", ("axes [heads, positions, d]",)),
    "swapped-scale": ((96, 4, 8), (96, 4, 8), '{"scale": 0.5}', ("axes [heads, positions, d]",)),
    "swapped-prompt": ((96, 4, 8), (96, 4, 8), '{"prompt_len": 80}', ("prompt_len", "look like [positions, heads, d]")),
    "positions-last": ((4, 64, 100), (2, 64, 100), "{}", ("axes [heads, positions, d]", "head_dim")),
    "positions-last-prompt": ((4, 64, 100), (2, 64, 100), '{"prompt_len": 80}', ("prompt_len", "look like [heads, d, positions]")),
    "swapped-heads": ((96, 4, 8), (96, 4, 8), '{"n_kv_heads": 4}', ("n_kv_heads", "found 4")),
    "swapped-groups": ((96, 8, 8), (96, 2, 8), "{}", ("8 queries", "swap the first two")),
    "swapped-keys": ((8, 96, 8), (96, 2, 8), "{}", ("q.npy", "96 KV heads", "found 8 query heads")),
    "last-first": ((4, 8, 96), (2, 96, 8), "{}", ("shape",)),
    "flat": ((96, 32), (96, 16), "{}", ("shape [n_kv, T, d]",)),
    "batch-of-two": ((2, 4, 96, 8), (2, 2, 96, 8), "{}", ("leading batch of 1",))
}


def with_axes(key: str, trial):
    """Tensors whose axes are another's, and the line that says so."""
    q, kv, manifest, line = AXES[key]
    samples.put_dump(trial)
    for path in (trial.root / "dump").glob("layer_*/*"):
        path.unlink()
        if path.stem in SHAPES and path.stem in "qkv":
            shape = q if path.stem == "q" else kv
            path.write_bytes(npy.file(npy.header(shape=str(shape)), bytes(4 * math.prod(shape))))
    (trial.root / "dump/manifest.json").write_text(manifest)
    (trial.root / "dump/tokens.json").unlink(missing_ok=True)
    trial.expect_line(line, "info", "dump", "--json")


def under_name(name: str, trial):
    """A folder's name says nothing of what is in it."""
    samples.put_dump(trial)
    (trial.root / name).parent.mkdir(exist_ok=True)
    (trial.root / "dump").rename(trial.root / name)
    want = undisturbed(trial.bench, samples.put_dump, TOKENS, "out")
    trial.expect(Expect.ACCEPTED, *samples.command_line("tokens", "out", name), out="out", want=want)


NAMES = ("a.npz", "a.npz.d/dump", "k_0.npy", "manifest.json", "-", "a b", "a,b", "a=b", "a:b", "\x1b[2J", "a\nb",
         "%s{}", "x" * 255, "\udcff")


def cases(bench) -> list:
    """All of the family."""
    made = [Case(f"arrays/named-{i}", functools.partial(under_name, name)) for i, name in enumerate(NAMES)]
    dump = samples.dump(bench)
    runs = {"info": INFO, "tokens": TOKENS}
    for path in ("layer_00/q.npy", "layer_01/k.npy", "layer_00/v.npy", "layer_00/wo.npy", "layer_01/o.npy"):
        changes = contents(path, dump[path], random.Random(f"{bench.seed}/{path}"))
        others = [other for other in dump if other != path and other.endswith(".npy")]
        for verb, arguments in runs.items():
            if verb == "tokens" and path.endswith("o.npy"):
                continue  # which it does not read
            tries = {name: (with_contents, changed) for name, changed in changes.items()}
            tries |= {name: (with_stand_in, name) for name in damage.STAND_INS}
            tries |= {f"broken-{name}": (with_broken, name) for name in damage.broken("npy")}
            tries |= {f"link-to-{other}": (with_another, other) for other in others}
            made += [Case(f"arrays/{verb}/{path}/{name}", functools.partial(act, path, what, arguments))
                     for name, (act, what) in tries.items()]
    made += [Case(f"arrays/info/axes-{name}", functools.partial(with_axes, name)) for name in AXES]
    for verb, arguments in runs.items():
        made += [Case(f"arrays/{verb}/beside-{i}", functools.partial(with_file_beside, name, expected, arguments))
                 for i, (name, expected) in enumerate(BESIDE.items())]
    return made
