"""Archives of arrays: every field of both of zip's headers by extreme, damaged members, names, sizes. Python's zipfile
gives the second opinion."""

import functools
import io
import random
import struct
import zipfile
import zlib

import damage
import npy
import samples
from judge import Expect
from trial import Case, undisturbed

INFO = ("info", "dump", "--values", "--json")
TOKENS = samples.command_line("tokens", "out")
LOCAL, CENTRAL, END = b"PK\3\4", b"PK\1\2", b"PK\5\6"
# field -> (offset, struct letter), as in APPNOTE 4.3.7, 4.3.12 and 4.3.16
LOCAL_FIELDS = {"signature": (0, "I"), "version": (4, "H"), "flags": (6, "H"), "method": (8, "H"), "crc": (14, "I"),
                "packed": (18, "I"), "size": (22, "I"), "name-length": (26, "H"), "extra-length": (28, "H")}
CENTRAL_FIELDS = {"signature": (0, "I"), "version": (6, "H"), "flags": (8, "H"), "method": (10, "H"), "crc": (16, "I"),
                  "packed": (20, "I"), "size": (24, "I"), "name-length": (28, "H"), "extra-length": (30, "H"),
                  "comment-length": (32, "H"), "disk": (34, "H"), "attributes": (38, "I"), "offset": (42, "I")}
END_FIELDS = {"disk": (4, "H"), "directory-disk": (6, "H"), "entries-here": (8, "H"), "entries": (10, "H"),
              "directory-size": (12, "I"), "directory-offset": (16, "I"), "comment-length": (20, "H")}


def members(dump: dict, layer=0) -> dict:
    """Names in an archive of one layer -> contents."""
    folder = f"layer_{layer:02}/"
    return {name.removeprefix(folder): data for name, data in dump.items() if name.startswith(folder)}


def archive(contents: dict, method=zipfile.ZIP_STORED) -> bytes:
    """A sound archive, the same bytes every time."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        for name, data in contents.items():
            file.writestr(zipfile.ZipInfo(name), data, method)
    return buffer.getvalue()


def positions(data: bytes, signature: bytes) -> list:
    """Where headers of a kind begin."""
    found, at = [], data.find(signature)
    while at >= 0:
        found.append(at)
        at = data.find(signature, at + 4)
    return found


def field_changes(data: bytes) -> dict:
    """Every field of the first and last header of each kind at its extremes."""
    made = {}
    kinds = {"local": (LOCAL, LOCAL_FIELDS), "central": (CENTRAL, CENTRAL_FIELDS), "end": (END, END_FIELDS)}
    for kind, (signature, fields) in kinds.items():
        found = positions(data, signature)
        for which, start in {"first": found[0], "last": found[-1]}.items():
            for field, (offset, letter) in fields.items():
                true = struct.unpack_from(f"<{letter}", data, start + offset)[0]
                most = (1 << 8 * struct.calcsize(letter)) - 1
                for value in sorted({0, 1, 8, true + 1, true - 1 if true else 2, most, most - 1, most // 2} - {true}):
                    changed = bytearray(data)
                    struct.pack_into(f"<{letter}", changed, start + offset, value & most)
                    made[f"{kind}-{which}-{field}-{value}"] = bytes(changed)
    return made


def raw_member(name: bytes, data: bytes, crc=None, method=0, packed=None, flags=0, size=None) -> tuple:
    """(local header and data, central header without offset) with whatever is given."""
    packed = data if packed is None else packed
    crc = zlib.crc32(data) if crc is None else crc
    size = len(data) if size is None else size
    local = struct.pack("<4sHHHHHIIIHH", LOCAL, 20, flags, method, 0, 33, crc, len(packed), size, len(name), 0)
    central = struct.pack("<4sHHHHHHIIIHHHHHI", CENTRAL, 20, 20, flags, method, 0, 33, crc, len(packed), size,
                          len(name), 0, 0, 0, 0, 0)
    return local + name + packed, central, name


def raw_archive(parts: list) -> bytes:
    """An archive of raw_member()s."""
    body, directory = b"", b""
    for local, central, name in parts:
        directory += central + struct.pack("<I", len(body)) + name
        body += local
    return body + directory + struct.pack("<4sHHHHIIH", END, 0, 0, len(parts), len(parts), len(directory), len(body), 0)


def deflated_zeros(head: bytes, mebibytes: int) -> tuple:
    """(a deflate stream of head and zeros, the size of what comes out): the same block again and again."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    begin = deflate.compress(head) + deflate.flush(zlib.Z_FULL_FLUSH)
    block = deflate.compress(bytes(1 << 20)) + deflate.flush(zlib.Z_FULL_FLUSH)
    return begin + block * mebibytes + deflate.flush(), len(head) + (mebibytes << 20)


