#include "viewer/questions/channels.hpp"

#include "analysis/channels/channel_options.hpp"
#include "analysis/results/map_name.hpp"
#include "analysis/results/metric_table.hpp"
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

BoundOptions bound(ChannelSettings& settings) {
  BoundOptions options = bound(static_cast<ChannelOptions&>(settings));
  std::erase_if(options, [](const BoundOption& option) {
    return option.facts == &channel_option::ratio || option.facts == &channel_option::png;
  });
  return options;
}

bool all_keys_recent(const ChannelSettings& settings, Index l) {
  return l > 0 && settings.recent.value_or(default_recent(settings.semantics)) >= l;
}

Key basis_key(const ChannelPlan& plan) {
  const ChannelSetting& setting = plan.setting;
  const Key key(setting.semantics, setting.recent, setting.window);
  return setting.protection ? Key(key, setting.protection->least, setting.protection->most) : key;
}

ChannelHead channel_head(const HeadGroup<float>& group, const ChannelPlan& plan, JobControl& job,
                         const HeadGroup<float>* readers) {
  ChannelHead head;
  const auto parts = static_cast<double>(plan.per_query_head() ? group.G() : 1);
  const HeadGroup<float>& choosing = readers != nullptr && !plan.per_query_head() ? *readers : group;
  each_part(choosing, plan.per_query_head(), [&](Index p, const HeadGroup<float>& mine) {
    job.check();
    const ChannelPart& part = head.parts.emplace_back(channel_part(mine, plan, false, job.compute()));
    head.off_diagonal_share += part.off_diagonal_share;
    head.rope_pair_share += part.rope_pair_share;
    job.progress(static_cast<double>(p + 1) / parts);
  });
  for (Index g = 0; g < group.G(); ++g) {
    head.window.push_back(query_moments(group, g, plan.window));
    if (plan.future.count() > 0) head.future.push_back(query_moments(group, g, plan.future));
  }
  head.off_diagonal_share /= parts;
  head.rope_pair_share /= parts;
  return head;
}

ChannelOutputs channel_outputs(const HeadGroup<float>& group, const ChannelPlan& plan,
                               const ChannelHead& head, JobControl& job) {
  ChannelOutputs outputs;
  each_part(group, plan.per_query_head(), [&](Index p, const HeadGroup<float>& mine) {
    outputs.outputs.push_back(
        job.compute().backend.output_interaction(mine, plan.window, head.parts[p].basis.keys, job.workers()));
    job.progress(static_cast<double>(p + 1) / static_cast<double>(head.parts.size()));
  });
  return outputs;
}

ChannelPrunings channel_prunings(const HeadGroup<float>& group, const ChannelPlan& plan,
                                 const ChannelHead& head, const ChannelOutputs* outputs, double ratio,
                                 JobControl& job) {
  check_ratio(channel_option::ratio, ratio);
  ChannelPrunings result;
  result.ratio = ratio;
  result.asked = pruned_channels(ratio, group.d(), plan.setting.semantics);
  ChannelPlan now = plan;
  now.rules.clear();
  now.cases.clear();
  for (const ChannelRule& rule : plan.rules) {
    if (rule.needs_outputs() && outputs == nullptr) {
      result.waiting.push_back(rule.name);
      continue;
    }
    now.cases.push_back({now.rules.size(), ratio, {}, result.asked, {}});
    now.rules.push_back(rule);
  }
  std::vector<ChannelPart> parts = head.parts;
  for (std::size_t p = 0; outputs != nullptr && p < parts.size(); ++p)
    parts[p].basis.scores.outputs = outputs->outputs[p];
  HeadChannels<float> found = head_channels(group, now, parts, false, job.compute());
  for (std::size_t c = 0; c < now.cases.size(); ++c) {
    PrunedChannels& pruned = found.cases[c];
    if (plan.future.count() == 0) pruned.future_reconstruction = kNone;
    const auto figures = [&](double reconstruction, double logits_sq, auto rows) {
      double change_sq = 0, full_sq = 0;
      for (const CaseOutputs<float>& part : found.outputs) {
        change_sq += (part.*rows).change_sq[c];
        full_sq += (part.*rows).full_sq;
      }
      return ChannelPruning::RowFigures{relative_error(reconstruction, logits_sq),
                                        relative_error(change_sq, full_sq)};
    };
    const auto window =
        figures(pruned.window_reconstruction, pruned.window_logits_sq, &CaseOutputs<float>::window);
    const auto future =
        figures(pruned.future_reconstruction, pruned.future_logits_sq, &CaseOutputs<float>::future);
    result.methods.push_back({std::move(pruned), now.rules[c].name, window, future});
  }
  return result;
}

