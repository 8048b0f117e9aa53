#include "data/npy_write.hpp"
#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/viewer/on_queue.hpp"
#include "viewer/questions/what_if.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

using namespace kvreplay;
using namespace kvreplay::viewer;
using namespace kvreplay::test;

namespace {

std::shared_ptr<const HeadGroup<float>> group_of(const Dump& dump, Index layer, Index kv_head) {
  return std::make_shared<const HeadGroup<float>>(load_head_group<float>(dump, layer, kv_head));
}

struct Found {
  WhatIf plain, compensated;
};

/// All steps, as the panel takes them; rows may come from other settings.
Found computed(const Dump& dump, const WhatIfSettings& settings, Index layer, Index kv_head,
               const WhatIfSettings* rows_of = nullptr) {
  const auto group = group_of(dump, layer, kv_head);
  const EvictionPlan plan = what_if_plan(settings, dump);
  const CompensationPlan compensation = what_if_compensation(settings, dump, plan);
  const CompensationPlan of_rows =
      rows_of == nullptr ? compensation : what_if_compensation(*rows_of, dump, what_if_plan(*rows_of, dump));
  // An answer of its own: the job that computed rows is over when they are used.
  const WhatIfRows rows = on_queue([&](JobControl& job) { return what_if_rows(group, of_rows, job); });
  return on_queue([&](JobControl& job) {
    Found found;
    const WhatIfRanking ranking = what_if_ranking(*group, plan, nullptr, {}, job);
    found.plain = what_if(*group, plan, ranking, what_if_importance(*group, job), job);
    found.compensated = what_if_compensated(plan, compensation, rows, found.plain, job);
    return found;
  });
}

using Figures = std::map<std::string, std::string>;

/// compensation.csv of one head by "policy,method,rows,metric", and "policy,method" for what it keeps.
Figures figures_of_head(const std::vector<CsvRow>& rows, Index layer, Index kv_head) {
  Figures figures;
  for (const CsvRow& row : rows) {
    if (row.at("layer") != std::to_string(layer) || row.at("kv_head") != std::to_string(kv_head)) continue;
    const std::string run = row.at("policy") + "," + row.at("method");
    figures[run] = row.at("kept");
    figures[run + "," + row.at("rows") + "," + row.at("metric")] = row.at("value");
  }
  return figures;
}

void check_against_program(const std::string& dump_folder, const WhatIfSettings& common,
                           const std::vector<std::string>& more, const std::vector<Compensation>& methods) {
  const TempDir dir;
  std::string list;
  for (const Compensation method : methods) list.append(list.empty() ? "" : ",").append(name_of(method));
  std::vector<std::string> arguments = {
      "evict",    dump_folder,  "--out",   (dir / "r").string(), "--layers", "1",
      "--policy", "h2o,snapkv", "--quiet", "--compensate",       list};
  arguments.insert(arguments.end(), more.begin(), more.end());
  succeed(arguments);
  const auto rows =
      csv_rows(dir / "r/compensation.csv",
               "layer,kv_head,policy,semantics,phase,budget,kept,method,reference,rows,metric,value");
  const Dump dump = Dump::open(dump_folder);
  for (const std::string policy : {"h2o", "snapkv"})
    for (const Compensation method : methods)
      for (Index head = 0; head < 2; ++head) {
        const Figures figures = figures_of_head(rows, 1, head);
        WhatIfSettings settings = common;
        settings.base = policy;
        settings.compensation = method;
        const auto [plain, found] = computed(dump, settings, 1, head);
        const std::string run = fmt::format("{},{}", policy, name_of(method));
        INFO(run << ", head " << head);
        const auto check = [&](const std::string& figure, double value) {
          INFO(figure);
          const auto at = figures.find(run + "," + figure);
          REQUIRE((at != figures.end()) == !std::isnan(value));
          if (at != figures.end()) CHECK(value == std::stod(at->second));
        };
        REQUIRE(found.compensated);
        CHECK(found.compensated->method == method);
        CHECK(std::to_string(found.tokens) == figures.at(run));
        check(",bytes", found.bytes);
        check("window,output_error", found.window.error);
        check("future,output_error", found.future.error);
        check("window,loss_row", found.window.loss.row);
        check("window,loss_head", found.window.loss.head);
        check("future,loss_row", found.future.loss.row);
        check("future,loss_head", found.future.loss.head);
        check("reference,output_error", split_figure(found, RowSet::reference, &ErrorSplit::change_sq));
        for (const RowSet on : {RowSet::window, RowSet::future, RowSet::reference}) {
          const std::string begin = std::string(name_of(on)) + ",";
          check(begin + "selection", split_figure(found, on, &ErrorSplit::selection));
          check(begin + "mass", split_figure(found, on, &ErrorSplit::mass));
          check(begin + "values", split_figure(found, on, &ErrorSplit::values));
          check(begin + "bound", split_figure(found, on, &ErrorSplit::bound));
        }
        // What is of the kept set alone stays.
        CHECK(found.kept == plain.kept);
        CHECK(found.compensated->plain_future.error == plain.future.error);
        CHECK(found.oracle_recall == plain.oracle_recall);
        CHECK(found.prompt_bytes == plain.prompt_bytes);
      }
}

std::vector<Compensation> all_but_none() {
  std::vector<Compensation> methods(kCompensations.all().begin(), kCompensations.all().end());
  std::erase(methods, Compensation::none);
  return methods;
}

/// Beside what is fitted others have figures on reference rows too, which they have not by themselves.
std::vector<Compensation> those_that(bool fit) {
  std::vector<Compensation> methods = all_but_none();
  std::erase_if(methods, [&](Compensation method) { return kCompensations[method].fits() != fit; });
  return methods;
}

WhatIfSettings settings_of(Compensation method, double sigma = 0.8) {
  WhatIfSettings settings;
  settings.sigma = sigma;
  settings.compensation = method;
  return settings;
}

}  // namespace

