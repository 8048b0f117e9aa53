#include "analysis/recommend/left_out.hpp"

#include "analysis/results/over_dumps.hpp"

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

std::string centering_text(const MeasuredLevers& measured, Engine engine) {
  constexpr double kHelps = 1.5;
  double most = kHelps;
  std::string text;
  for (std::size_t c = 0; c < measured.levers.size(); ++c) {
    const Lever& centered = measured.levers[c];
    std::vector<Quantization> stored = centered.stored;
    for (Quantization& layer : stored) layer.k.centered.reset();
    if (stored == centered.stored || !centered.keeps_all()) continue;
    for (std::size_t n = 0; n < measured.levers.size(); ++n) {
      const Lever& lever = measured.levers[n];
      if (lever.stored != stored || !lever.keeps_all() || why_left_out(measured, lever, engine)) continue;
      std::vector<double> ratios;
      for (const MeasuredPrompt& prompt : measured.prompts) {
        const auto cost = [&](std::size_t at) {
          const ModelFigures& figures = prompt.everywhere[at];
          return measured.written ? figures.written : measured.in_nats ? figures.nats : figures.output_error;
        };
        if (cost(n) > 0 && cost(c) > 0) ratios.push_back(cost(n) / cost(c));
      }
      if (ratios.size() < measured.prompts.size()) continue;
      const double ratio = over_dumps(ratios, FigureScale::log).geometric_mean;
      if (ratio < most) continue;
      most = ratio;
      text = fmt::format("would help: keys of {} centered lose {:.2g} times less, and no engine centers them",
                         lever.format, ratio);
    }
  }
  return text;
}

}  // namespace kvreplay::recommend
