#include "analysis/conform/parts.hpp"
#include "data/error.hpp"
#include "data/npy_header.hpp"
#include "data/npy_read.hpp"
#include "sim/gram_sums.hpp"
#include "sim/rotation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace kvreplay::conform {
namespace {

/// Squared distance from `meant` over its squared norm; rows that are all 0 have none.
double distance(const Matrix<double>& held, const Matrix<double>& meant) {
  const double norm = meant.squaredNorm();
  return norm > 0 ? (held - meant).squaredNorm() / norm : (held - meant).squaredNorm() > 0 ? 1 : 0;
}

/// Below it numbers of this type are the same, but for rounding on the way.
double same_below(Dtype numbers) {
  const double rounding = numbers == Dtype::bf16 ? 0x1p-8 : numbers == Dtype::f16 ? 0x1p-11 : 0x1p-18;
  return 4 * rounding * rounding;
}

Matrix<double> rows_at(const HeadMatrix<double>& all, const std::vector<Index>& positions) {
  Matrix<double> rows(std::ssize(positions), all.cols());
  for (Index r = 0; r < rows.rows(); ++r) rows.row(r) = all.row(positions[r]);
  return rows;
}

/// Keys, row r turned on by by(r) positions.
template <class By>
Matrix<double> turned(const Rope& rope, Matrix<double> keys, const By& by) {
  for (Index r = 0; r < keys.rows(); ++r) rotate_by(rope, by(r), keys.row(r).data());
  return keys;
}

/// Squared distances of held rows from a head's keys or values, over the mean squared norm of these.
class RowDistances {
 public:
  RowDistances(const Matrix<double>& held, const HeadMatrix<double>& made)
      : held_(held),
        made_(made),
        norm_(std::max(made.rowwise().squaredNorm().mean(), std::numeric_limits<double>::min())) {}

  /// The mean over all rows, at these positions.
  double mean(const std::vector<Index>& positions) const {
    double sum = 0;
    for (Index r = 0; r < held_.rows(); ++r) sum += (held_.row(r) - made_.row(positions[r])).squaredNorm();
    return sum / norm_ / static_cast<double>(std::max<Index>(held_.rows(), 1));
  }
  /// [rows, T]
  Matrix<double> all() const {
    Matrix<double> d = row_products<double>(held_, made_);
    d *= -2;
    d.rowwise() += made_.rowwise().squaredNorm().transpose();
    d.colwise() += held_.rowwise().squaredNorm();
    return d.cwiseMax(0) / norm_;
  }

