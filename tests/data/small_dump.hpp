#pragma once

#include "data/dump.hpp"

#include <filesystem>
#include <string>
#include <vector>

namespace kvreplay::test {

/// A dump whose every element tells where it stands, in the layout and dtype a test asks for.
struct SmallDump {
  Index layers = 2, n_q = 4, n_kv = 2, T = 5, T_q = 5, d = 6, d_v = 3, d_model = 8;

  /// [heads, rows, cols] of a tensor.
  std::vector<std::size_t> shape(Tensor tensor) const;
  /// A multiple of 1/8 below 256: exact in float16 and float32.
  static float element(Tensor tensor, Index layer, Index head, Index row, Index col);
  /// A tensor's elements in C order, for one layer or for layers [first, last).
  std::vector<float> elements(Tensor tensor, Index layer) const;
  std::vector<float> elements(Tensor tensor, Index first, Index last) const;
  /// A `.npy` of one layer, C order, float32.
  std::string npy(Tensor tensor, Index layer) const;

  /// layer_00/q.npy and so on; without wo and o unless `all`.
  void write(const std::filesystem::path& folder, bool all = true) const;
  /// Everything but the folders: q, k, v, wo, o read back through `dump` and compared. Returns the number of
  /// wrong elements.
  int count_wrong(const Dump& dump) const;
};

inline constexpr Tensor all_tensors[] = {Tensor::q, Tensor::k, Tensor::v, Tensor::wo, Tensor::o};

}  // namespace kvreplay::test