TEST_CASE("what if: every compensation has the figures of kvreplay evict", "[compensation]") {
  const TempDir temp;
  make_small_dump(temp / "dump", {"--prompt", "150"});
  WhatIfSettings settings;
  settings.semantics = GENERATE(Semantics::paper, Semantics::kvpress);
  settings.sigma = 0.8;
  check_against_program(temp / "dump", settings,
                        {"--sigma", "0.8", "--semantics", std::string(name_of(settings.semantics))},
                        those_that(GENERATE(true, false)));
}

TEST_CASE("what if: compensation has its losses where the dump has gradients", "[compensation]") {
  const TempDir temp;
  make_small_dump(temp / "dump", {"--gradients", "3"});
  WhatIfSettings settings;
  settings.sigma = 0.8;
  check_against_program(temp / "dump", settings, {"--sigma", "0.8"}, {Compensation::mean, Compensation::fit});
}

TEST_CASE("what if: the same with a window of one's own, in blocks", "[compensation]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  WhatIfSettings settings;
  settings.sigma_budget = false;
  settings.budget = 20;
  settings.window = 12;
  settings.block = 16;
  check_against_program(temp / "dump", settings,
                        {"--budget", "20", "--window", "12", "--phase", "blockwise:16"},
                        {Compensation::fit, Compensation::mean});
}

TEST_CASE("what if: the same of a dump that holds late queries only", "[compensation]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  keep_late_queries(temp / "dump", 45);
  WhatIfSettings settings;
  settings.sigma = 0.7;
  settings.window = 10;
  check_against_program(temp / "dump", settings, {"--sigma", "0.7", "--window", "10"},
                        {Compensation::values, Compensation::fit});
}

TEST_CASE("what if: the figures of kvreplay evict on the sample, fitted", "[compensation]") {
  check_against_program(sample_dump(), settings_of(Compensation::none, 0.9), {"--sigma", "0.9"},
                        {Compensation::fit});
}

TEST_CASE("what if: one head's rows serve every kept set and every method that fits", "[compensation]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  const Dump dump = Dump::open(temp / "dump");
  const WhatIfSettings first = settings_of(Compensation::mass, 0.5);
  WhatIfSettings second = settings_of(Compensation::fit, 0.9);
  second.base = "h2o";
  const auto key = [&](const WhatIfSettings& settings) {
    return rows_key(what_if_compensation(settings, dump, what_if_plan(settings, dump)));
  };
  REQUIRE(key(first) == key(second));
  const WhatIf shared = computed(dump, second, 1, 0, &first).compensated,
               own = computed(dump, second, 1, 0).compensated;
  CHECK(shared.future.change_sq == own.future.change_sq);
  CHECK(shared.compensated->split_reference->bound == own.compensated->split_reference->bound);

  WhatIfSettings window = first;
  window.window = 7;
  std::set<Key> keys;
  for (const WhatIfSettings& settings :
       {first, window, settings_of(Compensation::mean), settings_of(Compensation::d2o)})
    keys.insert(key(settings));
  CHECK(keys.size() == 4);
}

TEST_CASE("what if: what ranks by a score of the user's is made up for as well", "[compensation]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  const Dump dump = Dump::open(temp / "dump");
  const std::array<std::size_t, 3> shape{2, 2, 61};
  write_npy(temp / "mine.npy", shape, std::vector<double>(2 * 2 * 61, 1.0));
  const UserScore score = user_score_of(temp / "mine.npy");
  for (const Compensation method : {Compensation::none, Compensation::fit}) {
    WhatIfSettings settings = settings_of(method);
    settings.score = "mine";
    const CompensationPlan plan =
        what_if_compensation(settings, dump, what_if_plan(settings, dump, &score), &score);
    CHECK(plan.cases.size() == (method == Compensation::none ? 0 : 1));
  }
}

