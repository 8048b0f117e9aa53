"""Does kvreplay find what kvpress and OBCache's pseudo-code find, on a dump's own tensors? Both sides compute in float64."""

import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import obcache
import presses
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "golden"))
from golden_dump import layer_folders, load_layer, read_manifest  # noqa: E402

RATIOS = (0.5, 0.8, 0.9)
CHANNEL_RATIOS = (0.4, 0.5, 0.6, 0.7)
POLICIES = ("streaming", "h2o", "tova", "snapkv", "knorm", "keydiff", "expected_attention")
# Presses that share a budget between heads or layers: the method of `kvreplay budget`, which is given the press' own scores.
METHODS = {"pyramid_snapkv": "pyramid", "ada_snapkv": "ada", "lu_expected_attention": "profile"}
TOLERANCE = 1e-9  # of a score, relative to the largest of its head


@dataclass
class Compared:
    """How many of what two programs computed is equal, and the first that is not."""

    peer: str
    kvreplay: str
    what: str
    equal: int = 0
    of: int = 0
    tied: int = 0  # positions that two equal scores leave to chance, not compared
    worst: float | None = None  # relative difference, of numbers
    unlike: list[str] = field(default_factory=list)

    @property
    def fine(self):
        return 0 < self.of == self.equal

    def record(self):
        return {key: value for key, value in asdict(self).items() if value is not None}

    def note(self, same, where):
        self.of += 1
        self.equal += bool(same)
        if not same:
            self.unlike.append(where)


def run_kvreplay(program, command, dump, folder, *arguments):
    line = [str(part) for part in (program, command, dump, "--out", folder, "--quiet", "--force", *arguments)]
    done = subprocess.run(line, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(line)}: {done.stderr.strip()}")


class Sides:
    """A dump's layers for the presses, and kvreplay's results on it in `work`."""

    def __init__(self, dump, kvreplay, work):
        self.dump, self.kvreplay, self.work = Path(dump), str(kvreplay), Path(work)
        manifest, self.indices = read_manifest(self.dump), list(layer_folders(self.dump))
        self.layers = [load_layer(self.dump, index) for index in self.indices]
        for layer in self.layers:
            presses.refuse_what_kvpress_cannot(layer, f"{dump}: ")
        self.inputs = []
        for at, layer in enumerate(self.layers):
            config = presses.config_of(layer, len(self.layers), manifest)
            self.inputs.append(presses.layer_inputs(layer, at, config, torch.float64, presses.RotaryFloat64(layer)))
        self.curves = presses.lu_curves(len(self.layers), self.layers[0].n_kv)

    def run(self, name, command, *arguments):
        """The result folder of a kvreplay command."""
        folder = self.work / name
        run_kvreplay(self.kvreplay, command, self.dump, folder, "--precision", "f64", *arguments)
        return folder

    def layer_array(self, folder, at, *path):
        return np.load(folder.joinpath(f"layer_{self.indices[at]:02d}", *path))

    def pressed(self, name, ratio):
        """For every layer (kept [n_kv, l], scores [n_kv, l] or None, tied [n_kv, l])."""
        for inputs in self.inputs:
            kept, scores = presses.run(presses.make_press(name, ratio, self.curves), inputs, True)
            yield kept, scores, presses.tied(kept, scores, name in presses.ACROSS_HEADS)


def press_name(name):
    press = presses.make_press(name, 0.5)
    inner = getattr(press, "press", None)
    return type(press).__name__ + (f"({type(inner).__name__})" if name == "ada_snapkv" else "")


def compare_kept(compared, want, tied, got, where):
    """Every KV head's kept set [l]: those of kvpress, and kvreplay's."""
    compared.tied += int(tied.sum())
    for g, (one, other, near) in enumerate(zip(want, got.astype(bool), tied)):
        differs = np.flatnonzero((one != other) & ~near)
        first = f": position {differs[0]}, kept by {'kvpress' if one[differs[0]] else 'kvreplay'} only" if len(differs) else ""
        compared.note(not len(differs), f"{where}, KV head {g}{first}")


def evictions(sides):
    """What `kvreplay evict --semantics kvpress` keeps, policy by policy."""
    ratios = ",".join(map(str, RATIOS))
    folder = sides.run("evict", "evict", "--semantics", "kvpress", "--sigma", ratios, "--policy", ",".join(POLICIES))
    for name in POLICIES:
        compared = Compared(press_name(name), name, "kept sets")
        for ratio in RATIOS:
            for at, (want, _, tied) in enumerate(sides.pressed(name, ratio)):
                got = sides.layer_array(folder, at, "kept", f"{name}-kvpress-prefill-{want[0].sum()}.npy")
                compare_kept(compared, want, tied, got, f"ratio {ratio}, layer {sides.indices[at]}")
        yield compared


