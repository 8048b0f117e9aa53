#include "viewer/questions/decoding.hpp"

#include "analysis/results/map_name.hpp"
#include "analysis/results/metric_table.hpp"
#include "analysis/results/scoped_figures.hpp"
#include "data/error.hpp"
#include "viewer/model/numbers.hpp"
#include "viewer/questions/ask.hpp"
#include "viewer/questions/stored.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <set>
#include <utility>

namespace kvreplay::viewer {

namespace {

EvictionPlan plan_of(const DecodeSettings& settings, const Dump& dump,
                     const std::vector<std::string>& policies) {
  DecodeSettings of_these = settings;
  of_these.policies = policies;
  return eviction_plan(dump, evict_options_of(of_these));
}

void summarise(DecodeRun& run) {
  const auto n = static_cast<double>(run.error.size());
  run.mean = run.max = run.last = std::numeric_limits<double>::quiet_NaN();
  if (run.error.empty()) return;
  double sum = 0;
  for (const double error : run.error) sum += error;
  run.mean = sum / n;
  run.max = *std::max_element(run.error.begin(), run.error.end());
  run.last = run.error.back();
}

}  // namespace

/// "snapkv[window=" and "snapkv[pool=max:7,window=".
static std::string before_window(const std::string& policy) {
  return policy.ends_with(']') ? policy.substr(0, policy.size() - 1) + ",window=" : policy + "[window=";
}

std::string with_window(const std::string& policy, Index window) {
  const std::string found = fmt::format("{}{}]", before_window(policy), window);
  try {
    parse_policy(found, {});
  } catch (const InputError&) {
    return policy;
  }
  return found;
}

bool is_with_window(const std::string& policy, const std::string& plain) {
  return policy == plain || policy.starts_with(before_window(plain));
}

EvictionOptions evict_options_of(const DecodeSettings& settings) {
  EvictionOptions options = options_of(settings);
  options.policies = policies_named(settings.policies);
  if (settings.decode) options.phases.push_back({Phase::Kind::decode, settings.interval.value_or(0)});
  if (settings.append_only) options.phases.push_back({Phase::Kind::append_only});
  options.decode_window = settings.decode_window;
  options.prompt = settings.prompt;
  return options;
}

BoundOptions bound(DecodeSettings& settings) {
  static constexpr OptionFacts decode{.name = "decode"}, append_only{.name = "append-only"};
  BoundOptions options = bound(static_cast<PolicySettings&>(settings));
  options.insert(options.end(),
                 {bind_option(evict_option::policy, settings.policies).keyed("policies"),
                  bind_option(decode, settings.decode), bind_option(append_only, settings.append_only),
                  bind_option(evict_option::decode_window, settings.decode_window),
                  bind_option(decoding_option::interval, settings.interval),
                  bind_option(evict_option::prompt, settings.prompt)});
  return options;
}

DecodePlan decode_plan(const DecodeSettings& settings, const Dump& dump) {
  if (!settings.decode && !settings.append_only)
    throw InputError("phases", "decode, append-only or both", "none");
  DecodePlan result;
  std::vector<std::string> able;
  std::optional<InputError> first;
  for (const std::string& policy : settings.policies) {
    try {
      for (const LeftOut& left : plan_of(settings, dump, {policy}).left_out)
        if (left.what.starts_with(policy + " (")) result.left_out.push_back(left);
      able.push_back(policy);
    } catch (const InputError& error) {
      if (!first) first = InputError(error.what());
      result.left_out.push_back({policy, error.what()});
    }
  }
  if (able.empty()) throw first.value_or(InputError("policies", "at least one", "none"));
  result.plan = plan_of(settings, dump, able);
  return result;
}

DecodeOutputs decode_outputs(const HeadGroup<float>& group, JobControl& job) {
  return {decode_full_outputs(group, job.workers())};
}

Key starts_key(const DecodePlan& decode) {
  Key key(decode.plan.decode_window, decode.plan.prompt);
  for (const EvictionCase& which : decode.plan.cases)
    key = {key, which.decode_name(), which.semantics, decode.plan.runs[*which.run].rules.front().window};
  return key;
}

DecodeStarts decode_starts(const HeadGroup<float>& group, const DecodePlan& decode, JobControl& job) {
  const EvictionPlan& plan = decode.plan.of(group);
  const LayerScores none(plan.runs.size());  // a shared ranking is made after the prompt only
  DecodeStarts starts{head_ranking(group, plan, none, {}, std::nullopt, job.compute()), {}};
  for (const EvictionCase& which : plan.cases) {
    job.check();
    starts.scores.push_back(decode_start_scores(group, plan.runs[*which.run].rules.front(),
                                                decode_options(plan, which), job.compute()));
  }
  return starts;
}

DecodeView decode_view(const HeadGroup<float>& group, const DecodePlan& decode, const DecodeOutputs& outputs,
                       const DecodeStarts& starts, JobControl& job, Index first, Index heads) {
  const EvictionPlan& plan = decode.plan.of(group);
  DecodeView view;
  for (const OptionText& note : decode.plan.notes) view.notes.push_back(note.plain());
  view.runs.resize(plan.cases.size());
  std::atomic<int> done = 0;
  job.workers().parallel_for(std::ssize(plan.cases), [&](std::ptrdiff_t c) {
    const EvictionCase& which = plan.cases[c];
    DecodeRun& run = view.runs[c];
    run.policy = which.policy;
    run.append_only = which.phase.kind == Phase::Kind::append_only;
    run.budget = *which.kept;
    run.l = group.l;
    run.T = group.T_all();
    DecodeBegin begin =
        decode_begin(plan, which, prompt_kept(group, plan, which, starts.ranking, job.compute()));
    DecodeReplay<float> replay = decode_replay(group, begin.rule, begin.kept, begin.budget, begin.options,
                                               starts.scores[c], outputs.full, job.workers());
    run.start = std::move(begin.kept);
    if (heads > 0)
      replay = seen_by<float>(
          replay, first,
          std::span(outputs.full).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(heads)));
    run.first_step = replay.first_step;
    run.kept = std::move(replay.kept);
    run.left = std::move(replay.left);
    for (std::size_t s = 0; s < replay.change_sq.size(); ++s)
      run.error.push_back(relative_error(replay.change_sq[s], replay.full_sq[s]));
    summarise(run);
    job.progress(static_cast<double>(++done) / static_cast<double>(plan.cases.size()));
  });
  return view;
}

