#include "analysis/conform/conform.hpp"

#include "analysis/conform/parts.hpp"
#include "analysis/conform/rounding.hpp"
#include "analysis/eviction/evict_stage.hpp"
#include "analysis/eviction/eviction_plan.hpp"
#include "analysis/measure/case_outputs.hpp"
#include "analysis/results/agreement.hpp"
#include "analysis/results/figure_facts.hpp"
#include "data/error.hpp"
#include "data/npy_read.hpp"
#include "sim/tokens/token_metrics.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

namespace kvreplay::conform {
namespace {

/// A search looks at so many layers at most, of so many tokens over all their caches.
constexpr Index kSearchedLayers = 8, kSearchedTokens = 400'000;
/// Squared distance over the squared norm: numbers farther from the model's than this are not they in any
/// format.
constexpr double kOfAnother = 0.6;

constexpr std::string_view kNone = "none";  // the policy that keeps all

Dtype numbers_of(const Dump& dump) {
  for (const DumpFile& file : dump.files())
    if (file.tensor == Tensor::k) return file.dtype;
  return Dtype::f32;
}

/// The resolved request, and the layers with a cache of their own.
struct Asked {
  EvictionOptions options;  ///< of the policy alone
  ReadingSetting setting;
  std::optional<BudgetDivision> division;
  std::shared_ptr<const std::vector<Index>> head_budgets;
  std::vector<GivenArray<double>> scores;
  std::vector<GivenArray<std::uint8_t>> found;  ///< a case each
  std::vector<double> scores_found;             ///< [layers, caches, l], or empty
  std::vector<Index> layers;
  std::vector<Quantization> stored;  ///< [layers], or empty
  Dtype numbers = Dtype::f32;
  bool per_query_head = false;
  std::vector<OptionText> notes;

