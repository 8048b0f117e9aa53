#include "analysis/measure/case_outputs.hpp"
#include "data/error.hpp"
#include "tests/analysis/channel_runs.hpp"
#include "tests/data/expect_error.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/viewer/on_queue.hpp"
#include "viewer/questions/channels.hpp"

#include <filesystem>

using namespace kvreplay;
using namespace kvreplay::viewer;
using namespace kvreplay::test;

namespace {

void run_channels(const TempDir& dir, const std::string& semantics, const std::string& methods) {
  succeed({"channels", sample_dump(), "--out", (dir / "r").string(), "--layers", "2,4", "--ratio", "0.6,0.25",
           "--method", methods, "--semantics", semantics, "--quiet"});
}

}  // namespace

TEST_CASE("channel results: what a run left is what the dump gives", "[channels]") {
  const auto semantics = GENERATE(Semantics::paper, Semantics::official);
  const TempDir dir;
  run_channels(dir, std::string(name_of(semantics)), "think,exchange,output,convex,rope_pairs");
  const ResultReader results(dir / "r");
  CHECK_FALSE(why_no_channel_results(results, 4).has_value());

  ChannelSettings settings;
  settings.semantics = semantics;
  settings.methods = channel_rules_named({"think", "exchange", "output", "convex", "rope_pairs"});
  const Dump dump = Dump::open(sample_dump());
  const ChannelPlan plan = channel_plan(dump, settings);
  const auto group = load_head_group<float>(dump, 4, 1);
  const ChannelHead head = on_queue([&](JobControl& job) { return channel_head(group, plan, job); });
  const ChannelOutputs outputs =
      on_queue([&](JobControl& job) { return channel_outputs(group, plan, head, job); });

  const ChannelRecord record = read_channels(results, 4, 1);
  CHECK(record.semantics == name_of(semantics));
  REQUIRE(record.head.parts.size() == head.parts.size());
  REQUIRE(record.outputs.outputs.size() == head.parts.size());
  for (std::size_t p = 0; p < head.parts.size(); ++p) {
    CHECK(record.head.parts[p].basis.scores.logits == head.parts[p].basis.scores.logits);
    CHECK(record.head.parts[p].basis.scores.rope_partner == head.parts[p].basis.scores.rope_partner);
    CHECK(record.head.parts[p].spectrum == head.parts[p].spectrum);
    CHECK(record.head.parts[p].off_diagonal_share == head.parts[p].off_diagonal_share);
    CHECK(record.outputs.outputs[p] == outputs.outputs[p]);
  }
  REQUIRE(head.window.size() == 2);
  REQUIRE(record.head.window.size() == 2);
  for (std::size_t g = 0; g < 2; ++g)
    for (const auto& [read, live] :
         {std::pair{&record.head.window, &head.window}, std::pair{&record.head.future, &head.future}}) {
      CHECK(read->at(g).mean == live->at(g).mean);
      CHECK(read->at(g).deviation == live->at(g).deviation);
    }
  CHECK(record.head.off_diagonal_share == head.off_diagonal_share);
  CHECK(record.head.rope_pair_share == head.rope_pair_share);
  REQUIRE(record.prunings.size() == 2);
  CHECK(record.prunings[0].ratio == 0.25);
  CHECK(record.prunings[1].ratio == 0.6);
  for (const ChannelPrunings& found : record.prunings) {
    const ChannelPrunings expected = on_queue(
        [&](JobControl& job) { return channel_prunings(group, plan, head, &outputs, found.ratio, job); });
    CHECK(found.asked == expected.asked);
    REQUIRE(found.methods.size() == expected.methods.size());
    for (std::size_t m = 0; m < found.methods.size(); ++m) {
      const ChannelPruning &one = found.methods[m], &other = expected.methods[m];
      INFO(one.method << " at " << found.ratio);
      CHECK(one.method == other.method);
      CHECK(one.pruned == other.pruned);
      CHECK(one.window_reconstruction == other.window_reconstruction);
      CHECK(one.window.relative_reconstruction == other.window.relative_reconstruction);
      CHECK(one.window.error == other.window.error);
      CHECK(one.future.relative_reconstruction == other.future.relative_reconstruction);
      CHECK(one.future.error == other.future.error);
      CHECK(one.window_logits_sq == Approx(other.window_logits_sq).epsilon(1e-12));
      CHECK(one.bytes == other.bytes);
      CHECK(one.lower_bound == other.lower_bound);
      CHECK(one.proven == other.proven);
    }
  }
  CHECK(bytes_of(record) > head.parts.size() * 64 * 64 * 8 * 2);
}

TEST_CASE("channel results: what a run did not compute is said, not made up", "[channels]") {
  const TempDir dir;
  run_channels(dir, "paper", "think");
  std::filesystem::remove(dir / "r/files.csv");  // without it, what is not there was not computed
  const ResultReader results(dir / "r");
  CHECK(read_channels(results, 2, 0).outputs.outputs.empty());
  CHECK(why_no_channel_results(results, 3).value_or("") == "the run did not compute layer 3");
  CHECK_THROWS_AS(read_channels(results, 3, 0), InputError);
  CHECK_THROWS_AS(read_channels(results, 2, 2), InputError);
  CHECK_THROWS_AS(read_channels(results, 2, -1), InputError);

  const std::filesystem::path pairs = dir / "r/layer_02/channels/rope_pair.npy";
  std::filesystem::remove(pairs);
  CHECK(read_channels(results, 2, 0).head.parts[0].basis.scores.rope_partner.empty());
  std::filesystem::copy_file(dir / "r/layer_02/channels/spectrum.npy", pairs);
  expect_error([&] { read_channels(results, 2, 0); }, {"rope_pair.npy", "[64]", "[2, 64]"});
  std::filesystem::remove(pairs);
  std::filesystem::copy_file(dir / "r/layer_02/channels/spectrum.npy",
                             dir / "r/layer_02/channels/interaction.npy",
                             std::filesystem::copy_options::overwrite_existing);
  expect_error([&] { read_channels(results, 2, 0); }, {"interaction.npy", "[2, 64, 64]"});
  std::filesystem::remove(dir / "r/layer_02/channels/interaction.npy");
  CHECK(why_no_channel_results(results, 2).value_or("") == "the run did not compute channels");
}