std::vector<Index> cache_sizes(const DecodeRun& run) {
  std::vector<Index> sizes;
  Index size = count(run.start) + run.first_step - run.l;
  auto move = run.left.begin();
  for (Index step = 0; step < run.steps(); ++step) {
    ++size;
    for (; move != run.left.end() && move->step <= step; ++move) --size;
    sizes.push_back(size);
  }
  return sizes;
}

CacheFates cache_fates(const DecodeRun& run) {
  CacheFates fates;
  fates.first_step = run.first_step;
  fates.left_at.assign(run.T, CacheFates::kStays);
  for (std::size_t p = 0; p < run.start.size() && p < fates.left_at.size(); ++p)
    if (run.start[p] == 0) fates.left_at[p] = CacheFates::kWithPrompt;
  for (const DecodeMove& move : run.left) fates.left_at[move.position] = move.step;
  return fates;
}

Held held_at(const CacheFates& fates, Index position, Index step) {
  if (position > fates.first_step + step) return Held::not_there_yet;
  const Index left = fates.left_at[position];
  return left == step ? Held::leaves_now : left < step ? Held::gone : Held::kept;
}

namespace {

constexpr std::string_view kAppendOnly = "~append-only";

/// A run's words in the table, and what it says of one head.
struct Named {
  std::array<std::string, 3> words;  // policy, semantics, budget
  DecodeRun run;
};

std::vector<Named> read_table(const ResultReader& results, Index layer, Index kv_head) {
  std::vector<Named> all;
  const MetricTable table(results, Table::decode);
  for (const MetricEntry& entry : table.entries()) {
    const auto which = kDecodeFigures.named(entry.metric());
    const double value = table.of_head(entry, layer, kv_head);
    if (!which || !has_row(value)) continue;
    const std::array<std::string, 3> words = {table.key(entry, "policy"), table.key(entry, "semantics"),
                                              table.key(entry, "budget")};
    auto found = std::find_if(all.begin(), all.end(), [&](const Named& one) { return one.words == words; });
    if (found == all.end()) {
      found = all.insert(all.end(), Named{words, {}});
      found->run.mean = found->run.max = found->run.last = kNone;
    }
    if (*which == DecodeFigure::mean) found->run.mean = value;
    if (*which == DecodeFigure::max) found->run.max = value;
    if (*which == DecodeFigure::last) found->run.last = value;
  }
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
    if (const auto at = policy.find('~'); at != std::string::npos) policy.replace(at, 1, ", ");
    if (words[2].size() > 1) policy += " " + one.words[2];
    if (words[1].size() > 1) policy += " " + one.words[1];
    one.run.policy = std::move(policy);
  }
}

