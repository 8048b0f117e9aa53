#include "sim/cache/cache_outputs.hpp"
#include "sim/cache/cuda/kept_kernels.hpp"
#include "sim/cuda/device_gate.hpp"
#include "sim/cuda/transfer.hpp"
#include "sim/overflow.hpp"
#include "sim/tokens/column_totals.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvreplay {
namespace {

using namespace cuda;

static_assert(kCompareRows == kPanelWidth<float>);

/// The columns of each cache, one after the other: kept prompt positions and all decoded ones. The first
/// cache has everything.
struct CacheColumns {
  std::vector<std::ptrdiff_t> starts{0};
  std::vector<int> columns;
};

CacheColumns columns_of(const std::vector<const Cache<float>*>& caches, Index l, Index T) {
  CacheColumns all;
  const auto add = [&](const auto& keeps) {
    for (Index p = 0; p < T; ++p)
      if (p >= l || keeps(p)) all.columns.push_back(static_cast<int>(p));
    all.starts.push_back(std::ssize(all.columns));
  };
  add([](Index) { return true; });
  for (const Cache<float>* cache : caches) add([&](Index p) { return cache->kept[p] != 0; });
  return all;
}

/// Segments of the columns of kAttendRows rows: enough blocks for a large device, and none so long that its
/// sums in float32 visibly lose precision. The segments, and so the bits of the sums, depend on the sizes
/// alone.
struct Segments {
  Index count, columns;
};

Segments segments(const Visibility& seen, Index G, Index n) {
  constexpr Index kEnoughBlocks = 512, kShortest = 256, kLongest = 4096;
  Index widest = 1;
  for (Index r = 0; r < n; r += kAttendRows)
    widest = std::max(widest, seen.width(r, std::min(r + kAttendRows, n)));
  const Index for_blocks =
      std::clamp<Index>(div_up(kEnoughBlocks, G * div_up(n, kAttendRows)), 1, div_up(widest, kShortest));
  const Index parts = std::max(for_blocks, div_up(widest, kLongest));
  const Index columns = div_up(div_up(widest, parts), kAttendColumns) * kAttendColumns;
  return {div_up(widest, columns), columns};
}

/// Blocks of rows whose logits fit into `bytes`, of at least kAttendRows rows.
std::vector<RowRange> row_blocks(const Visibility& seen, Index G, Index n, std::size_t bytes) {
  const auto fits = [&](Index from, Index to) {
    return G * (to - from) * seen.width(from, to) * sizeof(float) <= bytes;
  };
  std::vector<RowRange> blocks;
  for (Index begin = 0, end = 0; begin < n; begin = end) {
    do end = std::min(end + kAttendRows, n);
    while (end < n && fits(begin, std::min(end + kAttendRows, n)));
    blocks.push_back({begin, end});
  }
  return blocks;
}

/// Numbers that a block of rows needs.
struct BlockSizes {
  Index rows = 0, entries = 0;

  BlockSizes(const std::vector<RowRange>& blocks, const Visibility& seen, Index G) {
    for (const RowRange block : blocks) {
      rows = std::max(rows, G * div_up(block.count(), kCompareRows) * kCompareRows);
      entries = std::max(entries, G * block.count() * seen.width(block.begin, block.end));
    }
  }
};

/// Room for the outputs of some kept sets on a block of rows.
struct OutputArrays {
  KeptOutputs outputs;
  float* vectors;

  OutputArrays(DeviceArrays& arrays, Index sets, Index rows, Index d_v, bool with_vectors)
      : outputs{arrays.make<float>(sets * rows * d_v), arrays.make<double>(sets * rows)},
        vectors(arrays.make<float>(with_vectors ? sets * rows * d_v : 0)) {}
};

/// Kept sets that are worked on together: at most so many fit into `bytes`, and into a grid.
Index sets_together(Index sets, Index segments, const BlockSizes& block, Index G, Index d_v,
                    bool with_vectors, std::size_t bytes) {
  constexpr Index kMostBlocks = 65535, kOutColumns = 128;
  const Index numbers = segments * (d_v + 2) + d_v * (with_vectors ? 2 : 1) + 2;
  const Index fit = static_cast<Index>(bytes / (block.rows * numbers * sizeof(float)));
  return std::clamp<Index>(std::min(fit, kMostBlocks / (G * div_up(d_v, kOutColumns))), 1,
                           std::max<Index>(sets, 1));
}

/// The caches, those first that only evict.
std::vector<const Cache<float>*> evicting_first(std::span<const Cache<float>> caches) {
  std::vector<const Cache<float>*> ordered;
  for (const Cache<float>& cache : caches) ordered.push_back(&cache);
  std::stable_partition(ordered.begin(), ordered.end(),
                        [](const Cache<float>* cache) { return cache->only_evicts(); });
  return ordered;
}

/// Room on the device for the keys and values of one cache at a time.
class HeldNumbers {
 public:
  HeldNumbers(const HeadGroup<float>& group, const PreparedValues<float>& values, DeviceArrays& arrays,
              const Stream& stream)
      : group_(group),
        values_(values),
        stream_(stream),
        k_(arrays.make<float>(group.k.size())),
        v_centred_(arrays.make<float>(group.v.size())) {}

