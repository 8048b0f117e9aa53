"""Arrays of any framework, as the extension reads them, and the reasons where it cannot."""
from __future__ import annotations

import sys
from typing import Any, NoReturn, Sequence, Tuple

import numpy as np

from . import _core

READABLE = "?bBhHiIlLqQefdFD"  # codes of NumPy's numbers of up to 64 bits
HOST = (1, 3, 11)  # device types of DLPack: the CPU, and memory that a GPU's driver pinned


def on_host(name: str, array: Any) -> Any:
    """The array, or its copy in the host's memory if it is on a device and this build computes on GPUs."""
    device = array.__dlpack_device__() if hasattr(array, "__dlpack_device__") else (HOST[0], 0)
    if device[0] in HOST:
        return array
    found = f"one on device {int(device[0])}:{device[1]}"
    if why := _core.why_no_cuda():
        raise _core.InputError(f"{name}: expected an array in the host's memory, found {found}, and {why}")
    copy = getattr(array, "cpu", getattr(array, "get", None))  # torch's, CuPy's
    if copy is None:
        raise _core.InputError(f"{name}: expected an array with cpu() or get(), which copy it to the host, found {found}")
    return copy()


def in_place(name: str, array: Any) -> Tuple[np.ndarray, bool]:
    """Any array as NumPy's, without a copy of host memory. True: its 16-bit integers are bits of bfloat16. Rejects what neither
    NumPy, DLPack nor the buffer protocol exports."""
    if type(array) is np.ndarray and array.dtype.char in READABLE and array.dtype.isnative:
        return array, False
    if hasattr(array, "mask") and hasattr(array, "filled") and array.mask.any():
        raise _core.InputError(f"{name}: expected an array without masked entries, found some")
    array = on_host(name, array)
    array = array.detach() if hasattr(array, "detach") else array
    dtype = getattr(array, "dtype", None)
    is_bfloat = str(getattr(dtype, "name", dtype)).endswith("bfloat16")
    try:
        if is_bfloat:
            torch = sys.modules.get("torch")
            array = array.view(torch.int16 if torch and isinstance(array, torch.Tensor) else "uint16")
        found = (np.asarray(array) if isinstance(array, np.ndarray) or hasattr(array, "__array__") else
                 np.from_dlpack(array) if hasattr(array, "__dlpack__") else np.asarray(memoryview(array)))
    except (TypeError, ValueError, RuntimeError, BufferError):
        refuse(name, array)
    if found.dtype.char not in READABLE or not found.dtype.isnative:
        refuse(name, array)
    return found, is_bfloat


def refuse(name: str, array: Any) -> NoReturn:
    """Raises the reason why an array cannot be read, and how NumPy makes it readable."""
    dtype = getattr(array, "dtype", None)
    found = type(array).__name__ + ("" if dtype is None else f" of {dtype}")
    if getattr(dtype, "names", None) is not None:
        found += f", structured with fields {dtype.names} (take one of them)"
    elif getattr(dtype, "byteorder", "") == ">":
        found += ", big-endian (x.astype(x.dtype.newbyteorder('=')) swaps its bytes)"
    elif apart := [stride for stride in getattr(array, "strides", ()) if hasattr(dtype, "byteorder") and stride % dtype.itemsize]:
        found += f", packed: numbers of {dtype.itemsize} bytes stand {apart[0]} apart (np.ascontiguousarray(x) gathers them)"
    raise _core.InputError(f"{name}: expected an array: NumPy's, torch's or any with DLPack or the buffer protocol, found {found}")


def tensor(name: str, array: Any) -> Tuple[np.ndarray, bool]:
    """A tensor of a layer, as in_place() has it."""
    found, is_bfloat = in_place(name, array)
    if found.dtype.char not in "efd" and not is_bfloat:
        raise _core.InputError(f"{name}: expected float16, bfloat16, float32 or float64 numbers, found {found.dtype}")
    return found, is_bfloat


def as_numpy(name: str, array: Any) -> np.ndarray:
    """Any array as NumPy's; bfloat16 becomes float32."""
    found, is_bfloat = in_place(name, array)
    return (found.view(np.uint16).astype(np.uint32) << 16).view(np.float32) if is_bfloat else found


def require_shape(name: str, found: np.ndarray, shape: Sequence[int]) -> None:
    """shape: -1 stands for any extent but 0."""
    if len(shape) != found.ndim or any(size != extent if extent >= 0 else not size for size, extent in zip(found.shape, shape)):
        wanted = ", ".join("n" if extent < 0 else str(extent) for extent in shape)
        raise _core.InputError(f"{name}: expected shape [{wanted}], found shape {list(found.shape)}")


def numbers(name: str, array: Any, shape: Sequence[int], finite: bool = True) -> np.ndarray:
    """Real numbers in float64 and C order. Rejects NaN and infinity unless `finite` is False, and integers that no float64 equals."""
    given = as_numpy(name, array)
    require_shape(name, given, shape)
    if given.dtype.kind not in "iuf":
        raise _core.InputError(f"{name}: expected real numbers, found {given.dtype}")
    found = np.ascontiguousarray(given, np.float64)
    if given.dtype.kind != "f":
        for one in given[np.abs(found) >= 2**53]:
            if int(float(one)) != int(one):
                raise _core.InputError(f"{name}: expected integers that float64 tells apart, as all up to 2^53, found {one}")
    elif finite and not np.isfinite(found).all():
        place = int(np.flatnonzero(~np.isfinite(found))[0])
        raise _core.InputError(f"{name}: expected finite values, found {found.flat[place]} at place {place}")
    return found


def booleans(name: str, array: Any, shape: Sequence[int]) -> np.ndarray:
    """Booleans in C order."""
    found = as_numpy(name, array)
    if found.dtype.kind != "b":
        raise _core.InputError(f"{name}: expected booleans, found {found.dtype}")
    require_shape(name, found, shape)
    return np.ascontiguousarray(found)
