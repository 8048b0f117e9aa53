#include "analysis/eviction/eviction_options.hpp"
#include "analysis/eviction/eviction_plan.hpp"
#include "analysis/eviction/head_evictions.hpp"
#include "analysis/eviction/recipe.hpp"
#include "analysis/python/calls.hpp"
#include "analysis/python/layer.hpp"
#include "sim/backend.hpp"
#include "sim/eviction/decode/decode.hpp"
#include "sim/eviction/prompt_eviction.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay::python {
namespace {

constexpr OptionFacts kPolicy{"policy", "NAME",
                              "BASE, BASE+SCORE or score:SCORE, with options of its own as in "
                              "snapkv[window=64,pool=7]"};

/// The keywords of calls with one policy, one budget and one phase (described as in `phase`): the options
/// that decide about kept sets, and `more`.
BoundOptions policy_options(Asked<EvictionOptions>& asked, const OptionFacts& phase,
                            std::initializer_list<const OptionFacts*> more) {
  namespace option = evict_option;
  asked.of.policies.clear();  // a call is asked for one
  asked.of.budgets.clear();
  std::vector<const OptionFacts*> taken = {
      &option::policy,    &option::keep,   &option::sigma,         &option::budget, &option::phase,
      &option::semantics, &option::window, &option::sinks,         &option::recent, &option::pool,
      &option::on,        &option::by,     &option::per_query_head};
  taken.insert(taken.end(), more);
  BoundOptions own = those_of(bound(asked.of), [&](const OptionFacts* facts) {
    return std::find(taken.begin(), taken.end(), facts) != taken.end();
  });
  own = described_as(described_as(std::move(own), option::policy, kPolicy), option::phase, phase);
  return joined(std::move(own), bound(asked.call));
}

/// Throws OptionError unless there is one case, of a policy.
void require_one_case(const EvictionOptions& options) {
  require_one(evict_option::policy, options.policies.size());
  require_one_budget(evict_option::keep, options.budgets);
  require_one(evict_option::phase, options.phases.size());
  if (!options.policies.front()) throw OptionError(evict_option::policy, "a policy", "'none'");
}

constexpr OptionFacts kEvictPhase{"phase", "NAME", "prefill or blockwise:N"};
BoundOptions options_of(Asked<EvictionOptions>& asked) { return policy_options(asked, kEvictPhase, {}); }
Keywords<Asked<EvictionOptions>> g_evict_keywords(options_of);

/// The user's scores, [n_kv, l] each, or [n_q, l] if query heads are distinguished.
std::vector<GivenArray<double>> scores_of(const nb::dict& scores, const DumpShape& shape,
                                          bool per_query_head) {
  std::vector<GivenArray<double>> given;
  for (const auto& [key, array] : scores) {
    const std::string name = nb::cast<std::string>(key), where = "score " + name;
    std::vector<Index> extents = {per_query_head ? -1 : shape.n_kv, shape.l};
    given.push_back({name, numbers_of(where.c_str(), array, extents, false)});
    if (extents[0] != shape.n_kv && extents[0] != shape.n_q)
      throw InputError(where,
                       fmt::format("shape [{}, {}] or [{}, {}]", shape.n_kv, shape.l, shape.n_q, shape.l),
                       fmt::format("shape [{}, {}]", extents[0], extents[1]));
    if (extents[0] == shape.n_q) given.back().parts = shape.group();
    take_infinities(given.back().values, extents[0], shape.l, where);
  }
  return given;
}

/// The options of a call with scores of these names. Throws if no layer could be evicted with them.
Asked<EvictionOptions> asked_of(const std::vector<std::string>& scores, const nb::dict& keywords) {
  Asked<EvictionOptions> asked = g_evict_keywords.read(keywords, [&](Asked<EvictionOptions>& first) {
    for (const std::string& name : scores) {
      require_own_name(evict_option::score, name);
      first.of.scores.push_back({name, ""});
    }
  });
  const EvictionOptions& options = asked.of;
  require_one_case(options);
  if (!options.budgets.front().tokens) check_sigma(evict_option::sigma, options.budgets.front().sigma);
  const Policy& policy = *options.policies.front();
  if (options.phases.front().decodes())
    throw OptionError(evict_option::phase, "prefill or blockwise:N", options.phases.front().name());
  for (std::size_t s = 0; s < scores.size(); ++s)
    if (policy.given != s)
      throw OptionError(option_text("{} {}: no policy uses it: {} {}, or {}", evict_option::score, scores[s],
                                    evict_option::policy,
                                    policy_name(name_of(EvictionBase::score), scores[s]),
                                    policy_name(name_of(EvictionBase::snapkv), scores[s])));
  if (evicts_nothing(policy.name))
    throw OptionError(
        evict_option::policy, "a policy that evicts",
        fmt::format("'{}', which keeps the whole prompt and reads less (kvreplay evict measures it)",
                    policy.name));
  asked.of.scores.clear();  // scores are arrays here, not files
  return asked;
}

/// Kept set of the plan's only case, [rows, l].
template <class T>
std::vector<std::uint8_t> layer_kept(const Dump& dump, const EvictionPlan& plan, const Compute& compute) {
  const DumpShape& shape = dump.shape();
  const Index rows = plan.per_query_head ? shape.group() : 1;
  const bool in_blocks = plan.cases.front().phase.kind == Phase::Kind::blockwise;
  const EvictionRule& rule = plan.runs.front().rules.front();
  const HeadParts parts = compute.backend.reads_stored() ? HeadParts{} : parts_of(rule, shape, in_blocks);
  // Groups that a layer's ranking reads are not read again.
  std::vector<std::shared_ptr<const HeadGroup<T>>> groups(extent(shape.n_kv));
  const auto load = [&](Index g) -> std::shared_ptr<const HeadGroup<T>>& {
    auto& group = groups[extent(g)];
    if (!group) group = std::make_shared<const HeadGroup<T>>(loaded_head<T>(dump, g, parts, compute.workers));
    return group;
  };
  const auto given = [&](Index g) { return scores_of_head(plan.scores, g, shape.l); };
  LayerScores layer;
  std::vector<std::uint8_t> all(extent(shape.n_kv * rows * shape.l));
  const auto of_head = [&](Index g) {
    const std::shared_ptr<const HeadGroup<T>> group = std::exchange(load(g), nullptr);
    each_part(*group, plan.per_query_head, [&](Index part, const HeadGroup<T>& mine) {
      const HeadRanking ranking = head_ranking(
          mine, plan, layer, scores_of_head(plan.scores, g, shape.l, part), std::nullopt, compute);
      const KeptSet kept = prompt_kept(mine, plan, plan.cases.front(), ranking, compute);
      std::copy(kept.begin(), kept.end(), all.begin() + (g * rows + part) * shape.l);
    });
  };
  on_parts<T>(dump, parts, [&] {
    layer = layer_scores<T>(plan, shape, load, given, compute);
    for_each_head(dump, compute.workers, of_head);
  });
  return all;
}

nb::tuple evict(const Layer& layer, const nb::dict& scores, const nb::dict& keywords) {
  const Dump& dump = layer.dump();
  std::vector<std::string> names;
  for (const auto& [name, array] : scores) names.push_back(nb::cast<std::string>(name));
  const auto [options, call] = asked_of(names, keywords);
  std::vector<GivenArray<double>> given = scores_of(scores, dump.shape(), options.per_query_head);
  EvictionPlan plan = eviction_plan(dump, options);
  plan.scores = std::move(given);
  std::vector<std::uint8_t> kept = computed(call, [&](const Compute& compute) {
    return in_float32(call.precision) ? layer_kept<float>(dump, plan, compute)
                                      : layer_kept<double>(dump, plan, compute);
  });
  const DumpShape& shape = dump.shape();
  const EvictionCase& which = plan.cases.front();
  const Index tokens = std::count(kept.begin(), kept.begin() + shape.l, std::uint8_t{1});  // as in any head
  return nb::make_tuple(numpy_of<bool>(std::move(kept), {extent(plan.per_query_head ? shape.n_q : shape.n_kv),
                                                         extent(shape.l)}),
                        which.policy, which.semantics, which.phase.name(), tokens, texts_of(plan.notes));
}

constexpr OptionFacts kGrowingPhase{"phase", "NAME",
                                    "blockwise:N, decode, decode:N (a cut every N steps) or append-only"};
BoundOptions growing_options_of(Asked<EvictionOptions>& asked) {
  return policy_options(asked, kGrowingPhase, {&evict_option::decode_window, &evict_option::prompt});
}
Keywords<Asked<EvictionOptions>> g_growing_keywords(growing_options_of);

EvictionPlan growing_plan(const Dump& dump, const EvictionOptions& options) {
  require_one_case(options);
  const Phase phase = options.phases.front();
  if (phase.kind == Phase::Kind::prefill)
    throw OptionError(evict_option::phase, "blockwise:N, decode, decode:N or append-only", phase.name());
  return eviction_plan(dump, options);
}

/// A head group's cache that grows while a model reads and decodes. Rows of a chunk are added once the model
/// has computed them; add() returns the positions that the policy evicts, so that the next rows can skip
/// them. With the rows of a dump it evicts exactly the tokens that `evict` does.
template <class T>
class GrowingCache {
 public:
  /// `group` has room for every position, queries included; its numbers are not set yet. The plan, which must
  /// outlive this object, has one case, in a phase that evicts more than once.
  GrowingCache(HeadGroup<T> group, const EvictionPlan& plan);

