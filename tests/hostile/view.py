"""The dashboard: damaged dumps, results and sessions, its options, and files that change while it opens them. Its
pictures, drawn without a display, are those of sound files, or there is one line and no picture."""

import functools
import json
import random
import resource
import subprocess
import sys
import time

import arrays
import damage
import kills
import limits
import manifests
import options
import results
import samples
import tree
from judge import Expect, Verdict
from process import Conditions
from trial import Case, undisturbed

S, R, E = Expect.SAME, Expect.REFUSED, Expect.EITHER
PICTURE = "out/picture.png"
LOOK = ("--screenshot", PICTURE, "--size", "480x320", "--threads", "1")
PANELS = {"tokens": ("heads", "tokens"), "evict": ("what-if", "decode"), "budget": ("budgets",),
          "channels": ("channels",)}
ABOUT = ("dump", "result", "layer ", "--", "session.json", "picture.png", "PATH", "argument", "cannot be written")
CHANGES = 8  # of those that any file can suffer, another choice for each file
ALWAYS = ("pipe", "enormous", "link-to-zero", "removed", "folder")
SESSION = {
    "version": 1, "runs": ["dump"], "scores": [], "theme": "light", "text_size": 13.0, "ranges_locked": True,
    "joint_zoom": False, "window": {"width": 480, "height": 320},
    "selection": {"run": 0, "layer": 1, "kv_head": 1, "query_head": 2, "row": 41, "token": 3, "channels": [0, 1],
                  "tokens": [1, 2]},
    "layout": {"maximised": None, "root": {"bar": "vertical", "share": 0.5, "parts": [
        {"front": "tokens", "panels": ["heads", "tokens", "channels", "scatter", "curves"]},
        {"front": "what-if", "panels": ["what-if", "budgets", "decode", "inspector", "jobs"]}]}},
    "cameras": {"tokens": {"x": {"start": 0.0, "cells_per_pixel": 0.1}, "y": {"start": 0.0, "cells_per_pixel": 0.1}}},
    "settings": {"show-b": True, "budget-line": 0.3, "comparison": {"window": 8}}, "panels": {"heads": {"map": "x"}}
}


def put_dump(trial):
    """The dump, and a folder for the picture."""
    samples.put_dump(trial)
    (trial.root / "out").mkdir()


def put_plain(trial):
    """The same with the manifest of the family of manifests."""
    manifests.put_plain(trial)
    (trial.root / "out").mkdir()


@functools.lru_cache(maxsize=None)
def result_setup(command: str):
    """The dump and results of it."""
    def setup(trial):
        put_dump(trial)
        trial.put(samples.result(trial.bench, command), "result")
    return setup


def put_session(trial):
    """The dump and a session that shows it."""
    put_dump(trial)
    (trial.root / "session.json").write_text(json.dumps(SESSION))


def judged(trial, expected: Expect, words: tuple, setup=None, conditions=None):
    """Whether there is the picture of what setup puts there, or one line and none."""
    arguments = ("view", *words)
    want = undisturbed(trial.bench, setup, arguments, "out") if setup else None
    outcome = trial.expect(expected, *arguments, out="out", want=want, about=ABOUT, conditions=conditions)
    drawn = PICTURE in {f"out/{name}" for name in tree.names(trial.root / "out")}
    if drawn and outcome.status != 0:
        trial.note(Verdict.WRONG, "a picture, although the run failed")
    if not drawn and outcome.status == 0 and words[-len(LOOK):] == LOOK:
        trial.note(Verdict.WRONG, "no picture")


def damaged(setup, path: str, what, expected: Expect, words: tuple, trial):
    """One file is another, in bytes or by what makes it."""
    setup(trial)
    damage.replace(trial.root / path, what)
    judged(trial, expected, words, setup)


