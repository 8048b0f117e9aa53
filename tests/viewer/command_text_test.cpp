#include "viewer/questions/command_text.hpp"

#include "data/console.hpp"
#include "data/error.hpp"
#include "tests/analysis/kvreplay_program.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/process.hpp"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::viewer;

namespace {

/// What a shell makes of a line.
std::vector<std::string> words_of(const std::string& line) {
  const test::ProcessResult result =
      test::run({"/bin/sh", "-c", "for w in " + line + "; do printf '%s\\036' \"$w\"; done"});
  REQUIRE(result.code == 0);
  std::vector<std::string> words;
  std::string word;
  for (const char c : result.out)
    if (c == '\036')
      words.push_back(std::exchange(word, {}));
    else
      word += c;
  return words;
}

/// The options as the command line reads them: those that others name last.
EvictionOptions read_back(const std::vector<std::string>& words) {
  EvictionOptions options;
  const BoundOptions all = bound(options);
  for (const bool last : {false, true})
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (!words[i].starts_with("--")) continue;
      const auto option = std::find_if(all.begin(), all.end(), [&](const BoundOption& one) {
        return "--" + std::string(one.facts->name) == words[i];
      });
      INFO(words[i]);
      REQUIRE(option != all.end());
      if (option->last != last) continue;
      std::vector<std::string> values;
      if (!option->flag()) {
        REQUIRE(i + 1 < words.size());
        values = option->list ? items_of(words[i + 1]) : std::vector{words[i + 1]};
        for (const std::string& value : values)
          if (option->complaint) CHECK(option->complaint(value) == "");
      }
      option->read(values);
    }
  return options;
}

void check_same(EvictionOptions got, EvictionOptions want) {
  CHECK(to_json(bound(got)) == to_json(bound(want)));
  REQUIRE(got.budgets.size() == want.budgets.size());
  for (std::size_t i = 0; i < got.budgets.size(); ++i) {
    CHECK(got.budgets[i].tokens == want.budgets[i].tokens);
    CHECK(got.budgets[i].sigma == want.budgets[i].sigma);
  }
  REQUIRE(got.scores.size() == want.scores.size());
  for (std::size_t i = 0; i < got.scores.size(); ++i)
    CHECK(OptionValue<NamedFile>::text(got.scores[i]) == OptionValue<NamedFile>::text(want.scores[i]));
}

}  // namespace

TEST_CASE("a shell gives back every word as it was", "[command]") {
  const std::vector<std::string> words = {"plain", "",  "two words", "it's",   "$HOME",  "`id`",
                                          "a\"b",  "*", "new\nline", "back\\", "-x=1,2", "é",
                                          "#",     "~", "!x",        ";&|"};
  CHECK(words_of(shell_line(words)) == words);
  CHECK(shell_line({"kvreplay", "evict", "/data/x.npz"}) == "kvreplay evict /data/x.npz");
}

TEST_CASE("a setting's command is read back as the same options", "[command]") {
  WhatIfSettings plain;
  CHECK(evict_options_text(plain, nullptr) == "--policy snapkv --keep 20%");
  std::vector<WhatIfSettings> all = {plain};
  const auto add = [&](auto change) {
    WhatIfSettings settings;
    change(settings);
    all.push_back(settings);
  };
  add([](WhatIfSettings& s) { s.base = "tova", s.score = "joint"; });
  add([](WhatIfSettings& s) { s.sigma_budget = false, s.budget = 410; });
  add([](WhatIfSettings& s) { s.sigma_budget = false, s.budget = 1; });
  add([](WhatIfSettings& s) { s.semantics = Semantics::official, s.window = 64, s.sinks = 4, s.recent = 0; });
  add([](WhatIfSettings& s) { s.pool = Pooling{}; });
  add([](WhatIfSettings& s) { s.block = 32; });
  add([](WhatIfSettings& s) { s.base = "greedy_exact", s.on_future = true; });
  for (const Compensation method : kCompensations.all())
    add([&](WhatIfSettings& s) { s.compensation = method; });
  const auto in = [](const char* word) { return OptionValue<CacheFormat>::parse(evict_option::bits, word); };
  add([&](WhatIfSettings& s) { s.bits = in("4"); });
  add([&](WhatIfSettings& s) { s.bits = in("k8v4;0-1,last:16"); });
  add([&](WhatIfSettings& s) {
    s.bits = in("kq4_0v16");
    s.rotate = OptionValue<Rotation>::parse(evict_option::rotate, "hadamard:32");
    s.center = OptionValue<Centering>::parse(evict_option::center, "k:4");
    CHECK(evict_options_text(s, nullptr) ==
          "--policy snapkv --keep 20% --bits kq4_0v16 --rotate hadamard:32 --center k:4");
  });
  add([](WhatIfSettings& s) {  // without a format they say nothing
    s.center = OptionValue<Centering>::parse(evict_option::center, "k");
    CHECK(evict_options_text(s, nullptr) == "--policy snapkv --keep 20%");
  });
  std::mt19937_64 random(3);
  for (int i = 0; i < 200; ++i)
    add([&](WhatIfSettings& s) { s.sigma = std::uniform_real_distribution(1e-6, 1 - 1e-6)(random); });
  for (int tenth = 1; tenth < 1000; ++tenth) add([&](WhatIfSettings& s) { s.sigma = 1 - tenth / 1000.0; });
  std::string lines;
  for (const WhatIfSettings& settings : all) lines += evict_options_text(settings, nullptr) + " '|' ";
  const std::vector<std::string> words = words_of(lines);
  auto at = words.begin();
  for (const WhatIfSettings& settings : all) {
    INFO(evict_options_text(settings, nullptr));
    const auto end = std::find(at, words.end(), "|");
    REQUIRE(end != words.end());
    check_same(read_back({at, end}), evict_options_of(settings));
    at = end + 1;
  }
}

TEST_CASE("the command of a setting names its dump and its score", "[command]") {
  const Dump dump = Dump::open(test::sample_dump());
  WhatIfSettings settings;
  settings.score = "my";
  settings.compensation = Compensation::fit;
  const UserScore score = user_score("my=/scores/it's mine.npy");
  const std::vector<std::string> words = words_of(evict_command(dump, settings, &score, "results/A b"));
  REQUIRE(words.size() > 5);
  CHECK(words[0] == "kvreplay");
  CHECK(words[1] == "evict");
  CHECK(words[2] == dump.folder().string());
  CHECK(words[3] == "--out");
  CHECK(words[4] == "results/A b");
  check_same(read_back({words.begin() + 5, words.end()}), evict_options_of(settings, &score));
}

TEST_CASE("options of their usual values are left out, flags and all", "[command]") {
  EvictionOptions given, usual;
  CHECK(options_text(bound(given), bound(usual)) == "");
  given.per_query_head = true;
  given.window = 48;
  CHECK(options_text(bound(given), bound(usual)) == " --window 48 --per-query-head");
}
