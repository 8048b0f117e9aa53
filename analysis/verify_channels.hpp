#pragma once

#include "analysis/verify.hpp"
#include "sim/compression/compressed_cache.hpp"
#include "sim/head_group.hpp"
#include "sim/schedule.hpp"

#include <string>
#include <vector>

namespace kvreplay {

/// Pruned key channels against brute force: the error of the logits by H against both products, the
/// output-space matrix of the last two window rows against its definition, and the outputs over two
/// compressed caches (half of the channels; every other token, more channels gone, four bits) against
/// attention over what they hold. Deviations are relative to the sum of |H| over the set, the matrix' largest
/// entry, and the full outputs' norm.
class ChannelCheck {
 public:
  ChannelCheck(const Dump& dump, Index window, Workers& workers);

  void add(const HeadGroup<double>& group, const HeadGroup<float>* single);
  Check check() const;

 private:
  template <class T>
  void compare(const HeadGroup<double>& group, const HeadGroup<T>& fast, const char* type, double tolerance,
               double& worst);
  void judge(const HeadGroup<double>& group, const char* what, const char* type, double deviation,
             double tolerance, double& worst);

  Workers& workers_;
  Rows window_, future_;
  Index window_asked_, recent_;
  Index heads_ = 0;
  double worst_f64_ = 0, worst_f32_ = 0;
  bool with_f32_ = false;
  std::vector<std::string> failures_;
};

}  // namespace kvreplay