def of_dump(bench) -> dict:
    """Arrays, manifest and labels; what the dashboard refuses is what info refuses."""
    made, files = {}, samples.dump(bench)
    for path in "layer_00/q.npy", "layer_01/k.npy", "layer_00/v.npy":
        data, draw = files[path], random.Random(f"{bench.seed}/view/{path}")
        tries = arrays.contents(path, data, draw)
        for key in draw.sample(sorted(tries), 40):
            made[f"{path}/{key}"] = (damaged, put_dump, f"dump/{path}", tries[key],
                                     arrays.expectation(data, tries[key], False), ("dump", *LOOK))
        for key, what in damage.STAND_INS.items():
            made[f"{path}/{key}"] = (damaged, put_dump, f"dump/{path}", what, R, ("dump", *LOOK))
    for file, contents in ("manifest.json", manifests.wholes()), ("tokens.json", manifests.labels()):
        for key, (data, expected) in contents.items():
            made[f"{file}/{key}"] = (damaged, put_plain, f"dump/{file}", data, expected, ("dump", *LOOK))
        for key, what in damage.STAND_INS.items():
            made[f"{file}/{key}-instead"] = (damaged, put_plain, f"dump/{file}", what, E if key == "removed" else R,
                                             ("dump", *LOOK))
    for key, text in (manifests.TEXTS | manifests.WRONG).items():
        data = manifests.encoded(manifests.manifest(model=text))
        may = key in manifests.MAY_BE["model"]
        made[f"model/{key}"] = (damaged, put_plain, "dump/manifest.json", data, E if may else R, ("dump", *LOOK))
    return made


def of_results(bench) -> dict:
    """Every kind of file of the results that a panel shows."""
    made = {}
    for command, panels in PANELS.items():
        files = samples.result(bench, command)
        draw = random.Random(f"{bench.seed}/view/{command}")
        for name in results.some_of_each_kind(files):
            if files[name] is None:
                continue
            tries = results.changes(name, files, draw)
            chosen = {*draw.sample(sorted(tries), CHANGES), *ALWAYS}
            special = results.special_changes(name, files[name], draw)
            tries |= special
            chosen |= set(draw.sample(sorted(special), min(len(special), 2 * CHANGES)))
            # How a run went is not shown, and nothing can hold a checksum of itself.
            expected = E if name in ("run.json", "summary.json") else S
            for key in sorted(chosen):
                words = ("result", "--panel", draw.choice(panels), *LOOK)
                made[f"{command}/{name}/{key}"] = (damaged, result_setup(command), f"result/{name}", tries[key],
                                                   expected, words)
        for panel in panels:
            words = ("result", "--panel", panel, *LOOK)
            made[f"{command}/sound-{panel}"] = (sound, result_setup(command), words)
            made[f"{command}/without-dump-{panel}"] = (without_dump, result_setup(command), words)
    return made


def sound(setup, words: tuple, trial):
    """Nothing is wrong."""
    setup(trial)
    judged(trial, Expect.ACCEPTED, words, setup)


def without_dump(setup, words: tuple, trial):
    """Results are complete without the dump that they are of."""
    setup(trial)
    (trial.root / "dump").rename(trial.root / "elsewhere")
    judged(trial, Expect.ACCEPTED, words)


def of_sessions(bench) -> dict:
    """Every key of a session; a file that is none is refused where the user names it: it would be replaced."""
    data = json.dumps(SESSION).encode()
    draw = random.Random(f"{bench.seed}/view/session")
    words = ("--session", "session.json", *LOOK)  # it names the dump
    tries = {key: (what, E) for key, what in results.json_changes(data, draw).items()}
    tries |= {f"scores-{i}": (json.dumps(SESSION | {"scores": scores}).encode(), E)
              for i, scores in enumerate((["="], ["a"], ["=x"], ["a="], ["a=/dev/zero"], ["\x1b[2J=x"],
                                          ["a=b"] * 10000))}
    tries |= {f"runs-{i}": (json.dumps(SESSION | {"runs": runs}).encode(), E)
              for i, runs in enumerate(([""], ["/"], ["/dev/zero"], ["dump"] * 40, ["\x1b[2J"], ["x" * 10**5], []))}
    tries |= {key: (what, R) for key, what in damage.replacements(data).items()}
    tries |= {f"{key}-instead": (what, R) for key, what in damage.STAND_INS.items()}
    tries["sound"] = (data, Expect.ACCEPTED)
    return {key: (with_session, what, expected, words) for key, (what, expected) in tries.items()}


def with_session(what, expected: Expect, words: tuple, trial):
    """A session that is another; it is read and never written."""
    put_session(trial)
    damage.replace(trial.root / "session.json", what)
    before = tree.digest(trial.root, ("out",))
    judged(trial, expected, words)
    if where := tree.difference(tree.digest(trial.root, ("out", PICTURE)), before):
        trial.note(Verdict.WRONG, f"{where} after a picture of a session")


