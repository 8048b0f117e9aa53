#include "analysis/verify/verify.hpp"

#include "analysis/verify/output_checks.hpp"
#include "sim/attention.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

namespace kvreplay {
namespace {

/// A NaN without its sign: "-nan" says nothing.
double shown(double value) { return std::isnan(value) ? std::abs(value) : value; }

/// std::max, but for NaN, which is worse than anything.
double larger(double a, double b) { return shown(std::isnan(a) || a > b ? a : b); }

/// A closed form, what it claims to be the effect of, and on which rows.
struct ClosedForm {
  TokenMetric metric;
  TokenChange change;
  RowRange rows;
};

std::vector<ClosedForm> closed_forms(const Dump& dump, const MetricSet& available, Index window) {
  const DumpShape& shape = dump.shape();
  const RowRange near = window_rows(shape.l, shape.first_query(), window);
  const RowRange far = future_rows(shape.l, shape.T, shape.first_query());
  const std::vector<ClosedForm> all = {
      {TokenMetric::exact_value, TokenChange::zero_value, near},
      {TokenMetric::exact_key, TokenChange::zero_key, near},
      {TokenMetric::exact_joint, TokenChange::zero_key_and_value, near},
      {TokenMetric::exact_remove, TokenChange::remove, near},
      {TokenMetric::oracle_next, TokenChange::remove, {shape.l, shape.l + 1}},
      {TokenMetric::oracle_future, TokenChange::remove, far},
  };
  std::vector<ClosedForm> checked;
  for (const ClosedForm& form : all)
    if (available.contains(form.metric)) checked.push_back(form);
  return checked;
}

/// The effect of a change, from recomputed attention, summed over rows and query heads: one value a token.
std::vector<double> brute_force_sums(const HeadGroup<double>& group, const ClosedForm& form,
                                     const std::vector<Index>& tokens, Workers& workers) {
  constexpr Index kRows = 8, kTokens = 16;  // small items: stopping takes effect between them
  const auto blocks = [](Index n, Index size) { return (n + size - 1) / size; };
  const Index n = std::ssize(tokens);
  const Index row_blocks = blocks(form.rows.count(), kRows), token_blocks = blocks(n, kTokens);
  Matrix<double> partial = Matrix<double>::Zero(group.G() * row_blocks, n);
  workers.parallel_for(partial.rows() * token_blocks, [&](Index item) {
    const Index at = item / token_blocks, first = item % token_blocks * kTokens;
    const Index g = at / row_blocks, begin = form.rows.begin + at % row_blocks * kRows;
    const std::vector<Index> some(tokens.begin() + first, tokens.begin() + std::min(n, first + kTokens));
    for (Index i = begin; i < std::min(form.rows.end, begin + kRows) && !workers.stopping(); ++i)
      partial.row(at).segment(first, std::ssize(some)) +=
          brute_force_errors(group, g, i, form.change, some).transpose();
  });
  const Vector<double> sums = partial.colwise().sum().transpose();
  return {sums.data(), sums.data() + n};
}

std::vector<double> at_tokens(const Matrix<double>& values, const std::vector<Index>& tokens) {
  std::vector<double> result;
  for (const Index p : tokens) result.push_back(values(0, p));
  return result;
}

/// Where each of the checked metrics is largest: the tokens that matter most, and where cancellation bites.
std::vector<Index> largest_tokens(const TokenMetrics& metrics, const std::vector<ClosedForm>& forms) {
  std::vector<Index> largest;
  for (const ClosedForm& form : forms) {
    Index p = 0;
    metrics[form.metric].row(0).maxCoeff(&p);
    largest.push_back(p);
  }
  return largest;
}

class ReplayCheck {
 public:
  ReplayCheck(const Dump& dump, Workers& workers) : dump_(dump), workers_(workers) {
    const Index n = std::min(kRows, dump.shape().T_q);
    for (Index r = 0; r < n; ++r) rows_.push_back(n == 1 ? 0 : r * (dump.shape().T_q - 1) / (n - 1));
  }

