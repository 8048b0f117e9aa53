#include "sim/tokens/cuda/token_readings_cuda.hpp"

#include "sim/tokens/cuda/column_kernels.hpp"
#include "sim/tokens/row_norms.hpp"

#include <algorithm>
#include <deque>
#include <iterator>
#include <string>
#include <utility>

namespace kvreplay::cuda {

namespace {

/// [G][S][rows][d_v], each head's times its unit.
std::vector<float> packed_gradients(const RowGradients<float>& gradients, RowRange rows,
                                    const std::vector<double>& units) {
  std::vector<float> packed;
  for (std::size_t g = 0; g < gradients.g.size(); ++g)
    for (Index s = 0; s < gradients.samples; ++s) {
      const auto own = gradients.g[g].middleRows(gradients.at(s, rows.begin), rows.count());
      std::transform(own.data(), own.data() + own.size(), std::back_inserter(packed),
                     [unit = static_cast<float>(units[g])](float x) { return unit * x; });
    }
  return packed;
}

/// loss_totals() on the calling thread's device, where `attended` has the group and `keys` its keys as they
/// lie; q comes from `numbers`. Throws InputError where a number overflows float32, OutOfDeviceMemory and
/// DeviceError.
std::vector<LossTotals> loss_totals_of(const HeadGroup<float>& group, const StoredNumbers& numbers,
                                       const DeviceGroup& attended, const DeviceRows& keys,
                                       const RowGradients<float>& gradients, RowRange rows,
                                       const Stream& stream) {
  const Index G = group.G(), n = rows.count(), S = gradients.samples, l = group.l;
  std::vector<double> units;
  for (const Matrix<float>& g : gradients.g) units.push_back(gradient_unit(g));
  ColumnRun run(attended, rows_at(group, numbers, rows), ColumnSet::future);
  run.ask_top_differences();
  run.launch_pass_one();

  DeviceArrays arrays(stream);
  const ColumnProblem& in = run.problem();
  const Index candidates = in.candidates, numbers_each = 2 * G * candidates;
  const Index token_blocks = G * div_up(candidates, Index{kLossTokens});
  const int segments = narrow(parts_of_work(token_blocks, div_up(n, Index{kLossRows})));
  const LossProblem problem{in,
                            run.finished(),
                            run.out_centred(),
                            run.queries(),
                            keys.stored(),
                            narrow(S),
                            arrays.copy_of<float>(packed_gradients(gradients, rows, units)),
                            arrays.make<float>(G * S * n),
                            arrays.make<float>(G * n),
                            arrays.make<double>(G * n),
                            segments,
                            arrays.make<double>(segments * numbers_each),
                            arrays.make<double>(numbers_each)};
  loss_pass(problem, stream);

  const std::vector<LargestScores> largest = run.largest();
  const std::vector<double> of_top = downloaded(problem.of_top, static_cast<std::size_t>(G * n), stream);
  const std::vector<double> added =
      downloaded(problem.totals, static_cast<std::size_t>(numbers_each), stream);
  std::vector<LossTotals> totals(G, {Vector<double>::Zero(l), Vector<double>::Zero(l)});
  for (Index g = 0; g < G; ++g) {
    auto& [loss, max_attn] = totals[g];
    std::copy_n(added.data() + g * candidates, candidates, loss.data());
    std::copy_n(added.data() + (G + g) * candidates, candidates, max_attn.data());
    for (Index row = 0; row < n; ++row) {
      const LargestScores& column = largest[g * n + row];
      if (column.at >= l) continue;  // a decoded position is no candidate
      const double a = column[RowScore::attention];
      loss[column.at] += a * a * of_top[g * n + row];
      max_attn[column.at] = std::max(max_attn[column.at], a);
    }
    loss *= 0.5 / static_cast<double>(S) / (units[g] * units[g]);
  }
  return totals;
}

}  // namespace
namespace {

Vector<double> downloaded_vector(const double* from, Index n, const Stream& stream) {
  Vector<double> numbers(n);
  copy(numbers.data(), from, n, stream);
  stream.synchronize();
  return numbers;
}
/// Room for m sums over the rows of x, in `arrays`.
RowSums row_sums(const RowsOf& x, int m, DeviceArrays& arrays) {
  const SumPlan plan = sum_plan(x.n);
  const std::size_t numbers = static_cast<std::size_t>(m) * x.width;
  return {x,
          nullptr,
          nullptr,
          nullptr,
          m,
          plan,
          arrays.make<double>(plan.parts * numbers),
          arrays.make<double>(numbers),
          nullptr};
}

}  // namespace

const DeviceRows& DeviceReadings::keys() {
  if (!keys_) keys_.emplace(numbers_.k, numbers_.type, group_.T_all(), group_.d(), stream_);
  return *keys_;
}

const DeviceRows& DeviceReadings::values() {
  if (!values_) values_.emplace(numbers_.v, numbers_.type, group_.T_all(), group_.d_v(), stream_);
  return *values_;
}

const CentredValues& DeviceReadings::centred() {
  if (!centred_) centred_.emplace(values(), group_.T_all(), group_.d_v(), stream_);
  return *centred_;
}

const DeviceGroup& DeviceReadings::attended(bool outputs) {
  if (!attended_) attended_.emplace(group_, keys(), outputs ? &centred() : nullptr, products_, stream_);
  if (outputs && !attended_->has_values()) attended_->bring(centred());
  return *attended_;
}

std::vector<std::vector<ColumnTotals>> DeviceReadings::column_totals(
    std::span<const ColumnRequest> requests) {
  const bool outputs = needs_outputs(requests);
  std::deque<ColumnRun> runs;
  for (const auto& [rows, columns] : requests)
    runs.emplace_back(attended(outputs), rows_at(group_, numbers_, rows), columns).launch();
  std::vector<std::vector<ColumnTotals>> totals;
  for (const ColumnRun& run : runs) totals.push_back(run.totals());
  return totals;
}

Matrix<double> DeviceReadings::repeat_attention() {
  AttendingRows rows{0, NumberType::f32, {}, {}, [](Index) { return std::string("the second reading"); }};
  for (; rows.count < group_.R_ref(); ++rows.count) {
    const RowRange sees = group_.repeat_visible(rows.count);
    if (sees.count() == 0) break;  // and so do later rows see nothing
    rows.seen.first.push_back(narrow(sees.begin));
    rows.seen.end.push_back(narrow(sees.end));
  }
  Matrix<double> largest = Matrix<double>::Zero(group_.G(), group_.l);
  if (rows.count == 0) return largest;
  for (const HeadMatrix<float>& q : group_.q_ref) rows.q.push_back(q.data());
  const ColumnRun run(attended(false), std::move(rows), ColumnSet::max_attn);
  run.launch();
  const std::vector<ColumnTotals> totals = run.totals();
  for (Index g = 0; g < group_.G(); ++g) largest.row(g) = totals[g].max_attn.cwiseMin(1.0).transpose();
  return largest;
}

const Vector<double>& DeviceReadings::value_norms() {
  if (!value_norms_) {
    const Buffer<double> norms(group_.l);
    norms_pass(values().first(group_.l), norms.data(), stream_);
    value_norms_ = downloaded_vector(norms.data(), group_.l, stream_);
  }
  return *value_norms_;
}

Vector<double> DeviceReadings::value_squares() { return value_norms().array().square(); }

Vector<double> DeviceReadings::key_norms() {
  const Buffer<double> norms(group_.l);
  norms_pass(keys().first(group_.l), norms.data(), stream_);
  return downloaded_vector(norms.data(), group_.l, stream_);
}

Vector<double> DeviceReadings::keydiff() {
  DeviceArrays arrays(stream_);
  const RowsOf x = keys().first(group_.l);
  double* const norms = arrays.make<double>(group_.l);
  norms_pass(x, norms, stream_);
  RowSums of_directions = row_sums(x, 1, arrays);
  of_directions.divisors = norms;
  sums_pass(of_directions, stream_);
  double* const cosines = arrays.make<double>(group_.l);
  cosines_pass(x, norms, of_directions.sums, cosines, stream_);
  return -downloaded_vector(cosines, group_.l, stream_);
}

std::vector<CaoteScores> DeviceReadings::caote(const std::vector<ColumnTotals>& totals) {
  const Index G = std::ssize(totals), l = group_.l, d_v = group_.d_v();
  const float* const on_device = centred().centre();
  const std::vector<float> in_float = downloaded(on_device, d_v, stream_);
  const Vector<double> centre = Eigen::Map<const Vector<float>>(in_float.data(), d_v).cast<double>();
  std::deque<CaoteHead> heads;
  Matrix<double> weights(G + 1, l);
  for (Index g = 0; g < G; ++g)
    weights.row(g) = heads.emplace_back(totals[g][RowScore::attention]).weights(0, l).transpose();
  weights.row(G).setConstant(1 / static_cast<double>(l));

  DeviceArrays arrays(stream_);
  RowSums sums = row_sums(values().first(l), narrow(G + 1), arrays);
  sums.centre = on_device;
  sums.weights = arrays.copy_of<double>(weights);
  sums_pass(sums, stream_);
  Matrix<double> points = downloaded_matrix(sums.sums, G + 1, d_v, stream_);
  for (Index g = 0; g < G; ++g) {
    heads[g].set_values(points.row(g).transpose(),
                        group_.v.row(heads[g].top()).transpose().cast<double>() - centre, centre);
    points.row(g) = heads[g].mean().transpose();
  }
  double* const squares = arrays.make<double>(weights.size());
  distances_pass(sums.x, on_device, arrays.copy_of<double>(points), narrow(G + 1), squares, stream_);
  const Matrix<double> distances = downloaded_matrix(squares, G + 1, l, stream_);
  std::vector<CaoteScores> scores(G, {Vector<double>::Zero(l), Vector<double>::Zero(l)});
  for (Index g = 0; g < G; ++g) {
    heads[g].score(0, l, distances.row(g).data(), distances.row(G).data(), scores[g]);
    heads[g].score_top(scores[g]);
  }
  return scores;
}

QueryMoments DeviceReadings::query_moments() {
  const Rope& rope = *group_.rope;
  const Index G = group_.G(), d = group_.d(), n = group_.l - kExpectedAttentionFirst;
  DeviceArrays arrays(stream_);
  const AttendingRows rows = rows_at(group_, numbers_, {kExpectedAttentionFirst, group_.l});
  const Index head_bytes = n * d * bytes_of(rows.type);
  auto* const queries = arrays.make<std::uint8_t>(G * head_bytes);
  for (Index g = 0; g < G; ++g)
    copy(queries + g * head_bytes, static_cast<const std::uint8_t*>(rows.q[g]), head_bytes, stream_);
  float* const turned = arrays.make<float>(G * n * d);
  const DeviceRope on_device{rope.style == Rope::Style::half, narrow(rope.rotary_dim / 2),
                             arrays.copy_of<double>(rope.inv_freq), rope.attention_factor};
  unrotate_pass({queries, rows.type}, narrow(G), narrow(n), narrow(d), narrow(kExpectedAttentionFirst),
                on_device, turned, stream_);
  std::vector<const double*> grams, sums;
  std::vector<const float*> means;
  for (Index g = 0; g < G; ++g) {
    const float* const own = turned + g * n * d;
    RowSums of_head = row_sums({{own, NumberType::f32}, narrow(n), narrow(d)}, 1, arrays);
    of_head.means = arrays.make<float>(d);
    sums_pass(of_head, stream_);
    sums.push_back(of_head.sums);
    means.push_back(of_head.means);
    grams.push_back(gram_of({own, n, narrow(d), of_head.means}, GramProducts::single, arrays, stream_));
  }
  QueryMoments moments;
  const auto count = static_cast<double>(n);
  for (Index g = 0; g < G; ++g) {
    const std::vector<float> centre = downloaded(means[g], d, stream_);
    moments.mean.emplace_back(downloaded_vector(sums[g], d, stream_) / count);
    const Vector<double> offset =
        moments.mean.back() - Eigen::Map<const Vector<float>>(centre.data(), d).cast<double>();
    moments.covariance.emplace_back(downloaded_matrix(grams[g], d, d, stream_) / count -
                                    offset * offset.transpose());
  }
  return moments;
}

Matrix<double> DeviceReadings::expected_attention() {
  const Index G = group_.G(), d = group_.d(), l = group_.l;
  const std::vector<ExpectedLogit> logits =
      expected_logits(query_moments(), *group_.rope, group_.rule.scale, l);
  Matrix<float> S(G * d, d), b(G, d);
  for (Index g = 0; g < G; ++g) {
    S.middleRows(g * d, d) = logits[g].S.cast<float>();
    b.row(g) = logits[g].b.cast<float>().transpose();
  }
  DeviceArrays arrays(stream_);
  double* const forms = arrays.make<double>(G * l);
  forms_pass(keys().first(l), RowForm::quadratic, arrays.copy_of<float>(S), arrays.copy_of<float>(b),
             narrow(G), forms, stream_);
  Matrix<double> scores = downloaded_matrix(forms, G, l, stream_);
  for (Index g = 0; g < G; ++g) weigh_expected(scores.row(g), value_norms());
  return scores;
}

Vector<double> DeviceReadings::projected_value_norms(Index g) {
  if (group_.wo.empty()) return value_norms();
  const Index d_v = group_.d_v();
  const Matrix<float>& wo = group_.wo[g];
  DeviceArrays arrays(stream_);
  const GramRows columns{arrays.copy_of<float>(wo), wo.cols(), narrow(d_v), nullptr, wo.cols()};
  const double* const gram = gram_of(columns, GramProducts::exact, arrays, stream_);
  const Matrix<float> factor = projection_factor(downloaded_matrix(gram, d_v, d_v, stream_)).cast<float>();
  double* const squares = arrays.make<double>(group_.l);
  forms_pass(values().first(group_.l), RowForm::squares, arrays.copy_of<float>(factor), nullptr, 1, squares,
             stream_);
  return downloaded_vector(squares, group_.l, stream_).cwiseSqrt();
}

std::vector<LossTotals> DeviceReadings::loss_totals(const RowGradients<float>& gradients, RowRange rows) {
  return loss_totals_of(group_, numbers_, attended(true), keys(), gradients, rows, stream_);
}

ReadMetrics read_metrics_of(const HeadGroup<float>& group, const StoredNumbers& numbers,
                            const TokenOptions& options, Products products, Workers& workers) {
  DeviceReadings readings(group, numbers, products, workers);
  return read_metrics(readings, group, options, workers);
}

TokenMetrics token_metrics_of(const HeadGroup<float>& group, const StoredNumbers& numbers,
                              const TokenOptions& options, Products products, Workers& workers) {
  return finished_metrics(read_metrics_of(group, numbers, options, products, workers), group, options,
                          workers);
}

}  // namespace kvreplay::cuda

namespace kvreplay {

TokenMetrics token_metrics_cuda(const HeadGroup<float>& group, const TokenOptions& options, Workers& workers,
                                Products products) {
  return cuda::token_metrics_of(group, cuda::stored_numbers(group), options, products, workers);
}

}  // namespace kvreplay
