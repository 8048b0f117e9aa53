#include "analysis/commands/progress_bar.hpp"

#include "analysis/run/progress.hpp"
#include "data/console.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <unistd.h>
#include <utility>

namespace kvreplay {

ProgressBar::ProgressBar(bool wanted, std::string label)
    : drawing_(wanted && ::isatty(STDERR_FILENO) == 1),
      label_(label.empty() ? "" : std::move(label) + "  ") {}

ProgressBar::~ProgressBar() {
  if (drawn_) to_stderr("\r\033[K");
}

void ProgressBar::show(Index done, Index total) {
  const auto now = Clock::now();
  if (!drawing_ || (drawn_ && done < total && now - last_ < std::chrono::milliseconds(100))) return;
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  to_stderr(fmt::format("\r\033[K{}{}", label_, progress_line(done, total, seconds)));
  std::fflush(stderr);
  last_ = now;
  drawn_ = true;
}

}  // namespace kvreplay
