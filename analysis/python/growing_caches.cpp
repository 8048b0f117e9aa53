#include "analysis/eviction/growing_cache.hpp"
#include "analysis/python/calls.hpp"
#include "analysis/python/keywords.hpp"
#include "analysis/python/layer.hpp"
#include "analysis/python/policy_keywords.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nanobind/stl/string.h>
#include <optional>
#include <utility>
#include <vector>

namespace kvreplay::python {
namespace {

BoundOptions growing_options_of(Asked<EvictionOptions>& asked) {
  return policy_options(asked,
                        [](const OptionFacts* facts) { return facts == &evict_option::decode_window; });
}
Keywords<Asked<EvictionOptions>> g_growing_keywords(growing_options_of);

EvictionPlan growing_plan(const Dump& dump, const EvictionOptions& options) {
  require_one_case(options);
  const Phase phase = options.phases.front();
  if (phase.kind == Phase::Kind::prefill)
    throw OptionError(evict_option::phase, "blockwise:N, decode or append-only", phase.name());
  return eviction_plan(dump, options);
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