def shaped(contents: dict) -> dict:
    """Whole archives of unusual members."""
    sound = [raw_member(name.encode(), data) for name, data in contents.items()]
    q = contents["q.npy"]
    head = npy.file(npy.header(shape="(4, 48, 8)"), b"")
    bomb, unpacked = deflated_zeros(head, 1500)
    names = {
        "up": b"../q.npy", "root": b"/q.npy", "bare": b"q", "empty": b"", "nul": b"q\0.npy", "escape": b"\x1b[2Jq.npy",
        "line": b"q\n.npy", "not-utf8": b"\xff\xfe.npy", "long": b"q" * 65535, "folder": b"q.npy/", "upper": b"Q.NPY",
        "layer": b"layer_00/q.npy", "layer-7": b"layer_07/q.npy", "backslash": b"layer_00\\q.npy"
    }
    made = {f"name-{key}": raw_archive([raw_member(name, q), *sound[1:]]) for key, name in names.items()}
    made |= {f"also-{key}": raw_archive([*sound, raw_member(name, q)]) for key, name in names.items()}
    made |= {"twice": raw_archive([*sound, sound[0]]), "none": raw_archive([]), "one": raw_archive(sound[:1]),
             "crc": raw_archive([raw_member(b"q.npy", q, crc=1), *sound[1:]]),
             "bomb": raw_archive([raw_member(b"q.npy", head, method=8, packed=bomb, size=unpacked), *sound[1:]]),
             "bomb-beside": raw_archive([*sound, raw_member(b"zeros.npy", head, method=8, packed=bomb, size=unpacked)]),
             "same-place": raw_archive(sound) + b"tail", "before": b"#!/bin/sh\n" + raw_archive(sound),
             "many": raw_archive(sound + [raw_member(b"x%d.npy" % i, b"") for i in range(3000)]),
             "deflated-not": raw_archive([raw_member(b"q.npy", q, method=8, packed=q), *sound[1:]]),
             "encrypted": raw_archive([raw_member(b"q.npy", q, flags=1), *sound[1:]]),
             "streamed": raw_archive([raw_member(b"q.npy", q, flags=8), *sound[1:]])}
    return made | {f"method-{m}": raw_archive([raw_member(b"q.npy", q, method=m), *sound[1:]])
                   for m in (1, 6, 9, 12, 14, 93, 95, 99, 65535)}


def contents(dump: dict, draw: random.Random) -> dict:
    """name -> damaged archive of layer 0."""
    plain = members(dump)
    made = {}
    for method, name in (zipfile.ZIP_STORED, "stored"), (zipfile.ZIP_DEFLATED, "deflated"):
        sound = archive(plain, method)
        tries = {"sound": sound} | field_changes(sound)
        tries |= damage.cuts(sound) | damage.growths(sound) | damage.replacements(sound)
        tries |= {f"cut-back-{n}": sound[:-n] for n in (2, 20, 21, 22, 23, 60, 200, 400)}
        tries |= {f"flip-{i}": damage.flipped(sound, draw.randrange(8 * len(sound))) for i in range(120)}
        member_shapes = npy.header(shape=f"({2**62}, 4, 8)"), npy.header(shape="(4, 48, 9)"), npy.header(descr="'|O'")
        tries |= {f"member-{i}": archive(plain | {"q.npy": npy.file(text, b"x" * 6144)}, method)
                  for i, text in enumerate(member_shapes)}
        tries |= {
            f"member-cut-{n}": archive(plain | {"q.npy": plain["q.npy"][:n]}, method) for n in (0, 9, 100, 128, 5000)
        }
        made |= {f"{name}-{key}": value for key, value in tries.items()}
    return made | {f"raw-{key}": value for key, value in shaped(plain).items()}


