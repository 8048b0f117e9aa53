#include "analysis/budgets/budget_frame.hpp"
#include "data/error.hpp"
#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/viewer/on_queue.hpp"
#include "viewer/questions/budgets.hpp"
#include "viewer/questions/policy_settings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

using namespace kvreplay;
using namespace kvreplay::viewer;
using namespace kvreplay::test;

namespace {

using Heads = std::vector<std::shared_ptr<const HeadWorth>>;

Heads all_heads(const Dump& dump, const BudgetPlan& plan) {
  return on_queue([&](JobControl& job) {
    Heads heads;
    for (Index layer = 0; layer < dump.shape().layers; ++layer)
      for (Index g = 0; g < dump.shape().n_kv; ++g)
        heads.push_back(
            std::make_shared<const HeadWorth>(head_worth(load_head_group<float>(dump, layer, g), plan, job)));
    return heads;
  });
}

/// Every method of the plan.
struct Computed {
  BudgetCurves curves;
  std::vector<BudgetShare> shares;
};
Computed computed(const Dump& dump, const BudgetPlan& plan, const Heads& heads) {
  return on_queue([&](JobControl& job) {
    Computed all{budget_curves(plan, dump.shape(), heads, job), {}};
    for (std::size_t c = 0; c < plan.cases.size(); ++c)
      all.shares.push_back(budget_share(plan, c, all.curves, job));
    return all;
  });
}

}  // namespace

TEST_CASE("budget view: the curves, budgets, losses and errors of kvreplay budget") {
  BudgetSettings settings;
  settings.order = parse_order(GENERATE("snapkv", "keydiff", "joint"), {});
  settings.semantics = settings.order.name == "keydiff"  ? BudgetSemantics::kvpress
                       : settings.order.name == "snapkv" ? BudgetSemantics::raw
                                                         : BudgetSemantics::paper;
  settings.sigma = 0.7;
  if (settings.order.name == "joint") {
    settings.floor = 0.05;
    settings.sinks = 4;
    settings.recent = 10;
  }
  const TempDir dir;
  std::vector<std::string> words = {"budget",      sample_dump(),
                                    "--out",       (dir / "r").string(),
                                    "--order",     settings.order.name,
                                    "--sigma",     "0.7",
                                    "--semantics", std::string(name_of(settings.semantics)),
                                    "--quiet"};
  if (settings.floor)
    words.insert(words.end(),
                 {"--floor", fmt::format("{}", *settings.floor), "--sinks",
                  fmt::format("{}", *settings.sinks), "--recent", fmt::format("{}", *settings.recent)});
  succeed(words);
  const Dump dump = Dump::open(sample_dump());
  const BudgetPlan plan = budget_view_plan(settings, dump);
  const Heads heads = all_heads(dump, plan);
  const Computed all = computed(dump, plan, heads);

  const Npy curves = npy_file(dir / ("r/curves/" + settings.order.name + ".npy"));
  REQUIRE(curves.shape == std::vector<std::size_t>{6, 2, 897});
  CHECK(curves.as<double>() == all.curves.of_order.all().losses());
  const auto profile = npy_file(dir / ("r/curves/" + settings.order.name + "~lu.npy")).as<float>();
  const std::vector<double> kept = shares_kept(all.curves.profile, 7);
  REQUIRE(kept.size() == 99);
  for (std::size_t i = 0; i < kept.size(); ++i)
    CHECK(kept[i] == Approx(1 - static_cast<double>(profile[12 * i + 7])).margin(1e-7));
  const auto rows = csv_rows(dir / "r/budgets.csv",
                             "layer,kv_head,order,method,sigma,budget,loss,output_error,layer_output_error");
  REQUIRE(all.shares.size() == 5);
  for (const BudgetShare& share : all.shares) {
    const auto row_of = [&](const std::string& layer, const std::string& head) {
      const auto at = std::find_if(rows.begin(), rows.end(), [&](const CsvRow& row) {
        return row.at("layer") == layer && row.at("kv_head") == head && row.at("method") == share.method;
      });
      REQUIRE(at != rows.end());
      return *at;
    };
    INFO(settings.order.name << " " << share.method);
    for (std::size_t h = 0; h < 12; ++h) {
      const CsvRow row = row_of(std::to_string(h / 2), std::to_string(h % 2));
      CHECK(share.budgets[h] == std::stol(row.at("budget")));
      CHECK(share.loss[h] == std::stod(row.at("loss")));
    }
    const CsvRow whole = row_of("", "");
    CHECK(share.total == std::stol(whole.at("budget")));
    CHECK(share.total_loss == std::stod(whole.at("loss")));

    const std::size_t h = 7;  // layer 3, KV head 1
    const Npy kept_file =
        npy_file(dir / fmt::format("r/layer_03/kept/{}-{}-0.7.npy", settings.order.name, share.method));
    KeptSet found(896, 0);
    for (Index j = 0; j < share.budgets[h]; ++j) found[heads[h]->order[j]] = 1;
    CHECK(kept_file.data.substr(896, 896) == std::string(found.begin(), found.end()));
  }
}