  void add(const HeadGroup<double>& group) {
    const DumpShape& shape = dump_.shape();
    Matrix<double> stored(shape.T_q, shape.d_v);
    const Dtype dtype = dtype_of_output(group.layer);
    for (Index g = 0; g < group.G(); ++g) {
      const Index head = group.kv_head * group.G() + g;
      dump_.read(Tensor::o, group.layer, head, stored.data());
      std::vector<double> error(rows_.size()), size(rows_.size());
      workers_.parallel_for(std::ssize(rows_), [&](Index at) {
        const Index row = rows_[at];
        const Vector<double> o = attention_output(group, g, shape.first_query() + row);
        error[at] = (o - stored.row(row).transpose()).squaredNorm();
        size[at] = stored.row(row).squaredNorm();
      });
      const double difference = std::sqrt(compensated_sum(error)), norm = std::sqrt(compensated_sum(size));
      const double relative = norm > 0 ? difference / norm : difference;
      worst_ = larger(worst_, relative);
      dtypes_.insert(dtype);
      if (!(relative <= replay_tolerance(dtype)))
        failures_.push_back(
            fmt::format("replay: layer {} query head {}: relative L2 {:.2g} from o.npy ({}), tolerance {:g}",
                        group.layer, head, shown(relative), name_of(dtype), replay_tolerance(dtype)));
    }
    heads_ += group.G();
  }

  Check check() const {
    Check check{
        .name = "replay", .covered = {}, .worst = {}, .skipped = false, .failures = failures_, .figures = {}};
    const bool sampled = std::ssize(rows_) < dump_.shape().T_q;
    check.covered = fmt::format("{} query heads x {} rows{}", heads_, rows_.size(),
                                sampled ? fmt::format(" (evenly spread over {})", dump_.shape().T_q) : "");
    std::string tolerances;
    for (const Dtype dtype : dtypes_)
      tolerances += fmt::format("{}{:g} for {}", tolerances.empty() ? "" : ", ", replay_tolerance(dtype),
                                name_of(dtype));
    check.worst = fmt::format("worst {:.1e} relative L2 from o.npy (tolerance {})", worst_, tolerances);
    check.figures = {{"query_heads", heads_}, {"rows", rows_.size()}, {"worst_relative_l2", worst_}};
    return check;
  }

 private:
  static constexpr Index kRows = 1024;

  Dtype dtype_of_output(Index layer) const {
    for (const DumpFile& file : dump_.files())
      if (file.tensor == Tensor::o && (file.layer == layer || file.layer < 0)) return file.dtype;
    return Dtype::f32;
  }