void read_errors(const ResultReader& results, Index layer, Index kv_head, Named& one) {
  const DumpShape& shape = results.shape();
  const std::filesystem::path name =
      std::filesystem::path("decode") /
      fmt::format("{}-{}-{}.npy", file_word(one.words[0]), one.words[1], one.words[2]);
  one.run.l = shape.l;
  one.run.first_step = std::max(shape.l, shape.first_query());
  const Index steps = shape.T - one.run.first_step;
  const ResultReader::Array array =
      stored_array(results, name, {{std::ssize(results.layers()), shape.n_kv, steps}});
  const Index row =
      std::find(results.layers().begin(), results.layers().end(), layer) - results.layers().begin();
  const auto first = array.values.begin() + (row * shape.n_kv + kv_head) * steps;
  one.run.error.assign(first, first + steps);
}

}  // namespace

std::optional<std::string> why_no_decode_results(const ResultReader& results, Index layer) {
  if (const auto why = why_no_layer(results, layer)) return why;
  if (!results.has(Table::decode)) return "the run did not simulate decoding";
  return std::nullopt;
}

DecodeView read_decode(const ResultReader& results, Index layer, Index kv_head) {
  check_stored(results, why_no_decode_results(results, layer), kv_head);
  std::vector<Named> all = read_table(results, layer, kv_head);
  name_runs(all);
  DecodeView view;
  for (Named& one : all) {
    read_errors(results, layer, kv_head, one);
    view.runs.push_back(std::move(one.run));
  }
  return view;
}

namespace {

/// The token that the reference holds after a step and the run has lost, the last one that left.
std::optional<Index> lacking(const CacheFates& fates, const CacheFates& of_reference, Index step) {
  const Index end = std::min({fates.first_step + step + 1, static_cast<Index>(std::ssize(fates.left_at)),
                              static_cast<Index>(std::ssize(of_reference.left_at))});
  std::optional<Index> found;
  for (Index p = 0; p < end; ++p) {
    const Index left = fates.left_at[p];
    if (left > step || of_reference.left_at[p] <= step) continue;
    if (!found || left >= fates.left_at[*found]) found = p;
  }
  return found;
}

}  // namespace

std::optional<Divergence> first_divergence(const DecodeRun& run, const CacheFates& fates,
                                           const DecodeRun& reference, const CacheFates& of_reference) {
  const Index steps = std::min(run.steps(), reference.steps());
  for (Index step = 0; step < steps; ++step) {
    if (!(run.error[step] > kDiverges * reference.error[step])) continue;
    if (const auto token = lacking(fates, of_reference, step))
      return Divergence{0, step, *token, fates.left_at[*token]};
  }
  return std::nullopt;
}

std::optional<std::size_t> same_run(const std::vector<DecodeRun>& runs, const DecodeRun& wanted) {
  for (std::size_t r = 0; r < runs.size(); ++r)
    if (runs[r].policy == wanted.policy && runs[r].append_only == wanted.append_only) return r;
  return std::nullopt;
}

std::optional<std::size_t> least_error(const std::vector<DecodeRun>& runs) {
  std::optional<std::size_t> least;
  for (std::size_t r = 0; r < runs.size(); ++r)
    if (!std::isnan(runs[r].mean) && (!least || runs[r].mean < runs[*least].mean)) least = r;
  return least;
}

std::vector<Divergence> divergences(const std::vector<DecodeRun>& runs, const std::vector<CacheFates>& fates,
                                    const std::vector<DecodeRun>& pinned,
                                    const std::vector<CacheFates>& of_pinned) {
  std::vector<Divergence> found;
  if (fates.size() != runs.size()) return found;
  const bool against_pinned = !of_pinned.empty() && of_pinned.size() == pinned.size();
  const std::optional<std::size_t> least = least_error(runs);
  for (std::size_t r = 0; r < runs.size(); ++r) {
    const auto other = against_pinned ? same_run(pinned, runs[r]) : least;
    if (!other || (!against_pinned && *other == r)) continue;
    const std::vector<DecodeRun>& others = against_pinned ? pinned : runs;
    const std::vector<CacheFates>& of_others = against_pinned ? of_pinned : fates;
    if (auto one = first_divergence(runs[r], fates[r], others[*other], of_others[*other])) {
      one->run = r;
      found.push_back(*one);
    }
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Divergence& a, const Divergence& b) { return a.step < b.step; });
  return found;
}

