#pragma once

#include "analysis/verify/check.hpp"
#include "sim/cache/cache_outputs.hpp"
#include "sim/compute.hpp"
#include "sim/head_group.hpp"
#include "sim/kept_set.hpp"

#include <functional>
#include <string>
#include <vector>

namespace kvreplay {

/// Of each row set: brute force is slow.
inline constexpr Index kVerifiedRows = 16;
/// Deviations that are allowed, as shares of the full output's norm.
inline constexpr double kOutputTolerance = 1e-9, kFloat32OutputTolerance = 1e-4;

/// What a backend's float32 is called: "float32", "float32 on cuda".
std::string judged_float32(const Backend& backend);

/// The norm of the difference between vectors in panels and others in rows, over all query heads.
template <class T>
double panel_distance(const PanelRows<T>& panels, const std::vector<Matrix<double>>& rows);

inline double share_of(double part, double of) { return part == 0 ? 0 : part / of; }

/// The references of outputs on `rows` (not empty), a few rows at a time on all threads.
std::vector<OutputChangeReference> references_in_parallel(
    RowRange rows, Workers& workers,
    const std::function<std::vector<OutputChangeReference>(RowRange)>& reference);

/// What checks of outputs against brute force share: the rows, the worst deviations, what failed, the
/// verdict.
class OutputCheck {
 public:
  OutputCheck(const Dump& dump, Index window, const Compute& compute);

  /// What was found of other heads, after these.
  void merge(const OutputCheck& later);

 protected:
  /// What is computed in one type by one backend.
  struct Judged {
    std::string type;  ///< "float32 on cuda"
    const char* key;   ///< of the worst deviation in Check::figures
    double worst = 0;
    bool seen = false;
  };

  /// `what` is "channels: layer 2 KV head 0: error of the logits 0.1 off", the deviation in it.
  void judge(const std::string& what, double deviation, double tolerance, Judged& judged);
  void count_head() { ++heads_; }
  Index rows() const { return window_.count() + future_.count(); }
  /// `covered`: what every row was checked on; `norm`: what deviations are shares of; `missing`: why there
  /// are no rows.
  Check check(const char* name, const char* covered, const char* norm, const char* missing) const;

  Compute compute_;
  RowRange window_, future_;
  Judged f64_, f32_, on_device_;

 private:
  Index heads_ = 0;
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
};

}  // namespace kvreplay
