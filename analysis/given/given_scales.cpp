#include "analysis/given/given_arrays.hpp"
#include "data/dtype.hpp"
#include "data/error.hpp"
#include "data/json_fields.hpp"
#include "data/mapped_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

namespace kvreplay {
namespace {

constexpr std::uint64_t kMostHeader = 100'000'000;  // bytes, as the format has it

/// The layer's number in "model.layers.3.self_attn.k_scale".
std::optional<Index> layer_in(std::string_view name) {
  constexpr std::string_view kBefore = "layers.";
  const std::size_t at = name.find(kBefore);
  if (at == std::string_view::npos) return std::nullopt;
  name.remove_prefix(at + kBefore.size());
  Index layer = 0;
  std::size_t digits = 0;
  for (; digits < name.size() && digits < 6 && name[digits] >= '0' && name[digits] <= '9'; ++digits)
    layer = 10 * layer + (name[digits] - '0');
  return digits > 0 && digits < name.size() && name[digits] == '.' ? std::optional(layer) : std::nullopt;
}

std::uint64_t little_endian(std::span<const std::byte> bytes) {
  std::uint64_t value = 0;
  for (std::size_t b = bytes.size(); b-- > 0;) value = value << 8U | std::to_integer<std::uint64_t>(bytes[b]);
  return value;
}

/// The one number of a tensor; `data` are the bytes behind the header.
double scalar(std::span<const std::byte> data, const Json& tensor, const std::string& where) {
  const JsonFields fields(tensor, where);
  const std::string dtype = fields.text("dtype").value_or("");
  const bool wide = dtype == "F32";
  if (!wide && dtype != "F16" && dtype != "BF16")
    throw InputError(fields.where("dtype"), "F32, F16 or BF16", fmt::format("'{}'", dtype));
  const Json& offsets = fields.at("data_offsets");
  const auto offset = [&](std::size_t n) -> std::uint64_t {
    const bool is_pair = offsets.is_array() && offsets.size() == 2 && offsets[n].is_number_unsigned();
    return is_pair ? offsets[n].get<std::uint64_t>() : 0;
  };
  const std::size_t size = wide ? 4 : 2;
  if (offset(1) - offset(0) != size)
    throw InputError(where, "one scale for all heads",
                     fmt::format("shape {}", json_text(fields.at("shape"))));
  if (offset(1) > data.size()) throw InputError(where, "its number in the file", "the end of the file");
  const std::uint64_t bits = little_endian(data.subspan(offset(0), size));
  const auto half = static_cast<std::uint16_t>(bits);
  const double scale = wide             ? std::bit_cast<float>(static_cast<std::uint32_t>(bits))
                       : dtype == "F16" ? half_to_float(half)
                                        : bfloat_to_float(half);
  if (!std::isfinite(scale) || scale <= 0)
    throw InputError(where, "a finite number above 0", fmt::format("{}", scale));
  return scale;
}

}  // namespace

std::vector<TensorScales> read_scales(const std::string& file, Index layers) {
  const MappedFile mapped(file);
  const std::span<const std::byte> bytes = mapped.bytes();
  const std::uint64_t size = bytes.size() < 8 ? 0 : little_endian(bytes.first(8));
  if (size == 0 || size > std::min<std::uint64_t>(kMostHeader, bytes.size() - 8))
    throw InputError(file, "a safetensors file", "another one");
  const std::string header(reinterpret_cast<const char*>(bytes.data()) + 8, size);
  const std::span<const std::byte> data = bytes.subspan(8 + size);
  const Json tensors = parse_json_object(header, file);
  std::vector<std::array<std::optional<double>, 2>> found(static_cast<std::size_t>(layers));
  for (const auto& [name, tensor] : tensors.items()) {
    const std::size_t side = name.ends_with(".k_scale") ? 0 : 1;
    const auto layer = side == 0 || name.ends_with(".v_scale") ? layer_in(name) : std::nullopt;
    if (!layer) continue;
    const std::string where = fmt::format("{}: {}", file, name);
    if (*layer >= layers) throw InputError(where, fmt::format("layers 0 to {}", layers - 1), "another");
    if (!tensor.is_object()) throw InputError(where, "an object", json_text(tensor));
    found[static_cast<std::size_t>(*layer)][side] = scalar(data, tensor, where);
  }
  mapped.require_unchanged();
  std::vector<TensorScales> scales;
  for (Index layer = 0; layer < layers; ++layer) {
    const auto& [k, v] = found[static_cast<std::size_t>(layer)];
    if (!k || !v)
      throw InputError(file, fmt::format("layers.{}. ... {}_scale", layer, k ? "v" : "k"), "none");
    scales.push_back({*k, *v});
  }
  return scales;
}

}  // namespace kvreplay
