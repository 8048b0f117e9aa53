#include "analysis/recommend/recommend.hpp"

#include "analysis/recommend/left_out.hpp"
#include "analysis/results/kept_text.hpp"
#include "data/number_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <functional>
#include <utility>

namespace kvreplay::recommend {
namespace {

constexpr std::pair<std::string_view, double> kUnits[] = {{"GiB", 1024.0 * 1024 * 1024},
                                                          {"MiB", 1024.0 * 1024},
                                                          {"KiB", 1024},
                                                          {"GB", 1e9},
                                                          {"MB", 1e6},
                                                          {"kB", 1e3}};

std::optional<Memory> memory_in(const std::string& word) {
  double value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || !(value > 0) || !std::isfinite(value)) return std::nullopt;
  const std::string_view unit(end, static_cast<std::size_t>(word.data() + word.size() - end));
  if (unit == "%" && value <= 100) return Memory{value / 100, 0, word};
  if (unit.empty() && value < 1) return Memory{value, 0, word};  // "1" is the beginning of "1,5GiB"
  const auto lower = [](char a) { return static_cast<char>(std::tolower(static_cast<unsigned char>(a))); };
  for (const auto& [name, bytes] : kUnits)
    if (std::ranges::equal(unit, name, {}, lower, lower)) return Memory{0, value * bytes, word};
  return std::nullopt;
}

/// Bytes in 16 bits that shares refer to: of all sequences of a context, or the mean over prompts.
double whole_bytes(const MeasuredLevers& measured, const RecommendOptions& options) {
  if (options.context) return measured.whole_bytes(*options.context) * static_cast<double>(options.batch);
  double sum = 0;
  for (const MeasuredPrompt& prompt : measured.prompts) sum += measured.whole_bytes(prompt.l);
  return sum / static_cast<double>(measured.prompts.size());
}

double share_of(const MeasuredLevers& measured, const RecommendOptions& options, const Memory& memory) {
  if (memory.share > 0) return memory.share;
  if (!options.context)
    throw OptionError(recommend_option::context, "how many tokens of a sequence these bytes are for", "none");
  return std::min(1.0, memory.bytes / whole_bytes(measured, options));
}

std::optional<Candidate> candidate(const MeasuredLevers& measured, const Means& all,
                                   const std::vector<Means>& others, const Wish& wish) {
  auto chosen = choose(measured, all, wish);
  if (!chosen) return std::nullopt;
  Candidate found{.use = wish.use, .where = wish.where, .chosen = std::move(*chosen)};
  for (const MeasuredPrompt& prompt : measured.prompts) {
    const CountedBytes bytes = bytes_on(measured, found.chosen, prompt);
    found.bytes_of_prompts.push_back(bytes.bytes);
    found.asked_of_prompts.push_back(bytes.asked);
  }
  for (std::size_t p = 0; p < others.size(); ++p) {
    const auto by_others = choose(measured, others[p], wish);
    found.held_out.push_back(by_others ? nats_on(measured, *by_others, measured.prompts[p]) : kNan);
    if (by_others && !(found.worst && found.held_out[*found.worst] >= found.held_out[p])) found.worst = p;
  }
  found.nats = others.empty() ? over_dumps(std::vector{found.chosen.nats}, FigureScale::log)
                              : over_dumps(found.held_out, FigureScale::log);
  return found;
}

/// True if two candidates make one choice: what a single technique achieves is not listed again under both.
bool is_same(const Candidate& a, const Candidate& b) {
  return a.chosen.levers == b.chosen.levers && a.chosen.between == b.chosen.between;
}

/// True if all heads chose one configuration, so that the candidate equals a uniform one.
bool is_uniform(const Candidate& candidate) {
  const std::vector<std::size_t>& levers = candidate.chosen.levers;
  return candidate.where == Where::each &&
         std::ranges::all_of(levers, [&](std::size_t lever) { return lever == levers.front(); });
}

Smallest smallest_of(const MeasuredLevers& measured, const Means& all, std::size_t lever, double whole,
                     const Memory& memory) {
  const auto row = static_cast<Index>(lever);
  const double share = all.bytes.row(row).sum(), asked = all.asked.row(row).sum();
  Smallest found{measured.levers[lever].text(), share, share * whole, ""};
  found.to_type = memory.share > 0 ? fmt::format("{}%", std::ceil(1000 * asked - 1e-6) / 10)
                                   : bytes_text(asked * whole, std::ceil);
  return found;
}

/// Orders candidates by what a user has to set up: one setting for all heads before a choice for each, one
/// technique before two.
int complexity(const Candidate& candidate) {
  return 2 * (candidate.where == Where::each ? 1 : 0) + (candidate.use == Use::both ? 1 : 0);
}

Recommendation recommended(const MeasuredLevers& measured, const Means& all, const std::vector<Means>& others,
                           Wish wish) {
  Recommendation found;
  // Simpler candidates come first, so that they win among equal costs.
  for (const Where where : {Where::everywhere, Where::each})
    for (const Use use : {Use::tokens, Use::bits, Use::both}) {
      if (use != Use::bits && !kEngines[wish.engine].evicts) continue;
      wish.where = where;
      wish.use = use;
      auto one = candidate(measured, all, others, wish);
      if (one && !is_uniform(*one) && std::ranges::none_of(found.candidates, [&](const Candidate& other) {
            return is_same(*one, other);
          }))
        found.candidates.push_back(std::move(*one));
    }
  std::ranges::stable_sort(found.candidates, {}, [&](const Candidate& one) { return one.cost(all.by); });
  if (found.candidates.size() < 2 || others.empty()) return found;
  // The data choose which two are shown, so all pairs are asked.
  std::vector<Paired> pairs;
  std::vector<double> p;
  for (std::size_t i = 0; i < found.candidates.size(); ++i)
    for (std::size_t j = i + 1; j < found.candidates.size(); ++j) {
      pairs.push_back(paired(found.candidates[i].held_out, found.candidates[j].held_out, Better::smaller,
                             FigureScale::log));
      p.push_back(pairs.back().p);
    }
  const std::vector<double> adjusted = holm(p);
  found.against_second = pairs.front();
  found.against_second->p = adjusted.front();
  if (std::ssize(others) >= kFewestPrompts)
    for (std::size_t j = 1; j < found.candidates.size(); ++j)  // the pairs of the first stand first
      if (!(adjusted[j - 1] < kToldApart) && complexity(found.candidates[j]) < complexity(found.winner()))
        found.taken = j;
  if (!found.told_apart()) found.prompts_needed = prompts_needed(pairs).front();
  return found;
}

/// `of` has a case's figures of a prompt, by its number.
CaseOver over_prompts(const MeasuredLevers& measured, std::string text,
                      const std::function<const ModelFigures&(std::size_t)>& of) {
  const auto over = [&](double ModelFigures::*figure, FigureScale scale) {
    std::vector<double> values;
    for (std::size_t p = 0; p < measured.prompts.size(); ++p) values.push_back(of(p).*figure);
    return over_dumps(values, scale);
  };
  return {std::move(text),
          over(&ModelFigures::bytes, FigureScale::linear),
          over(&ModelFigures::nats, FigureScale::log),
          over(&ModelFigures::output_error, FigureScale::log),
          over(&ModelFigures::kl, FigureScale::log),
          over(&ModelFigures::right, FigureScale::share)};
}

std::vector<CaseOver> front_of(const MeasuredLevers& measured, Engine engine) {
  std::vector<CaseOver> cases;
  for (std::size_t n = 0; n < measured.levers.size(); ++n) {
    const Lever& lever = measured.levers[n];
    if (!why_left_out(measured, lever, engine))
      cases.push_back(over_prompts(measured, lever.text(), [&](std::size_t p) -> const ModelFigures& {
        return measured.prompts[p].everywhere[n];
      }));
  }
  for (const OtherCase& other : measured.others)
    if (!other.recipe && engine == Engine::any)
      cases.push_back(over_prompts(
          measured, other.text, [&](std::size_t p) -> const ModelFigures& { return other.of_prompts[p]; }));
  const auto cost = [&](const CaseOver& one) {
    return measured.in_nats ? one.nats.mean : one.output_error.mean;
  };
  std::erase_if(cases,
                [&](const CaseOver& one) { return std::isnan(cost(one)) || std::isnan(one.bytes.mean); });
  std::ranges::stable_sort(cases, {},
                           [&](const CaseOver& one) { return std::pair(one.bytes.mean, cost(one)); });
  std::vector<CaseOver> front;
  for (CaseOver& one : cases)
    if (front.empty() || cost(one) < cost(front.back())) front.push_back(std::move(one));
  std::ranges::reverse(front);
  return front;
}

void compare_with_kl(const MeasuredLevers& measured, Recommended& found) {
  std::vector<double> of_prompts;
  for (std::size_t p = 0; p < measured.prompts.size(); ++p) {
    std::vector<double> ratios;
    const auto add = [&](const ModelFigures& figures) {
      if (figures.nats > 0 && figures.kl > 0) ratios.push_back(figures.kl / figures.nats);
    };
    for (const ModelFigures& figures : measured.prompts[p].everywhere) add(figures);
    for (const OtherCase& other : measured.others) add(other.of_prompts[p]);
    found.kl_cases += ratios.size();
    if (!ratios.empty()) of_prompts.push_back(over_dumps(ratios, FigureScale::log).geometric_mean);
  }
  if (!of_prompts.empty()) found.kl_over_predicted = over_dumps(of_prompts, FigureScale::log);
}

}  // namespace

