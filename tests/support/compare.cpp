#include "tests/support/compare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace kvreplay::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double largest_finite(const Matrix<double>& values) {
  double largest = 0.0;
  for (const double x : values.reshaped()) {
    if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
  }
  return largest;
}

/// By how many times an entry exceeds what it is allowed; at most 1 passes.
double excess(double want, double got, double largest, const Tolerance& tolerance) {
  if (std::isnan(want) || std::isnan(got)) return kInfinity;
  if (std::isinf(want) || std::isinf(got)) return want == got ? 0.0 : kInfinity;
  if (std::abs(want) <= tolerance.tiny && std::abs(got) <= tolerance.tiny) return 0.0;
  double allowed = tolerance.of_largest * largest;
  if (std::abs(want) > tolerance.floor * largest) {
    allowed = std::min(allowed, tolerance.relative * std::abs(want));
  }
  const double error = std::abs(got - want);
  return error <= allowed ? 0.0 : (allowed > 0.0 ? error / allowed : kInfinity);
}

}  // namespace

std::string mismatch(const std::string& label, const Matrix<double>& want, const Matrix<double>& got,
                     const Tolerance& tolerance) {
  if (want.rows() != got.rows() || want.cols() != got.cols()) {
    return fmt::format("{}: want [{}, {}], got [{}, {}]", label, want.rows(), want.cols(), got.rows(),
                       got.cols());
  }
  const double largest = largest_finite(want);
  double worst = 0.0;
  Index misses = 0;
  std::string line;
  for (Index r = 0; r < want.rows(); ++r) {
    for (Index p = 0; p < want.cols(); ++p) {
      const double times = excess(want(r, p), got(r, p), largest, tolerance);
      if (times <= 1.0) continue;
      ++misses;
      if (times <= worst) continue;
      worst = times;
      line = fmt::format("row {}, position {}: want {:.17g}, got {:.17g}, {:.3g} times what is allowed", r, p,
                         want(r, p), got(r, p), times);
    }
  }
  if (misses == 0) return {};
  return fmt::format("{}: {} (largest {:.6g}; {} of {} entries miss)", label, line, largest, misses,
                     want.size());
}

std::string mismatches(const std::string& label, const TokenMetrics& want, const TokenMetrics& got,
                       const Tolerance& tolerance) {
  std::string lines;
  for (const TokenMetric metric : kTokenMetrics.all()) {
    const std::string line =
        mismatch(fmt::format("{}: {}", label, name_of(metric)), want[metric], got[metric], tolerance);
    if (!line.empty()) lines += "\n" + line;
  }
  return lines;
}

bool same_bytes(const Matrix<double>& a, const Matrix<double>& b) {
  return a.rows() == b.rows() && a.cols() == b.cols() &&
         (a.size() == 0 ||
          std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.size()) * sizeof(double)) == 0);
}

}  // namespace kvreplay::test