  /// Puts them in the place of the group's.
  void bring(const Cache<float>& cache, KeptRows& in) const {
    const Matrix<float> keys = keys_held(group_, cache);
    copy(k_, keys.data(), keys.size(), stream_);
    in.k = k_;
    if (cache.v.size() > 0) {
      Matrix<float> centred = values_.centred;
      for (const Index p : positions(cache.kept))
        centred.row(p) = cache.v.row(p) - values_.centre.transpose();
      copy(v_centred_, centred.data(), centred.size(), stream_);
      in.v_centred = v_centred_;
    }
    stream_.synchronize();  // what was uploaded lives here
  }

 private:
  const HeadGroup<float>& group_;
  const PreparedValues<float>& values_;
  const Stream& stream_;
  float *k_, *v_centred_;
};

/// A head group and what is asked of it, on the device.
class DeviceProblem {
 public:
  DeviceProblem(const HeadGroup<float>& group, const PreparedValues<float>& values, RowRange rows,
                std::span<const Cache<float>> caches, bool with_vectors, std::size_t workspace)
      : group_(group),
        values_(values),
        rows_(rows),
        n_(rows.count()),
        G_(group.G()),
        d_v_(group.d_v()),
        caches_(caches),
        ordered_(evicting_first(caches)),
        n_sets_(std::ssize(caches)),
        n_evict_(std::ranges::count_if(caches, [](const auto& cache) { return cache.only_evicts(); })),
        with_vectors_(with_vectors),
        seen_(visibility(group, rows)),
        segments_(segments(seen_, G_, n_)),
        arrays_(stream_) {
    const CacheColumns columns = columns_of(ordered_, group.l, group.T_all());
    columns_ = arrays_.copy_of<int>(columns.columns);
    starts_ = arrays_.copy_of<std::ptrdiff_t>(columns.starts);
    sums_ = arrays_.make<double>((n_sets_ + 1) * G_ * panels());
    std::vector<float> sinks;
    for (Index g = 0; g < G_; ++g) sinks.push_back(kvreplay::sink_logit(group, g));
    all_.G = narrow(G_);
    all_.d = narrow(group.d());
    all_.d_v = narrow(d_v_);
    all_.q = copy_of_queries(group, rows, arrays_, stream_);
    all_.head_rows = n_;
    all_.k = arrays_.copy_of<float>(group.k);
    all_.v_centred = arrays_.copy_of<float>(values.centred);
    all_.centre = arrays_.copy_of<float>(values.centre);
    all_.sink_logit = arrays_.copy_of<float>(sinks);
    all_.scale = static_cast<float>(group.rule.scale);
    all_.softcap = static_cast<float>(group.rule.softcap.value_or(0));
    all_.first_visible = arrays_.copy_of<int>(seen_.first);
    all_.end_visible = arrays_.copy_of<int>(seen_.end);
    all_.bad = arrays_.zeros<int>(G_ * n_);
    stream_.synchronize();  // what was uploaded lives here
    workspace_ = std::min(workspace, fair_share_of_memory());
  }

