#include "analysis/run/layer_pass.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <mutex>
#include <numeric>
#include <utility>

namespace kvreplay {
namespace {

/// Some heads of one layer.
struct Heads {
  Index layer = 0;
  RowRange heads;
};

/// The figures of a layer, [n_kv, figures], of which `heads` are to be computed here.
template <class T>
void compute_heads(const LayerPass& pass, const Heads& part, std::span<double> figures,
                   const std::function<void()>& head_done) {
  const std::size_t width = figures_per_head(pass.stages);
  const auto load = [&](Index g) { return load_head_group<T>(pass.dump, part.layer, g); };
  const auto compute = [&](const HeadGroup<T>& group) {
    std::span<double> mine = figures.subspan(static_cast<std::size_t>(group.kv_head) * width, width);
    for (const auto& stage : pass.stages) {
      stage->head(group, mine.first(stage->figures_per_head()));
      mine = mine.subspan(stage->figures_per_head());
    }
    head_done();
  };

  const RowRange heads = part.heads;
  const bool large =
      head_group_bytes(pass.dump.shape(), pass.dump.has(Tensor::wo), sizeof(T)) > kLargeHeadGroup;
  if (!large)
    return pass.workers.parallel_for(heads.count(), [&](Index at) { compute(load(heads.begin + at)); });
  // Two at a time in memory, one in use and one being read.
  HeadGroup<T> group = load(heads.begin), next;
  for (Index g = heads.begin; g < heads.end; ++g) {
    pass.workers.parallel_for(g + 1 < heads.end ? 2 : 1, [&](Index job) {
      if (job == 0)
        compute(group);
      else
        next = load(g + 1);
    });
    group = std::exchange(next, HeadGroup<T>{});
  }
}

std::string saved_heads(const Stages& stages, RowRange heads, std::span<const double> figures) {
  const std::size_t width = figures_per_head(stages);
  ByteWriter out;
  for (Index g = heads.begin; g < heads.end; ++g) {
    out.put(figures.subspan(static_cast<std::size_t>(g) * width, width));
    for (const auto& stage : stages) stage->save_head(g, out);
  }
  return out.take();
}

void load_heads(const Stages& stages, RowRange heads, std::span<double> figures, std::string_view bytes) {
  const std::size_t width = figures_per_head(stages);
  ByteReader in(bytes);
  for (Index g = heads.begin; g < heads.end; ++g) {
    in.get(figures.subspan(static_cast<std::size_t>(g) * width, width));
    for (const auto& stage : stages) stage->load_head(g, in);
  }
  if (!in.at_end()) throw std::logic_error("more was sent of a head than its stages read");
}

void end_layer(const LayerPass& pass, Index layer, std::span<double> figures) {
  Eigen::Map<Matrix<double>> heads(figures.data(), pass.dump.shape().n_kv,
                                   static_cast<Index>(figures_per_head(pass.stages)));
  std::span<double> whole = figures.subspan(static_cast<std::size_t>(heads.size()));
  Index column = 0;
  for (const auto& stage : pass.stages) {
    const Index width = static_cast<Index>(stage->figures_per_head());
    Matrix<double> mine = heads.middleCols(column, width);
    stage->end_layer(pass.folder, layer, {mine, whole.first(stage->figures_per_layer())});
    heads.middleCols(column, width) = mine;
    column += width;
    whole = whole.subspan(stage->figures_per_layer());
  }
  pass.folder.keep_layer(layer, figures, pass.number);
}

/// Those of `layers` that are not done, as rank 0 sees them: by the time that another one looks, there may be
/// more.
std::vector<Index> layers_to_do(const LayerPass& pass, const std::vector<Index>& layers) {
  std::vector<Index> missing;
  if (pass.ranks.rank() == 0) missing = pass.folder.missing_layers(layers, pass.number);
  if (pass.ranks.size() == 1) return missing;
  std::string bytes(missing.size() * sizeof(Index), '\0');
  std::memcpy(bytes.data(), missing.data(), bytes.size());
  bytes = pass.ranks.gather(bytes).front();
  missing.resize(bytes.size() / sizeof(Index));
  std::memcpy(missing.data(), bytes.data(), bytes.size());
  return missing;
}

/// Which heads of which layers each rank computes.
class Split {
 public:
  Split(const LayerPass& pass, const std::vector<Index>& layers)
      : n_kv_(pass.dump.shape().n_kv), layers_(layers) {
    std::vector<double> costs;
    for (const Index layer : layers)
      costs.insert(costs.end(), static_cast<std::size_t>(n_kv_), head_group_cost(pass.dump, layer));
    bounds_ = equal_intervals(costs, pass.ranks.size());
  }

  Index heads_of(int rank) const { return end(rank) - begin(rank); }
  std::vector<Heads> parts_of(int rank) const {
    std::vector<Heads> parts;
    for (Index at = begin(rank); at < end(rank);) {
      const Index next = std::min(end(rank), (at / n_kv_ + 1) * n_kv_);
      parts.push_back({layers_[at / n_kv_], {at % n_kv_, at % n_kv_ + next - at}});
      at = next;
    }
    return parts;
  }