  /// The setting for a layer whose caches hold `held` positions.
  ReadingSetting setting_of(std::size_t which, Index held) const {
    ReadingSetting mine = setting;
    mine.budget = options.budgets[which];
    mine.l = held;
    mine.first_held = setting.l - held;
    mine.rows = std::min(setting.rows, held);
    return mine;
  }
  Reading meant(std::size_t which, Index held) const {
    const ReadingSetting mine = setting_of(which, held);
    Reading reading = reading_of(mine, setting.policy, setting.semantics);
    reading.division = division;
    reading.given_budgets = head_budgets;
    reading.numbers = numbers;
    return reading;
  }
  /// All positions that a cache keeps; or only those from `first_held` on, which later rows can see.
  KeptSet found_of(std::size_t which, Index layer, Index cache, Index first_held = 0) const {
    const auto begin = found[which].values.begin() + (layer * setting.n_kv + cache) * setting.l;
    KeptSet kept(begin, begin + setting.l);
    std::fill_n(kept.begin(), first_held, std::uint8_t{0});
    return kept;
  }
};

std::shared_ptr<const std::vector<Index>> read_head_budgets(const std::string& file, const Dump& dump,
                                                            const std::vector<Index>& layers) {
  const DumpShape& shape = dump.shape();
  const std::vector<double> values = read_npy(file, std::array<Index, 2>{shape.layers, shape.n_kv});
  auto budgets = std::make_shared<std::vector<Index>>();
  for (const Index layer : layers)
    for (Index g = 0; g < shape.n_kv; ++g) {
      const double tokens = values[layer * shape.n_kv + g];
      if (!(tokens >= 0 && tokens <= static_cast<double>(shape.l)) || tokens != std::floor(tokens))
        throw InputError(fmt::format("{}: layer {}, head {}", file, layer, g),
                         fmt::format("a number of tokens from 0 to {}", shape.l), fmt::format("{}", tokens));
      budgets->push_back(static_cast<Index>(tokens));
    }
  return budgets;
}

Asked settled(const Dump& dump, const ConformOptions& options) {
  const DumpShape& shape = dump.shape();
  Asked asked;
  const std::size_t mark = options.as.rfind('~');
  if (options.as.empty()) throw OptionError(conform_option::as, "a policy", "none");
  const bool evicts = options.as != kNone;
  const Policy policy =
      parse_policy(evicts ? options.as.substr(0, mark) : std::string(name_of(EvictionBase::streaming)),
                   names_of(options.scores), conform_option::as);
  if (mark != std::string::npos) {
    asked.division = OptionValue<BudgetDivision>::parse(conform_option::as, options.as.substr(mark + 1));
    const BudgetMethod method = asked.division->method;
    if (method != BudgetMethod::uniform && method != BudgetMethod::ada && method != BudgetMethod::pyramid)
      throw OptionError(conform_option::as,
                        option_text("uniform, ada or pyramid behind '~' (any other budgets: {})",
                                    conform_option::head_budgets),
                        fmt::format("'{}'", asked.division->name));
  }
  const bool with_cache = !options.cache.empty();
  if (options.kept.empty() && !with_cache)
    throw OptionError(option_text("{} or {}", conform_option::kept, conform_option::cache), "what was kept",
                      "none");
  const Index files = options.kept.empty() ? 1 : std::ssize(options.kept);
  std::vector<Budget> budgets = options.budgets;
  if (!evicts && budgets.empty()) budgets.push_back({shape.l});
  if (!evicts && (files > 1 || budgets.size() > 1 || budgets.front().tokens != shape.l))
    throw OptionError(conform_option::as, "no budget for a cache that keeps all (none)",
                      counted(std::ssize(budgets), "budget"));
  if (std::ssize(budgets) != files || (with_cache && files > 1))
    throw OptionError(
        option_text("{} and {}",
                    options.kept.empty() || with_cache ? conform_option::cache : conform_option::kept,
                    evict_option::keep),
        with_cache ? "one budget" : "a file for each budget",
        fmt::format("{} and {}", with_cache && options.kept.empty() ? "a folder" : counted(files, "file"),
                    counted(std::ssize(budgets), "budget")));
  const EvictionBaseFacts& base = kBases[policy.base];
  if (base.searches || base.reads || policy.own.threshold)
    throw OptionError(conform_option::as, "a policy that ranks and evicts",
                      fmt::format("'{}', which {}", policy.name,
                                  base.reads      ? "evicts nothing"
                                  : base.searches ? "searches"
                                                  : "keeps no budget"));
  for (const std::string& file : options.kept) asked.found.push_back(read_engine_kept(file, dump));
  if (asked.found.empty())  // the cache yields the kept sets
    asked.found.push_back(
        {"cache", std::vector<std::uint8_t>(static_cast<std::size_t>(shape.layers * shape.n_kv * shape.l)),
         1});
  const Index parts = asked.found.front().parts;
  if (with_cache && parts > 1)
    throw OptionError(conform_option::cache, "kept sets of KV heads", "those of query heads");
  for (std::size_t f = 0; f < asked.found.size(); ++f)
    if (asked.found[f].parts != parts)
      throw InputError(options.kept[f], fmt::format("heads as in {}", options.kept.front()), "others");
  asked.per_query_head = parts > 1;
  if (!options.scores_found.empty()) {
    const Index heads = shape.n_kv * parts;
    asked.scores_found = read_npy(options.scores_found, std::array<Index, 3>{shape.layers, heads, shape.l});
    take_infinities(asked.scores_found, heads, shape.l, options.scores_found);
  }
  for (const Index layer : options.layers)
    if (dump.cache_of(layer) == layer) asked.layers.push_back(layer);
  if (!options.head_budgets.empty())
    asked.head_budgets = read_head_budgets(options.head_budgets, dump, asked.layers);
  if (asked.head_budgets && (asked.division || asked.per_query_head))
    throw OptionError(
        conform_option::head_budgets, asked.division ? "no division behind '~'" : "a cache for every KV head",
        asked.division ? fmt::format("'~{}'", asked.division->name) : "one for every query head");

  asked.options.policies = {policy};
  asked.options.budgets = budgets;
  asked.options.semantics = {options.semantics};
  asked.options.per_query_head = asked.per_query_head;
  asked.options.scores = options.scores;
  EvictionPlan plan;
  try {
    plan = eviction_plan(dump, asked.options);
  } catch (const OptionError& error) {
    throw OptionError(error.line().naming(evict_option::policy.name, conform_option::as.name));
  }
  asked.scores = plan.scores;
  asked.notes = plan.notes;

  ReadingSetting& setting = asked.setting;
  setting.policy = policy;
  setting.semantics = options.semantics;
  setting.l = shape.l;
  setting.rows = window_rows(shape.l, shape.first_query(), shape.l).count();
  setting.group = asked.per_query_head ? 1 : shape.group();
  setting.n_kv = asked.per_query_head ? shape.n_q : shape.n_kv;
  setting.layers = std::ssize(asked.layers);
  setting.causal = dump.rule(asked.layers.empty() ? 0 : asked.layers.front()).causal;
  setting.has_rope = dump.rope(asked.layers.empty() ? 0 : asked.layers.front()).has_value();
  setting.projects_values = dump.projects_values();
  for (const Index layer : asked.layers)
    setting.own_caches = setting.own_caches && dump.readers(layer).size() == 1;
  setting.available = [&dump, setting](const Policy& other) {
    const EvictionRule rule =
        rule_of(other, setting.semantics, {}, setting.l, setting.l, setting.projects_values);
    return !rule.metric || !why_unavailable(*rule.metric, dump);
  };
  asked.numbers = options.numbers.value_or(numbers_of(dump));
  for (const Centering& centering : options.stored.centerings)
    if (centering.from)
      throw OptionError(evict_option::center, "none: rows of a cache are compared as they are read",
                        centering.name);
  if (!options.stored.formats.empty()) {
    const auto runs = cache_format_runs(options.stored, shape, evict_option::bits, evict_option::rotate);
    if (!with_cache || runs.size() > 1)
      throw OptionError(evict_option::bits, with_cache ? "one format" : "a cache that is stored so (cache)",
                        fmt::format("'{}'", runs.front().name));
    asked.stored = runs.front().of_layers;
  }
  return asked;
}

/// Results of the first pass for one case, besides its Conformance.
struct Compared {
  std::vector<std::pair<Index, Index>> apart;  ///< layer and cache, where something departs
  std::vector<std::uint8_t> meant, oracle;     ///< [layers, caches, l]
};

class Referee {
 public:
  Referee(const Dump& dump, const ConformOptions& options, const Compute& compute)
      : dump_(dump), options_(options), compute_(compute), asked_(settled(dump, options)) {
    if (!options.cache.empty()) held_.emplace(options.cache, dump);
  }

