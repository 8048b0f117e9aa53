#include "tests/data/small_dump.hpp"

#include "data/atomic_file.hpp"
#include "tests/data/npy_builder.hpp"

#include <fmt/format.h>

namespace kvreplay::test {

std::vector<std::size_t> SmallDump::shape(Tensor tensor) const {
  const auto extents = [](Index a, Index b, Index c) {
    return std::vector<std::size_t>{static_cast<std::size_t>(a), static_cast<std::size_t>(b),
                                    static_cast<std::size_t>(c)};
  };
  switch (tensor) {
    case Tensor::q:
      return extents(n_q, T_q, d);
    case Tensor::k:
      return extents(n_kv, T, d);
    case Tensor::v:
      return extents(n_kv, T, d_v);
    case Tensor::wo:
      return extents(n_q, d_v, d_model);
    case Tensor::o:
      return extents(n_q, T_q, d_v);
    case Tensor::residual_norm:
      return extents(1, T, 1);
    case Tensor::g_future:
    case Tensor::g_window:
    case Tensor::g_nll:
    case Tensor::q_ref:
    case Tensor::gate:
    case Tensor::h_ref_norm:
      break;
  }
  return {};
}

float SmallDump::element(Tensor tensor, Index layer, Index head, Index row, Index col) {
  const Index number = static_cast<Index>(tensor) + 5 * (layer + 3 * (head + 4 * (row + 8 * col)));
  return static_cast<float>(number % 2039 - 1000) / 8.0f;
}

std::vector<float> SmallDump::elements(Tensor tensor, Index layer) const {
  return elements(tensor, layer, layer + 1);
}

std::vector<float> SmallDump::elements(Tensor tensor, Index first, Index last) const {
  const auto extents = shape(tensor);
  std::vector<float> values;
  for (Index layer = first; layer < last; ++layer) {
    for (std::size_t h = 0; h < extents[0]; ++h) {
      for (std::size_t r = 0; r < extents[1]; ++r) {
        for (std::size_t c = 0; c < extents[2]; ++c) {
          values.push_back(
              element(tensor, layer, static_cast<Index>(h), static_cast<Index>(r), static_cast<Index>(c)));
        }
      }
    }
  }
  return values;
}

std::string SmallDump::npy(Tensor tensor, Index layer) const {
  const auto extents = shape(tensor);
  NpyBuilder npy{"<f4", fmt::format("({})", fmt::join(extents, ", ")), "False", 1, ""};
  for (const float value : elements(tensor, layer)) append_value(npy.data, value);
  return npy.bytes();
}

void SmallDump::write(const std::filesystem::path& folder, bool all) const {
  for (Index layer = 0; layer < layers; ++layer) {
    for (const Tensor tensor : all_tensors) {
      if (!all && (tensor == Tensor::wo || tensor == Tensor::o)) continue;
      write_file(folder / fmt::format("layer_{:02}", layer) / fmt::format("{}.npy", name_of(tensor)),
                 npy(tensor, layer));
    }
  }
}

int SmallDump::count_wrong(const Dump& dump) const {
  int wrong = 0;
  for (Index layer = 0; layer < layers; ++layer) {
    for (const Tensor tensor : all_tensors) {
      if (!dump.has(tensor)) continue;
      const auto extents = shape(tensor);
      for (std::size_t h = 0; h < extents[0]; ++h) {
        std::vector<float> floats(extents[1] * extents[2]);
        std::vector<double> doubles(floats.size());
        dump.read(tensor, layer, static_cast<Index>(h), floats.data());
        dump.read(tensor, layer, static_cast<Index>(h), doubles.data());
        for (std::size_t i = 0; i < floats.size(); ++i) {
          const float expected =
              element(tensor, layer, static_cast<Index>(h), static_cast<Index>(i / extents[2]),
                      static_cast<Index>(i % extents[2]));
          wrong += floats[i] != expected;
          wrong += doubles[i] != static_cast<double>(expected);
        }
      }
    }
  }
  return wrong;
}

}  // namespace kvreplay::test
