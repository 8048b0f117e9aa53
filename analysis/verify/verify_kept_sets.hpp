#pragma once

#include "analysis/verify/verify.hpp"
#include "sim/backend.hpp"
#include "sim/eviction/kept_set.hpp"
#include "sim/head_group.hpp"
#include "sim/schedule.hpp"

#include <string>
#include <vector>

namespace kvreplay {

/// The exact error of kept sets against brute-force masked attention: every other token, the most costly
/// tenth, all but the most costly hundredth (what holds the rows together is gone), everything, nothing; on
/// the window and on the first decoding steps. Deviations are norms over rows and query heads of the
/// difference between the two changes of the outputs, relative to that of the full outputs. What is judged in
/// float32 is the backend's.
class KeptSetCheck {
 public:
  KeptSetCheck(const Dump& dump, Index window, const Compute& compute);

  /// `cost`: what losing each token costs, [l].
  void add(const HeadGroup<double>& group, const HeadGroup<float>* single, const Vector<double>& cost);
  Check check() const;

 private:
  void compare(const HeadGroup<double>& group, const HeadGroup<float>* single, Rows rows,
               const std::vector<KeptSet>& sets);
  void judge(const HeadGroup<double>& group, Rows rows, const std::string& type, double deviation,
             double tolerance, double& worst);

  Compute compute_;
  Rows window_, future_;
  Index heads_ = 0;
  double worst_f64_ = 0, worst_f32_ = 0;
  bool with_f32_ = false;
  std::vector<std::string> failures_;
};

}  // namespace kvreplay