  ConformResult judge() {
    result_.policy = options_.as;
    result_.semantics = name_of(options_.semantics);
    result_.numbers = name_of(asked_.numbers);
    result_.notes = asked_.notes;
    compare_all();
    for (std::size_t c = 0; c < result_.cases.size(); ++c) {
      Conformance& one = result_.cases[c];
      std::ranges::stable_sort(one.held, [](const HeldFinding& a, const HeldFinding& b) {
        return a.of != b.of ? a.of < b.of : a.heads > b.heads;
      });
      if (one.apart > 0 && options_.variants > 0) search(c);
      if (one.apart > 0 || (one.verdict == Verdict::cache_differs && options_.as != kNone)) cost(c);
      if (held_full_sq_ > 0)
        one.costs.insert(one.costs.begin(),
                         {"cache as held", relative_error(held_change_sq_, held_full_sq_), {}, {}});
    }
    return std::move(result_);
  }

 private:
  Index caches() const { return asked_.setting.n_kv; }
  std::size_t at(Index layer, Index cache) const {
    return static_cast<std::size_t>((layer * caches() + cache) * asked_.setting.l);
  }

  Index first_held(Index layer) const { return dump_.rule(layer).first_held(asked_.setting.l); }
  Index held(Index layer) const { return dump_.rule(layer).held(asked_.setting.l); }