std::string bytes_text(double bytes, double (*round)(double)) {
  const auto* const unit = std::ranges::find_if(kUnits, [&](const auto& one) {
    return one.first.ends_with("iB") && (bytes >= one.second || one.first == "KiB");
  });
  return fmt::format("{}{}", round(1000 * bytes / unit->second) / 1000, unit->first);
}

const Candidate* candidate_of(const Recommendation& of, Use use, Where where) {
  const Candidate* found = nullptr;
  for (const Candidate& candidate : of.candidates) {
    if (candidate.use == use && candidate.where == where) return &candidate;
    const bool no_more =
        (use == Use::both || candidate.use == use) && (where == Where::each || candidate.where == where);
    if (no_more && (found == nullptr || candidate.nats.center() < found->nats.center())) found = &candidate;
  }
  return found;
}

Recommended recommend(MeasuredLevers& measured, const RecommendOptions& options) {
  for (const std::string& name : options.without) {
    const auto at = std::ranges::find(measured.prompts, name, &MeasuredPrompt::name);
    if (at == measured.prompts.end()) {
      std::vector<std::string> names;
      for (const MeasuredPrompt& prompt : measured.prompts) names.push_back(prompt.name);
      throw OptionError(recommend_option::without, names_text(names, Listed::some),
                        fmt::format("'{}'", name));
    }
    const auto place = at - measured.prompts.begin();
    measured.prompts.erase(at);
    for (OtherCase& other : measured.others) other.of_prompts.erase(other.of_prompts.begin() + place);
  }
  if (measured.prompts.empty()) throw OptionError(recommend_option::without, "a prompt to be left", "none");
  Recommended found;
  if (kEngines[options.engine].of.size() > 1) {
    use_written(measured, [&](const Lever& lever) { return !why_left_out(measured, lever, options.engine); });
    found.centering = centering_text(measured, options.engine);
  }
  const Means all = means_of(measured, options.by, options.context);
  std::vector<Means> others;
  for (std::size_t p = 0; p < measured.prompts.size() && measured.prompts.size() > 1; ++p)
    others.push_back(means_of(measured, options.by, options.context, std::span(&p, 1)));
  found.engine = options.engine;
  found.by = options.by;
  found.context = options.context;
  found.batch = options.batch;
  for (const Memory& memory : options.bytes) {
    const double share = share_of(measured, options, memory);
    // As a share of what was measured a budget has the rounding of its prompts.
    Recommendation& one = found.recommendations.emplace_back(
        recommended(measured, all, others, {share * (1 + 1e-9), Use::both, Where::each, options.engine}));
    one.memory = memory;
    one.share = share;
    if (!one.candidates.empty()) continue;
    if (const auto lever = smallest(measured, all, options.engine))
      one.smallest = smallest_of(measured, all, *lever, whole_bytes(measured, options), memory);
  }
  found.front = front_of(measured, options.engine);
  for (const OtherCase& other : measured.others)
    if (other.recipe) {
      CaseOver run = over_prompts(measured, other.text,
                                  [&](std::size_t p) -> const ModelFigures& { return other.of_prompts[p]; });
      if (run.bytes.n > 0) found.run.push_back(std::move(run));
    }
  if (measured.in_nats) compare_with_kl(measured, found);
  return found;
}

}  // namespace kvreplay::recommend

namespace kvreplay {

std::string OptionValue<recommend::Memory>::complaint(const OptionFacts&, const std::string& word) {
  if (recommend::memory_in(word)) return "";
  return fmt::format("expected a share as 20% or 0.2, or bytes as 1.5GiB or 800MiB, found '{}'{}", word,
                     index_in(word, kNoLimit)
                         ? " (a comma separates budgets; 1.5GiB has a decimal point, all bytes are 100%)"
                         : "");
}

recommend::Memory OptionValue<recommend::Memory>::parse(const OptionFacts&, const std::string& word) {
  return *recommend::memory_in(word);
}

}  // namespace kvreplay
