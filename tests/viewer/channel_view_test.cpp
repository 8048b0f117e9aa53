#include "analysis/measure/case_outputs.hpp"
#include "data/error.hpp"
#include "tests/analysis/channel_runs.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/viewer/on_queue.hpp"
#include "viewer/questions/channels.hpp"
#include "viewer/questions/policy_settings.hpp"

#include <cmath>
#include <limits>
#include <set>

using namespace kvreplay;
using namespace kvreplay::viewer;
using namespace kvreplay::test;

namespace {

struct Computed {
  ChannelHead head;
  ChannelOutputs outputs;
  ChannelPrunings prunings;
};

Computed computed(const Dump& dump, const ChannelSettings& settings, Index layer, Index kv_head,
                  double ratio) {
  const ChannelPlan plan = channel_plan(dump, settings);
  const auto group = load_head_group<float>(dump, layer, kv_head);
  return on_queue([&](JobControl& job) {
    Computed all;
    all.head = channel_head(group, plan, job);
    all.outputs = channel_outputs(group, plan, all.head, job);
    all.prunings = channel_prunings(group, plan, all.head, &all.outputs, ratio, job);
    return all;
  });
}

std::string text_of_set(const ChannelSet& set) { return {set.begin(), set.end()}; }

}  // namespace

TEST_CASE("channel view: the figures of kvreplay channels, under each semantics") {
  ChannelSettings settings;
  settings.semantics = GENERATE(Semantics::paper, Semantics::official, Semantics::kvpress);
  settings.methods =
      channel_rules_named({"magnitude", "think", "iap", "exchange", "output", "convex", "rope_pairs"});
  if (settings.semantics == Semantics::paper) settings.protect = Protection{5, 20};
  const bool official = settings.semantics == Semantics::official;
  const TempDir dir;
  succeed({"channels", sample_dump(), "--out", (dir / "r").string(), "--layers", "2", "--ratio", "0.5",
           "--method", "magnitude,think,iap,exchange,output,convex,rope_pairs", "--semantics",
           std::string(name_of(settings.semantics)), "--protect",
           settings.protect ? OptionValue<Protection>::text(*settings.protect) : "off", "--quiet"});
  const ChannelFigures figures(dir / "r");
  const Npy interaction = npy_file(dir / "r/layer_02/channels/interaction.npy");
  const Dump dump = Dump::open(sample_dump());
  const std::size_t d = 64, parts = official ? 2 : 1;
  for (Index kv_head = 0; kv_head < 2; ++kv_head) {
    const std::string scope = fmt::format("2,{}", kv_head);
    const Computed all = computed(dump, settings, 2, kv_head, 0.5);
    REQUIRE(all.head.parts.size() == parts);
    CHECK(all.head.off_diagonal_share == figures.at(scope, "-", "window", "off_diagonal_share"));
    CHECK(all.head.rope_pair_share == figures.at(scope, "-", "window", "rope_pair_share"));
    REQUIRE(all.prunings.methods.size() == 7);
    CHECK(all.prunings.asked == 32);
    CHECK(all.prunings.waiting.empty());
    for (std::size_t m = 0; m < 7; ++m) {
      const ChannelPruning& method = all.prunings.methods[m];
      const std::string which = method.method + "-0.5";
      INFO(scope << " " << which);
      const auto check_rows = [&](const std::string& rows, const ChannelPruning::RowFigures& found,
                                  double reconstruction) {
        CHECK(reconstruction == figures.at(scope, which, rows, "reconstruction_error"));
        CHECK(found.relative_reconstruction ==
              figures.at(scope, which, rows, "relative_reconstruction_error"));
        CHECK(found.error == figures.at(scope, which, rows, "output_error"));
      };
      check_rows("window", method.window, method.window_reconstruction);
      check_rows("future", method.future, method.future_reconstruction);
      CHECK(method.bytes == figures.at(scope, which, "", "bytes"));
      CHECK(method.lower_bound.has_value() == figures.has(scope, which, "window", "lower_bound"));
      if (method.lower_bound) {
        CHECK(*method.lower_bound == figures.at(scope, which, "window", "lower_bound"));
        CHECK(method.proven == (figures.at(scope, which, "window", "proven") == 1));
      }
      const Npy pruned = npy_file(dir / ("r/layer_02/channels/" + which + ".npy"));
      for (std::size_t part = 0; part < parts; ++part) {
        const std::size_t row = static_cast<std::size_t>(kv_head) * parts + part;
        CHECK(pruned.data.substr(row * d, d) == text_of_set(method.pruned[part]));
      }
    }
    for (std::size_t part = 0; part < parts; ++part) {
      const std::size_t row = static_cast<std::size_t>(kv_head) * parts + part;
      REQUIRE(interaction.descr == "<f8");
      const auto values = interaction.as<double>();
      const Matrix<double>& H = all.head.parts[part].basis.scores.logits;
      bool same = true;
      for (std::size_t i = 0; i < d * d; ++i) same = same && values[row * d * d + i] == H.data()[i];
      CHECK(same);
      CHECK(all.head.parts[part].spectrum.sum() == Approx(H.trace()).epsilon(1e-10));
    }
  }
}