  void compare_all() {
    const Index l = asked_.setting.l;
    for (const Index layer : asked_.layers) {
      const Index hidden = first_held(layer);
      if (hidden == 0) continue;
      auto at = std::ranges::find(result_.hidden, hidden, &HiddenPositions::positions);
      if (at == result_.hidden.end()) at = result_.hidden.insert(at, {hidden, {}});
      at->layers.push_back(layer);
    }
    const std::size_t all = static_cast<std::size_t>(dump_.shape().layers * caches() * l);
    for (std::size_t c = 0; c < asked_.found.size(); ++c) {
      Conformance& one = result_.cases.emplace_back();
      one.file = options_.kept.empty() ? options_.cache : options_.kept[c];
      one.budget = asked_.options.budgets[c].label();
      one.found_least = one.meant_least = l;
      compared_.push_back({{}, std::vector<std::uint8_t>(all), {}});
      for (std::size_t before = 0; before < c && !one.same_as; ++before)
        if (asked_.found[before].values == asked_.found[c].values &&
            asked_.meant(before, l).budget != asked_.meant(c, l).budget)
          one.same_as = before;
    }
    const Index layers = std::ssize(asked_.layers);
    for (Index place = 0; place < layers; ++place) {
      if (options_.on_progress) options_.on_progress(place, layers);
      if (compute_.workers.stopping()) throw Interrupted{};
      const Index layer = asked_.layers[place];
      LayerCaches layer_caches(dump_, layer, asked_.per_query_head, asked_.scores, compute_);
      for (std::size_t c = 0; c < result_.cases.size(); ++c) compare(c, layer, place, layer_caches);
    }
    if (options_.on_progress) options_.on_progress(layers, layers);
    if (held_ && nearest_held_ > kOfAnother)
      throw InputError(options_.cache, "keys or values of the dump's prompt in some head",
                       "those of another prompt, or another model");
    for (std::size_t c = 0; c < result_.cases.size(); ++c)
      result_.cases[c].verdict = verdict_of(result_.cases[c]);
  }

  void compare(std::size_t c, Index layer, Index place, LayerCaches& layer_caches) {
    Conformance& one = result_.cases[c];
    const Index first = layer_caches.first_held();
    const std::vector<ReadCache> meant =
        layer_caches.read(asked_.meant(c, layer_caches.held()), place, std::ssize(asked_.layers));
    if (held_) compare_held(c, layer, layer_caches, meant);
    Index meant_layer = 0, found_layer = 0;
    bool layer_apart = false;
    for (Index g = 0; g < caches(); ++g) {
      const KeptSet found = asked_.found_of(c, layer, g, first);
      std::ranges::copy(meant[g].kept, compared_[c].meant.begin() + static_cast<Index>(at(layer, g)));
      const Index should = kvreplay::count(meant[g].kept), does = kvreplay::count(found);
      const Mismatch here = mismatch(meant[g], found);
      ++one.heads;
      one.tokens += here.count();
      one.apart += here.apart;
      one.heads_apart += here.apart > 0 ? 1 : 0;
      one.heads_tied += here.apart == 0 && here.count() > 0 ? 1 : 0;
      one.budgets_apart += should != does ? 1 : 0;
      one.found_least = std::min(one.found_least, does), one.found_most = std::max(one.found_most, does);
      one.meant_least = std::min(one.meant_least, should), one.meant_most = std::max(one.meant_most, should);
      one.all_kept = one.all_kept && does == layer_caches.held();
      meant_layer += should, found_layer += does;
      if (here.apart > 0) {
        compared_[c].apart.emplace_back(layer, g);
        layer_apart = true;
      }
      shares_budget_ = meant[g].shares_budget;
      if (!asked_.scores_found.empty()) compare_scores(one, meant[g], found, at(layer, g));
      note_first(one, here, meant[g], found, layer, g);
      add_oracle(c, layer_caches, layer, g, does);
    }
    if (layer_apart) one.layers_apart.push_back(layer);
    one.meant_total += meant_layer, one.found_total += found_layer;
    one.layers_hold = one.layers_hold && meant_layer == found_layer;
  }