TEST_CASE("what if: rows count with what they hold", "[compensation]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  const Dump dump = Dump::open(temp / "dump");
  for (const Compensation method : {Compensation::fit, Compensation::mean, Compensation::keepkv}) {
    INFO(name_of(method));
    const WhatIfSettings settings = settings_of(method);
    const CompensationPlan plan = what_if_compensation(settings, dump, what_if_plan(settings, dump));
    const WhatIfRows rows =
        on_queue([&](JobControl& job) { return what_if_rows(group_of(dump, 0, 1), plan, job); });
    const std::size_t about = rows_bytes(plan, dump.shape());
    CHECK(bytes_of(rows) >= about);
    CHECK(bytes_of(rows) <= 4 * about);  // of so short a prompt outputs and the group are no small part
  }
}

TEST_CASE("what if: the error of a compensated cache, step by step", "[compensation]") {
  const TempDir temp;
  make_small_dump(temp / "dump", {"--decode", "40"});
  const Dump dump = Dump::open(temp / "dump");
  for (const Compensation method : all_but_none()) {
    INFO(name_of(method));
    const auto [plain, found] = computed(dump, settings_of(method), 0, 1);
    const CompensationFacts& facts = kCompensations[method];
    const auto steps = error_steps(found, RowSet::future);
    const bool split = !facts.slot && !(facts.merging && kMergings[*facts.merging].changes_keys);
    REQUIRE(steps.has_value() == split);
    CHECK(error_steps(found, RowSet::reference).has_value() == facts.fits());
    CHECK_FALSE(error_steps(found, RowSet::none));
    CHECK_FALSE(error_steps(plain, RowSet::future));
    if (!split) continue;
    CHECK(steps->error == found.future.error);
    CHECK(steps->plain == plain.future.error);
    CHECK(steps->bound <= steps->error);
    if (!facts.fits_mass) CHECK(steps->weighted == Approx(steps->plain).epsilon(1e-4));
    if (method == Compensation::mass) CHECK(steps->error == Approx(steps->weighted).epsilon(1e-4));
    for (const RowSet rows : {RowSet::window, RowSet::future}) {
      const auto on = error_steps(found, rows);
      REQUIRE(on);
      CHECK(split_figure(found, rows, &ErrorSplit::change_sq) == Approx(on->error).epsilon(1e-4));
      CHECK(split_figure(found, rows, &ErrorSplit::plain) == Approx(on->plain).epsilon(1e-4));
    }
  }
}

TEST_CASE("what if: a kept set that lacks nothing has no error under any compensation", "[compensation]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  const Dump dump = Dump::open(temp / "dump");
  for (const Compensation method : all_but_none()) {
    INFO(name_of(method));
    WhatIfSettings settings = settings_of(method);
    settings.sigma_budget = false;
    settings.budget = 61;
    const WhatIf found = computed(dump, settings, 0, 0).compensated;
    CHECK(found.future.error == 0);
    CHECK(found.window.error == 0);
    CHECK(found.tokens == 61);
  }
}

TEST_CASE("what if: why nothing can make up for evicted tokens, in a line", "[compensation]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  make_small_dump(temp / "long", {"--prompt", "5000", "--layers", "1"});
  const auto reason = [&](const std::string& folder, WhatIfSettings settings) {
    const Dump dump = Dump::open(temp / folder);
    settings.base = "keydiff";
    const EvictionPlan plan = what_if_plan(settings, dump);
    const std::string line = refusal_of([&] { what_if_compensation(settings, dump, plan); });
    CHECK(line.find('\n') == std::string::npos);
    CHECK(line.find("--") == std::string::npos);
    return line;
  };
  CHECK(reason("dump", settings_of(Compensation::fit)).empty());
  CHECK(reason("dump", settings_of(Compensation::none)).empty());
  CHECK(reason("long", settings_of(Compensation::fit, 0.5)).empty());
  CHECK(contains(reason("long", settings_of(Compensation::fit, 0.1)), "4096 tokens"));
  CHECK(reason("long", settings_of(Compensation::mean, 0.1)).empty());
  keep_late_queries(temp / "dump", 9);
  CHECK(contains(reason("dump", settings_of(Compensation::values)), "no query of the prompt"));
  CHECK(contains(reason("dump", settings_of(Compensation::cam)), "no query of the prompt"));
  CHECK(reason("dump", settings_of(Compensation::mean)).empty());
}
