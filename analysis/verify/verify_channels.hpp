#pragma once

#include "analysis/verify/verify.hpp"
#include "sim/backend.hpp"
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
/// entry, and the full outputs' norm. What is judged in float32 is the backend's, but for the caches, which
/// are the CPU's.
class ChannelCheck {
 public:
  ChannelCheck(const Dump& dump, Index window, const Compute& compute);

  void add(const HeadGroup<double>& group, const HeadGroup<float>* single);
  Check check() const;

 private:
  /// The worst deviation of what is computed in one type by one backend.
  struct Judged {
    std::string type;
    double worst = 0;
  };

  bool on_cpu() const { return compute_.backend.name() == "cpu"; }
  template <class T>
  void compare(const HeadGroup<double>& group, const HeadGroup<T>& fast, double tolerance, Judged& matrices,
               Judged& caches_judged);
  void judge(const HeadGroup<double>& group, const char* what, double deviation, double tolerance,
             Judged& judged);

  Compute compute_;
  Rows window_, future_;
  Index window_asked_, recent_;
  Index heads_ = 0;
  Judged f64_{"float64"}, f32_{"float32"}, on_device_;
  bool with_f32_ = false;
  std::vector<std::string> failures_;
};

}  // namespace kvreplay