  /// The scores that an implementation says it ranked by: do they rank as the policy's, and did it keep their
  /// largest?
  void compare_scores(Conformance& one, const ReadCache& meant, const KeptSet& found,
                      std::size_t begin) const {
    std::vector<double> theirs, ours;
    double least_kept = kNan, most_evicted = kNan;
    for (Index p = meant.pinned_before; p < meant.pinned_from; ++p) {
      const double score = asked_.scores_found[begin + static_cast<std::size_t>(p)];
      if (meant.scores.size() > 0) theirs.push_back(score), ours.push_back(meant.scores[p]);
      if (found[p] != 0)
        least_kept = std::fmin(least_kept, score);
      else
        most_evicted = std::fmax(most_evicted, score);
    }
    one.heads_off_scores += least_kept < most_evicted ? 1 : 0;
    if (ours.empty()) return;
    const double rho = agreement(theirs, ours, false)[AgreementFigure::spearman];
    one.lowest_correlation = one.lowest_correlation ? std::fmin(*one.lowest_correlation, rho) : rho;
  }

  /// Compares the keys and values in a layer's cache with the model's. If no file states the kept positions,
  /// the nearest rows of the model give them.
  void compare_held(std::size_t c, Index layer, const LayerCaches& layer_caches,
                    const std::vector<ReadCache>& meant) {
    Conformance& one = result_.cases[c];
    const HeldCaches::Layer all = held_->layer(layer);
    const AnyHead others = [this](Index of, Index g) -> const HeadGroup<double>& {
      const DumpShape& shape = dump_.shape();
      if (other_heads_.size() > 32) other_heads_.clear();
      const auto [at, fresh] = other_heads_.try_emplace({of, g});
      if (fresh) at->second = load_head_group<double>(dump_, of, g, {.first_row = shape.T, .others = false});
      return at->second;
    };
    const Index l = asked_.setting.l;
    for (Index g = 0; g < caches(); ++g) {
      const HeadGroup<double>& group = layer_caches.cache(g);
      std::optional<KeptSet> kept;  // rows may stand in any order
      if (!options_.kept.empty()) {
        kept = asked_.found_of(c, layer, g);
        const Index should = kvreplay::count(*kept), rows = all.k[g].rows();
        if (rows < should || rows > should + group.T_all() - l)
          throw InputError(
              fmt::format("{}: layer {}, head {}", options_.cache, layer, g),
              fmt::format("the {} tokens kept, and at most {} decoded ones", should, group.T_all() - l),
              counted(rows, "row"));
      }
      const std::optional<Quantization> stored =
          asked_.stored.empty() ? std::nullopt : std::optional(asked_.stored[layer]);
      const HeldHead head = held_head(all.k[g], all.v[g], group, kept, meant[g].kept, stored, asked_.numbers,
                                      others, asked_.layers, caches(), formats_);
      const Cache<double> cache = cache_of(head, all.k[g], all.v[g], group);
      if (!kept)
        std::ranges::copy(cache.kept, asked_.found[c].values.begin() + static_cast<Index>(at(layer, g)));
      one.heads_out_of_order += head.in_order ? 0 : 1;
      nearest_held_ = std::min({nearest_held_, head.keys.distance, head.values.distance});
      note_held(one, "keys", head.keys, layer);
      note_held(one, "values", head.values, layer);
      if (head.keys.as_meant && head.values.as_meant && !stored) continue;
      const RowRange future = future_rows(l, group.T_all(), group.first_query()),
                     window = window_rows(l, group.first_query(), kMeasuredRows);
      const CaseOutputs<double> outputs = cache_outputs<double>(
          group, window, future, 1, [&](std::size_t) { return cache; }, false, compute_);
      const OutputChanges<double>& judged = future.count() > 0 ? outputs.future : outputs.window;
      held_change_sq_ += judged.change_sq.front(), held_full_sq_ += judged.full_sq;
    }
  }