 private:
  const Matrix<double>& held_;
  const HeadMatrix<double>& made_;
  double norm_;
};

/// The position of every row, each once: the nearest that it `may` have, of equally near ones a wanted one.
std::vector<Index> nearest_positions(const Matrix<double>& distances, const KeptSet& may,
                                     const KeptSet& wanted) {
  constexpr double kEqual = 1e-6;
  std::vector<char> taken(static_cast<std::size_t>(distances.cols()), 0);
  for (std::size_t p = 0; p < may.size(); ++p) taken[p] = may[p] == 0 ? 1 : 0;
  const auto is_wanted = [&](Index p) { return p >= std::ssize(wanted) || wanted[p] != 0; };
  std::vector<Index> positions;
  for (Index r = 0; r < distances.rows(); ++r) {
    std::optional<Index> best;
    for (Index p = 0; p < distances.cols(); ++p) {
      if (taken[p] != 0) continue;
      const double nearer = best ? distances(r, *best) - distances(r, p) : 0;
      if (!best || nearer > kEqual || (nearer > -kEqual && is_wanted(p) && !is_wanted(*best))) best = p;
    }
    positions.push_back(*best);
    taken[*best] = 1;
  }
  return positions;
}

/// Positions of all rows: of the tokens `kept`, or where nobody says which those are, of the wanted ones
/// unless others are nearer. By keys, by values or by both: either may be anything.
std::vector<Index> positions_of(const Matrix<double>& k, const Matrix<double>& v,
                                const HeadGroup<double>& group, const std::optional<KeptSet>& kept,
                                const KeptSet& wanted) {
  constexpr double kLikely = 0.5, kNearer = 0.8, kFar = 0.3;
  const RowDistances of_keys(k, group.k), of_values(v, group.v);
  const auto distance_at = [&](const std::vector<Index>& at) {
    return std::min(of_keys.mean(at), of_values.mean(at));
  };
  // As they stand in the prompt, decoded ones behind them.
  const KeptSet& likely = kept ? *kept : wanted;
  std::vector<Index> in_order = positions(likely);
  const bool as_many =
      std::ssize(in_order) <= k.rows() && k.rows() <= std::ssize(in_order) + group.T_all() - group.l;
  for (Index p = group.l; as_many && std::ssize(in_order) < k.rows(); ++p) in_order.push_back(p);
  if (as_many && distance_at(in_order) < kLikely) return in_order;

  const Matrix<double> keys = of_keys.all(), values = of_values.all(), both = values + keys.cwiseMin(kFar);
  std::vector<Index> best;
  double least = std::numeric_limits<double>::infinity();
  const auto try_all = [&](const KeptSet& may) {
    for (const Matrix<double>* distances : {&both, &keys, &values}) {
      std::vector<Index> found = nearest_positions(*distances, may, wanted);
      if (const double here = distance_at(found); best.empty() || here < kNearer * least)
        best = std::move(found), least = here;
    }
  };
  if (as_many) try_all(likely);
  if (!kept) try_all({});
  return best;
}

struct Explained {
  std::string text;
  Matrix<double> rows;
};

/// Explanations that only keys can have: other rotations.
std::vector<Explained> turned_keys(const Matrix<double>& held, const Matrix<double>& meant,
                                   const std::vector<Index>& positions, const HeadGroup<double>& group) {
  std::vector<Explained> all;
  if (!group.rope) return all;
  const Rope& rope = *group.rope;
  all.push_back({fmt::format("turned to positions 0 to {}, one behind the other", held.rows() - 1),
                 turned(rope, meant, [&](Index r) { return r - positions[r]; })});
  all.push_back({"before their rotation", turned(rope, meant, [&](Index r) { return -positions[r]; })});
  // By the same number of positions: the one that brings a few rows nearest.
  const Index n = held.rows(), few = std::min<Index>(n, 4);
  std::pair<double, Index> best{std::numeric_limits<double>::infinity(), 0};
  for (Index by = -group.T_all(); by <= group.T_all(); ++by) {
    double sum = 0;
    for (Index f = 0; f < few; ++f) {
      const Index r = n - 1 - f * (n / few);
      Eigen::RowVectorXd row = meant.row(r);
      rotate_by(rope, by, row.data());
      sum += (row - held.row(r)).squaredNorm();
    }
    best = std::min(best, {sum, by});
  }
  if (best.second != 0)
    all.push_back({fmt::format("turned on by {} positions", best.second),
                   turned(rope, meant, [&](Index) { return best.second; })});
  // The rows behind the prompt only: where positions were counted on from what is left of it.
  const Index prompt = std::ranges::count_if(positions, [&](Index p) { return p < group.l; });
  if (prompt < n && prompt < group.l)
    all.push_back({fmt::format("from position {} on turned back by {}", group.l, group.l - prompt),
                   turned(rope, meant,
                          [&](Index r) { return positions[r] >= group.l ? prompt - group.l : Index{0}; })});
  return all;
}

Explained scaled(const Matrix<double>& held, const Matrix<double>& meant) {
  const double norm = meant.squaredNorm(), by = norm > 0 ? held.cwiseProduct(meant).sum() / norm : 1;
  return {fmt::format("multiplied by {:.4g}", by), by * meant};
}

/// The ways in which engines store numbers that are not said otherwise.
std::vector<std::pair<std::string, Quantization>> usual_formats(Index n, Index d) {
  std::vector<std::pair<std::string, Quantization>> all;
  for (const NumberFormatFacts& facts : kNumberFormats) {
    if (facts.id == NumberFormat::exact || (facts.block > 0 && d % facts.block != 0)) continue;
    for (const bool per_channel : {true, false})
      for (const Index group : {Index{32}, Index{64}, Index{128}, n})
        for (const Index residual : {Index{0}, Index{32}, Index{64}, Index{128}}) {
          if (residual >= n || (!facts.uniform && (per_channel || group != 32))) continue;
          Quantization as;
          as.k = as.v = {facts.id, per_channel};
          as.group = group;
          as.residual = residual;
          std::string text = fmt::format("in {}", facts.name);
          if (facts.uniform)
            text = fmt::format("in {} bits per {}, groups of {}", facts.name,
                               per_channel ? "channel" : "token", group);
          if (residual > 0) text += fmt::format(", the last {} as they are", residual);
          all.emplace_back(std::move(text), as);
        }
  }
  return all;
}

Matrix<double> stored(Matrix<double> rows, bool keys, const Quantization& as) {
  std::vector<Index> tokens(static_cast<std::size_t>(rows.rows()));
  std::iota(tokens.begin(), tokens.end(), Index{0});
  if (keys || as.v.per_channel)  // along tokens: in whole groups
    quantize_keys<double>(rows, tokens, {}, {}, as);
  else
    quantize_values<double>(rows, tokens, as);
  return rows;
}

HeldAs explained(const Matrix<double>& held, const Matrix<double>& made, bool keys,
                 const std::vector<Index>& positions, const HeadGroup<double>& group,
                 const std::optional<Quantization>& meant, Dtype numbers, const AnyHead& others,
                 const std::vector<Index>& layers, Index n_kv, std::optional<FoundFormat>& format) {
  const double same = same_below(numbers), apart = distance(held, made);
  const auto is = [&](const Matrix<double>& rows) { return distance(held, rows) <= same; };
  // Engines round steps and scales their own way.
  const auto is_stored = [&](double left) { return left <= std::max(same, apart / 20); };
  if (meant && !meant->stores_exactly() && is_stored(distance(held, stored(made, keys, *meant))))
    return {"as they are to be stored", true, apart};
  if (apart <= same) return {"as the model made them", !meant || meant->stores_exactly(), apart};
  if (held.squaredNorm() == 0) return {"all 0", false, apart};
  if (format && is_stored(distance(held, stored(made, keys, format->as))))
    return {format->text, false, apart};
  std::vector<Explained> candidates =
      keys ? turned_keys(held, made, positions, group) : std::vector<Explained>{};
  candidates.push_back(scaled(held, made));
  for (const Explained& one : candidates)
    if (is(one.rows)) return {one.text, false, apart};
  // Rows at the positions in question, of another head or of another layer.
  const auto of = [&](Index layer, Index g) -> std::optional<std::string> {
    if (layer == group.layer && g == group.kv_head) return std::nullopt;
    const HeadGroup<double>& other = others(layer, g);
    if (!is(rows_at(keys ? other.k : other.v, positions))) return std::nullopt;
    return layer == group.layer
               ? fmt::format("those of KV head {}", g - group.kv_head > 0 ? "behind it" : "before it")
               : fmt::format("those of layer {}", layer - group.layer > 0 ? "behind it" : "before it");
  };
  for (Index g = 0; g < n_kv; ++g)
    if (const auto text = of(group.layer, g)) return {*text, false, apart};
  for (const Index layer : layers)
    if (std::abs(layer - group.layer) <= 2)
      if (const auto text = of(layer, group.kv_head)) return {*text, false, apart};
  // Neighbouring positions: one before or one behind.
  for (const Index by : {Index{-1}, Index{1}}) {
    std::vector<Index> moved = positions;
    for (Index& p : moved) p = std::clamp<Index>(p + by, 0, group.T_all() - 1);
    if (is(rows_at(keys ? group.k : group.v, moved)))
      return {by < 0 ? "those of the position before" : "those of the position behind", false, apart};
  }
  double least = std::numeric_limits<double>::infinity();
  FoundFormat nearest;
  for (auto& [text, as] : usual_formats(held.rows(), held.cols()))
    if (const double left = distance(held, stored(made, keys, as)); left < least)
      least = left, nearest = {text, as};
  if (is_stored(least)) {
    format = nearest;
    return {nearest.text, false, apart};
  }
  const Index changed =
      ((held - made).rowwise().squaredNorm().array() > same * made.rowwise().squaredNorm().array()).count();
  if (2 * changed < held.rows())
    return {fmt::format("others in {} of {} rows", changed, held.rows()), false, apart};
  return {"none that is known", false, apart};
}

}  // namespace