 private:
  Index begin(int rank) const { return static_cast<Index>(bounds_[rank]); }
  Index end(int rank) const { return begin(rank + 1); }

  Index n_kv_;
  const std::vector<Index>& layers_;
  std::vector<std::size_t> bounds_;
};

}  // namespace

std::size_t figures_per_head(const Stages& stages) {
  std::size_t count = 0;
  for (const auto& stage : stages) count += stage->figures_per_head();
  return count;
}

std::size_t figures_of_layer(const Stages& stages, Index n_kv) {
  std::size_t count = static_cast<std::size_t>(n_kv) * figures_per_head(stages);
  for (const auto& stage : stages) count += stage->figures_per_layer();
  return count;
}

Index pass_over_layers(const LayerPass& pass, const std::vector<Index>& layers) {
  const std::vector<Index> missing = layers_to_do(pass, layers);
  const Split split(pass, missing);
  const Index n_kv = pass.dump.shape().n_kv;
  Ranks& ranks = pass.ranks;

  std::mutex progress_mutex;
  Index done = 0;
  const Index total = split.heads_of(ranks.rank());
  const auto head_done = [&] {
    if (!pass.options.on_progress) return;
    const std::lock_guard lock(progress_mutex);
    pass.options.on_progress(++done, total);
  };
  if (pass.options.on_progress) pass.options.on_progress(0, total);

  for (const Heads& part : split.parts_of(ranks.rank())) {
    const bool mine = part.heads.begin == 0;
    for (const auto& stage : pass.stages) stage->begin_layer(part.layer);
    std::vector<double> figures(figures_of_layer(pass.stages, n_kv),
                                std::numeric_limits<double>::quiet_NaN());
    if (in_float32(pass.options.precision))
      compute_heads<float>(pass, part, figures, head_done);
    else
      compute_heads<double>(pass, part, figures, head_done);

    if (!mine) {
      int owner = ranks.rank() - 1;  // the nearest before this one that has the layer's first head
      while (split.heads_of(owner) == 0 || split.parts_of(owner).back().heads.begin > 0) --owner;
      ranks.send(owner, saved_heads(pass.stages, part.heads, figures));
      continue;
    }
    for (int other = ranks.rank() + 1; other < ranks.size(); ++other) {
      if (split.heads_of(other) == 0) continue;
      const Heads theirs = split.parts_of(other).front();
      if (theirs.layer != part.layer) break;
      load_heads(pass.stages, theirs.heads, figures, ranks.receive(other));
    }
    end_layer(pass, part.layer, figures);
    if (pass.workers.stopping()) throw Interrupted{};
  }
  if (ranks.size() > 1) ranks.gather("");
  return std::ssize(missing);
}

std::vector<HeadFigures> gather_figures(const LayerPass& pass, const std::vector<Index>& layers) {
  const Index n_kv = pass.dump.shape().n_kv;
  const Index width = static_cast<Index>(figures_per_head(pass.stages));
  std::vector<HeadFigures> all(pass.stages.size());
  for (std::size_t s = 0; s < pass.stages.size(); ++s) {
    all[s].layers = layers;
    all[s].n_kv = n_kv;
    all[s].values.resize(std::ssize(layers) * n_kv, static_cast<Index>(pass.stages[s]->figures_per_head()));
    all[s].of_layers.resize(pass.stages[s]->figures_per_layer());
  }
  for (std::size_t at = 0; at < layers.size(); ++at) {
    const std::vector<double> layer =
        pass.folder.layer_figures(layers[at], figures_of_layer(pass.stages, n_kv), pass.number);
    const Eigen::Map<const Matrix<double>> heads(layer.data(), n_kv, width);
    Index column = 0;
    auto whole = layer.begin() + heads.size();
    for (HeadFigures& figures : all) {
      figures.values.middleRows(static_cast<Index>(at) * n_kv, n_kv) =
          heads.middleCols(column, figures.values.cols());
      column += figures.values.cols();
      for (double& sum : figures.of_layers) sum += *whole++;
    }
  }
  return all;
}

double head_group_cost(const Dump& dump, Index layer) {
  const DumpShape& shape = dump.shape();
  const AttentionRule rule = dump.rule(layer);
  double visible = 0;
  for (Index i = shape.first_query(); i < shape.T; ++i) {
    const Index end = rule.causal ? i + 1 : shape.T;
    const Index first = rule.sliding_window ? std::max<Index>(i + 1 - *rule.sliding_window, 0) : 0;
    visible += static_cast<double>(end - first);
  }
  return static_cast<double>(shape.group()) * visible * static_cast<double>(shape.d + shape.d_v);
}

std::vector<std::size_t> equal_intervals(std::span<const double> costs, int parts) {
  const double total = std::accumulate(costs.begin(), costs.end(), 0.0);
  std::vector<std::size_t> bounds(static_cast<std::size_t>(parts) + 1, costs.size());
  bounds.front() = 0;
  // An item goes to the interval that its middle falls into.
  double before = 0;
  std::size_t item = 0;
  for (int part = 1; part < parts; ++part) {
    const double end = total * part / parts;
    for (; item < costs.size() && before + costs[item] / 2 < end; ++item) before += costs[item];
    bounds[part] = item;
  }
  return bounds;
}

}  // namespace kvreplay