  static void note_held(Conformance& one, const char* of, const HeldAs& found, Index layer) {
    auto at = std::ranges::find_if(one.held,
                                   [&](const HeldFinding& f) { return f.of == of && f.text == found.text; });
    if (at == one.held.end()) at = one.held.insert(at, {of, found.text, found.as_meant, 0, {}, 0});
    ++at->heads;
    place_in(at->layers, layer);
    at->most = std::max(at->most, found.distance);
  }

  static void note_first(Conformance& one, const Mismatch& here, const ReadCache& meant, const KeptSet& found,
                         Index layer, Index g) {
    const bool better = here.apart > 0 && one.apart == here.apart;  // the first of those that depart
    if (here.count() == 0 || (one.first && !better)) return;
    const Index p = here.first ? *here.first : here.extra.empty() ? here.missing.front() : here.extra.front();
    TokenPlace place{layer, g, p, found[p] != 0, kNan, kNan};
    if (meant.scores.size() > 0 && p >= meant.pinned_before && p < meant.pinned_from) {
      place.score = meant.scores[p];
      place.cut = place.extra ? meant.lowest_kept : meant.highest_evicted;
    }
    one.first = place;
  }

  void add_oracle(std::size_t c, const LayerCaches& layer_caches, Index layer, Index g, Index keep) {
    const KeptSet oracle = layer_caches.oracle(g, keep);
    if (oracle.empty()) return;
    auto& all = compared_[c].oracle;
    all.resize(compared_[c].meant.size());
    std::ranges::copy(oracle, all.begin() + static_cast<Index>(at(layer, g)));
  }

  Verdict verdict_of(const Conformance& one) const {
    const bool other_numbers =
        std::ranges::any_of(one.held, [](const HeldFinding& f) { return !f.as_meant; });
    if (one.apart == 0 && other_numbers) return Verdict::cache_differs;
    if (one.tokens == 0) return one.same_as ? Verdict::same_result : Verdict::conforms;
    if (one.all_kept && one.meant_total < one.found_total) return Verdict::nothing_evicted;
    if (one.apart == 0) return Verdict::ties;
    if (one.same_as) return Verdict::same_result;
    return (shares_budget_ ? !one.layers_hold : one.budgets_apart > 0) ? Verdict::budget_not_held
                                                                       : Verdict::differs;
  }

  // The search for a reading of the policy that explains the departures.