std::optional<std::string> why_no_decoding(const Run& run, Index layer) {
  if (run.dump() != nullptr) return std::nullopt;
  if (run.results() == nullptr) return "there are no results";
  return why_no_decode_results(*run.results(), layer);
}

void DecodeQuestions::settle(const Run& run, const DecodeSettings& settings) {
  if (settled_.run == run.key() && settled_.settings == settings) return;
  settled_ = {run.key(), settings, nullptr, to_json(settings).dump(), {}, {}};
  try {
    settled_.plan = std::make_shared<const DecodePlan>(decode_plan(settings, *run.dump()));
    settled_.starts_key = starts_key(*settled_.plan);
  } catch (const InputError& error) {
    settled_.error = error.what();
  }
}

Answer<DecodeView> DecodeQuestions::ask_dump(PanelContext& context) const {
  const std::shared_ptr<const Run>& run = context.run();
  const Index layer = context.state.selection().layer, kv_head = context.state.selection().kv_head;
  const std::shared_ptr<const DecodePlan>& plan = settled_.plan;
  const std::string where = run->head_text(layer, kv_head);
  Answer<DecodeView> found;
  const auto outputs = context.queue.ask<DecodeOutputs>(
      {.key = {run->key(), "decode_outputs", layer, kv_head},
       .title = "Outputs of the decoding steps, " + where,
       .all_cores = true},
      [run, layer, kv_head](JobControl& job) { return decode_outputs(*run->readers(layer, kv_head), job); });
  const auto starts = context.queue.ask<DecodeStarts>(
      {.key = {run->key(), "decode_starts", layer, kv_head, settled_.starts_key},
       .title = "What decoding starts from, " + where,
       .all_cores = true},
      [run, plan, layer, kv_head](JobControl& job) {
        return decode_starts(*run->readers(layer, kv_head), *plan, job);
      });
  if (!outputs || !starts) {
    found.pending = outputs.pending || starts.pending;
    found.error = outputs.error.empty() ? starts.error : outputs.error;
    return found;
  }
  const JobRequest request{.key = {run->key(), "decode", layer, kv_head, settled_.key},
                           .title = "Decoding, " + where,
                           .urgency = Urgency::now,
                           .all_cores = true};
  return context.queue.ask<DecodeView>(
      request, [run, plan, layer, kv_head, outputs = outputs.value, starts = starts.value](JobControl& job) {
        const std::vector<Index> readers = run->dump()->readers(layer);
        const Index G = run->shape().group(), before = std::ranges::find(readers, layer) - readers.begin();
        return decode_view(*run->readers(layer, kv_head), *plan, *outputs, *starts, job, before * G,
                           readers.size() > 1 ? G : 0);
      });
}

Answer<DecodeView> DecodeQuestions::ask_results(PanelContext& context) {
  const std::shared_ptr<const Run>& run = context.run();
  const Index layer = context.state.selection().layer, kv_head = context.state.selection().kv_head;
  return context.queue.ask<DecodeView>(
      {.key = {run->key(), "decode_results", layer, kv_head},
       .title = "Decoding, " + run->head_text(layer, kv_head)},
      [run, layer, kv_head](JobControl&) { return read_decode(*run->results(), layer, kv_head); });
}

const DecodeAnswers& DecodeQuestions::ask(PanelContext& context, const DecodeSettings& settings) {
  const Run& run = *context.run();
  const Selection& selected = context.state.selection();
  const Key place(run.key(), selected.layer, selected.kv_head);
  if (std::exchange(place_, place) != place) answers_ = {};
  Answer<DecodeView> found;
  answers_.left_out.clear();
  if (run.dump() == nullptr) {
    found = ask_results(context);
  } else {
    settle(run, settings);
    found.error = settled_.error;
    if (settled_.plan != nullptr) {
      answers_.left_out = settled_.plan->left_out;
      found = ask_dump(context);
    }
  }
  answers_.pending = found.pending;
  answers_.error = found.error;
  answers_.stale = !found;
  if (!found || found.value == answers_.view) return answers_;
  answers_.view = found.value;
  answers_.fates.clear();
  if (run.dump() != nullptr)
    for (const DecodeRun& one : answers_.view->runs) answers_.fates.push_back(cache_fates(one));
  return answers_;
}

}  // namespace kvreplay::viewer
