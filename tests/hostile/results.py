"""Result folders: every kind of file cut, flipped, emptied, replaced, linked, removed; every key and column changed.
Then report, compare, merge, --resume and --force on what is left, with files of somebody else among the results."""

import functools
import json
import random
import shutil

import damage
import samples
from judge import Expect
from trial import Case, undisturbed

S, E = Expect.SAME, Expect.EITHER
SAID = ("result", "part1", "dump")  # every complaint names the folder, or the file in it
JSON_VALUES = {
    "null": "null", "true": "true", "zero": "0", "minus": "-1", "large": "1e308", "int64": "9223372036854775807",
    "uint64-next": "18446744073709551616", "text": '"x"', "escape": '"\\u001b[2J\\n"', "list": "[]", "object": "{}",
    "huge-list": "[1, 1e18]", "deep": "[" * 50000 + "]" * 50000, "megabyte": '"' + "x" * 10**6 + '"'
}


VALUES_A_PLACE = 5  # another choice at each place, for each of the commands


def tables(data: bytes) -> dict:
    """A CSV file with rows, columns and cells that do not belong."""
    lines = data.split(b"\n")
    first = lines[1].split(b",") if len(lines) > 1 else [b""]

    def cell(value, column=-1):
        changed = list(first)
        changed[column] = value
        return b"\n".join([lines[0], b",".join(changed), *lines[2:]])

    made = {
        "no-header": b"\n".join(lines[1:]), "only-header": lines[0] + b"\n", "header-twice": lines[0] + b"\n" + data,
        "row-less": b"\n".join(lines[:1] + lines[2:]), "row-twice": b"\n".join(lines[:2] + lines[1:]),
        "columns-less": b"\n".join(line.rpartition(b",")[0]
                                   for line in lines), "columns-more": b"\n".join(line + b",x" for line in lines),
        "column-named-twice": data.replace(lines[0], lines[0] + b"," + lines[0], 1),
        "carriage": data.replace(b"\n", b"\r\n"), "semicolons": data.replace(b",", b";"), "quote-open": cell(b'"x'),
        "long-cell": cell(b"1" * 10**6), "many-columns": b"a," * 10**5 + data,
        "blank-rows": data.replace(b"\n", b"\n\n"), "bom": b"\xef\xbb\xbf" + data, "no-end": data.rstrip(b"\n")
    }
    for name, value in {
            "empty": b"", "word": b"x", "nan": b"nan", "inf": b"inf", "beyond": b"1e999", "nul": b"\0",
            "negative": b"-5", "escape": b"\x1b[2J", "not-utf8": b"\xff", "up": b"../../../x"
    }.items():
        made |= {f"cell-{name}": cell(value), f"key-{name}": cell(value, 0)}
    return made


def json_paths(value, path=()):
    """Every place in a JSON value."""
    yield path
    below = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, inner in below:
        yield from json_paths(inner, (*path, key))


def json_changes(data: bytes, draw: random.Random) -> dict:
    """A JSON file with each place in turn of some other types, or gone; each is made when it is asked for."""
    made = {"twice": data.rstrip()[:-1] + b', "schema": 1}', "behind": data + b"x", "nul": data + b"\0"}
    for path in json_paths(json.loads(data)):
        name = ".".join(map(str, path)) or "all"
        for key in draw.sample(sorted(JSON_VALUES), VALUES_A_PLACE):
            made[f"{name}-{key}"] = functools.partial(write_json, data, path, JSON_VALUES[key])
        if path:
            made[f"{name}-gone"] = functools.partial(write_json, data, path, None)
    return made


def write_json(data: bytes, place: tuple, text: str | None, file):
    """One place of a JSON value as given, or gone."""
    mark, whole = "\x00here", {"": json.loads(data)}
    inner = functools.reduce(lambda at, key: at[key], ("", *place)[:-1], whole)
    if text is None:
        del inner[place[-1]]
    else:
        inner[("", *place)[-1]] = mark
    file.write_text(json.dumps(whole[""]).replace(json.dumps(mark), text or ""))


