#pragma once

#include "analysis/verify/verify.hpp"
#include "sim/eviction/kept_set.hpp"
#include "sim/head_group.hpp"

#include <initializer_list>
#include <string>
#include <vector>

namespace kvreplay {

/// What checks of outputs against brute force share: the rows, the worst deviations, what failed, the
/// verdict.
class OutputCheck {
 public:
  OutputCheck(const Dump& dump, Index window, const Compute& compute);

 protected:
  /// What is computed in one type by one backend.
  struct Judged {
    std::string type;  ///< "float32 on cuda"
    const char* key;   ///< of the worst deviation in Check::figures
    double worst = 0;
  };

  /// `what` is "channels: layer 2 KV head 0: error of the logits 0.1 off", the deviation in it.
  void judge(const std::string& what, double deviation, double tolerance, Judged& judged);
  void count_head(const HeadGroup<float>* single);
  Index rows() const { return window_.count() + future_.count(); }
  /// `covered`: what every row was checked on; `norm`: what deviations are shares of; `missing`: why there
  /// are no rows.
  Check check(const char* name, const char* covered, const char* norm, const char* missing,
              std::initializer_list<const Judged*> single) const;

  Compute compute_;
  RowRange window_, future_;
  Judged f64_{"float64", "worst_f64"};

 private:
  Index heads_ = 0;
  bool with_f32_ = false;
  std::vector<std::string> failures_;
};

/// The exact error of kept sets against brute-force masked attention: every other token, the most costly
/// tenth, all but the most costly hundredth (what holds the rows together is gone), everything, nothing; on
/// the window and on the first decoding steps. Deviations are norms over rows and query heads of the
/// difference between the two changes of the outputs, relative to that of the full outputs. What is judged in
/// float32 is the backend's.
class KeptSetCheck : public OutputCheck {
 public:
  KeptSetCheck(const Dump& dump, Index window, const Compute& compute);

  /// `cost`: what losing each token costs, [l].
  void add(const HeadGroup<double>& group, const HeadGroup<float>* single, const Vector<double>& cost);
  Check check() const;

 private:
  void compare(const HeadGroup<double>& group, const HeadGroup<float>* single, RowRange rows,
               const std::vector<KeptSet>& sets);

  Judged f32_;
};

/// Pruned key channels against brute force: the error of the logits by H against both products, the
/// output-space matrix of the last two window rows against its definition, and the outputs over two
/// compressed caches (half of the channels; every other token, more channels gone, four bits) against
/// attention over what they hold. Deviations are relative to the sum of |H| over the set, the matrix' largest
/// entry, and the full outputs' norm. What is judged in float32 is the backend's, but for the caches, which
/// are the CPU's.
class ChannelCheck : public OutputCheck {
 public:
  ChannelCheck(const Dump& dump, Index window, const Compute& compute);

  void add(const HeadGroup<double>& group, const HeadGroup<float>* single);
  Check check() const;

 private:
  bool on_cpu() const { return compute_.backend.name() == "cpu"; }
  template <class T>
  void compare(const HeadGroup<double>& group, const HeadGroup<T>& fast, double tolerance, Judged& matrices,
               Judged& caches_judged);

  Index window_asked_, recent_;
  Judged f32_{"float32", "worst_f32"}, on_device_;
};

}  // namespace kvreplay