  /// Number of rows in the next chunk; 0: any number, because nothing will be evicted any more.
  Index next_rows() const;
  Index positions() const { return group_->T_all(); }
  Index size() const { return next_; }

  /// Adds the next rows: queries [G][rows, d], keys [rows, d], values [rows, d_v]. Returns the positions
  /// evicted after them, ascending.
  std::vector<Index> add(const std::vector<Matrix<T>>& q, const Matrix<T>& k, const Matrix<T>& v,
                         const Compute& compute);

 private:
  std::shared_ptr<HeadGroup<T>> group_;
  const EvictionPlan& plan_;
  const EvictionCase& case_;
  const EvictionRule& rule_;
  Index next_ = 0;
  std::vector<Index> cache_;                  // of the prompt, in blocks
  std::optional<DecodingCache<T>> decoding_;  // behind the prompt

  std::vector<Index> cut_block(Index rows, const Compute& compute);
  std::vector<Index> begin_decoding(const Compute& compute);
};

template <class T>
GrowingCache<T>::GrowingCache(HeadGroup<T> group, const EvictionPlan& plan)
    : group_(std::make_shared<HeadGroup<T>>(std::move(group))),
      plan_(plan),
      case_(plan.cases.front()),
      rule_(plan.runs.front().rules.front()) {}

template <class T>
Index GrowingCache<T>::next_rows() const {
  if (case_.phase.decodes()) return next_ == 0 ? group_->l : 1;
  return next_ < group_->l ? std::min(case_.phase.block, group_->l - next_) : 0;
}

template <class T>
std::vector<Index> GrowingCache<T>::add(const std::vector<Matrix<T>>& q, const Matrix<T>& k,
                                        const Matrix<T>& v, const Compute& compute) {
  const Index rows = k.rows(), expected = next_rows();
  if ((expected > 0 && rows != expected) || next_ + rows > positions())
    throw std::invalid_argument("rows of another chunk");
  for (Index g = 0; g < group_->G(); ++g) group_->q[g].middleRows(next_, rows) = q[g];
  group_->k.middleRows(next_, rows) = k;
  group_->v.middleRows(next_, rows) = v;
  next_ += rows;
  if (expected == 0) return {};
  if (!case_.phase.decodes()) return cut_block(rows, compute);
  return decoding_ ? decoding_->step() : begin_decoding(compute);
}

template <class T>
std::vector<Index> GrowingCache<T>::cut_block(Index rows, const Compute& compute) {
  for (Index p = next_ - rows; p < next_; ++p) cache_.push_back(p);
  std::vector<Index> evicted = cut_after_block(*group_, rule_, cache_, *case_.kept, rows, compute), left;
  std::set_difference(cache_.begin(), cache_.end(), evicted.begin(), evicted.end(), std::back_inserter(left));
  cache_ = std::move(left);
  return evicted;
}

template <class T>
std::vector<Index> GrowingCache<T>::begin_decoding(const Compute& compute) {
  const LayerScores shared(plan_.runs.size());  // no ranking that can decode is a layer's
  const HeadRanking ranking = head_ranking(*group_, plan_, shared, {}, std::nullopt, compute);
  const KeptSet kept = prompt_kept(*group_, plan_, case_, ranking, compute);
  const DecodeBegin begin = decode_begin(plan_, case_, kept);
  decoding_.emplace(group_, begin.rule, begin.kept, begin.budget, begin.options,
                    decode_start_scores(*group_, rule_, begin.options, compute));
  return evicted_positions(begin.kept);
}

/// The caches of a layer's KV heads, or of its query heads where each has one of its own.
template <class T>
class HeadCaches {
 public:
  HeadCaches(const Dump& dump, const EvictionPlan& plan, Workers& workers) {
    const DumpShape& shape = dump.shape();
    const Index parts = plan.per_query_head ? shape.group() : 1;
    for (Index g = 0; g < shape.n_kv; ++g) {
      const HeadGroup<T> room = loaded_head<T>(dump, g, {}, workers);
      for (Index part = 0; part < parts; ++part)  // a copy has numbers of its own
        caches_.push_back(std::make_unique<GrowingCache<T>>(
            plan.per_query_head ? query_head_group(room, part) : HeadGroup<T>(room), plan));
    }
  }