std::filesystem::path HeldCaches::file_of(Index layer, const char* name) const {
  return folder_ / fmt::format("layer_{:02}", layer) / fmt::format("{}.npy", name);
}

HeldCaches::HeldCaches(std::filesystem::path folder, const Dump& dump)
    : folder_(std::move(folder)), dump_(dump) {
  const DumpShape& shape = dump.shape();
  for (Index layer = 0; layer < shape.layers; ++layer) {
    if (dump.cache_of(layer) != layer) continue;
    Index n = -1;
    for (const auto& [name, width] : {std::pair("k", shape.d), std::pair("v", shape.d_v)}) {
      const std::filesystem::path file = file_of(layer, name);
      std::vector<Index> found = npy_shape(file);
      const std::vector<Index> stands = found;
      if (found.size() == 4 && found.front() == 1) found.erase(found.begin());
      if (found.size() != 3 || found[0] != shape.n_kv || found[2] != width || found[1] > shape.T ||
          (n >= 0 && found[1] != n))
        throw InputError(file.string(),
                         fmt::format("shape [{}, {}, {}]", shape.n_kv,
                                     n >= 0 ? std::to_string(n) : fmt::format("n <= {}", shape.T), width),
                         "shape " + shape_text(stands));
      n = found[1];
    }
  }
}