def write_table(data: bytes, key: str, file):
    """One of tables()."""
    file.write_bytes(tables(data)[key])


def changes(name: str, files: dict, draw) -> dict:
    """What may stand in the place of a file: bytes, or what makes it."""
    data = files[name] or b"\0"
    made = {"half": data[:len(data) // 2], "empty": b"", "one-less": data[:-1], "one-more": data + b"\n"}
    made |= damage.replacements(data) | damage.STAND_INS
    made |= {f"flip-{i}": damage.flipped(data, draw.randrange(8 * len(data))) for i in range(4)}
    alike = [other for other in files if other != name and files[other] and other.endswith(name[-4:])]
    if alike:
        made["another"] = files[draw.choice(alike)]
    return made


def special_changes(name: str, data: bytes, draw: random.Random) -> dict:
    """What only files of this kind can suffer."""
    made = {f"instead-{key}": instead for key, instead in damage.INSTEAD.get(name[name.rfind("."):], {}).items()}
    if name.endswith(".csv"):
        made |= {key: functools.partial(write_table, data, key) for key in tables(data)}
    elif name.endswith(".json") and data[:1] == b"{":
        made |= json_changes(data, draw)
    return made


def some_of_each_kind(files: dict) -> list:
    """All files of the folder itself, and the first and last of every folder in it."""
    folders = {}
    for name in sorted(files):
        folders.setdefault(name.rpartition("/")[0], []).append(name)
    return [
        name for folder, names in folders.items() for name in (names if folder == "" else sorted({names[0], names[-1]}))
    ]


# What is done with a damaged folder. Each puts everything in its place and returns (arguments, out).

def report(trial, command, files):
    """The page of a folder."""
    trial.put(files, "result")
    return ("report", "result", "--out", "page/index.html", "--quiet"), "page"


def compare(trial, command, files):
    """With the sound folder."""
    trial.put(files, "result")
    trial.put(samples.result(trial.bench, command), "sound")
    return ("compare", "result", "sound", "--out", "compared", "--quiet"), "compared"


def compare_as_second(trial, command, files):
    """The sound folder with this one."""
    trial.put(files, "result")
    trial.put(samples.result(trial.bench, command), "sound")
    return ("compare", "sound", "result", "--html", "page/index.html", "--quiet"), "page"


def resume(trial, command, files):
    """The same command once more."""
    samples.put_dump(trial)
    trial.put(files, "result")
    return (*samples.command_line(command, "result"), "--resume"), "result"


def resume_unfinished(trial, command, files):
    """Of a run that was cut short before its tables."""
    return resume(trial, command, files)


def force(trial, command, files):
    """All anew, in its place."""
    samples.put_dump(trial)
    trial.put(files, "result")
    return (*samples.command_line(command, "result"), "--force"), "result"


def merge(trial, command, files):
    """With the other part, which is sound."""
    samples.put_dump(trial)
    trial.put(files, "part1")
    trial.put(samples.part(trial.bench, command, 2), "part2")
    return ("merge", "part1", "part2", "--out", "result", *samples.QUIET), "result"


VERBS = {verb.__name__: verb for verb in (report, compare, compare_as_second, resume, resume_unfinished, force, merge)}


@functools.lru_cache(maxsize=None)
def sound_setup(command: str, verb: str):
    """What is done with a sound folder; the same function every time, so that what it leads to is computed once."""
    def setup(trial):
        VERBS[verb](trial, command, sound_files(trial.bench, command, verb))
        if verb in ("report", "compare_as_second"):
            (trial.root / "page").mkdir()
    return setup


def sound_files(bench, command: str, verb: str) -> dict:
    """What is damaged."""
    if verb == "resume_unfinished":
        return samples.unfinished(bench, command)
    return samples.part(bench, command, 1) if verb == "merge" else samples.result(bench, command)


def tried(command: str, verb: str, damage_it, expected: Expect, trial):
    """One damaged folder, one thing done with it."""
    files = sound_files(trial.bench, command, verb)
    arguments, out = VERBS[verb](trial, command, files)
    folder = trial.root / ("part1" if verb == "merge" else "result")
    if out == "page":
        (trial.root / "page").mkdir()
    for place in (folder, folder / "layer_00", folder / "maps"):
        if place.is_dir():
            trial.plant(place)
    damage_it(trial, folder)
    want = undisturbed(trial.bench, sound_setup(command, verb), arguments, out)
    trial.expect(expected,
                 *arguments,
                 out=out,
                 want=want,
                 about=SAID)


def put_instead(name: str, what, trial, folder):
    """Bytes, or something made, in a file's place."""
    damage.replace(folder / name, what)


def put_link(name: str, trial, folder):
    """The file is a link to somebody else's."""
    damage.replace(folder / name, damage.link_to(trial.root / "canary.npy"))


def link_to_copy(name: str, trial, folder):
    """The same bytes, but elsewhere: they are somebody else's."""
    copy = trial.root / "canary_copy"
    copy.write_bytes((folder / name).read_bytes())
    trial.planted[copy] = copy.read_bytes()
    damage.replace(folder / name, damage.link_to(copy))


def lose_folder(name: str, trial, folder):
    """A folder of the results is gone, and with it what somebody put there."""
    shutil.rmtree(folder / name)
    trial.planted = {path: data for path, data in trial.planted.items() if folder / name not in path.parents}


def folder_elsewhere(name: str, trial, folder):
    """A folder of the results has been moved away; a link stands in its place."""
    (folder / name).rename(trial.root / "canary_moved")
    (folder / name).symlink_to(trial.root / "canary_moved")
    trial.guard(trial.root / "canary_moved")


def file_for_folder(name: str, trial, folder):
    """A file where a folder should be."""
    lose_folder(name, trial, folder)
    (folder / name).write_text("not a folder")


def without_damage(trial, folder):
    """Only somebody else's files among the results."""


def cases(bench) -> list:
    """All of the family."""
    made = {}
    for command in samples.RESULTS:
        for verb in VERBS:
            files = sound_files(bench, command, verb)
            draw = random.Random(f"{bench.seed}/{command}/{verb}")

            def add(name, act, expected=S):
                made[f"{command}/{verb}/{name}"] = functools.partial(tried, command, verb, act, expected)

            for name in some_of_each_kind(files):
                if files[name] is None:
                    continue  # an empty folder
                # How a run went is not part of its results, and nothing can hold a checksum of itself.
                unchecked = name in ("run.json", "summary.json") and verb not in ("force", "merge")
                tries = changes(name, files, draw)
                if command in ("evict", "tokens") and verb != "compare_as_second":
                    tries |= special_changes(name, files[name], draw)
                # A link in the work folder is not the program's: it stays, and the folder with it.
                stays = name.startswith(".kvreplay/")
                for key, what in tries.items():
                    expected = E if unchecked or stays and key.startswith("link-to") else S
                    add(f"{name}/{key}", functools.partial(put_instead, name, what), expected)
                add(f"{name}/link", functools.partial(put_link, name), E if unchecked or stays else S)
                # What is finished already may be read through links; these are not results of its own then.
                stays = stays or verb == "resume" and name in ("files.csv", "summary.json")
                add(f"{name}/link-to-copy", functools.partial(link_to_copy, name), E if stays else S)
            for name in sorted({name.split("/")[0] for name in files if "/" in name}):
                for act in lose_folder, folder_elsewhere, file_for_folder:
                    add(f"{name}/{act.__name__}", functools.partial(act, name))
            add("sound", without_damage, Expect.ACCEPTED)
    return [Case(f"results/{name}", act) for name, act in made.items()]
