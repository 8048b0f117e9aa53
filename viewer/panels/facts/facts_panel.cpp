#include "viewer/panels/panel.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/work/csv_table.hpp"

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

namespace kvreplay::viewer {
namespace {

using Facts = std::vector<std::pair<const char*, std::string>>;

Facts facts_of_run(const Run& run) {
  const DumpShape& s = run.shape();
  return {{"model", run.model()},
          {"path", run.path().string()},
          {"layers", std::to_string(s.layers)},
          {"KV heads", fmt::format("{}, {} query heads each", s.n_kv, s.group())},
          {"d", std::to_string(s.d)},
          {"prompt", fmt::format("{} tokens", s.l)},
          {"decoded", fmt::format("{} tokens", s.T - s.l)},
          {"dump", run.dump() != nullptr ? "open" : run.why_no_dump()},
          {"results", run.results() != nullptr ? "open" : "none"}};
}

/// What the selected run is.
class FactsPanel final : public Panel {
 public:
  void draw(PanelContext& context) override {
    for (const auto& [name, value] : facts_of_run(*context.state.run())) figure(name, value);
  }
  std::string csv(PanelContext& context) const override {
    if (!context.state.run()) return {};
    CsvTable table("fact,value");
    for (const auto& [name, value] : facts_of_run(*context.state.run())) table.row(name, value);
    return table.text();
  }
};

}  // namespace

template <>
std::unique_ptr<Panel> make_panel<PanelKind::facts>() {
  return std::make_unique<FactsPanel>();
}

}  // namespace kvreplay::viewer
