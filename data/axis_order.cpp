#include "data/axis_order.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace kvreplay {
namespace {

bool has_positions_and_channels(Tensor tensor) {
  switch (tensor) {
    case Tensor::q:
    case Tensor::k:
    case Tensor::v:
    case Tensor::o:
    case Tensor::gate:
    case Tensor::q_ref:
      return true;
    case Tensor::wo:
    case Tensor::residual_norm:
    case Tensor::g_future:
    case Tensor::g_window:
    case Tensor::g_nll:
    case Tensor::h_ref_norm:
      return false;
  }
  return false;
}

std::vector<StoredTensor> reordered(std::vector<StoredTensor> tensors, const AxisOrder& order,
                                    const std::vector<Tensor>& of) {
  for (StoredTensor& tensor : tensors)
    if (std::ranges::find(of, tensor.name.tensor) != of.end())
      std::swap(tensor.*order.first, tensor.*order.second);
  return tensors;
}

std::vector<Tensor> all_in_order() {
  std::vector<Tensor> all;
  for (const Tensor tensor : kTensors.all())
    if (has_positions_and_channels(tensor)) all.push_back(tensor);
  return all;
}

}  // namespace

bool fits_in(const AxisOrder& order, const std::vector<StoredTensor>& tensors, const TensorsFit& fits) {
  return fits(reordered(tensors, order, all_in_order()));
}

std::string other_order_text(const std::vector<StoredTensor>& tensors, const TensorsFit& fits) {
  for (const AxisOrder* order : {&kPositionsFirst, &kPositionsLast})
    if (fits_in(*order, tensors, fits))
      return fmt::format("; the axes look like {}: {}", order->axes, order->way_back);
  using enum Tensor;
  const std::vector<Tensor> some[] = {{k}, {v}, {k, v}, {q}, {o}, {q, k, v}};
  for (const AxisOrder* order : {&kPositionsFirst, &kPositionsLast}) {
    std::vector<std::string> which;
    for (const std::vector<Tensor>& of : some) {
      if (!fits(reordered(tensors, *order, of))) continue;
      std::vector<std::string_view> names;
      for (const Tensor tensor : of) names.push_back(name_of(tensor));
      which.push_back(fmt::format("of {}", fmt::join(names, ", ")));
    }
    if (!which.empty())
      return fmt::format("; the axes {} look like {}: {}", fmt::join(which, " or "), order->axes,
                         order->way_back);
  }
  return "";
}

}  // namespace kvreplay