def reading(data: bytes):
    """Member -> reading, by zipfile; an exception where it refuses."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            return {info.filename: npy.read(file.read(info)) if info.file_size < 1 << 20 else None
                    for info in file.infolist()}
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError, ValueError, OSError,
            struct.error, OverflowError) as error:
        return error


def expectation(changed: bytes, sound: dict) -> Expect:
    """zipfile reads less strictly than some and more than others: what it refuses may be read if the results are the
    same, but no data whose checksum is wrong."""
    found = reading(changed)
    if isinstance(found, Exception):
        return Expect.REFUSED if "CRC" in str(found) or isinstance(found, zlib.error) else Expect.SAME
    if found.keys() > sound.keys():
        return Expect.EITHER  # members that are ignored are noted
    return Expect.SAME if found == sound or None in found.values() else Expect.EITHER


def put_archive(trial, data: bytes):
    """The dump, layer 0 of which is an archive."""
    files = samples.dump(trial.bench)
    trial.put({name: value for name, value in files.items() if not name.startswith("layer_00/")}, "dump")
    (trial.root / "dump/layer_00.npz").write_bytes(data)


def put_sound(trial):
    """What every case is a damaged form of."""
    put_archive(trial, archive(members(samples.dump(trial.bench))))


def with_contents(data: bytes, arguments: tuple, trial):
    """Layer 0 from a damaged archive."""
    put_archive(trial, data)
    trial.guard(trial.root / "dump")
    out = "out" if "out" in arguments else None
    sound = {name: npy.read(value) for name, value in members(samples.dump(trial.bench)).items()}
    want = undisturbed(trial.bench, put_sound, arguments, out)
    expected = expectation(data, sound)
    if expected is Expect.REFUSED and out and any(name in ("wo.npy", "o.npy") for name in damaged_members(data)):
        expected = Expect.SAME  # which this command does not read
    trial.expect(expected, *arguments, out=out, want=want, about=("layer_00", "layer 0", "dump"))


def damaged_members(data: bytes) -> list:
    """Those that zipfile cannot read."""
    bad = []
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        for info in file.infolist():
            try:
                file.read(info)
            except (zipfile.BadZipFile, zlib.error, EOFError):
                bad.append(info.filename)
    return bad


def with_stand_in(name: str, arguments: tuple, trial):
    """Something else in the archive's place."""
    put_sound(trial)
    damage.replace(trial.root / "dump/layer_00.npz", damage.STAND_INS[name])
    trial.expect(Expect.REFUSED,
                 *arguments,
                 out="out" if "out" in arguments else None,
                 about=("layer_00", "layer 0", "dump"))


def named_like_an_archive(name: str, trial):
    """A folder is a folder, whatever it is called."""
    trial.put(samples.dump(trial.bench), name)
    trial.expect(Expect.ACCEPTED, "info", name, about=(name,))


def cases(bench) -> list:
    """All of the family."""
    made = []
    changes = contents(samples.dump(bench), random.Random(f"{bench.seed}/archives"))
    for verb, arguments in ("info", INFO), ("tokens", TOKENS):
        tries = {name: functools.partial(with_contents, data, arguments) for name, data in changes.items()}
        tries |= {name: functools.partial(with_stand_in, name, arguments) for name in damage.STAND_INS}
        made += [Case(f"archives/{verb}/{name}", act) for name, act in tries.items()]
    names = ("x.npz", "a.npz.d", "x.npz-run", "my.npzfolder")
    return made + [Case(f"archives/folder/{name}", functools.partial(named_like_an_archive, name)) for name in names]