TEST_CASE("budget view: one set of curves serves every total, and the optimum is never beaten") {
  const Dump dump = Dump::open(sample_dump());
  BudgetSettings settings;
  const BudgetPlan plan = budget_view_plan(settings, dump);
  const Heads heads = all_heads(dump, plan);
  double last = 0;
  for (const double sigma : {0.05, 0.3, 0.55, 0.8, 0.95, 0.995}) {
    settings.sigma = sigma;
    const BudgetPlan at = budget_view_plan(settings, dump);
    CHECK(curves_key(at) == curves_key(plan));
    const Computed all = computed(dump, at, heads);
    double optimum = 0;
    for (const BudgetShare& share : all.shares) {
      CHECK(share.total == total_budget(sigma, 896, 12));
      if (share.method == "optimal") optimum = share.total_loss;
    }
    for (const BudgetShare& share : all.shares) CHECK(optimum <= share.total_loss);
    CHECK(optimum >= last);
    last = optimum;
  }
}

TEST_CASE("budget view: not normalised, a head's own curve is that of all") {
  const Dump dump = Dump::open(sample_dump());
  BudgetSettings raw;
  raw.semantics = BudgetSemantics::raw;
  const BudgetPlan plan = budget_view_plan(raw, dump);
  const Heads heads = all_heads(dump, plan);
  const Computed whole = computed(dump, plan, heads);
  const std::vector<double> own = loss_of(*heads[6]);
  const auto among_all = whole.curves.of_order.all().loss(6);
  CHECK(std::equal(own.begin(), own.end(), among_all.begin(), among_all.end()));
}

TEST_CASE("budget view: a head alone loses what its tokens are worth") {
  const HeadWorth worth{{2, 0, 3, 1}, {4, 3, 0, 1}, {9, 8, 7, 6}};
  CHECK(loss_of(worth) == std::vector<double>{8, 4, 1, 1, 0});
  CHECK(loss_of({}) == std::vector<double>{0});
}

TEST_CASE("budget view: what cannot be followed is said in a line") {
  const Dump dump = Dump::open(sample_dump());
  const auto reason = [&](const auto& change, const Dump& of) {
    BudgetSettings settings;
    change(settings);
    const std::string line = refusal_of([&] { budget_view_plan(settings, of); });
    CHECK(line.find('\n') == std::string::npos);
    CHECK(line.find("--") == std::string::npos);
    return line;
  };
  CHECK(reason([](BudgetSettings&) {}, dump).empty());
  const auto unread = [](const nlohmann::json& json) {
    return refusal_of([&] { settings_from<BudgetSettings>(json, "session"); });
  };
  CHECK(contains(unread({{"order", "snapkw"}}), "session: order: unknown order 'snapkw'; did you mean"));
  CHECK(contains(unread({{"methods", {"lo"}}}), "session: method: unknown method 'lo'; did you mean 'lu'"));
  CHECK_FALSE(reason([](auto& s) { s.methods = {}; }, dump).empty());
  CHECK(contains(reason([](auto& s) { s.sigma = 0; }, dump), "between 0 and 1"));
  CHECK(contains(reason([](auto& s) { s.sigma = std::numeric_limits<double>::quiet_NaN(); }, dump),
                 "between 0 and 1"));
  CHECK_FALSE(reason([](auto& s) { s.floor = 0.5; }, dump).empty());  // more than sigma 0.8 leaves
  CHECK_FALSE(reason([](auto& s) { s.sinks = 800, s.recent = 200; }, dump).empty());
  CHECK(contains(reason([](BudgetSettings&) {}, Dump::open(sample_dump(), {1024})), "decoding steps"));
}

TEST_CASE("budget view: settings survive a session, and keys tell apart what differs") {
  BudgetSettings settings;
  settings.order = parse_order("keydiff", {});
  settings.methods = {BudgetMethod::lu};
  settings.semantics = BudgetSemantics::official;
  settings.sigma = 0.25;
  settings.normalise = Normalise::layer;
  settings.floor = 0.1;
  settings.sinks = 2;
  settings.recent = 3;
  CHECK(settings_from<BudgetSettings>(nlohmann::json::parse(to_json(settings).dump()), "session") ==
        settings);
  CHECK(settings_from<BudgetSettings>(nlohmann::json::object(), "session") == BudgetSettings{});
  CHECK_THROWS_AS(settings_from<BudgetSettings>({{"sigma", "all"}}, "session"), InputError);
  const Dump dump = Dump::open(sample_dump());
  const BudgetPlan base = budget_view_plan({}, dump);
  BudgetSettings other;
  other.normalise = Normalise::none;
  CHECK(order_key(budget_view_plan(other, dump)) == order_key(base));
  CHECK(curves_key(budget_view_plan(other, dump)) != curves_key(base));
  other = {};
  other.floor = 0.1;
  CHECK(curves_key(budget_view_plan(other, dump)) != curves_key(base));
  other = {};
  other.sinks = 1;
  CHECK(order_key(budget_view_plan(other, dump)) != order_key(base));
}
