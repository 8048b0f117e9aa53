#include "analysis/recommend/left_out.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

namespace kvreplay::recommend {

std::optional<std::string> why_left_out(const MeasuredLevers& measured, const Lever& lever, Engine engine) {
  if (!lever.keeps_all() && !kEngines[engine].evicts)
    return fmt::format("tokens are evicted: {} keeps all", kEngines[engine].name);
  return why_not_run(engine, lever.stored, measured.shape);
}

std::string left_out_text(const MeasuredLevers& measured, Engine engine) {
  constexpr std::size_t kShown = 3;
  std::vector<std::pair<std::ptrdiff_t, std::string>> reasons;
  std::ptrdiff_t cases = 0, shown = 0;
  for (const Lever& lever : measured.levers) {
    const auto why = why_left_out(measured, lever, engine);
    if (!why) continue;
    ++cases;
    const auto there = std::ranges::find(reasons, *why, &std::pair<std::ptrdiff_t, std::string>::second);
    if (there == reasons.end())
      reasons.emplace_back(1, *why);
    else
      ++there->first;
  }
  if (cases == 0) return "";
  std::ranges::stable_sort(reasons, std::greater<>{}, &std::pair<std::ptrdiff_t, std::string>::first);
  std::string text = fmt::format("left out for {}, {} of {}", kEngines[engine].name,
                                 counted(cases, "measured case"), measured.levers.size());
  for (std::size_t n = 0; n < std::min(kShown, reasons.size()); ++n) {
    text += fmt::format("{} {} ({})", n == 0 ? ":" : ",", reasons[n].first, reasons[n].second);
    shown += reasons[n].first;
  }
  return shown < cases ? fmt::format("{} and {} others", text, cases - shown) : text;
}

}  // namespace kvreplay::recommend