def of_options(bench) -> dict:
    """Every option by the values of the family of options."""
    made = {}
    for name, takes in options.options_of(bench, "view"):
        if name in ("--help", "--version"):
            continue
        for key, value in options.VALUES.items() if takes else ():
            made[f"{name[2:]}/{key}"] = (with_option, (name, value))
        key, words = ("missing", (name,)) if takes else ("twice", (name, name))
        made[f"{name[2:]}/{key}"] = (with_option, words)
        made[f"{name[2:]}/glued"] = (with_option, (name.encode() + b"=\x1b[2J",))
    for key, value in options.VALUES.items():
        made[f"path/{key}"] = (with_path, value)
    return made


def with_option(words: tuple, trial):
    """One option as given, once."""
    put_dump(trial)
    trial.guard(trial.root / "dump")
    asked = options.in_place_of(("dump", *LOOK), words[0], words)
    judged(trial, R if words[-1:] == (b"",) else E, asked)


def with_path(value: bytes, trial):
    """Another path, before a sound one."""
    put_dump(trial)
    judged(trial, E, (value, "dump", *LOOK))


def while_open(kind: str, change, trial):
    """A file changes at a random moment: the picture is that of before or of after, or there is one line."""
    setup = result_setup("evict") if kind == "result" else put_dump
    setup(trial)
    delay = trial.random.random() * kills.duration(trial.bench, ("view", kind, *LOOK), setup)

    def meanwhile(_):
        time.sleep(delay)
        change(trial, trial.root / kind)

    judged(trial, E, (kind, *LOOK), conditions=Conditions(meanwhile=meanwhile))


def surrounded(conditions: Conditions, trial):
    """A sound dump, seen in poor conditions. Fonts are not ours: without them the picture is another."""
    put_dump(trial)
    expected = E if resource.RLIMIT_NOFILE in conditions.limits else S
    judged(trial, expected, ("dump", *LOOK), put_dump, conditions)


def drawn_onto(target: str, trial):
    """Something else than a new file in a folder takes the picture."""
    put_dump(trial)
    trial.guard(trial.root / "dump")
    expected = E if target in ("/dev/null", "nothing/here.png") else R
    judged(trial, expected, ("dump", "--screenshot", target, *LOOK[2:]))


def of_surroundings() -> dict:
    """Files that change while they are opened, limits, standard streams, and places for the picture."""
    made = {}
    files = {"result": ("decode.csv", "heads.csv", "summary.json", "files.csv"),
             "dump": ("layer_00/q.npy", "layer_01/k.npy", "manifest.json", "tokens.json")}
    for kind, path in ((kind, path) for kind, paths in files.items() for path in paths):
        for i in range(8):
            made[f"shrink-{kind}/{path}-{i}"] = (while_open, kind, kills.shrink(path, (0, 0.5)[i % 2]))
    for key, (closed, instead) in limits.STREAMS.items():
        if "unread" not in key:
            made[f"streams/{key}"] = (surrounded, Conditions(closed=closed, streams=instead))
    for most in 0, 1, 100, 1000:
        made[f"file-{most}"] = (surrounded, Conditions(limits={resource.RLIMIT_FSIZE: most}, errors_by_pipe=True))
    for most in 4, 6, 8, 12, 16, 24:
        made[f"descriptors-{most}"] = (surrounded, Conditions(limits={resource.RLIMIT_NOFILE: most}))
    for target in "/dev/full", "/dev/null", "out", "nothing/here.png", "dump/manifest.json/x", "x" * 300:
        made[f"onto/{target.replace('/', '_')[:20]}"] = (drawn_onto, target)
    return made


def cases(bench) -> list:
    """All of the family; none where the dashboard was not built."""
    seen = subprocess.run([bench.program, "view", "--version"], capture_output=True, check=False)
    if seen.returncode != 0:
        print("view: skipped: " + seen.stderr.decode().strip(), file=sys.stderr)
        return []
    groups = {"dump": of_dump(bench), "results": of_results(bench), "session": of_sessions(bench),
              "options": of_options(bench), "around": of_surroundings()}
    return [Case(f"view/{group}/{name}", functools.partial(*act))
            for group, made in groups.items() for name, act in made.items()]
