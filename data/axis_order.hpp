#pragma once

#include "data/stored_tensor.hpp"

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay {

/// An order in which other tools hold the axes of queries, keys, values and outputs.
struct AxisOrder {
  std::string_view axes;                              ///< "[positions, heads, d]"
  std::string_view way_back;                          ///< "swap the first two"
  Index StoredTensor::*first, StoredTensor::*second;  ///< what a dump has in each other's place
};
inline constexpr AxisOrder kPositionsFirst{"[positions, heads, d]", "swap the first two",
                                           &StoredTensor::heads, &StoredTensor::rows},
    kPositionsLast{"[heads, d, positions]", "swap the last two", &StoredTensor::rows, &StoredTensor::cols};

/// Whether tensors agree with each other and with all that is stated of them.
using TensorsFit = std::function<bool(std::vector<StoredTensor>)>;

/// Whether tensors fit where all that have heads, positions and channels are read in another order.
bool fits_in(const AxisOrder& order, const std::vector<StoredTensor>& tensors, const TensorsFit& fits);

/// "; the axes look like [positions, heads, d]: swap the first two" where tensors that do not fit as a dump's
/// would fit with the axes of all in another order, "; the axes of k or of q look like .." where those of
/// some would; else empty.
std::string other_order_text(const std::vector<StoredTensor>& tensors, const TensorsFit& fits);

}  // namespace kvreplay