  const Dump& dump_;
  Workers& workers_;
  std::vector<Index> rows_;
  std::set<Dtype> dtypes_;
  Index heads_ = 0;
  double worst_ = 0;
  std::vector<std::string> failures_;
};

Check check_of(const std::string& name, const std::string& covered, const ValueDistance& comparison) {
  const Tolerance& t = comparison.tolerance();
  Check check{.name = name, .covered = covered, .worst = {}, .skipped = false, .failures = {}, .figures = {}};
  check.worst =
      fmt::format("worst {:.1e} of the largest (tolerance {:g}), {:.1e} relative ({:g})",
                  comparison.worst_of_largest(), t.of_largest, comparison.worst_relative(), t.relative);
  for (const std::string& failure : comparison.failures()) check.failures.push_back(name + ": " + failure);
  check.figures = {{"worst_of_largest", comparison.worst_of_largest()},
                   {"tolerance_of_largest", t.of_largest},
                   {"worst_relative", comparison.worst_relative()},
                   {"tolerance_relative", t.relative},
                   {"relative_above", t.floor}};
  return check;
}

Check left_out(const std::string& name, const std::string& why) {
  return {.name = name,
          .covered = {},
          .worst = "left out: " + why,
          .skipped = true,
          .failures = {},
          .figures = {}};
}

}  // namespace

std::string judged_float32(const Backend& backend) {
  return backend.name() == "cpu" ? "float32" : fmt::format("float32 on {}", backend.name());
}

double replay_tolerance(Dtype dtype) {
  switch (dtype) {
    case Dtype::f64:
      return 1e-9;
    case Dtype::f32:
      return 1e-4;
    case Dtype::f16:
      return 2e-3;
    case Dtype::bf16:
      return 2e-2;
  }
  return 0;
}

std::vector<Index> sampled_tokens(Index l, Index count, const std::vector<Index>& wanted) {
  std::vector<Index> tokens;
  if (count <= 0 || count >= l) {
    tokens.resize(l);
    std::iota(tokens.begin(), tokens.end(), Index{0});
    return tokens;
  }
  std::set<Index> chosen;
  const auto choose = [&](Index p) {
    if (std::ssize(chosen) < count) chosen.insert(p);
  };
  choose(0);
  choose(l - 1);
  for (const Index p : wanted) choose(p);
  for (Index s = 1; s <= count; ++s) choose(s * l / (count + 1));
  for (Index p = 1; p < l; ++p) choose(p);  // where the spread met positions that were chosen already
  return {chosen.begin(), chosen.end()};
}

void ValueDistance::add(Index layer, Index kv_head, TokenMetric metric, const std::vector<Index>& tokens,
                        const std::vector<double>& values, const std::vector<double>& reference,
                        double rounding) {
  const double tiny = std::max(tolerance_.tiny, rounding);
  double largest = 0;
  for (const double r : reference) largest = std::max(largest, std::abs(r));
  Index misses = 0;
  double worst_excess = -1;
  std::string worst_line;
  for (std::size_t t = 0; t < reference.size(); ++t) {
    const bool equal =
        values[t] == reference[t] || (std::abs(values[t]) <= tiny && std::abs(reference[t]) <= tiny);
    const double error = equal ? 0 : std::abs(values[t] - reference[t]);
    const double of_largest = error == 0 ? 0 : error / largest;
    const bool counts = std::abs(reference[t]) > tolerance_.floor * largest;
    const double relative = error == 0 || !counts ? 0 : error / std::abs(reference[t]);
    worst_of_largest_ = larger(worst_of_largest_, of_largest);
    worst_relative_ = larger(worst_relative_, relative);
    if (of_largest <= tolerance_.of_largest && relative <= tolerance_.relative) continue;
    ++misses;
    const double excess = std::max(of_largest / tolerance_.of_largest, relative / tolerance_.relative);
    if (misses > 1 && !(excess > worst_excess)) continue;
    worst_excess = excess;
    worst_line = fmt::format(
        "layer {} KV head {} token {} metric {}: {:.17g}, expected {:.17g} ({:.1e} of the largest, "
        "tolerance {:g}; {:.1e} relative, tolerance {:g})",
        layer, kv_head, tokens[t], name_of(metric), shown(values[t]), shown(reference[t]), shown(of_largest),
        tolerance_.of_largest, shown(relative), tolerance_.relative);
  }
  if (misses > 1) worst_line += fmt::format("; {} more tokens of this head miss it", misses - 1);
  if (misses > 0) failures_.push_back(worst_line);
}

bool VerifyResult::ok() const {
  return std::all_of(checks.begin(), checks.end(), [](const Check& check) { return check.ok(); });
}

namespace {

/// What rounding outputs and values to `epsilon` leaves of a metric that is 0: where all values are the same,
/// no token's removal changes anything, and nothing but this is there to compare.
double rounding_of_zero(const HeadGroup<double>& group, TokenMetric metric, Index rows, double epsilon) {
  const double largest_value = std::sqrt(group.v.rowwise().squaredNorm().maxCoeff());
  const double one = 8 * epsilon * largest_value, heads = static_cast<double>(group.G());
  switch (kTokenMetrics[metric].unit) {
    case MetricUnit::squared_output:
      return one * one * heads * static_cast<double>(rows);
    case MetricUnit::output:
      return one * heads;
    case MetricUnit::weight:
    case MetricUnit::squared_weight:
    case MetricUnit::other:
      break;
  }
  return 0;
}

}  // namespace

VerifyResult verify(const Dump& dump, const VerifyOptions& options, const Compute& compute) {
  Workers& workers = compute.workers;
  const bool float32 = in_float32(compute.precision);
  const DumpShape& shape = dump.shape();
  TokenOptions token_options;
  token_options.window = options.window;
  token_options.metrics = {};
  std::size_t metrics = 0;
  for (const TokenMetric m : kTokenMetrics.all()) {
    if (why_unavailable(m, dump)) continue;
    token_options.metrics.insert(m);
    ++metrics;
  }
  const std::vector<ClosedForm> forms = closed_forms(dump, token_options.metrics, options.window);
  std::vector<Index> every(shape.l);
  std::iota(every.begin(), every.end(), Index{0});

  VerifyResult result;
  result.table.pairs = token_pairs(token_options.metrics);
  ValueDistance closed(kClosedFormTolerance), fast(kFloat32Tolerance);
  ReplayCheck replay(dump, workers);
  KeptSetCheck kept_sets(dump, options.window, compute);
  ChannelCheck channels(dump, options.window, compute);
  const Index total = std::ssize(options.layers) * shape.n_kv;
  Index done = 0;
  if (options.on_progress) options.on_progress(done, total);
  for (const Index layer : options.layers) {
    for (Index kv_head = 0; kv_head < shape.n_kv; ++kv_head) {
      const auto group = load_head_group<double>(dump, layer, kv_head);
      const auto zero_of = [&](TokenMetric metric, double epsilon) {
        return rounding_of_zero(group, metric, std::max(options.window, shape.T - shape.l), epsilon);
      };
      const TokenMetrics judged = token_metrics_cpu<double>(group, token_options, workers);
      const auto tokens = sampled_tokens(shape.l, options.tokens, largest_tokens(judged, forms));
      for (const ClosedForm& form : forms)
        closed.add(layer, kv_head, form.metric, tokens, at_tokens(judged[form.metric], tokens),
                   brute_force_sums(group, form, tokens, workers), zero_of(form.metric, 2.2e-16));
      if (dump.has(Tensor::o)) replay.add(group);
      const auto float_group = float32 ? load_head_group<float>(dump, layer, kv_head) : HeadGroup<float>{};
      const TokenMetric cost = token_options.metrics.contains(TokenMetric::exact_remove)
                                   ? TokenMetric::exact_remove
                                   : TokenMetric::keydiff;
      kept_sets.add(group, float32 ? &float_group : nullptr, judged[cost].row(0).transpose());
      channels.add(group, float32 ? &float_group : nullptr);
      if (float32) {
        const TokenMetrics single = compute.backend.token_metrics(float_group, token_options, workers);
        for (const TokenMetric m : kTokenMetrics.all())
          if (token_options.metrics.contains(m))
            fast.add(layer, kv_head, m, every, at_tokens(single[m], every), at_tokens(judged[m], every),
                     zero_of(m, 6e-8));
      }
      result.table.heads.push_back(
          {layer, kv_head, token_agreements(judged, result.table.pairs, shape.l, workers)});
      if (options.on_progress) options.on_progress(++done, total);
    }
  }

  const Index sampled = options.tokens <= 0 ? shape.l : std::min(options.tokens, shape.l);
  result.checks.push_back(
      forms.empty()
          ? left_out("closed forms", "the dump holds no queries of the window or the decoding steps")
          : check_of("closed forms",
                     fmt::format("{} heads x {} tokens x {} metrics", total, sampled, forms.size()), closed));
  result.checks.push_back(
      float32 ? check_of(compute.backend.name() == "cuda" ? "CUDA backend" : "float32 backend",
                         fmt::format("{} heads x {} tokens x {} metrics", total, shape.l, metrics), fast)
              : left_out("float32 backend", "not asked for (--precision f64)"));
  result.checks.push_back(kept_sets.check());
  result.checks.push_back(channels.check());
  result.checks.push_back(dump.has(Tensor::o) ? replay.check() : left_out("replay", "the dump has no o.npy"));
  return result;
}

}  // namespace kvreplay
