#!/usr/bin/env python3
"""make_corpus.py FOLDER: the fuzzers' seeds of arrays, archives and manifests: sound ones, and the broken ones of
tests/hostile/broken_inputs.json.

Needs nothing but the standard library. What fuzzers found lies in corpus/ beside this script.
"""

import io
import pathlib
import struct
import sys
import zipfile

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "hostile"))

from damage import broken  # noqa: E402


def npy(descr="<f4", shape=(2, 3), order=False, version=1, data=None):
    count = 1
    for extent in shape:
        count *= extent
    if data is None:
        data = bytes(range(count * int(descr[2:])))
    text = str({"descr": descr, "fortran_order": order, "shape": shape}) + "\n"
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text.encode() + data


def npz(members, compression, zip64=False):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in members.items():
            info = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
            info.compress_type = compression
            with archive.open(info, "w", force_zip64=zip64) as member:
                member.write(data)
    return buffer.getvalue()


good = npy()
NPY = {
    "f2": npy("<f2"),
    "f2_big": npy(">f2"),
    "f4_fortran": npy("<f4", order=True),
    "f8_v2": npy("<f8", version=2),
    "f8_big_v3": npy(">f8", version=3),
    "bf16": npy("|V2"),
    "u2": npy("<u2"),
    "one_axis": npy(shape=(5,)),
    "no_axis": npy(shape=()),
    "nan": npy(data=b"\x00\x00\xc0\x7f" * 6),
    "python2": good.replace(b"(2, 3)}", b"(2L,3)}"),
    "header_only": good[:-24],
}
arrays = {"q.npy": good, "layer_0_k.npy": npy("<f2")}
large = {"q.npy": npy("<f4", (200, 100), data=bytes(80000))}
deflated = npz(arrays, zipfile.ZIP_DEFLATED)
NPZ = {
    "stored": npz(arrays, zipfile.ZIP_STORED),
    "deflated": deflated,
    "zip64": npz(arrays, zipfile.ZIP_STORED, zip64=True),
    "large_deflated": npz(large, zipfile.ZIP_DEFLATED),
    "no_members": npz({}, zipfile.ZIP_STORED),
    "no_array": npz({"readme.txt": b"text"}, zipfile.ZIP_STORED),
    "truncated": deflated[: len(deflated) // 2],
    "damaged": deflated.replace(b"PK\x03\x04", b"PK\x03\x05", 1),
    "empty": b"",
}
MANIFEST = {
    "all_keys": b"""{"model": "m", "prompt_len": 3, "scale": 0.5, "causal": true, "sliding_window": [null, 2],
 "logit_softcap": 50.0, "sink_logit": [[0, 1, 2, 3], null], "dtype": "bfloat16", "n_layers": 2, "n_q_heads": 4,
 "n_kv_heads": 2, "head_dim": 8, "total_len": 4, "rope": {"style": "half", "theta": 10000.0, "rotary_dim": 4,
 "attention_factor": 1.5, "scaling": {"rope_type": "default"}}}""",
    "inv_freq": b'{"rope": {"style": "interleaved", "inv_freq": [1, 0.5, 0.25]}}',
    "inv_freq_per_layer": b'{"rope": {"style": "half", "inv_freq": [[1, 0.5], [0.25, 0]]}}',
    "scaled": b'{"rope": {"style": "half", "theta": 5, "scaling": {"rope_type": "yarn", "factor": 4}}}',
    "nulls": b'{"prompt_len": null, "rope": null, "sink_logit": null}',
    "too_large": b'{"prompt_len": 18446744073709551615, "scale": 1e308}',
    "tokens": '{"ids": [1, -2, 3, 4], "text": ["a", "\u00e9", "\\u0000", ""]}'.encode(),
    "tokens_short": b'{"ids": [1], "text": [1, 2, 3, 4]}',
    "nested": b"[" * 200,
}

NPY |= {f"broken_{number}": data for number, (data, _) in enumerate(broken("npy").values())}
NPZ |= {f"npy_{name}": npz({"q.npy": data}, zipfile.ZIP_STORED) for name, data in NPY.items()}
MANIFEST |= {f"broken_{number}": data for number, (data, _) in enumerate(broken("manifest").values())}

for kind, seeds in {"npy": NPY, "npz": NPZ, "manifest": MANIFEST}.items():
    folder = pathlib.Path(sys.argv[1]) / kind
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in seeds.items():
        (folder / name).write_bytes(data)
