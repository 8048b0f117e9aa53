#include "viewer/work/decode_results.hpp"

#include "analysis/results/figures.hpp"
#include "analysis/results/map_name.hpp"
#include "data/error.hpp"
#include "data/npy_header.hpp"
#include "viewer/model/numbers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>
#include <vector>

namespace kvreplay::viewer {
namespace {

constexpr std::string_view kAppendOnly = "~append-only";

/// A run's words in the table, and what it says of one head.
struct Named {
  std::array<std::string, 3> words;  // policy, semantics, budget
  DecodeRun run;
};

std::vector<Named> read_table(const ResultReader& results, Index layer, Index kv_head) {
  std::vector<Named> all;
  each_figure(results, Table::decode, [&](const TableFigure& figure) {
    const auto which = kDecodeFigures.named(figure.metric());
    if (!which || !figure.is_of(layer, kv_head)) return;
    const std::array<std::string, 3> words = {figure["policy"], figure["semantics"], figure["budget"]};
    auto found = std::find_if(all.begin(), all.end(), [&](const Named& one) { return one.words == words; });
    if (found == all.end()) {
      found = all.insert(all.end(), Named{words, {}});
      found->run.mean = found->run.max = found->run.last = kNone;
    }
    switch (*which) {
      case DecodeFigure::mean:
        found->run.mean = figure.value;
        break;
      case DecodeFigure::max:
        found->run.max = figure.value;
        break;
      case DecodeFigure::last:
        found->run.last = figure.value;
    }
  });
  return all;
}

/// Gives every run its name: the policy's, and what tells it from its namesakes.
void name_runs(std::vector<Named>& all) {
  std::array<std::set<std::string>, 3> words;
  for (const Named& one : all)
    for (std::size_t w = 0; w < words.size(); ++w) words[w].insert(one.words[w]);
  for (Named& one : all) {
    std::string policy = one.words[0];
    one.run.append_only = policy.ends_with(kAppendOnly);
    if (one.run.append_only) policy.resize(policy.size() - kAppendOnly.size());
    if (words[2].size() > 1) policy += " " + one.words[2];
    if (words[1].size() > 1) policy += " " + one.words[1];
    one.run.policy = std::move(policy);
  }
}

void read_errors(const ResultReader& results, Index layer, Index kv_head, Named& one) {
  const DumpShape& shape = results.shape();
  const auto layers = std::ssize(results.layers());
  const std::filesystem::path name =
      std::filesystem::path("decode") /
      fmt::format("{}-{}-{}.npy", file_word(one.words[0]), one.words[1], one.words[2]);
  const ResultReader::Array array = results.array(name);
  one.run.l = shape.l;
  one.run.first_step = std::max(shape.l, shape.first_query());
  const Index steps = shape.T - one.run.first_step;
  const std::vector<Index> expected{layers, shape.n_kv, steps};
  if (array.shape != expected)
    throw InputError((results.folder() / name).string(), "shape " + shape_text(expected),
                     "shape " + shape_text(array.shape));
  const Index row =
      std::find(results.layers().begin(), results.layers().end(), layer) - results.layers().begin();
  const auto first = array.values.begin() + (row * shape.n_kv + kv_head) * steps;
  one.run.error.assign(first, first + steps);
}

}  // namespace

std::optional<std::string> why_no_decode_results(const ResultReader& results, Index layer) {
  const auto& layers = results.layers();
  if (std::find(layers.begin(), layers.end(), layer) == layers.end())
    return fmt::format("the run did not compute layer {}", layer);
  if (!results.has(Table::decode)) return "the run did not simulate decoding";
  return std::nullopt;
}

DecodeView read_decode(const ResultReader& results, Index layer, Index kv_head) {
  const auto missing = why_no_decode_results(results, layer);
  if (missing) throw InputError(fmt::format("{}: {}", results.folder().string(), *missing));
  if (kv_head < 0 || kv_head >= results.shape().n_kv)
    throw InputError("KV head", fmt::format("0 to {}", results.shape().n_kv - 1), std::to_string(kv_head));
  std::vector<Named> all = read_table(results, layer, kv_head);
  name_runs(all);
  DecodeView view;
  for (Named& one : all) {
    read_errors(results, layer, kv_head, one);
    view.runs.push_back(std::move(one.run));
  }
  return view;
}

}  // namespace kvreplay::viewer