def budgets(sides):
    """What `kvreplay budget --semantics kvpress` keeps where it is given a press' scores and shares the budget itself."""
    np.save(sides.work / "curves.npy", sides.curves)
    for name, method in METHODS.items():
        compared = Compared(press_name(name), f"budget --method {method}", "kept sets")
        for ratio in RATIOS:
            pressed = list(sides.pressed(name, ratio))
            np.save(sides.work / "scores.npy", np.stack([scores for _, scores, _ in pressed]))
            shared = ["--method", method]
            if method == "profile":  # LUKVPress ranks the first four positions and the last above all scores
                shared = ["--method", "uniform", "--profile", sides.work / "curves.npy", "--sinks", 4, "--recent", 1]
            score = ["--score", f"peer={sides.work / 'scores.npy'}", "--order", "peer"]
            folder = sides.run("budget", "budget", "--semantics", "kvpress", "--sigma", ratio, *score, *shared)
            for at, (want, _, tied) in enumerate(pressed):
                got = sides.layer_array(folder, at, "kept", f"peer-{method}-{ratio}.npy")
                compare_kept(compared, want, tied, got, f"ratio {ratio}, layer {sides.indices[at]}")
        yield compared


def channels(sides):
    """The key channels that ThinKPress sets to 0."""
    ratios = ",".join(map(str, CHANNEL_RATIOS))
    folder = sides.run("channels", "channels", "--semantics", "kvpress", "--method", "think", "--ratio", ratios)
    compared = Compared("ThinKPress", "channels --method think", "pruned channels")
    for ratio in CHANNEL_RATIOS:
        for at, inputs in enumerate(sides.inputs):
            want = np.empty((sides.layers[at].n_kv, sides.layers[at].q.shape[2]), bool)
            want[:, presses.channel_order(sides.layers[at])] = presses.think_pruned(inputs, ratio)
            got = sides.layer_array(folder, at, "channels", f"think-{ratio}.npy").astype(bool)
            for g, (one, other) in enumerate(zip(want, got)):
                compared.note(np.array_equal(one, other), f"ratio {ratio}, layer {sides.indices[at]}, KV head {g}")
    yield compared


def token_scores(sides):
    """OBCache's pseudo-code beside `kvreplay tokens`: the numbers, and the order that they put the tokens in."""
    windows = sorted({min(32, layer.l) for layer in sides.layers} | {layer.l for layer in sides.layers})
    for window in windows:
        folder = sides.run("tokens", "tokens", "--window", window, "--metrics", ",".join(obcache.NAMES))
        numbers = {name: Compared("pseudo-code of OBCache", f"{name}, {window} rows", "rankings", worst=0.0) for name in obcache.NAMES}
        for at, layer in enumerate(sides.layers):
            for g in range(layer.n_kv):
                q = torch.from_numpy(layer.q[layer.heads_of(g), layer.l - window : layer.l])
                k, v = (torch.from_numpy(x[g, : layer.l]) for x in (layer.k, layer.v))
                found = obcache.scores(q, k, v, layer.l - window, window).numpy()
                for name, want in zip(obcache.NAMES, found):
                    got = sides.layer_array(folder, at, "tokens", f"{name}.npy")[g]
                    off = np.abs(got - want) / np.abs(want).max()
                    numbers[name].worst = max(numbers[name].worst, float(off.max()))
                    numbers[name].note(same_ranking(want, got), f"layer {sides.indices[at]}, KV head {g}")
        for compared in numbers.values():
            if compared.worst > TOLERANCE:
                compared.unlike.append(f"a score is off by {compared.worst:.1e} of its head's largest")
                compared.equal = 0
        yield from numbers.values()


def same_ranking(one, other):
    """Whether both put the tokens in one order; which of two comes first is open where both have them within TOLERANCE."""
    order, margin = np.argsort(-one, kind="stable"), TOLERANCE * np.abs(one).max()
    return bool((np.diff(other[order]) <= margin).all())


def compare(dump, kvreplay, work):
    """All comparisons, one after the other."""
    sides = Sides(dump, kvreplay, work)
    for part in (evictions, budgets, channels, token_scores):
        yield from part(sides)
