#include "analysis/run/progress.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvreplay {

std::string clock_text(double seconds) {
  const auto whole = static_cast<long long>(std::ceil(std::max(0.0, seconds)));
  if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

std::string progress_line(Index done, Index total, double seconds) {
  constexpr Index kWidth = 30;
  const double share = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 1;
  const auto filled = static_cast<Index>(share * kWidth);
  std::string bar(static_cast<std::size_t>(filled), '=');
  if (filled < kWidth) bar += '>';
  std::string line =
      fmt::format("[{:<{}}] {:3.0f} %  {}/{} heads", bar, kWidth, std::floor(share * 100), done, total);
  if (done > 0 && seconds > 0) {
    const double rate = static_cast<double>(done) / seconds;
    line += rate >= 1 ? fmt::format("  {:.1f} heads/s", rate) : fmt::format("  {:.1f} s/head", 1 / rate);
    if (done < total) line += fmt::format("  {} left", clock_text(static_cast<double>(total - done) / rate));
  }
  return line;
}

}  // namespace kvreplay
