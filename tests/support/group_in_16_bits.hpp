#pragma once

#include "sim/cuda/half.hpp"
#include "sim/tokens/cuda/column_totals_cuda.hpp"

#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

namespace kvreplay::test {

/// A group that is rounded to 16 bits, as a dump would hold it.
class GroupIn16Bits {
 public:
  GroupIn16Bits(HeadGroup<float> group, cuda::NumberType type) : group_(std::move(group)) {
    stored_.type = type;
    stored_.first_query = group_.first_query();
    for (HeadMatrix<float>& q : group_.q) stored_.q.push_back(rounded(q));
    stored_.k = rounded(group_.k);
    stored_.v = rounded(group_.v);
  }
  const HeadGroup<float>& group() const { return group_; }
  const cuda::StoredNumbers& stored() const { return stored_; }

 private:
  HeadGroup<float> group_;
  cuda::StoredNumbers stored_;
  std::vector<std::vector<std::uint16_t>> bits_;

  const void* rounded(HeadMatrix<float>& m) {
    std::vector<std::uint16_t>& bits = bits_.emplace_back();
    for (Index i = 0; i < m.size(); ++i) {
      float& x = m.data()[i];
      if (stored_.type == cuda::NumberType::f16) {
        bits.push_back(cuda::to_half(x));
        x = cuda::from_half(bits.back());
      } else {
        bits.push_back(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16U));
        x = std::bit_cast<float>(static_cast<std::uint32_t>(bits.back()) << 16U);
      }
    }
    return bits.data();
  }
};

}  // namespace kvreplay::test