  OutputChanges<float> changes(const Workers& workers) const {
    OutputChanges<float> result;
    if (with_vectors_) {
      const std::vector<float> empty(panels() * kCompareRows * d_v_);
      result.full.assign(G_, empty);
      result.change.assign(n_sets_, result.full);
    }
    const std::vector<RowRange> blocks = row_blocks(seen_, G_, n_, workspace_ / 2);
    const BlockSizes sizes(blocks, seen_, G_);
    const Index together =
        sets_together(n_evict_, segments_.count, sizes, G_, d_v_, with_vectors_, workspace_ / 2);
    DeviceArrays arrays(stream_);
    float* const z = arrays.make<float>(sizes.entries);
    const Index n_states = together * segments_.count * sizes.rows;
    const KeptStates states{narrow(segments_.count), narrow(segments_.columns), arrays.make<float>(n_states),
                            arrays.make<float>(n_states), arrays.make<float>(n_states * d_v_)};
    const OutputArrays full(arrays, 1, sizes.rows, d_v_, with_vectors_),
        kept(arrays, together, sizes.rows, d_v_, with_vectors_);
    std::optional<HeldNumbers> held;
    if (n_evict_ < n_sets_) held.emplace(group_, values_, arrays, stream_);
    // The later rows see the most.
    for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
      KeptRows in = block_input(*block, z);
      kept_logits(in, stream_);
      for (Index set = -1; set < n_sets_;) {  // -1 is the set of everything
        if (workers.stopping()) throw Interrupted{};
        const bool all = set < 0, evicts = set < n_evict_;
        const Index n = all || !evicts ? 1 : std::min(together, n_evict_ - set);
        const OutputArrays& own = all ? full : kept;
        if (!evicts) {
          in = block_input(*block, z);
          held->bring(*ordered_[set], in);
          kept_logits(in, stream_);
        }
        kept_outputs(in, {narrow(n), starts_ + set + 1, columns_}, states, own.outputs, stream_);
        kept_changes(in,
                     {narrow(n), own.outputs, all ? KeptOutputs{} : full.outputs,
                      sums_ + (set + 1) * G_ * panels() + block->begin / kCompareRows, panels(), own.vectors},
                     stream_);
        if (all && with_vectors_) take_vectors(*block, own, 0, result.full);
        for (Index s = 0; !all && with_vectors_ && s < n; ++s)
          take_vectors(*block, own, s, result.change[place_of(set + s)]);
        set += n;
      }
    }
    add_up(result);
    return result;
  }

 private:
  /// Index in the request of the cache that a set belongs to.
  Index place_of(Index set) const { return ordered_[set] - caches_.data(); }
  Index panels() const { return div_up(n_, kCompareRows); }

  KeptRows block_input(RowRange block, float* z) const {
    KeptRows in = all_;
    in.rows = narrow(block.count());
    in.begin = seen_.first[block.begin];
    in.width = narrow(seen_.width(block.begin, block.end));
    in.q += block.begin * group_.d();
    in.first_visible += block.begin;
    in.end_visible += block.begin;
    in.z = z;
    in.bad += block.begin;
    return in;
  }

  void take_vectors(RowRange block, const OutputArrays& from, Index set, PanelRows<float>& into) const {
    const Index size_of_head = div_up(block.count(), kCompareRows) * kCompareRows * d_v_;
    for (Index g = 0; g < G_; ++g)
      copy(into[g].data() + block.begin * d_v_, from.vectors + (set * G_ + g) * size_of_head, size_of_head,
           stream_);
  }

  void add_up(OutputChanges<float>& result) const {
    const std::vector<int> bad = downloaded(all_.bad, G_ * n_, stream_);
    const auto first_bad = std::find(bad.begin(), bad.end(), 1) - bad.begin();
    if (first_bad < G_ * n_)
      report_overflow(group_, first_bad / n_, "position " + std::to_string(rows_.begin + first_bad % n_));
    const std::vector<double> sums = downloaded(sums_, (n_sets_ + 1) * G_ * panels(), stream_);
    result.change_sq.assign(n_sets_, 0.0);
    for (Index set = -1; set < n_sets_; ++set)
      for (Index g = 0; g < G_; ++g)
        for (Index panel = 0; panel < panels(); ++panel) {
          const double sum = sums[((set + 1) * G_ + g) * panels() + panel];
          if (!std::isfinite(sum))
            report_overflow(group_, g,
                            "positions from " + std::to_string(rows_.begin + panel * kCompareRows));
          (set < 0 ? result.full_sq : result.change_sq[place_of(set)]) += sum;
        }
  }

  const HeadGroup<float>& group_;
  const PreparedValues<float>& values_;
  const RowRange rows_;
  const Index n_, G_, d_v_;
  const std::span<const Cache<float>> caches_;
  const std::vector<const Cache<float>*> ordered_;
  const Index n_sets_, n_evict_;
  const bool with_vectors_;
  const Visibility seen_;
  const Segments segments_;
  const Stream stream_;
  DeviceArrays arrays_;
  KeptRows all_{};
  int* columns_;
  std::ptrdiff_t* starts_;
  double* sums_;
  std::size_t workspace_ = 0;
};

}  // namespace

OutputChanges<float> output_changes_cuda(const HeadGroup<float>& group, RowRange rows,
                                         std::span<const Cache<float>> caches, bool with_vectors,
                                         Workers& workers, std::size_t workspace) {
  const PreparedValues<float> values = prepare_values(group, workers);
  OutputChanges<float> found =
      DeviceProblem(group, values, rows, caches, with_vectors, workspace).changes(workers);
  if (!vanishing(group, rows, values.centre, found.full_sq)) return found;
  return vanishing_output_changes(group, rows, caches, with_vectors, workers);
}

}  // namespace kvreplay
