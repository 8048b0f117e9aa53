#pragma once

#include "analysis/verify/output_checks.hpp"
#include "sim/channels/channel_basis.hpp"
#include "sim/compression/compressed_cache.hpp"

#include <vector>

namespace kvreplay {

/// Pruned key channels against brute force: the error of the logits by H against both products, the
/// output-space matrix of the last two window rows and of 128 keys (evenly spread, where there are more)
/// against its definition, and the outputs over two compressed caches (half of the channels; every other
/// token, more channels gone, four bits) against attention over what they hold. The channels and caches are
/// what float32, where it is judged, would choose and hold: both types are judged on the same. Deviations are
/// relative to the sum of |H| over the set, the matrix' largest entry, and the full outputs' norm. What is
/// judged in float32 is the backend's, but for the caches, which are the CPU's.
class ChannelCheck : public OutputCheck {
 public:
  ChannelCheck(const Dump& dump, Index window, const Compute& compute);

  void add(const HeadGroup<double>& group, const HeadGroup<float>* single);
  Check check() const;

 private:
  struct Case;
  struct Expected;
  template <class T>
  ChannelBasis basis(const HeadGroup<T>& group) const;
  Expected expected(const HeadGroup<double>& group, const Case& judged_on) const;
  template <class T>
  void compare(const HeadGroup<T>& group, const ChannelBasis& basis, const Case& judged_on,
               const std::vector<CompressedCache<T>>& caches, const Expected& expected, double tolerance,
               Judged& matrices, Judged& outputs);

  Index window_asked_, recent_;
};

}  // namespace kvreplay
