#include "analysis/results/how_large.hpp"

#include "analysis/options/option.hpp"
#include "analysis/results/figures.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

namespace kvreplay {
namespace {

constexpr const char* kElsewhere =
    "how large is large: output errors below 1.1 times apart order SmolLM2's KL rightly in 62 % of pairs, "
    "above 1.5 in 91 %";
constexpr double kNear = 1.1, kFar = 1.5;

/// Pairs that lie so far apart, and those of them that both figures order alike.
struct Order {
  std::size_t pairs = 0, alike = 0;
  std::string text() const {
    if (pairs == 0) return "(there is no such pair)";
    return fmt::format("in {:.0f} % of {}", 100 * static_cast<double>(alike) / static_cast<double>(pairs),
                       counted(static_cast<Index>(pairs), "pair"));
  }
};

}  // namespace

std::vector<JudgedCase> judged_cases(const ResultReader& results) {
  if (!results.has(Table::evictions)) return {};
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  const std::string_view error = facts_of(EvictionFigure::output_error).name, nats = kLossStep.name;
  std::map<std::vector<std::string>, JudgedCase> found;  // by all keys but the metric
  each_figure(results, Table::evictions, [&](const TableFigure& figure) {
    if (figure.level() != Level::model || (figure.metric() != error && figure.metric() != nats)) return;
    const std::vector<std::string> key(figure.keys.begin(), figure.keys.end() - 1);
    JudgedCase& one = found.try_emplace(key, JudgedCase{"", kNone, kNone}).first->second;
    one.setting =
        fmt::format("{} {} {} {}", figure["semantics"], figure["phase"], figure["budget"], figure["rows"]);
    (figure.metric() == error ? one.output_error : one.nats) = figure.value;
  });
  std::vector<JudgedCase> cases, of_future;
  for (auto& [key, one] : found) {
    if (std::isnan(one.output_error) || std::isnan(one.nats)) continue;
    if (key.back() == name_of(RowSet::future)) of_future.push_back(one);
    cases.push_back(std::move(one));
  }
  return of_future.empty() ? cases : of_future;
}

std::string how_large(std::span<const JudgedCase> cases) {
  double least = std::numeric_limits<double>::infinity(), most = 0;
  Order near, far;
  for (const JudgedCase& one : cases) {
    least = std::min(least, one.nats);
    most = std::max(most, one.nats);
    for (const JudgedCase& other : cases) {
      if (one.setting != other.setting || !(one.output_error < other.output_error) || one.nats == other.nats)
        continue;
      const double apart = other.output_error / one.output_error;
      if (apart >= kNear && apart < kFar) continue;
      Order& order = apart < kNear ? near : far;
      ++order.pairs;
      order.alike += one.nats < other.nats;
    }
  }
  if (near.pairs + far.pairs == 0) return kElsewhere;
  return fmt::format(
      "how large is large: here output errors below {} times apart have the order of the predicted nats "
      "(loss_step) {}, above {} {}; the cases cost {:.3g} to {:.3g} nats a step",
      kNear, near.text(), kFar, far.text(), least, most);
}

}  // namespace kvreplay
