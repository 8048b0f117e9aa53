#pragma once

#include "data/stored_tensor.hpp"

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay {

/// An axis order of queries, keys, values and outputs that other tools use.
struct AxisOrder {
  std::string_view axes;                              ///< "[positions, heads, d]"
  std::string_view way_back;                          ///< "swap the first two"
  Index StoredTensor::*first, StoredTensor::*second;  ///< axes that are swapped, compared with a dump
};
inline constexpr AxisOrder kPositionsFirst{"[positions, heads, d]", "swap the first two",
                                           &StoredTensor::heads, &StoredTensor::rows},
    kPositionsLast{"[heads, d, positions]", "swap the last two", &StoredTensor::rows, &StoredTensor::cols};

/// True if tensors agree with each other and with everything that the manifest states.
using TensorsFit = std::function<bool(std::vector<StoredTensor>)>;

/// True if tensors fit after all tensors with heads, positions and channels are read in another axis order.
bool fits_in(const AxisOrder& order, const std::vector<StoredTensor>& tensors, const TensorsFit& fits);

/// "; the axes look like [positions, heads, d]: swap the first two" if tensors do not fit as stored, but do
/// with all axes in another order. "; the axes of k or of q look like .." if only some tensors have to
/// change. Else empty.
std::string other_order_text(const std::vector<StoredTensor>& tensors, const TensorsFit& fits);

}  // namespace kvreplay
