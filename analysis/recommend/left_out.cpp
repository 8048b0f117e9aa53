#include "analysis/recommend/left_out.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

namespace kvreplay::recommend {

std::optional<Mismatch> why_left_out(const MeasuredLevers& measured, const Lever& lever, Engine engine) {
  if (!lever.keeps_all() && !kEngines[engine].evicts)
    return Mismatch{"evicting tokens", fmt::format("{} keeps all", kEngines[engine].name)};
  return why_not_run(engine, lever.stored, measured.shape);
}

std::string left_out_text(const MeasuredLevers& measured, Engine engine) {
  struct Reason {
    std::string why, first;  ///< the reason, and one case as an example
    std::ptrdiff_t cases = 0;
  };
  std::vector<Reason> reasons;
  std::ptrdiff_t all = 0;
  for (const Lever& lever : measured.levers) {
    const auto found = why_left_out(measured, lever, engine);
    if (!found) continue;
    ++all;
    auto there = std::ranges::find(reasons, found->why, &Reason::why);
    if (there == reasons.end()) there = reasons.insert(there, {found->why, found->what, 0});
    ++there->cases;
  }
  if (all == 0) return "";
  std::ranges::stable_sort(reasons, std::greater<>{}, &Reason::cases);
  std::vector<std::string> texts;
  for (const auto& [why, first, cases] : reasons)
    texts.push_back(
        fmt::format("{} in {} ({}{})", why, counted(cases, "case"), cases > 1 ? "as " : "", first));
  return fmt::format("left out for {}, {} of {} measured: {}", kEngines[engine].name, counted(all, "case"),
                     measured.levers.size(), fmt::join(texts, "; "));
}

}  // namespace kvreplay::recommend