  void search(std::size_t c) {
    const Index l = asked_.setting.l;
    Conformance& one = result_.cases[c];
    // Restrict the search to one cache size: the size that most of the departing layers have.
    std::map<Index, std::vector<Index>> by_held;
    for (const Index layer : one.layers_apart) by_held[held(layer)].push_back(layer);
    const auto& [of_held, there] =
        *std::ranges::max_element(by_held, {}, [](const auto& some) { return some.second.size(); });
    // Heads that depart, of layers that lie evenly among those.
    const Index most =
        std::clamp<Index>(kSearchedTokens / std::max<Index>(l * caches(), 1), 1, kSearchedLayers);
    std::vector<Index> searched;
    const Index take = std::min(most, std::ssize(there));
    for (Index n = 0; n < take; ++n) searched.push_back(there[n * std::ssize(there) / take]);

    const Reading meant = asked_.meant(c, of_held);
    const std::vector<Deviation> deviations =
        known_deviations(asked_.setting_of(c, of_held), meant, shape_of(c, there));
    Loaded loaded;
    std::vector<Index> at_first;  // tokens where `meant` departs, summed up to each layer
    LeftBy of_meant;
    for (const Index layer : searched) {
      add_left(c, meant, layer, loaded, false, of_meant);
      at_first.push_back(of_meant.unequal);
    }
    const ReadingSearch search =
        search_readings(deviations, meant, [&](const Reading& reading, Index before) {
          // Coarser numbers make scores equal. Such a reading counts only if it explains every token.
          const bool excuses = rounding_of(reading.numbers) > rounding_of(meant.numbers);
          const double pace =
              static_cast<double>(before) / static_cast<double>(std::max<Index>(at_first.back(), 1));
          LeftBy sum;
          for (std::size_t n = 0; n < searched.size(); ++n) {
            add_left(c, reading, searched[n], loaded, excuses, sum);
            if (excuses ? sum.apart > 0
                        : static_cast<double>(sum.unequal) > pace * static_cast<double>(at_first[n]))
              return before + 1;
          }
          return excuses ? sum.apart : sum.unequal;
        });
    one.tried = search.tried;
    one.searched = of_meant.left;
    for (const Departures& found : search.found) {
      if (std::ssize(one.readings) == options_.variants) break;
      const Reading reading = reading_with(meant, deviations, found.chosen);
      LeftBy by;
      for (const Index layer : searched) add_left(c, reading, layer, loaded, true, by);
      // A reading is exact only if it keeps equal sets in every head that departs; and it is what the whole
      // implementation does only if the other heads keep the same, too, but for rounding.
      LeftBy elsewhere;
      if (by.left == 0)
        for (const Index layer : asked_.layers) {
          if (held(layer) != of_held) continue;
          Loaded one_by_one;
          add_left(c, reading, layer, one_by_one, true, by);
          add_left(c, reading, layer, one_by_one, true, elsewhere, false);
        }
      if (by.apart > 0 && by.left >= one.searched) continue;  // the policy itself is as near
      one.readings.push_back({reading_text(options_.as, deviations, found.chosen), by.left, by.unequal,
                              by.apart, elsewhere.apart,
                              rounding_of(reading.numbers) > rounding_of(meant.numbers)});
    }
    std::ranges::stable_sort(one.readings, {},
                             [](const TriedReading& r) { return std::pair(r.left > 0, r.elsewhere > 0); });
  }

  /// Layers by number, loaded on first use.
  using Loaded = std::map<Index, std::unique_ptr<LayerCaches>>;
  /// Tokens of the departing heads that a reading keeps, but the implementation does not, or vice versa.
  struct LeftBy {
    Index left = 0;     ///< all such tokens
    Index unequal = 0;  ///< tokens whose score differs from the score across the cut
    Index apart = 0;    ///< tokens that rounding cannot explain
  };
  /// Over the layer's heads that depart from the policy, or over the others.
  void add_left(std::size_t c, const Reading& reading, Index layer, Loaded& loaded, bool with_rounding,
                LeftBy& sum, bool departing = true) {
    if (compute_.workers.stopping()) throw Interrupted{};
    const Index places = std::ssize(asked_.layers),
                place = std::ranges::lower_bound(asked_.layers, layer) - asked_.layers.begin(),
                chosen = (place + reading.layers_on + places) % places, of = asked_.layers[chosen];
    auto& caches_of = loaded[of];
    if (!caches_of)
      caches_of = std::make_unique<LayerCaches>(dump_, of, asked_.per_query_head, asked_.scores, compute_);
    const std::vector<ReadCache> read = caches_of->read(reading, chosen, places);
    for (Index g = 0; g < caches(); ++g) {
      if ((std::ranges::find(compared_[c].apart, std::pair(layer, g)) != compared_[c].apart.end()) !=
          departing)
        continue;
      const KeptSet found = asked_.found_of(c, layer, g, first_held(layer));
      const Mismatch here = mismatch(read[g], found, with_rounding);
      sum.left += here.count();
      sum.unequal += here.unequal;
      sum.apart += here.apart;
    }
  }

