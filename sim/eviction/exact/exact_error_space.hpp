#pragma once

#include "sim/eviction/exact/exact_error_problem.hpp"
#include "sim/tokens/value_rows.hpp"

#include <algorithm>

namespace kvreplay {

/// The vectors that E is a sum of squares of. Without gradients they are values and outputs as they are,
/// which all rows see alike; with gradients a row sees of a vector its products with the row's S gradients,
/// all of them over sqrt(2 S), and everything that is linear in the values happens there.
class ErrorSpace {
 public:
  explicit ErrorSpace(const ErrorProblem& problem)
      : of_row_(problem.samples > 0),
        width_(of_row_ ? problem.samples : problem.width),
        value_width_(problem.width),
        gradients_(problem.gradients.data()) {}

  /// Whether each row sees a vector otherwise.
  bool of_row() const { return of_row_; }
  Index width() const { return width_; }  ///< of what a row sees
  /// From one row's numbers to the next one's where there are those of a vector that all rows look at.
  Index step() const { return of_row_ ? width_ : 0; }

  /// What row r sees of a value or a sum of values.
  void see(Index r, const double* v, double* seen) const {
    if (of_row_)
      row_dots(gradients_ + r * width_ * value_width_, width_, value_width_, v, seen);
    else
      std::copy(v, v + width_, seen);
  }
  /// What has the product with every value that `seen` has with what row r sees of it.
  void lift(Index r, const double* seen, double* lifted) const {
    if (!of_row_) return void(std::copy(seen, seen + width_, lifted));
    std::fill(lifted, lifted + value_width_, 0.0);
    value_rows_simd<double>().add_weighted_rows(gradients_ + r * width_ * value_width_, seen, width_,
                                                value_width_, lifted);
  }

 private:
  bool of_row_;
  Index width_, value_width_;
  const double* gradients_;
};

}  // namespace kvreplay
