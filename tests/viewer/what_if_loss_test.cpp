#include "sim/loss/change_loss.hpp"
#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/kept_changes.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/viewer/what_if_runs.hpp"
#include "viewer/questions/what_if.hpp"
#include "viewer/questions/what_if_figures.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string>
#include <vector>

// Nats beside the output error: those of `kvreplay evict`, of a head and of the model.

using namespace kvreplay;
using namespace kvreplay::viewer;
using namespace kvreplay::test;

namespace {

WhatIfSettings settings_of(const std::string& base, double sigma) {
  WhatIfSettings settings;
  settings.base = base;
  settings.sigma = sigma;
  return settings;
}

const PredictedLoss& loss_on(const WhatIf& answer, RowSet rows) {
  return (rows == RowSet::window ? answer.window : answer.future).loss;
}

Dump dump_with_gradients(const TempDir& temp) {
  make_small_dump(temp / "dump", {"--gradients", "3"});
  return Dump::open(temp / "dump");
}

}  // namespace

TEST_CASE("what if: the losses of kvreplay evict, of a head and of the model", "[loss]") {
  const TempDir temp;
  const Dump dump = dump_with_gradients(temp);
  succeed({"evict", temp / "dump", "--out", temp / "r", "--policy", "h2o,snapkv,streaming", "--sigma",
           "0.8,0.4", "--quiet"});
  const Evictions evictions(temp / "r");
  for (const std::string policy : {"h2o", "snapkv", "streaming"})
    for (const double sigma : {0.8, 0.4}) {
      const WhatIfSettings settings = settings_of(policy, sigma);
      const std::string run =
          fmt::format("{},paper,prefill,{}", policy, what_if_plan(settings, dump).cases.front().budget_label);
      for (const RowSet rows : {RowSet::window, RowSet::future}) {
        INFO(run << " " << name_of(rows));
        ModelLoss model;
        for (Index layer = 0; layer < 2; ++layer)
          for (Index head = 0; head < 2; ++head) {
            const WhatIf found = computed(dump, settings, layer, head);
            const PredictedLoss& loss = loss_on(found, rows);
            const std::string scope = fmt::format("{},{}", layer, head);
            const auto in_file = [&](const char* metric) {
              return evictions.at(scope, run, std::string(name_of(rows)), metric);
            };
            CHECK(loss.row == in_file("loss_row"));
            CHECK(loss.head == in_file("loss_head"));
            CHECK(loss.row > 0);
            CHECK(loss.samples.size() == 3);
            CHECK((rows == RowSet::window ? found.window : found.future).error == in_file("output_error"));
            model.add(layer, loss);
          }
        const auto of_model = [&](const char* metric) {
          return evictions.at(",", run, std::string(name_of(rows)), metric);
        };
        CHECK(model.row() == Approx(of_model("loss_row")).epsilon(1e-12));
        CHECK(model.layer() == Approx(of_model("loss_layer")).epsilon(1e-12));
        CHECK(model.layer() != Approx(model.row()).epsilon(1e-3));
        CHECK(model.step() == Approx(of_model("loss_step")).epsilon(1e-12));
        CHECK(model.step() != Approx(model.row()).epsilon(1e-3));
      }
    }
}

TEST_CASE("what if: keeping everything loses no nats", "[loss]") {
  const TempDir temp;
  const Dump dump = dump_with_gradients(temp);
  WhatIfSettings settings = settings_of("snapkv", 0.5);
  settings.sigma_budget = false;
  settings.budget = dump.shape().l;
  const WhatIf all = computed(dump, settings, 1, 0);
  ModelLoss model;
  model.add(1, all.future.loss);
  CHECK(all.future.loss.rows == 9);
  CHECK(all.window.loss.row == 0);
  CHECK(all.future.loss.row == 0);
  CHECK(model.row() == 0);
  CHECK(model.layer() == 0);
  CHECK(model.step() == 0);
}

TEST_CASE("what if: tokens kept by hand change the nats to those of this kept set", "[loss]") {
  const TempDir temp;
  const Dump dump = dump_with_gradients(temp);
  const std::vector<MarkedToken> marks{{7, PaintMark::keep}, {60, PaintMark::evict}};
  const WhatIf found = computed(dump, settings_of("streaming", 0.8), 1, 1, nullptr, marks);
  REQUIRE(found.kept[7] == 1);
  REQUIRE(found.kept[60] == 0);
  const auto group = load_head_group<double>(dump, 1, 1);
  const RowRange rows{61, 70};
  const OutputChangeReference changes = output_change_reference(group, rows, found.kept);
  double row = 0;
  for (Index g = 0; g < group.G(); ++g)
    row +=
        change_loss_reference(group.g_future, g, rows, changes.change[static_cast<std::size_t>(g)], rows).row;
  CHECK(found.future.loss.row == Approx(row / 9).epsilon(1e-4));
  CHECK(found.future.loss.row != computed(dump, settings_of("streaming", 0.8), 1, 1).future.loss.row);
}

