#include "viewer/work/channel_results.hpp"

#include "analysis/results/result_folder.hpp"
#include "data/error.hpp"
#include "data/npy/npy_header.hpp"
#include "sim/channels/channel_interaction.hpp"
#include "viewer/model/numbers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

namespace kvreplay::viewer {
namespace {

constexpr const char* kChannelsFile = "channels.csv";

std::filesystem::path folder_of(Index layer) { return std::filesystem::path(layer_name(layer)) / "channels"; }

/// The rows that one KV head has in an array [n_kv or n_q, row].
class HeadRows {
 public:
  HeadRows(const ResultReader& results, const std::filesystem::path& name, std::vector<Index> row,
           Index kv_head)
      : array_(results.array(name)) {
    const DumpShape& shape = results.shape();
    const auto with = [&](Index heads) {
      std::vector<Index> all = row;
      all.insert(all.begin(), heads);
      return all;
    };
    if (array_.shape != with(shape.n_kv) && array_.shape != with(shape.n_q))
      throw InputError((results.folder() / name).string(),
                       "shape " + shape_text(with(shape.n_kv)) + " or " + shape_text(with(shape.n_q)),
                       "shape " + shape_text(array_.shape));
    parts_ = static_cast<std::size_t>(array_.shape[0] / shape.n_kv);
    for (const Index size : row) row_size_ *= static_cast<std::size_t>(size);
    first_ = static_cast<std::size_t>(kv_head) * parts_;
  }
  std::size_t parts() const { return parts_; }
  const double* part(std::size_t p) const { return array_.values.data() + (first_ + p) * row_size_; }

 private:
  ResultReader::Array array_;
  std::size_t parts_ = 1, row_size_ = 1, first_ = 0;
};

ChannelHead read_head(const ResultReader& results, Index layer, Index kv_head) {
  const Index d = results.shape().d;
  const HeadRows interaction(results, folder_of(layer) / "interaction.npy", {d, d}, kv_head);
  const HeadRows spectra(results, folder_of(layer) / "spectrum.npy", {d}, kv_head);
  std::vector<Index> partner;
  const std::filesystem::path pairs = folder_of(layer) / "rope_pair.npy";
  if (results.has(pairs)) {
    const ResultReader::Array array = results.array(pairs);
    const std::vector<Index> expected{d};
    if (array.shape != expected)
      throw InputError((results.folder() / pairs).string(), "shape " + shape_text(expected),
                       "shape " + shape_text(array.shape));
    for (const double c : array.values)
      partner.push_back(c >= 0 && c < static_cast<double>(d) ? static_cast<Index>(c) : -1);
  }
  ChannelHead head;
  head.off_diagonal_share = head.rope_pair_share = head.window_logits_sq = head.future_logits_sq = kNone;
  for (std::size_t p = 0; p < interaction.parts(); ++p) {
    ChannelHead::Part part;
    part.basis.scores.logits = Eigen::Map<const Matrix<double>>(interaction.part(p), d, d);
    part.basis.scores.rope_partner = partner;
    if (p < spectra.parts()) part.spectrum = Eigen::Map<const Vector<double>>(spectra.part(p), d);
    part.off_diagonal_share = off_diagonal_share(part.basis.scores.logits);
    part.rope_pair_share = kNone;
    head.parts.push_back(std::move(part));
  }
  return head;
}

/// The table's rows of one head into a record whose head is read.
class TableRows {
 public:
  explicit TableRows(ChannelRecord& record) : record_(record) {}

  void add(const std::string& method, double ratio, const std::string& rows, const std::string& metric,
           double pruned, double value) {
    if (method.empty()) {
      if (metric == "off_diagonal_share") record_.head.off_diagonal_share = value;
      if (metric == "rope_pair_share") record_.head.rope_pair_share = value;
      return;
    }
    ChannelPruning& found = pruning(method, ratio);
    found.channels = pruned;
    ChannelPruning::RowFigures& figures = rows == "future" ? found.future : found.window;
    if (metric == "reconstruction_error") figures.reconstruction = value;
    if (metric == "relative_reconstruction_error") figures.relative_reconstruction = value;
    if (metric == "output_error") figures.error = value;
    if (metric == "bytes") found.bytes = value;
    if (metric == "lower_bound") found.lower_bound = value;
    if (metric == "proven") found.proven = value == 1;
  }