TEST_CASE(
    "channel view: without the output-space matrix, methods that need it wait, the others are the same") {
  const Dump dump = Dump::open(sample_dump());
  ChannelSettings settings;
  settings.methods = channel_rules_named({"output", "think", "exchange+output"});
  const ChannelPlan plan = channel_plan(dump, settings);
  const auto group = load_head_group<float>(dump, 0, 0);
  const Computed all = computed(dump, settings, 0, 0, 0.4);
  const ChannelPrunings early =
      on_queue([&](JobControl& job) { return channel_prunings(group, plan, all.head, nullptr, 0.4, job); });
  CHECK(early.waiting == std::vector<std::string>{"output", "exchange+output"});
  REQUIRE(early.methods.size() == 1);
  CHECK(early.methods[0].pruned == all.prunings.methods[1].pruned);
  CHECK(early.methods[0].future.error == all.prunings.methods[1].future.error);
}

TEST_CASE("channel view: nothing pruned changes nothing, errors grow with the ratio") {
  const Dump dump = Dump::open(sample_dump());
  ChannelSettings settings;
  settings.methods = channel_rules_named({"think"});
  const auto at = [&](double ratio) { return computed(dump, settings, 3, 1, ratio).prunings.methods[0]; };
  const ChannelPruning none = at(0);
  CHECK(none.channels == 0);
  CHECK(none.window_reconstruction == 0);
  CHECK(none.window.error == 0);
  CHECK(none.future.error == 0);
  double last = 0;
  for (const double ratio : {0.1, 0.3, 0.6, 0.9}) {
    const double reconstruction = at(ratio).window_reconstruction;
    CHECK(reconstruction > last);
    last = reconstruction;
  }
  CHECK(at(0.9).bytes < none.bytes);
}

TEST_CASE("channel view: a dump without decoding steps has window figures only") {
  const Dump dump = Dump::open(sample_dump(), {1024});
  const ChannelPruning found = computed(dump, {}, 0, 0, 0.5).prunings.methods[0];
  CHECK(found.window.error > 0);
  CHECK(std::isnan(found.future.error));
  CHECK(std::isnan(found.future_reconstruction));
}

TEST_CASE("channel view: what cannot be followed is said in a line") {
  const Dump dump = Dump::open(sample_dump());
  const auto reason = [&](const auto& change) {
    ChannelSettings settings;
    change(settings);
    const std::string line = refusal_of([&] { channel_plan(dump, settings); });
    CHECK(line.find('\n') == std::string::npos);
    CHECK(line.find("--") == std::string::npos);
    return line;
  };
  CHECK(reason([](ChannelSettings&) {}).empty());
  CHECK_THROWS_WITH(settings_from<ChannelSettings>({{"methods", {"thimk"}}}, "session"),
                    "session: method: unknown method 'thimk'; did you mean 'think'?");
  CHECK_FALSE(reason([](auto& s) { s.methods = {}; }).empty());
  CHECK(contains(reason([](auto& s) { s.recent = 896; }), "896"));
  CHECK_FALSE(reason([](auto& s) { s.window = 0; }).empty());
  CHECK_FALSE(reason([](auto& s) { s.protect = Protection{20, 5}; }).empty());
  const auto group = load_head_group<float>(dump, 0, 0);
  const ChannelPlan plan = channel_plan(dump, {});
  const int refused = on_queue([&](JobControl& job) {
    const ChannelHead head = channel_head(group, plan, job);
    int refusals = 0;
    for (const double ratio : {1.0, -0.1, std::numeric_limits<double>::quiet_NaN()}) try {
        channel_prunings(group, plan, head, nullptr, ratio, job);
      } catch (const InputError&) {
        ++refusals;
      }
    return refusals;
  });
  CHECK(refused == 3);
}

TEST_CASE("channel view: settings survive a session, and those that differ in the basis have another key") {
  ChannelSettings settings;
  settings.methods = channel_rules_named({"iap", "convex"});
  settings.semantics = Semantics::kvpress;
  settings.recent = 4;
  settings.window = 16;
  settings.protect = Protection{5, 20};
  CHECK(settings_from<ChannelSettings>(nlohmann::json::parse(to_json(settings).dump()), "session") ==
        settings);
  CHECK(settings_from<ChannelSettings>(nlohmann::json::object(), "session") == ChannelSettings{});
  CHECK_THROWS_AS(settings_from<ChannelSettings>({{"window", "32"}}, "session"), InputError);
  const Dump dump = Dump::open(sample_dump());
  const auto key = [&](const ChannelSettings& s) { return basis_key(channel_plan(dump, s)); };
  ChannelSettings same = settings;
  same.methods = channel_rules_named({"think"});
  CHECK(key(same) == key(settings));
  std::set<Key> keys = {key(settings), key({})};
  same.window = 8;
  keys.insert(key(same));
  same.recent = 5;
  keys.insert(key(same));
  same.protect.reset();
  keys.insert(key(same));
  CHECK(keys.size() == 5);
}