  const GrowingCache<T>& first() const { return *caches_.front(); }

  /// q [n_q, rows, d], k [n_kv, rows, d], v [n_kv, rows, d_v].
  std::vector<std::vector<Index>> add(const std::vector<double>& q, const std::vector<double>& k,
                                      const std::vector<double>& v, const DumpShape& shape, Index rows,
                                      const Compute& compute) {
    std::vector<std::vector<Index>> left(caches_.size());
    const Index n = std::ssize(caches_), group = shape.n_q / n;
    const auto head = [rows](const std::vector<double>& numbers, Index which, Index width) {
      return Matrix<T>(Eigen::Map<const Matrix<double>>(numbers.data() + which * rows * width, rows, width)
                           .template cast<T>());
    };
    compute.workers.parallel_for(n, [&](Index h) {
      std::vector<Matrix<T>> queries;
      for (Index part = 0; part < group; ++part) queries.push_back(head(q, h * group + part, shape.d));
      const Index g = h * shape.n_kv / n;
      left[extent(h)] = caches_[extent(h)]->add(queries, head(k, g, shape.d), head(v, g, shape.d_v), compute);
    });
    return left;
  }

 private:
  std::vector<std::unique_ptr<GrowingCache<T>>> caches_;
};

class GrowingCaches {
 public:
  GrowingCaches(const Layer& room, const nb::dict& keywords) : shape_(room.dump().shape()) {
    auto [options, call] = g_growing_keywords.read(keywords);
    call_ = call;
    plan_ = growing_plan(room.dump(), options);
    computed(call_, [&](const Compute& compute) {
      if (in_float32(call_.precision))
        single_.emplace(room.dump(), plan_, compute.workers);
      else
        wide_.emplace(room.dump(), plan_, compute.workers);
    });
  }
  GrowingCaches(const GrowingCaches&) = delete;
  GrowingCaches& operator=(const GrowingCaches&) = delete;

