#include "viewer/work/decode_view.hpp"

#include "analysis/results/scoped_figures.hpp"
#include "data/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <optional>
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
  if (settings.decode) options.phases.push_back({Phase::Kind::decode});
  if (settings.append_only) options.phases.push_back({Phase::Kind::append_only});
  options.decode_window = settings.decode_window;
  return options;
}

BoundOptions bound(DecodeSettings& settings) {
  static constexpr OptionFacts decode{.name = "decode"}, append_only{.name = "append-only"};
  BoundOptions options = bound(static_cast<PolicySettings&>(settings));
  options.insert(options.end(),
                 {bind_option(evict_option::policy, settings.policies).keyed("policies"),
                  bind_option(decode, settings.decode), bind_option(append_only, settings.append_only),
                  bind_option(evict_option::decode_window, settings.decode_window)});
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
  Key key(decode.plan.decode_window);
  for (const EvictionCase& which : decode.plan.cases)
    key = {key, which.decode_name(), which.semantics, decode.plan.runs[*which.run].rules.front().window};
  return key;
}

DecodeStarts decode_starts(const HeadGroup<float>& group, const DecodePlan& decode, JobControl& job) {
  const EvictionPlan& plan = decode.plan;
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
                       const DecodeStarts& starts, JobControl& job) {
  const EvictionPlan& plan = decode.plan;
  DecodeView view;
  for (const OptionText& note : plan.notes) view.notes.push_back(note.plain());
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
    run.start = prompt_kept(group, plan, which, starts.ranking, job.compute());
    DecodeReplay<float> replay =
        decode_replay(group, plan.runs[*which.run].rules[which.budget], run.start, *which.kept,
                      decode_options(plan, which), starts.scores[c], outputs.full, job.workers());
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

std::vector<std::uint8_t> cache_after(const DecodeRun& run, Index step) {
  std::vector<std::uint8_t> cache(run.T, 0);
  std::copy(run.start.begin(), run.start.end(), cache.begin());
  if (step < 0) return cache;
  const Index end = std::min(run.first_step + step + 1, run.T);
  for (Index p = run.l; p < end; ++p) cache[p] = 1;
  for (const DecodeMove& move : run.left) {
    if (move.step > step) break;
    cache[move.position] = 0;
  }
  return cache;
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

std::size_t bytes_of(const DecodeOutputs& outputs) {
  std::size_t bytes = sizeof(outputs);
  for (const Matrix<float>& full : outputs.full)
    bytes += static_cast<std::size_t>(full.size()) * sizeof(float);
  return bytes;
}

std::size_t bytes_of(const DecodeStarts& starts) {
  std::size_t numbers = 0;
  for (const Vector<double>& scores : starts.ranking.scores)
    numbers += static_cast<std::size_t>(scores.size());
  for (const Matrix<double>& scores : starts.scores) numbers += static_cast<std::size_t>(scores.size());
  return sizeof(starts) + numbers * sizeof(double);
}

std::size_t bytes_of(const DecodeView& view) {
  std::size_t bytes = sizeof(view);
  for (const DecodeRun& run : view.runs)
    bytes += sizeof(run) + run.policy.size() + run.error.size() * sizeof(double) + run.start.size() +
             run.kept.size() + run.left.size() * sizeof(DecodeMove);
  for (const std::string& note : view.notes) bytes += note.capacity() + 32;
  return bytes;
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

std::size_t bytes_of(const CacheFates& fates) {
  return sizeof(fates) + fates.left_at.capacity() * sizeof(Index);
}

}  // namespace kvreplay::viewer