 private:
  ChannelPruning& pruning(const std::string& method, double ratio) {
    auto at = std::find_if(record_.prunings.begin(), record_.prunings.end(),
                           [&](const ChannelPrunings& one) { return one.ratio >= ratio; });
    if (at == record_.prunings.end() || at->ratio != ratio) {
      at = record_.prunings.emplace(at);
      at->ratio = ratio;
      at->window_full_sq = at->future_full_sq = kNone;
    }
    for (ChannelPruning& one : at->methods)
      if (one.method == method) return one;
    ChannelPruning& made = at->methods.emplace_back();
    made.method = method;
    made.window = made.future = {kNone, kNone, kNone, kNone};
    return made;
  }

  ChannelRecord& record_;
};

void read_table(const ResultReader& results, Index layer, Index kv_head, ChannelRecord& record,
                std::vector<std::pair<double, std::string>>& labels) {
  TableRows rows(record);
  results.each_row(kChannelsFile, [&](const CsvReader& csv, const std::vector<std::string>& row) {
    const auto text = [&](const char* column) -> const std::string& { return row[csv.need(column)]; };
    if (text("layer").empty() || text("kv_head").empty()) return;
    if (csv.index(row, csv.need("layer")) != layer || csv.index(row, csv.need("kv_head")) != kv_head) return;
    record.semantics = text("semantics");
    const std::string& method = text("method");
    const double ratio = method.empty() ? 0 : csv.number(row, csv.need("ratio"));
    const double pruned = text("pruned").empty() ? kNone : csv.number(row, csv.need("pruned"));
    if (!method.empty()) labels.emplace_back(ratio, text("ratio"));
    rows.add(method, ratio, text("rows"), text("metric"), pruned, csv.number(row, csv.need("value")));
  });
}

void read_sets(const ResultReader& results, Index layer, Index kv_head, const std::string& ratio,
               ChannelPrunings& prunings) {
  const Index d = results.shape().d;
  for (ChannelPruning& method : prunings.methods) {
    const HeadRows sets(results, folder_of(layer) / fmt::format("{}-{}.npy", method.method, ratio), {d},
                        kv_head);
    for (std::size_t p = 0; p < sets.parts(); ++p) {
      ChannelSet& set = method.pruned.emplace_back();
      for (Index c = 0; c < d; ++c) set.push_back(sets.part(p)[c] != 0 ? 1 : 0);
    }
    prunings.asked = std::max(prunings.asked, static_cast<Index>(method.channels));
  }
}

}  // namespace

std::optional<std::string> why_no_channel_results(const ResultReader& results, Index layer) {
  const auto& layers = results.layers();
  if (std::find(layers.begin(), layers.end(), layer) == layers.end())
    return fmt::format("the run did not compute layer {}", layer);
  if (!results.has(kChannelsFile) || !results.has(folder_of(layer) / "interaction.npy"))
    return "the run did not compute channels";
  return std::nullopt;
}

ChannelRecord read_channels(const ResultReader& results, Index layer, Index kv_head) {
  const auto missing = why_no_channel_results(results, layer);
  if (missing) throw InputError(fmt::format("{}: {}", results.folder().string(), *missing));
  if (kv_head < 0 || kv_head >= results.shape().n_kv)
    throw InputError("KV head", fmt::format("0 to {}", results.shape().n_kv - 1), std::to_string(kv_head));
  ChannelRecord record;
  record.head = read_head(results, layer, kv_head);
  const std::filesystem::path outputs = folder_of(layer) / "output_interaction.npy";
  if (results.has(outputs)) {
    const Index d = results.shape().d;
    const HeadRows matrices(results, outputs, {d, d}, kv_head);
    for (std::size_t p = 0; p < matrices.parts(); ++p)
      record.outputs.outputs.emplace_back(Eigen::Map<const Matrix<double>>(matrices.part(p), d, d));
  }
  std::vector<std::pair<double, std::string>> labels;
  read_table(results, layer, kv_head, record, labels);
  for (ChannelPrunings& prunings : record.prunings) {
    const auto label = std::find_if(labels.begin(), labels.end(),
                                    [&](const auto& one) { return one.first == prunings.ratio; });
    read_sets(results, layer, kv_head, label->second, prunings);
    for (const ChannelPruning& method : prunings.methods)
      if (method.window.relative_reconstruction > 0)
        record.head.window_logits_sq = method.window.reconstruction / method.window.relative_reconstruction;
  }
  return record;
}

std::size_t bytes_of(const ChannelRecord& record) {
  std::size_t bytes = bytes_of(record.head) + bytes_of(record.outputs);
  for (const ChannelPrunings& prunings : record.prunings) bytes += bytes_of(prunings);
  return bytes;
}

}  // namespace kvreplay::viewer
