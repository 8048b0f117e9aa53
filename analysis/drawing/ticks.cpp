#include "analysis/drawing/ticks.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>

namespace kvreplay::png {

std::string short_number(double value) {
  if (value == 0 || !std::isfinite(value)) return fmt::format("{:g}", value == 0 ? 0.0 : value);
  const std::string scientific = fmt::format("{:.2e}", value);  // rounded first: 999.9 is 1e3
  const auto e = scientific.find('e');
  const double digits = std::strtod(scientific.substr(0, e).c_str(), nullptr);
  const int exponent = std::atoi(scientific.c_str() + e + 1);
  int engineering = 3 * static_cast<int>(std::floor(exponent / 3.0));
  if (engineering == -3) engineering = 0;
  const double mantissa = digits * std::pow(10.0, exponent - engineering);
  return engineering == 0 ? fmt::format("{:.3g}", mantissa) : fmt::format("{:.3g}e{}", mantissa, engineering);
}

std::vector<Index> tick_indices(Index count, Index cell, Index spacing) {
  Index step = 1;
  const bool binary = count % 16 == 0;
  for (Index i = 0; step * cell < spacing; ++i) step = binary || i % 3 != 1 ? 2 * step : step / 2 * 5;
  std::vector<Index> ticks;
  for (Index at = 0; at < count; at += step) ticks.push_back(at);
  return ticks;
}

}  // namespace kvreplay::png
