#include "viewer/work/channel_results.hpp"

#include "analysis/results/figures.hpp"
#include "analysis/results/map_name.hpp"
#include "analysis/results/result_folder.hpp"
#include "data/error.hpp"
#include "data/npy_header.hpp"
#include "sim/channels/channel_interaction.hpp"
#include "viewer/model/numbers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

namespace kvreplay::viewer {
namespace {

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

/// The moments of a KV head's query heads; none where the run did not write them.
std::vector<ChannelMoments> read_moments(const ResultReader& results, Index layer, Index kv_head,
                                         const char* rows) {
  const auto file = [&](const char* what) {
    return folder_of(layer) / fmt::format("query_{}_{}.npy", rows, what);
  };
  std::vector<ChannelMoments> moments;
  if (!results.has(file("mean"))) return moments;
  const Index d = results.shape().d;
  const HeadRows means(results, file("mean"), {d}, kv_head), spreads(results, file("std"), {d}, kv_head);
  for (std::size_t g = 0; g < std::min(means.parts(), spreads.parts()); ++g)
    moments.push_back({Eigen::Map<const Vector<double>>(means.part(g), d),
                       Eigen::Map<const Vector<double>>(spreads.part(g), d)});
  return moments;
}

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
  head.window = read_moments(results, layer, kv_head, "window");
  head.future = read_moments(results, layer, kv_head, "future");
  return head;
}

/// The figures of one head into a record whose head is read.
class RecordFigures {
 public:
  explicit RecordFigures(ChannelRecord& record) : record_(record) {}

  void add(const TableFigure& figure) {
    const auto which = kChannelFigures.named(figure.metric());
    const double value = figure.value;
    record_.semantics = figure["semantics"];
    if (!which) return;
    switch (*which) {
      case ChannelFigure::off_diagonal_share:
        record_.head.off_diagonal_share = value;
        return;
      case ChannelFigure::rope_pair_share:
        record_.head.rope_pair_share = value;
        return;
      case ChannelFigure::reconstruction_error:
        rows_of(figure).reconstruction = value;
        return;
      case ChannelFigure::relative_reconstruction_error:
        rows_of(figure).relative_reconstruction = value;
        return;
      case ChannelFigure::output_error:
        rows_of(figure).error = value;
        return;
      case ChannelFigure::bytes:
        pruning(figure).bytes = value;
        return;
      case ChannelFigure::lower_bound:
        pruning(figure).lower_bound = value;
        return;
      case ChannelFigure::proven:
        pruning(figure).proven = value == 1;
        return;
      case ChannelFigure::reconstruction_gain:
      case ChannelFigure::output_gain:
      case ChannelFigure::layer_output_error:
      case ChannelFigure::layer_output_gain:
      case ChannelFigure::loss_row:
      case ChannelFigure::loss_head:
      case ChannelFigure::loss_layer:
      case ChannelFigure::loss_step:
      case ChannelFigure::loss_joint:
      case ChannelFigure::dnll:
        return;  // not shown of a single head
    }
  }

 private:
  ChannelPruning::RowFigures& rows_of(const TableFigure& figure) {
    ChannelPruning& found = pruning(figure);
    return figure["rows"] == name_of(RowSet::future) ? found.future : found.window;
  }

  ChannelPruning& pruning(const TableFigure& figure) {
    const std::string& method = figure["method"];
    const double ratio = number_in(figure["ratio"]);
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
    made.channels = figure.derived.empty() ? kNone : number_in(figure.derived);
    return made;
  }

  ChannelRecord& record_;
};

void read_table(const ResultReader& results, Index layer, Index kv_head, ChannelRecord& record,
                std::vector<std::pair<double, std::string>>& labels) {
  RecordFigures figures(record);
  each_figure(results, Table::channels, [&](const TableFigure& figure) {
    if (!figure.is_of(layer, kv_head)) return;
    figures.add(figure);
    if (!figure["method"].empty()) labels.emplace_back(number_in(figure["ratio"]), figure["ratio"]);
  });
}

void read_sets(const ResultReader& results, Index layer, Index kv_head, const std::string& ratio,
               ChannelPrunings& prunings) {
  const Index d = results.shape().d;
  for (ChannelPruning& method : prunings.methods) {
    const HeadRows sets(results, folder_of(layer) / fmt::format("{}-{}.npy", file_word(method.method), ratio),
                        {d}, kv_head);
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
  if (!results.has(Table::channels) || !results.has(folder_of(layer) / "interaction.npy"))
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