  Index next_rows() const { return single_ ? single_->first().next_rows() : wide_->first().next_rows(); }
  Index size() const { return single_ ? single_->first().size() : wide_->first().size(); }
  Index heads() const { return plan_.per_query_head ? shape_.n_q : shape_.n_kv; }
  Index budget() const { return plan_.cases.front().kept.value_or(0); }

  nb::list add(nb::handle q, nb::handle k, nb::handle v) {
    std::vector<Index> of_q = {shape_.n_q, -1, shape_.d};
    const std::vector<double> queries = numbers_of("q", q, of_q);
    const Index rows = of_q[1], expected = next_rows(), room = shape_.T - size();
    if (expected > 0 ? rows != expected || rows > room : rows > room)
      throw InputError(fmt::format(
          "q: expected {} rows, found {}",
          room < std::max<Index>(expected, 1)
              ? "no more"
              : (expected > 0 ? fmt::format("the next {}", expected) : fmt::format("at most {}", room)),
          rows));
    std::vector<Index> of_k = {shape_.n_kv, rows, shape_.d}, of_v = {shape_.n_kv, rows, shape_.d_v};
    const std::vector<double> keys = numbers_of("k", k, of_k), values = numbers_of("v", v, of_v);
    std::vector<std::vector<Index>> left = computed(call_, [&](const Compute& compute) {
      return single_ ? single_->add(queries, keys, values, shape_, rows, compute)
                     : wide_->add(queries, keys, values, shape_, rows, compute);
    });
    nb::list heads;
    for (std::vector<Index>& positions : left) {
      const std::size_t count = positions.size();
      heads.append(numpy_of(std::move(positions), {count}));
    }
    return heads;
  }

 private:
  DumpShape shape_;
  CallOptions call_;
  EvictionPlan plan_;
  std::optional<HeadCaches<float>> single_;
  std::optional<HeadCaches<double>> wide_;
};

}  // namespace

void bind_evictions(nb::module_& module) {
  module.def("evict", evict, nb::arg("layer"), nb::arg("scores"), nb::arg("options"),
             "(kept [rows, l], policy, semantics, phase, tokens, notes).");
  module.def(
      "recipe", [](const std::string& file) { return to_json(read_recipe(file)).dump(); }, nb::arg("file"),
      "A recipe's JSON, every field written out.");
  module.def("evict_options", [] { return g_evict_keywords.described(); });
  module.def(
      "check_evict",
      [](const std::vector<std::string>& scores, const nb::dict& keywords) { asked_of(scores, keywords); },
      nb::arg("scores"), nb::arg("options"), "Refuses options that evict() refuses of every layer.");
}

void bind_growing_caches(nb::module_& module) {
  nb::class_<GrowingCaches>(module, "GrowingCaches", "A layer's caches while a model runs over them.")
      .def(nb::init<const Layer&, nb::dict>(), nb::arg("room"), nb::arg("options"))
      .def_prop_ro("heads", &GrowingCaches::heads)
      .def_prop_ro("next_rows", &GrowingCaches::next_rows)
      .def_prop_ro("size", &GrowingCaches::size)
      .def_prop_ro("budget", &GrowingCaches::budget)
      .def("add", &GrowingCaches::add, nb::arg("q"), nb::arg("k"), nb::arg("v"));
  module.def("growing_options", [] { return g_growing_keywords.described(); });
}

}  // namespace kvreplay::python
