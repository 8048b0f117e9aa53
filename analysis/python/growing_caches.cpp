#include "analysis/eviction/head_evictions.hpp"
#include "analysis/measure/case_outputs.hpp"
#include "analysis/python/query.hpp"
#include "data/error.hpp"

#include <fmt/format.h>

#include <deque>
#include <utility>
#include <variant>

namespace kvreplay::python {
namespace {

Keywords<EvictionOptions> g_growing_keywords(options_of_one_case);

EvictionPlan growing_plan(const Dump& dump, const EvictionOptions& options) {
  require_one_case(options);
  if (const Phase& phase = options.phases.front(); phase.kind == Phase::Kind::prefill)
    throw OptionError(evict_option::phase, "blockwise:N, decode, decode:N or append-only", phase.name());
  return eviction_plan(dump, options);
}

/// The caches of a layer's KV heads, or of its query heads where each has one of its own.
class GrowingCaches {
 public:
  GrowingCaches(const Layer& room, const nb::dict& keywords)
      : GrowingCaches(room.dump(), g_growing_keywords.read(keywords)) {}
  GrowingCaches(const GrowingCaches&) = delete;
  GrowingCaches& operator=(const GrowingCaches&) = delete;

  Index next_rows() const {
    return std::visit([](const auto& caches) { return caches.front().next_rows(); }, caches_);
  }
  Index size() const {
    return std::visit([](const auto& caches) { return caches.front().size(); }, caches_);
  }
  Index heads() const { return plan_.per_query_head ? shape_.n_q : shape_.n_kv; }
  Index budget() const { return plan_.cases.front().kept.value_or(0); }

  /// q [n_q, rows, d], k [n_kv, rows, d], v [n_kv, rows, d_v].
  nb::list add(const Numbers& q, const Numbers& k, const Numbers& v) {
    const auto rows = static_cast<Index>(q.shape(1));
    std::vector<std::vector<Index>> left(extent(heads()));
    compute_call(call_, [&]<class T>(const Compute& compute) {
      const auto of_head = [&](const Numbers& numbers, Index head, Index width) {
        const double* const first = numbers.data() + head * rows * width;
        return Matrix<T>(Eigen::Map<const Matrix<double>>(first, rows, width).template cast<T>());
      };
      const Index group = shape_.n_q / heads();
      compute.workers.parallel_for(heads(), [&](Index h) {
        std::vector<Matrix<T>> own;
        for (Index part = 0; part < group; ++part) own.push_back(of_head(q, h * group + part, shape_.d));
        const Index g = h * shape_.n_kv / heads();
        left[extent(h)] = std::get<Caches<T>>(caches_)[extent(h)].add(own, of_head(k, g, shape_.d),
                                                                      of_head(v, g, shape_.d_v), compute);
      });
    });
    nb::list all;
    for (std::vector<Index>& positions : left) {
      const std::size_t count = positions.size();
      all.append(numpy_of(std::move(positions), {count}));
    }
    return all;
  }

 private:
  template <class T>
  using Caches = std::deque<GrowingCache<T>>;  // which neither move nor copy

  GrowingCaches(const Dump& room, const CallArgs<EvictionOptions>& args)
      : shape_(room.shape()), call_(args.call), plan_(growing_plan(room, args.of)) {
    compute_call(call_, [&]<class T>(const Compute& compute) {
      Caches<T>& caches = caches_.emplace<Caches<T>>();
      for (Index g = 0; g < shape_.n_kv; ++g)  // a copy has numbers of its own
        each_part(loaded_head<T>(room, g, {}, compute.workers), plan_.per_query_head,
                  [&](Index, const HeadGroup<T>& head) { caches.emplace_back(HeadGroup<T>(head), plan_); });
    });
  }

  DumpShape shape_;
  CallOptions call_;
  EvictionPlan plan_;
  std::variant<Caches<float>, Caches<double>> caches_;
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
}

void add_growing_options(Queries& queries) {
  queries["growing_caches"] = {[] { return g_growing_keywords.described(); }, {}, {}};
}

}  // namespace kvreplay::python
