#include "viewer/questions/channels.hpp"

#include "analysis/channels/channel_options.hpp"
#include "analysis/channels/head_channels.hpp"
#include "analysis/measure/case_outputs.hpp"
#include "analysis/results/figures.hpp"
#include "analysis/results/map_name.hpp"
#include "analysis/results/result_folder.hpp"
#include "analysis/results/scoped_figures.hpp"
#include "data/error.hpp"
#include "sim/backend.hpp"
#include "sim/head_group.hpp"
#include "viewer/model/numbers.hpp"
#include "viewer/questions/ask.hpp"
#include "viewer/questions/stored.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

namespace kvreplay::viewer {

namespace {

/// The groups that have a selection of their own: the group itself, or its query heads one by one.
class Parts {
 public:
  Parts(const HeadGroup<float>& group, const ChannelPlan& plan) : group_(group) {
    if (!plan.per_query_head()) return;
    for (Index g = 0; g < group.G(); ++g) own_.push_back(query_head_group(group, g));
  }
  std::size_t size() const { return own_.empty() ? 1 : own_.size(); }
  const HeadGroup<float>& operator[](std::size_t part) const { return own_.empty() ? group_ : own_[part]; }

 private:
  const HeadGroup<float>& group_;
  std::vector<HeadGroup<float>> own_;
};

/// What selections look at, the output-space matrix included where it is there.
std::vector<ChannelScores> scores_of(const ChannelHead& head, const ChannelOutputs* outputs) {
  std::vector<ChannelScores> scores;
  for (std::size_t part = 0; part < head.parts.size(); ++part) {
    scores.push_back(head.parts[part].basis.scores);
    if (outputs != nullptr) scores.back().outputs = outputs->outputs[part];
  }
  return scores;
}

/// What one method costs one part.
struct PartFigures {
  ChannelSelection selection;
  double channels = 0;
  double window_reconstruction = 0, future_reconstruction = 0;
  double window_change_sq = 0, future_change_sq = 0;
  double bytes = 0;
};

ChannelPruning joined(const ChannelRule& rule, std::vector<PartFigures> parts) {
  ChannelPruning all;
  all.method = rule.name;
  double lower_bound = 0;
  all.proven = true;
  for (PartFigures& part : parts) {
    all.channels += part.channels / static_cast<double>(parts.size());
    all.window.reconstruction += part.window_reconstruction;
    all.future.reconstruction += part.future_reconstruction;
    all.window.change_sq += part.window_change_sq;
    all.future.change_sq += part.future_change_sq;
    all.bytes += part.bytes;
    lower_bound += part.selection.lower_bound.value_or(0);
    all.proven = all.proven && part.selection.proven;
    all.pruned.push_back(std::move(part.selection.pruned));
  }
  // A bound is on what the search minimises: with a selection for every query head that is not what is
  // measured.
  if (kChannelMethods[rule.method].proves && parts.size() == 1) all.lower_bound = lower_bound;
  all.proven = all.proven && all.lower_bound.has_value();
  return all;
}

}  // namespace

BoundOptions bound(ChannelSettings& settings) {
  BoundOptions options = bound(static_cast<ChannelOptions&>(settings));
  std::erase_if(options, [](const BoundOption& option) {
    return option.facts == &channel_option::ratio || option.facts == &channel_option::png;
  });
  return options;
}

ChannelPlan channel_view_plan(const ChannelSettings& settings, const Dump& dump) {
  return channel_plan(dump, settings);
}

bool all_keys_recent(const ChannelSettings& settings, Index l) {
  return l > 0 && settings.recent.value_or(default_recent(settings.semantics)) >= l;
}

Key basis_key(const ChannelPlan& plan) {
  const ChannelSetting& setting = plan.setting;
  const Key key(setting.semantics, setting.recent, setting.window);
  return setting.protection ? Key(key, setting.protection->least, setting.protection->most) : key;
}

ChannelHead channel_head(const HeadGroup<float>& group, const ChannelPlan& plan, JobControl& job) {
  const Parts groups(group, plan);
  const KeptSet all(static_cast<std::size_t>(group.l), 1);
  ChannelHead head;
  for (std::size_t p = 0; p < groups.size(); ++p) {
    job.check();
    ChannelHead::Part part;
    part.basis = channel_basis(groups[p], all, plan.setting, false, job.compute());
    const ChannelScores& scores = part.basis.scores;
    part.spectrum = spectrum(scores.logits);
    part.off_diagonal_share = off_diagonal_share(scores.logits);
    part.rope_pair_share =
        scores.rope_partner.empty() ? kNone : rope_pair_share(scores.logits, scores.rope_partner);
    head.off_diagonal_share += part.off_diagonal_share;
    head.rope_pair_share += part.rope_pair_share;
    head.window_logits_sq += part.basis.window.sum();
    head.future_logits_sq += part.basis.future.sum();
    head.parts.push_back(std::move(part));
    job.progress(static_cast<double>(p + 1) / static_cast<double>(groups.size()));
  }
  for (Index g = 0; g < group.G(); ++g) {
    head.window.push_back(query_moments(group, g, plan.window));
    if (plan.future.count() > 0) head.future.push_back(query_moments(group, g, plan.future));
  }
  head.off_diagonal_share /= static_cast<double>(groups.size());
  head.rope_pair_share /= static_cast<double>(groups.size());
  return head;
}

ChannelOutputs channel_outputs(const HeadGroup<float>& group, const ChannelPlan& plan,
                               const ChannelHead& head, JobControl& job) {
  const Parts groups(group, plan);
  ChannelOutputs outputs;
  for (std::size_t p = 0; p < groups.size(); ++p) {
    outputs.outputs.push_back(job.compute().backend.output_interaction(
        groups[p], plan.window, head.parts[p].basis.keys, job.workers()));
    job.progress(static_cast<double>(p + 1) / static_cast<double>(groups.size()));
  }
  return outputs;
}

ChannelPrunings channel_prunings(const HeadGroup<float>& group, const ChannelPlan& plan,
                                 const ChannelHead& head, const ChannelOutputs* outputs, double ratio,
                                 const CacheElements& elements, JobControl& job) {
  check_ratio(channel_option::ratio, ratio);
  ChannelPrunings result;
  result.ratio = ratio;
  result.asked = pruned_channels(ratio, group.d(), plan.setting.semantics);
  const Parts groups(group, plan);
  std::vector<const ChannelRule*> rules;
  for (const ChannelRule& rule : plan.rules)
    if (rule.needs_outputs() && outputs == nullptr)
      result.waiting.push_back(rule.name);
    else
      rules.push_back(&rule);
  const std::vector<ChannelScores> scores = scores_of(head, outputs);
  const KeptSet all(static_cast<std::size_t>(group.l), 1);
  std::vector<std::vector<PartFigures>> figures(rules.size(), std::vector<PartFigures>(groups.size()));
  std::vector<std::vector<CacheCase>> caches(groups.size(), std::vector<CacheCase>(rules.size()));
  const auto parts = std::ssize(groups);
  job.workers().parallel_for(std::ssize(rules) * parts, [&](std::ptrdiff_t n) {
    const auto r = static_cast<std::size_t>(n / parts), p = static_cast<std::size_t>(n % parts);
    const ChannelBasis& basis = head.parts[p].basis;
    PartFigures& found = figures[r][p];
    found.selection =
        select_channels(*rules[r], scores[p], channel_order(*rules[r], scores[p]), result.asked);
    const ChannelSet& pruned = found.selection.pruned;
    found.channels = static_cast<double>(std::count(pruned.begin(), pruned.end(), 1));
    found.window_reconstruction = subset_error(basis.window, pruned);
    found.bytes =
        cache_bytes(all, pruned, basis.keys.prunable, group.d(), group.d_v(), std::nullopt, elements);
    found.future_reconstruction = plan.future.count() > 0 ? subset_error(basis.future, pruned) : kNone;
    caches[p][r] = {all, pruned, basis.keys.prunable};
  });
  for (std::size_t p = 0; p < groups.size(); ++p) {
    const CaseOutputs<float> exact =
        case_outputs(groups[p], plan.window, plan.future, caches[p], false, job.compute());
    result.window_full_sq += exact.window.full_sq;
    result.future_full_sq += exact.future.full_sq;
    for (std::size_t r = 0; r < rules.size(); ++r) {
      figures[r][p].window_change_sq = exact.window.change_sq[r];
      figures[r][p].future_change_sq = exact.future.change_sq[r];
    }
  }
  for (std::size_t r = 0; r < rules.size(); ++r) {
    ChannelPruning method = joined(*rules[r], std::move(figures[r]));
    const auto relate = [](ChannelPruning::RowFigures& rows, double logits_sq, double full_sq) {
      rows.relative_reconstruction = relative_error(rows.reconstruction, logits_sq);
      rows.error = relative_error(rows.change_sq, full_sq);
    };
    relate(method.window, head.window_logits_sq, result.window_full_sq);
    relate(method.future, head.future_logits_sq, result.future_full_sq);
    result.methods.push_back(std::move(method));
  }
  return result;
}

std::size_t bytes_of(const ChannelHead& head) {
  std::size_t bytes = sizeof(head);
  for (const ChannelHead::Part& part : head.parts) {
    const auto& [keys, window, future, scores] =
        std::tie(part.basis.keys, part.basis.window, part.basis.future, part.basis.scores);
    bytes += bytes_with(part, part.spectrum, keys.cache, keys.prunable, window, future, scores.logits,
                        scores.outputs, scores.rope_partner, scores.fixed);
  }
  for (const auto* const moments : {&head.window, &head.future})
    for (const ChannelMoments& one : *moments) bytes += bytes_with(one, one.mean, one.deviation);
  return bytes;
}

namespace {

std::filesystem::path folder_of(Index layer) { return std::filesystem::path(layer_name(layer)) / "channels"; }

/// The rows that one KV head has in an array [n_kv or n_q, row].
class StoredRows {
 public:
  StoredRows(const ResultReader& results, const std::filesystem::path& name, const std::vector<Index>& row,
             Index kv_head) {
    const DumpShape& shape = results.shape();
    const auto with = [&](Index heads) {
      std::vector<Index> all = row;
      all.insert(all.begin(), heads);
      return all;
    };
    array_ = stored_array(results, name, {with(shape.n_kv), with(shape.n_q)});
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
  const StoredRows means(results, file("mean"), {d}, kv_head), spreads(results, file("std"), {d}, kv_head);
  for (std::size_t g = 0; g < std::min(means.parts(), spreads.parts()); ++g)
    moments.push_back({Eigen::Map<const Vector<double>>(means.part(g), d),
                       Eigen::Map<const Vector<double>>(spreads.part(g), d)});
  return moments;
}

ChannelHead read_head(const ResultReader& results, Index layer, Index kv_head) {
  const Index d = results.shape().d;
  const StoredRows interaction(results, folder_of(layer) / "interaction.npy", {d, d}, kv_head);
  const StoredRows spectra(results, folder_of(layer) / "spectrum.npy", {d}, kv_head);
  std::vector<Index> partner;
  const std::filesystem::path pairs = folder_of(layer) / "rope_pair.npy";
  if (results.has(pairs))
    for (const double c : stored_array(results, pairs, {{d}}).values)
      partner.push_back(c >= 0 && c < static_cast<double>(d) ? static_cast<Index>(c) : -1);
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
    const StoredRows sets(
        results, folder_of(layer) / fmt::format("{}-{}.npy", file_word(method.method), ratio), {d}, kv_head);
    for (std::size_t p = 0; p < sets.parts(); ++p) {
      ChannelSet& set = method.pruned.emplace_back();
      for (Index c = 0; c < d; ++c) set.push_back(sets.part(p)[c] != 0 ? 1 : 0);
    }
    prunings.asked = std::max(prunings.asked, static_cast<Index>(method.channels));
  }
}

}  // namespace

std::optional<std::string> why_no_channel_results(const ResultReader& results, Index layer) {
  if (const auto why = why_no_layer(results, layer)) return why;
  if (!results.has(Table::channels) || !results.has(folder_of(layer) / "interaction.npy"))
    return "the run did not compute channels";
  return std::nullopt;
}

ChannelRecord read_channels(const ResultReader& results, Index layer, Index kv_head) {
  check_stored(results, why_no_channel_results(results, layer), kv_head);
  ChannelRecord record;
  record.head = read_head(results, layer, kv_head);
  const std::filesystem::path outputs = folder_of(layer) / "output_interaction.npy";
  if (results.has(outputs)) {
    const Index d = results.shape().d;
    const StoredRows matrices(results, outputs, {d, d}, kv_head);
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

namespace {

std::vector<ChannelRule> methods_of(const Dump& dump) {
  const bool rope = !why_no_rope_pairs(dump);
  return channel_rules_named(kChannelMethods.names_where(
      [&](const ChannelMethodFacts& facts) { return rope || !facts.needs_rope; }));
}

/// Takes an answer over as far as it goes.
template <class T>
void take(ChannelAnswers& all, std::shared_ptr<const T>& into, const Answer<T>& answer) {
  into = answer.value;
  all.pending = all.pending || answer.pending;
  if (all.error.empty()) all.error = answer.error;
}

ChannelAnswers ask_results(PanelContext& context, double ratio) {
  const std::shared_ptr<const Run>& run = context.run();
  const Selection& selected = context.state.selection();
  ChannelAnswers all;
  all.layer = selected.layer;
  all.key = {run->key(), "channel_results", selected.layer, selected.kv_head};
  const Answer<ChannelRecord> record = context.desk.ask<ChannelRecord>(
      {.key = all.key, .title = fmt::format("Channels, layer {} head {}", selected.layer, selected.kv_head)},
      [run, layer = selected.layer, kv_head = selected.kv_head](JobControl&) {
        return read_channels(*run->results(), layer, kv_head);
      });
  all.pending = record.pending;
  all.error = record.error;
  if (!record) return all;
  all.head = {record.value, &record->head};
  if (!record->outputs.outputs.empty()) all.outputs = {record.value, &record->outputs};
  for (const ChannelPrunings& prunings : record->prunings) {
    all.ratios.push_back(prunings.ratio);
    if (all.prunings == nullptr || std::abs(prunings.ratio - ratio) < std::abs(all.prunings->ratio - ratio))
      all.prunings = {record.value, &prunings};
  }
  return all;
}

}  // namespace

std::optional<std::string> why_no_channels(const Run& run, Index layer) {
  if (run.dump() != nullptr) return std::nullopt;
  if (run.results() == nullptr) return "there are no results";
  return why_no_channel_results(*run.results(), layer);
}

void ChannelQuestions::settle(const Run& run, const ChannelSettings& settings) {
  if (settled_.run == run.key() && settled_.settings == settings) return;
  settled_ = {run.key(), settings, nullptr, {}, {}};
  ChannelSettings all = settings;
  all.methods = methods_of(*run.dump());
  try {
    settled_.plan = std::make_shared<const ChannelPlan>(channel_view_plan(all, *run.dump()));
    settled_.basis = basis_key(*settled_.plan);
  } catch (const InputError& error) {
    settled_.error = error.what();
  }
}

ChannelAnswers ChannelQuestions::ask_dump(PanelContext& context, double ratio) const {
  const std::shared_ptr<const Run>& run = context.run();
  const Selection& selected = context.state.selection();
  const Index layer = selected.layer, kv_head = selected.kv_head;
  const std::shared_ptr<const ChannelPlan>& plan = settled_.plan;
  const Key place(layer, kv_head, settled_.basis);
  const std::string where = fmt::format("layer {} head {}", layer, kv_head);
  ChannelAnswers all;
  all.layer = layer;
  all.key = {run->key(), "channels", place};
  take(all, all.head,
       context.desk.ask<ChannelHead>(
           {.key = all.key, .title = "Channel interaction, " + where, .all_cores = true},
           [run, plan, layer, kv_head](JobControl& job) {
             return channel_head(*run->head(layer, kv_head), *plan, job);
           }));
  if (all.head == nullptr) return all;
  take(all, all.outputs,
       context.desk.ask<ChannelOutputs>({.key = {run->key(), "channel_outputs", place},
                                         .title = "Channels in the output space, " + where,
                                         .all_cores = true},
                                        [run, plan, layer, kv_head, head = all.head](JobControl& job) {
                                          return channel_outputs(*run->head(layer, kv_head), *plan, *head,
                                                                 job);
                                        }));
  // Without the outputs most methods are known already.
  const Key slot(run->key(), "prunings", place);
  const Question question{.key = {slot, ratio, all.outputs != nullptr},
                          .title = fmt::format("Pruning {:.0f} % of channels, {}", 100 * ratio, where),
                          .urgency = Urgency::now,
                          .slot = slot,
                          .all_cores = true};
  const Answer<ChannelPrunings> prunings = context.desk.ask<ChannelPrunings>(
      question, [run, plan, layer, kv_head, ratio, head = all.head, outputs = all.outputs](JobControl& job) {
        return channel_prunings(*run->head(layer, kv_head), *plan, *head, outputs.get(), ratio,
                                cache_elements(*run->dump()), job);
      });
  take(all, all.prunings, prunings);
  all.stale = prunings && prunings->ratio != ratio;
  return all;
}

ChannelAnswers ChannelQuestions::ask(PanelContext& context, const ChannelSettings& settings, double ratio) {
  const Run& run = *context.run();
  if (run.dump() == nullptr) return ask_results(context, ratio);
  settle(run, settings);
  if (settled_.plan != nullptr) return ask_dump(context, ratio);
  ChannelAnswers none;
  none.error = settled_.error;
  return none;
}

}  // namespace kvreplay::viewer