HeldCaches::Layer HeldCaches::layer(Index layer) const {
  Layer held;
  for (const auto& [name, heads] : {std::pair("k", &held.k), std::pair("v", &held.v)}) {
    const std::filesystem::path file = file_of(layer, name);
    const NpyNumbers all = read_npy_numbers(file);
    const std::size_t dimensions = all.shape.size();
    const Index n = all.shape[dimensions - 2], width = all.shape[dimensions - 1];
    for (Index g = 0; g < dump_.shape().n_kv; ++g) {
      heads->emplace_back(Eigen::Map<const Matrix<double>>(all.values.data() + g * n * width, n, width));
      if (!heads->back().allFinite())
        throw InputError(fmt::format("{}: head {}", file.string(), g), "finite numbers", "NaN or infinity");
    }
  }
  return held;
}

HeldHead held_head(const Matrix<double>& k, const Matrix<double>& v, const HeadGroup<double>& group,
                   const std::optional<KeptSet>& kept, const KeptSet& wanted,
                   const std::optional<Quantization>& meant, Dtype numbers, const AnyHead& others,
                   const std::vector<Index>& layers, Index n_kv, FoundFormats& formats) {
  HeldHead head;
  head.positions = positions_of(k, v, group, kept, wanted);
  head.in_order = std::ranges::is_sorted(head.positions);
  head.keys = explained(k, rows_at(group.k, head.positions), true, head.positions, group, meant, numbers,
                        others, layers, n_kv, formats.keys);
  head.values = explained(v, rows_at(group.v, head.positions), false, head.positions, group, meant, numbers,
                          others, layers, n_kv, formats.values);
  return head;
}

Cache<double> cache_of(const HeldHead& head, const Matrix<double>& k, const Matrix<double>& v,
                       const HeadGroup<double>& group) {
  Cache<double> cache{.kept = KeptSet(static_cast<std::size_t>(group.l), 0), .k = group.k, .v = group.v};
  for (Index r = 0; r < k.rows(); ++r) {
    const Index p = head.positions[r];
    if (p < group.l) cache.kept[p] = 1;
    cache.k.row(p) = k.row(r);
    cache.v.row(p) = v.row(r);
  }
  return cache;
}

}  // namespace kvreplay::conform