std::size_t bytes_of(const ChannelHead& head) {
  std::size_t bytes = sizeof(head);
  for (const ChannelPart& part : head.parts) {
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
  head.off_diagonal_share = head.rope_pair_share = kNone;
  for (std::size_t p = 0; p < interaction.parts(); ++p) {
    ChannelPart& part = head.parts.emplace_back();
    part.basis.scores.logits = Eigen::Map<const Matrix<double>>(interaction.part(p), d, d);
    part.basis.scores.rope_partner = partner;
    if (p < spectra.parts()) part.spectrum = Eigen::Map<const Vector<double>>(spectra.part(p), d);
    part.off_diagonal_share = off_diagonal_share(part.basis.scores.logits);
  }
  head.window = read_moments(results, layer, kv_head, "window");
  head.future = read_moments(results, layer, kv_head, "future");
  return head;
}

/// The pruning of a method at its ratio, made where a record has none yet.
ChannelPruning& pruning_of(const std::string& method, double ratio, double channels, ChannelRecord& record) {
  auto at = std::find_if(record.prunings.begin(), record.prunings.end(),
                         [&](const ChannelPrunings& one) { return one.ratio >= ratio; });
  if (at == record.prunings.end() || at->ratio != ratio) {
    at = record.prunings.emplace(at);
    at->ratio = ratio;
  }
  for (ChannelPruning& one : at->methods)
    if (one.method == method) return one;
  ChannelPruning& made = at->methods.emplace_back();
  made.method = method;
  made.window = made.future = {kNone, kNone};
  made.window_reconstruction = made.future_reconstruction = kNone;
  made.channels = channels;
  return made;
}

/// The metrics that are shown of a single head.
void read_table(const ResultReader& results, Index layer, Index kv_head, ChannelRecord& record,
                std::vector<std::pair<double, std::string>>& labels) {
  const MetricTable table(results, Table::channels);
  for (const MetricEntry& entry : table.entries()) {
    const double value = table.of_head(entry, layer, kv_head);
    if (!has_row(value)) continue;
    record.semantics = table.key(entry, "semantics");
    const auto which = kChannelFigures.named(entry.metric());
    if (which == ChannelFigure::off_diagonal_share) record.head.off_diagonal_share = value;
    if (which == ChannelFigure::rope_pair_share) record.head.rope_pair_share = value;
    const std::string &method = table.key(entry, "method"), &label = table.key(entry, "ratio");
    if (method.empty()) continue;
    const double ratio = number_in(label);
    labels.emplace_back(ratio, label);
    if (!which) continue;
    const double channels = entry.kept == nullptr ? kNone : table.of_head(*entry.kept, layer, kv_head);
    ChannelPruning& pruning = pruning_of(method, ratio, channels, record);
    const bool future = table.key(entry, "rows") == name_of(RowSet::future);
    ChannelPruning::RowFigures& rows = future ? pruning.future : pruning.window;
    if (*which == ChannelFigure::reconstruction_error)
      (future ? pruning.future_reconstruction : pruning.window_reconstruction) = value;
    if (*which == ChannelFigure::relative_reconstruction_error) rows.relative_reconstruction = value;
    if (*which == ChannelFigure::output_error) rows.error = value;
    if (*which == ChannelFigure::bytes) pruning.bytes = value;
    if (*which == ChannelFigure::lower_bound) pruning.lower_bound = value;
    if (*which == ChannelFigure::proven) pruning.proven = value == 1;
  }
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
    for (ChannelPruning& method : prunings.methods)
      method.window_logits_sq = method.window_reconstruction / method.window.relative_reconstruction;
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

ChannelAnswers ask_results(PanelContext& context, Index kv_head, double ratio) {
  const std::shared_ptr<const Run>& run = context.run();
  ChannelAnswers all;
  all.layer = context.state.selection().layer;
  all.key = {run->key(), "channel_results", all.layer, kv_head};
  const Answer<ChannelRecord> record = context.queue.ask<ChannelRecord>(
      {.key = all.key, .title = "Channels, " + run->head_text(all.layer, kv_head)},
      [run, layer = all.layer, kv_head](JobControl&) {
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

ChannelPlaces::ChannelPlaces(std::vector<Index> channels)
    : channels_(std::move(channels)), places_(channels_.size()) {
  for (std::size_t place = 0; place < channels_.size(); ++place)
    places_[static_cast<std::size_t>(channels_[place])] = static_cast<Index>(place);
}

std::vector<double> rope_frequencies(const Run& run, Index layer) {
  if (run.dump() == nullptr) return {};
  const std::optional<Rope> rope = run.dump()->rope(layer);
  return rope ? kvreplay::rope_frequencies(*rope, run.shape().d) : std::vector<double>();
}

std::optional<std::string> why_not_arranged(const Run& run, const ChannelAnswers& answers,
                                            ChannelArrangement arrangement) {
  const ChannelArrangementFacts& facts = kChannelArrangements[arrangement];
  const bool from_dump = run.dump() != nullptr;
  if (facts.needs_pairs && answers.head->parts.front().basis.scores.rope_partner.empty())
    return from_dump ? run.dump()->rope_note()
                     : std::string("the results do not say which channels RoPE rotates together");
  if (facts.needs_frequencies && !from_dump)
    return "how fast RoPE rotates is in the dump, not in the results";
  return std::nullopt;
}

ChannelPlaces arranged(const Run& run, const ChannelAnswers& answers, std::size_t part,
                       ChannelArrangement arrangement) {
  if (why_not_arranged(run, answers, arrangement)) arrangement = ChannelArrangement::stored;
  const ChannelScores& scores = answers.head->parts[part].basis.scores;
  return ChannelPlaces(arranged_channels(arrangement, scores.logits, scores.rope_partner,
                                         rope_frequencies(run, answers.layer)));
}

void ChannelQuestions::settle(const Run& run, const ChannelSettings& settings) {
  if (settled_.run == run.key() && settled_.settings == settings) return;
  settled_ = {run.key(), settings, nullptr, {}, {}};
  ChannelSettings all = settings;
  all.methods = methods_of(*run.dump());
  try {
    settled_.plan = std::make_shared<const ChannelPlan>(channel_plan(*run.dump(), all));
    settled_.basis = basis_key(*settled_.plan);
  } catch (const InputError& error) {
    settled_.error = error.what();
  }
}

/// `settled_` is the run's, and has a plan.
ChannelAnswers ChannelQuestions::ask_basis(PanelContext& context, Index kv_head, bool with_outputs,
                                           bool fills) const {
  const std::shared_ptr<const Run>& run = context.run();
  const Index layer = context.state.selection().layer;
  const std::shared_ptr<const ChannelPlan>& plan = settled_.plan;
  const Key place(layer, kv_head, settled_.basis);
  const std::string where = run->head_text(layer, kv_head);
  ChannelAnswers all;
  all.layer = layer;
  all.key = {run->key(), "channels", place};
  take(all, all.head,
       context.queue.ask<ChannelHead>(
           {.key = all.key, .title = "Channel interaction, " + where, .fills = fills, .all_cores = true},
           [run, plan, layer, kv_head](JobControl& job) {
             return channel_head(*run->head(layer, kv_head), *plan, job, run->readers(layer, kv_head).get());
           }));
  if (all.head == nullptr || !with_outputs) return all;
  take(all, all.outputs,
       context.queue.ask<ChannelOutputs>({.key = {run->key(), "channel_outputs", place},
                                          .title = "Channels in the output space, " + where,
                                          .fills = fills,
                                          .all_cores = true},
                                         [run, plan, layer, kv_head, head = all.head](JobControl& job) {
                                           const auto group = plan->per_query_head()
                                                                  ? run->head(layer, kv_head)
                                                                  : run->readers(layer, kv_head);
                                           return channel_outputs(*group, *plan, *head, job);
                                         }));
  return all;
}

void ChannelQuestions::ask_prunings(PanelContext& context, double ratio, ChannelAnswers& all) const {
  const std::shared_ptr<const Run>& run = context.run();
  const Index layer = all.layer, kv_head = context.state.selection().kv_head;
  // Without the outputs most methods are known already.
  const Key slot(run->key(), "prunings", Key(layer, kv_head, settled_.basis));
  const JobRequest request{
      .key = {slot, ratio, all.outputs != nullptr},
      .title = fmt::format("Pruning {:.0f} % of channels, {}", 100 * ratio, run->head_text(layer, kv_head)),
      .urgency = Urgency::now,
      .slot = slot,
      .all_cores = true};
  const Answer<ChannelPrunings> prunings =
      context.queue.ask<ChannelPrunings>(request, [run, plan = settled_.plan, layer, kv_head, ratio,
                                                   head = all.head, outputs = all.outputs](JobControl& job) {
        return channel_prunings(*run->head(layer, kv_head), *plan, *head, outputs.get(), ratio, job);
      });
  take(all, all.prunings, prunings);
  all.stale = prunings && prunings->ratio != ratio;
}

ChannelAnswers ChannelQuestions::ask_matrices(PanelContext& context, const ChannelSettings& settings,
                                              Index kv_head, bool with_outputs) {
  const Run& run = *context.run();
  if (run.dump() == nullptr) return ask_results(context, kv_head, 0);
  settle(run, settings);
  if (settled_.plan != nullptr) return ask_basis(context, kv_head, with_outputs, true);
  ChannelAnswers none;
  none.error = settled_.error;
  return none;
}

ChannelAnswers ChannelQuestions::ask(PanelContext& context, const ChannelSettings& settings, double ratio) {
  const Index kv_head = context.state.selection().kv_head;
  const Run& run = *context.run();
  if (run.dump() == nullptr) return ask_results(context, kv_head, ratio);
  settle(run, settings);
  ChannelAnswers all;
  all.error = settled_.error;
  if (settled_.plan == nullptr) return all;
  all = ask_basis(context, kv_head, true, false);
  if (all.head != nullptr) ask_prunings(context, ratio, all);
  return all;
}

}  // namespace kvreplay::viewer