  FoundShape shape_of(std::size_t c, const std::vector<Index>& layers) const {
    const Conformance& one = result_.cases[c];
    FoundShape shape{{}, held(layers.front()), held(layers.front())};
    if (one.found_least == one.found_most) shape.tokens = one.found_least;
    for (const auto& [layer, g] : compared_[c].apart) {
      if (std::ranges::find(layers, layer) == layers.end()) continue;
      const KeptSet found = asked_.found_of(c, layer, g);
      const auto begin = found.begin() + first_held(layer);
      shape.leading = std::min<Index>(shape.leading, std::find(begin, found.end(), 0) - begin);
      shape.trailing =
          std::min<Index>(shape.trailing, std::find(found.rbegin(), found.rend(), 0) - found.rbegin());
    }
    return shape;
  }

  // The cost of the departures.

  void cost(std::size_t c) {
    const DumpShape& shape = dump_.shape();
    std::vector<GivenArray<std::uint8_t>> kept;
    std::vector<std::string> names;
    const auto add = [&](const std::string& name, std::vector<std::uint8_t> values) {
      if (values.empty()) return;
      for (Index layer = 0; layer < shape.layers; ++layer) {  // of the layers that read it
        const Index own = dump_.cache_of(layer);
        if (own != layer)
          std::copy_n(values.begin() + static_cast<Index>(at(own, 0)), caches() * asked_.setting.l,
                      values.begin() + static_cast<Index>(at(layer, 0)));
      }
      kept.push_back({fmt::format("case{}", names.size()), std::move(values),
                      asked_.per_query_head ? shape.group() : 1});
      names.push_back(name);
    };
    if (result_.cases[c].apart > 0) add("as found", asked_.found[c].values);
    add(options_.as, compared_[c].meant);
    add("oracle", compared_[c].oracle);
    EvictionOptions measured;
    measured.per_query_head = asked_.per_query_head;
    EvictStage stage(dump_, measured, plan_of_kept(dump_, measured, std::move(kept)), compute_);
    std::vector<LayerEvictions> layers;
    std::vector<const LayerEvictions*> parts;
    for (const Index layer : options_.layers) {
      if (compute_.workers.stopping()) throw Interrupted{};
      layers.push_back(layer_evictions<float>(stage, layer, shape.n_kv, [&](Index g) {
        return std::make_shared<const HeadGroup<float>>(load_head_group<float>(dump_, layer, g));
      }));
    }
    for (const LayerEvictions& one : layers) parts.push_back(&one);
    const HeadFigures figures = joined(options_.layers, parts);
    const EvictionTable table = stage.table(figures);
    const RowSet rows = table.best_rows();
    for (std::size_t n = 0; n < names.size(); ++n) {
      const auto value = [&](EvictionFigure figure) { return table.of_model(n, figure, rows); };
      result_.cases[c].costs.push_back({names[n], value(EvictionFigure::output_error).value_or(kNan),
                                        value(EvictionFigure::layer_output_error),
                                        value(EvictionFigure::loss_step)});
    }
  }

  const Dump& dump_;
  const ConformOptions& options_;
  const Compute& compute_;
  Asked asked_;
  ConformResult result_;
  std::vector<Compared> compared_;
  std::optional<HeldCaches> held_;
  std::map<std::pair<Index, Index>, HeadGroup<double>> other_heads_;
  FoundFormats formats_;
  double held_change_sq_ = 0, held_full_sq_ = 0;
  double nearest_held_ = std::numeric_limits<double>::infinity();  // the least HeldAs::distance
  bool shares_budget_ = false;
};

}  // namespace

bool ConformResult::ok() const {
  return std::ranges::all_of(cases, [](const Conformance& one) { return kVerdicts[one.verdict].good; });
}

ConformResult judge(const Dump& dump, const ConformOptions& options, const Compute& compute) {
  return Referee(dump, options, compute).judge();
}

}  // namespace kvreplay::conform
