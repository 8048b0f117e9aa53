"""Arrays of any kind: as the extension reads them, and the reasons where it cannot."""
from __future__ import annotations

from typing import Any, Iterator, Sequence, Tuple

import numpy as np

from . import _core

READABLE = "?bBhHiIlLqQefdFD"  # codes of NumPy's numbers of up to 64 bits
HOST = (1, 3, 11)  # device types of DLPack: the CPU, and memory that a GPU's driver pinned


def require_unmasked(name: str, array: Any) -> None:
    if array.mask.any():
        raise _core.InputError(f"{name}: expected an array without masked entries, found some")


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


def readable_forms(name: str, array: Any) -> Iterator[Tuple[Any, bool]]:
    """Forms of an array to try in turn, each with True if its 16-bit integers are bits of bfloat16. Ends with an InputError."""
    array = on_host(name, array)
    yield array, False
    if hasattr(array, "view") and getattr(getattr(array, "dtype", None), "name", "") == "bfloat16":  # of ml_dtypes
        yield array.view("uint16"), True
    if hasattr(array, "detach"):  # a tensor with gradients is not exported
        yield array.detach(), False
    raise _core.InputError(f"{name}: expected an array: NumPy's, torch's or any with DLPack or the buffer protocol, found {unreadable(array)}")


def unreadable(array: Any) -> str:
    """Describes an array that neither protocol exports, and how NumPy makes it readable."""
    dtype = getattr(array, "dtype", None)
    found = type(array).__name__ + ("" if dtype is None else f" of {dtype}")
    if not hasattr(dtype, "byteorder"):
        return found
    if dtype.names is not None:
        return f"{found}, structured with fields {dtype.names} (take one of them)"
    if dtype.byteorder == ">":
        return f"{found}, big-endian (x.astype(x.dtype.newbyteorder('=')) swaps its bytes)"
    apart = next((stride for stride in array.strides if dtype.itemsize and stride % dtype.itemsize), None)
    return found if apart is None else (
        f"{found}, packed: numbers of {dtype.itemsize} bytes stand {apart} apart (np.ascontiguousarray(x) gathers them)")


def numpy_of(array: Any) -> np.ndarray:
    """Converts any array that a Layer accepts to NumPy; bfloat16 becomes float32."""
    array = array.detach().cpu() if hasattr(array, "detach") else array.get() if hasattr(array, "get") else array
    if "bfloat16" not in str(getattr(array, "dtype", "")):
        return np.asarray(array)
    if hasattr(array, "float"):
        return array.float().numpy()
    return (np.asarray(array.view("uint16")).astype(np.uint32) << 16).view(np.float32)


def as_numpy(name: str, array: Any) -> np.ndarray:
    """An array of any kind that the extension reads, as NumPy's; bfloat16 becomes float32."""
    if type(array) is np.ndarray and array.dtype.char in READABLE and array.dtype.isnative:
        return array
    if hasattr(array, "mask"):
        require_unmasked(name, array)
    array = on_host(name, array)
    try:
        found = array if isinstance(array, np.ndarray) else numpy_of(array if hasattr(array, "dtype") else memoryview(array))
    except (TypeError, ValueError, RuntimeError, BufferError):
        found = None
    if found is None or not found.dtype.isnative or found.dtype.char not in READABLE:
        for _ in readable_forms(name, array):  # ends with the reason
            pass
    return found


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