TEST_CASE("what if: without gradients there are no nats, and it is said what makes them", "[loss]") {
  const TempDir temp;
  make_small_dump(temp / "none");
  const Dump none = Dump::open(temp / "none");
  const WhatIf found = computed(none, settings_of("snapkv", 0.8), 0, 0);
  CHECK(found.future.loss.rows == 0);
  CHECK(std::isnan(found.future.loss.row));
  CHECK(std::isnan(found.window.loss.head));
  CHECK(found.future.error > 0);
  ModelLoss model;
  model.add(0, found.future.loss);
  CHECK(std::isnan(model.row()));
  CHECK(std::isnan(model.layer()));
  for (const RowSet rows : {RowSet::window, RowSet::future}) {
    CHECK(contains(why_no_nats(none, rows), "the dump has none"));
    CHECK(contains(why_no_nats(none, rows), "--gradients 24"));
  }
  const auto offers_nats = [](const Dump& dump, RowSet rows) {
    const std::vector<std::size_t> shown = shown_figures(dump);
    return std::any_of(shown.begin(), shown.end(),
                       [&](std::size_t i) { return what_if_figures()[i].loss_on == rows; });
  };
  CHECK_FALSE(offers_nats(none, RowSet::window));
  CHECK_FALSE(offers_nats(none, RowSet::future));
  Dump some = dump_with_gradients(temp);
  CHECK(why_no_nats(some, RowSet::future).empty());
  CHECK(offers_nats(some, RowSet::window));
  CHECK(offers_nats(some, RowSet::future));
  remove_tensor(temp / "dump", "g_window");
  some = Dump::open(temp / "dump");
  CHECK_FALSE(offers_nats(some, RowSet::window));
  CHECK(offers_nats(some, RowSet::future));
  // A prompt that ends elsewhere has no gradients of its own.
  CHECK_FALSE(offers_nats(Dump::open(temp / "dump", {40}), RowSet::window));
}

TEST_CASE("what if: a setting's figures are the head map's, by name", "[loss]") {
  const TempDir temp;
  const Dump dump = dump_with_gradients(temp);
  std::set<std::string> names;
  const std::vector<FigureInfo> infos = setting_figures(dump);
  // Of A, of B, their difference, and of what costs something what the exact order would save.
  CHECK(infos.size() == 3 * kShownFigures + 4);
  for (const FigureInfo& info : infos) {
    names.insert(info.name);
    const auto named = setting_figure_named(info.name);
    REQUIRE(named);
    const WhatIfFigure& figure = what_if_figures()[named->figure];
    CHECK(info.path.back().starts_with(figure.title));
    CHECK(info.facts.unit == figure.unit);
    CHECK(contains(info.title, std::string(kSettingViews[named->view].title)));
    CHECK((info.facts.better == Better::neither) ==
          (named->view == SettingView::difference || figure.better == Better::neither));
  }
  CHECK(names.size() == infos.size());
  CHECK(names.contains("setting_a~loss_row_future"));
  CHECK(names.contains("setting_a-exact~output_error_window"));
  CHECK_FALSE(names.contains("setting_a-exact~bytes"));
  CHECK_FALSE(setting_figure_named("setting_a-exact~bytes"));
  CHECK_FALSE(setting_figure_named("setting_c~loss_row_future"));
  CHECK_FALSE(setting_figure_named("spearman"));
}

TEST_CASE("what if: what a head costs is told in nats where there are gradients, else by its output error",
          "[loss]") {
  const TempDir temp;
  const auto cost = [](const Dump& dump) { return what_if_figures()[main_cost(dump)].name; };
  CHECK(cost(dump_with_gradients(temp)) == "loss_row_future");
  remove_tensor(temp / "dump", "g_future");
  CHECK(cost(Dump::open(temp / "dump")) == "loss_row_window");
  remove_tensor(temp / "dump", "g_window");
  CHECK(cost(Dump::open(temp / "dump")) == "output_error_future");
  CHECK(cost(Dump::open(test::sample_dump())) == "output_error_future");
}
