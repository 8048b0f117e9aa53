#include "analysis/python/arrays.hpp"

#include "data/dtype.hpp"
#include "data/error.hpp"
#include "data/npy_array.hpp"
#include "data/npy_header.hpp"
#include "data/npy_read.hpp"
#include "data/stored_tensor.hpp"
#include "sim/backend/backend_cuda.hpp"

#include <fmt/format.h>

#include <cstring>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <optional>
#include <string>
#include <utility>

namespace kvreplay::python {
namespace {

using nb::dlpack::dtype_code;
using AnyArray = nb::ndarray<nb::ro>;

std::string python_type_of(nb::handle object) {
  return nb::cast<std::string>(object.type().attr("__name__"));
}

std::optional<AnyArray> imported(nb::handle object) {
  AnyArray array;
  if (nb::try_cast<AnyArray>(object, array)) return array;
  return std::nullopt;
}

/// NumPy's own bfloat16 (of ml_dtypes) goes through neither protocol; its bits do.
bool is_bfloat(nb::handle object) {
  if (!nb::hasattr(object, "dtype") || !nb::hasattr(object, "view")) return false;
  const nb::object dtype = object.attr("dtype");
  return nb::hasattr(dtype, "name") && nb::cast<std::string>(nb::str(dtype.attr("name"))) == "bfloat16";
}

using Device = std::pair<int, int>;  // type and number, as DLPack counts them

/// Where an array that is not handed out says that it is; the host where it says nothing.
Device device_of(nb::handle object) {
  Device device(nb::device::cpu::value, 0);
  if (nb::hasattr(object, "__dlpack_device__"))
    nb::try_cast(nb::object(object.attr("__dlpack_device__")()), device);
  return device;
}

bool on_host(int device) {
  return device == nb::device::cpu::value || device == nb::device::cuda_host::value ||
         device == nb::device::rocm_host::value;
}

std::string dtype_name(const AnyArray& array) {
  const nb::dlpack::dtype dtype = array.dtype();
  const auto code = static_cast<dtype_code>(dtype.code);
  if (code == dtype_code::Bool) return "bool";
  constexpr std::pair<dtype_code, const char*> kKinds[] = {{dtype_code::Int, "int"},
                                                           {dtype_code::UInt, "uint"},
                                                           {dtype_code::Float, "float"},
                                                           {dtype_code::Bfloat, "bfloat"},
                                                           {dtype_code::Complex, "complex"}};
  for (const auto& [kind, name] : kKinds)
    if (kind == code) return fmt::format("{}{}", name, dtype.bits);
  return fmt::format("numbers of {} bits", dtype.bits);
}

std::optional<Dtype> dtype_of(const HostArray& array) {
  if (array.bfloat) return Dtype::bf16;
  const nb::dlpack::dtype dtype = array.numbers.dtype();
  if (dtype.lanes != 1) return std::nullopt;
  const auto code = static_cast<dtype_code>(dtype.code);
  if (code == dtype_code::Bfloat && dtype.bits == 16) return Dtype::bf16;
  if (code != dtype_code::Float) return std::nullopt;
  if (dtype.bits == 16) return Dtype::f16;
  if (dtype.bits == 32) return Dtype::f32;
  if (dtype.bits == 64) return Dtype::f64;
  return std::nullopt;
}

std::vector<Index> shape_of(const AnyArray& array) {
  std::vector<Index> shape;
  for (std::size_t axis = 0; axis < array.ndim(); ++axis)
    shape.push_back(static_cast<Index>(array.shape(axis)));
  return shape;
}

/// Describes an object that neither protocol can read, and how NumPy makes the object readable.
std::string unreadable(nb::handle object) {
  const std::string type = python_type_of(object);
  if (!nb::hasattr(object, "dtype")) return type;
  const nb::object dtype = object.attr("dtype");
  const std::string of = type + " of " + nb::str(dtype).c_str();
  if (!nb::hasattr(dtype, "byteorder")) return of;
  if (const nb::object names = dtype.attr("names"); !names.is_none())
    return of + ", structured with fields " + nb::str(names).c_str() + " (take one of them)";
  if (nb::cast<std::string>(nb::str(dtype.attr("byteorder"))) == ">")
    return of + ", big-endian (x.astype(x.dtype.newbyteorder('=')) swaps its bytes)";
  const auto itemsize = nb::cast<std::int64_t>(dtype.attr("itemsize"));
  for (const nb::handle stride : nb::object(object.attr("strides")))
    if (itemsize > 0 && nb::cast<std::int64_t>(stride) % itemsize != 0)
      return fmt::format(
          "{}, packed: numbers of {} bytes stand {} apart (np.ascontiguousarray(x) gathers them)", of,
          itemsize, nb::cast<std::int64_t>(stride));
  return of;
}

/// Where each of the `wanted` extents is -1 or the array's.
void require_shape(const char* name, const std::vector<Index>& found, std::vector<Index>& wanted) {
  bool fits = found.size() == wanted.size();
  for (std::size_t axis = 0; fits && axis < found.size(); ++axis)
    fits = wanted[axis] < 0 ? found[axis] > 0 : found[axis] == wanted[axis];
  if (!fits) {
    std::string text;
    for (const Index extent : wanted)
      text += (text.empty() ? "" : ", ") + (extent < 0 ? "n" : std::to_string(extent));
    throw InputError(name, "shape [" + text + "]", "shape " + shape_text(found));
  }
  wanted = found;
}

std::vector<Index> strides_of(const AnyArray& array) {
  std::vector<Index> strides;
  for (std::size_t axis = 0; axis < array.ndim(); ++axis)
    strides.push_back(static_cast<Index>(array.stride(axis)));
  return strides;
}

/// of(const std::byte*) of every element, in C order.
template <class Of>
auto in_c_order(const AnyArray& array, const Of& of) {
  std::vector<decltype(of(nullptr))> values;
  values.reserve(array.size());
  const auto* numbers = static_cast<const std::byte*>(array.data());
  kvreplay::in_c_order(shape_of(array), strides_of(array), [&](Index place) {
    values.push_back(of(numbers + place * static_cast<Index>(array.itemsize())));
  });
  return values;
}

template <class T>
double whole(const char* name, const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  const auto magnitude = static_cast<std::uint64_t>(value);
  if (!fits_float64(value < 0 ? 0 - magnitude : magnitude))
    throw InputError(name, "integers that float64 tells apart, as all up to 2^53", std::to_string(value));
  return static_cast<double>(value);
}

/// One number of any kind.
std::optional<double> number_at(const char* name, const HostArray& array, const std::byte* from) {
  if (const auto dtype = dtype_of(array)) {
    double value = 0;
    convert({*dtype, false}, from, 1, &value);
    return value;
  }
  const auto [code, bits, lanes] = array.numbers.dtype();
  const bool is_signed = static_cast<dtype_code>(code) == dtype_code::Int;
  if (!is_signed && static_cast<dtype_code>(code) != dtype_code::UInt) return std::nullopt;
  switch (bits) {
    case 8:
      return is_signed ? whole<std::int8_t>(name, from) : whole<std::uint8_t>(name, from);
    case 16:
      return is_signed ? whole<std::int16_t>(name, from) : whole<std::uint16_t>(name, from);
    case 32:
      return is_signed ? whole<std::int32_t>(name, from) : whole<std::uint32_t>(name, from);
    case 64:
      return is_signed ? whole<std::int64_t>(name, from) : whole<std::uint64_t>(name, from);
    default:
      return std::nullopt;
  }
}

}  // namespace

HostArray array_of(const char* name, nb::handle object) {
  if (nb::hasattr(object, "mask") && nb::hasattr(object, "filled") &&
      nb::cast<bool>(nb::bool_(object.attr("mask").attr("any")())))
    throw InputError(name, "an array without masked entries", "some");
  std::optional<AnyArray> array = imported(object);
  if (array && on_host(array->device_type())) return {*array};
  if (const auto device = array ? Device(array->device_type(), array->device_id()) : device_of(object);
      !on_host(device.first)) {
    const std::string found = fmt::format("one on device {}:{}", device.first, device.second);
    if (const std::string why = why_no_cuda(); !why.empty())
      throw InputError(name, "an array in the host's memory", fmt::format("{}, and {}", found, why));
    for (const char* copy : {"cpu", "get"})  // torch's, CuPy's
      if (nb::hasattr(object, copy)) return array_of(name, object.attr(copy)());
    throw InputError(name, "an array with cpu() or get(), which copy it to the host", found);
  }
  if (is_bfloat(object))
    if (const auto bits = imported(object.attr("view")("uint16"))) return {*bits, true};
  // Tensors that gradients run through are not handed out as they are.
  if (nb::hasattr(object, "detach"))
    if (const auto detached = imported(object.attr("detach")())) return {*detached};
  throw InputError(name, "an array: NumPy's, torch's or any with DLPack or the buffer protocol",
                   unreadable(object));
}

MemoryArray tensor_of(Tensor tensor, const HostArray& array) {
  const auto dtype = dtype_of(array);
  if (!dtype)
    throw InputError(std::string(name_of(tensor)), "float16, bfloat16, float32 or float64 numbers",
                     dtype_name(array.numbers));
  return {tensor, *dtype, array.numbers.data(), shape_of(array.numbers), strides_of(array.numbers)};
}

std::vector<double> numbers_of(const char* name, nb::handle object, std::vector<Index>& shape, bool finite) {
  const HostArray array = array_of(name, object);
  require_shape(name, shape_of(array.numbers), shape);
  std::vector<double> values = in_c_order(array.numbers, [&](const std::byte* from) {
    const auto value = number_at(name, array, from);
    if (!value) throw InputError(name, "real numbers", dtype_name(array.numbers));
    return *value;
  });
  if (const auto bad = finite ? first_not_finite(values.data(), std::ssize(values)) : std::nullopt)
    throw InputError(name, "finite values", fmt::format("{} at place {}", values[extent(*bad)], *bad));
  return values;
}

std::vector<std::uint8_t> booleans_of(const char* name, nb::handle object, std::vector<Index>& shape) {
  const AnyArray array = array_of(name, object).numbers;
  if (static_cast<dtype_code>(array.dtype().code) != dtype_code::Bool)
    throw InputError(name, "booleans", dtype_name(array));
  require_shape(name, shape_of(array), shape);
  return in_c_order(array,
                    [](const std::byte* from) -> std::uint8_t { return *from != std::byte{0} ? 1 : 0; });
}

}  // namespace kvreplay::python
