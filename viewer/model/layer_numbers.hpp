#pragma once

#include "data/dump.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay::viewer {

/// A layer by the model's number, which is what a person reads and types. An Index is a layer's place in the
/// dump.
struct ModelLayer {
  Index number = 0;
  bool operator==(const ModelLayer&) const = default;
};

/// Names of a dump's layers: the model's layer numbers, of which a dump may have only some. Computations,
/// files, links and options count a dump's layers from 0 without a gap, as --layers of the commands does.
/// Text that a person reads or types uses the model's numbers.
class LayerNumbers {
 public:
  LayerNumbers() = default;
  /// `numbers` [layers], ascending.
  explicit LayerNumbers(std::vector<Index> numbers) : numbers_(std::move(numbers)) {}
  /// 0, 1, ..
  static LayerNumbers own(Index layers) {
    std::vector<Index> numbers;
    for (Index layer = 0; layer < layers; ++layer) numbers.push_back(layer);
    return LayerNumbers(std::move(numbers));
  }

  Index count() const { return std::ssize(numbers_); }
  Index largest() const { return numbers_.empty() ? 0 : numbers_.back(); }
  /// Model's number of a layer of the dump; a layer out of range keeps its own number.
  ModelLayer number(Index layer) const {
    return {layer >= 0 && layer < count() ? numbers_[static_cast<std::size_t>(layer)] : layer};
  }
  /// Layer of the dump with this number in the model.
  std::optional<Index> layer(ModelLayer called) const {
    const auto at = std::lower_bound(numbers_.begin(), numbers_.end(), called.number);
    if (at == numbers_.end() || *at != called.number) return std::nullopt;
    return at - numbers_.begin();
  }
  /// "0 to 29", "1, 14 and 28"; of many "1, 3, 5 .. 27".
  std::string text() const {
    if (numbers_.empty()) return "none";
    if (numbers_.back() - numbers_.front() == count() - 1)
      return count() == 1 ? fmt::format("{}", numbers_.front())
                          : fmt::format("{} to {}", numbers_.front(), numbers_.back());
    constexpr Index kMost = 6, kFirst = 3;
    std::string text;
    const Index listed = count() > kMost ? kFirst : count() - 1;
    for (Index i = 0; i < listed; ++i) text += fmt::format("{}{}", i > 0 ? ", " : "", number(i).number);
    return text + fmt::format("{}{}", count() > kMost ? " .. " : " and ", numbers_.back());
  }
  const std::vector<Index>& numbers() const { return numbers_; }

 private:
  std::vector<Index> numbers_;
};

}  // namespace kvreplay::viewer

template <>
struct fmt::formatter<kvreplay::viewer::ModelLayer> : fmt::formatter<kvreplay::Index> {
  auto format(kvreplay::viewer::ModelLayer layer, fmt::format_context& context) const {
    return fmt::formatter<kvreplay::Index>::format(layer.number, context);
  }
};
