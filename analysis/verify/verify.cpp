#include "analysis/verify/verify.hpp"

#include "analysis/verify/channel_check.hpp"
#include "analysis/verify/closed_forms.hpp"
#include "analysis/verify/output_checks.hpp"
#include "analysis/verify/replay_check.hpp"
#include "analysis/verify/value_distance.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>

namespace kvreplay {
namespace {

std::vector<double> at_tokens(const Matrix<double>& values, const std::vector<Index>& tokens) {
  std::vector<double> result;
  for (const Index p : tokens) result.push_back(values(0, p));
  return result;
}

/// Where each of the checked metrics is largest: the token that matters most, and where cancellation bites.
std::vector<Index> largest_tokens(const TokenMetrics& metrics, const std::vector<ClosedForm>& forms) {
  std::vector<Index> largest;
  for (const ClosedForm& form : forms) {
    Index p = 0;
    metrics[form.metric].row(0).maxCoeff(&p);
    largest.push_back(p);
  }
  return largest;
}

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
    case MetricUnit::nats:
    case MetricUnit::other:
      break;
  }
  return 0;
}

/// What was found of some heads.
struct Findings {
  Findings(const Dump& dump, Index window, const Compute& compute)
      : replay(dump, compute.workers), kept_sets(dump, window, compute), channels(dump, window, compute) {}

  void merge(const Findings& later) {
    closed.merge(later.closed);
    fast.merge(later.fast);
    replay.merge(later.replay);
    kept_sets.merge(later.kept_sets);
    channels.merge(later.channels);
    heads.insert(heads.end(), later.heads.begin(), later.heads.end());
    tokens_of_a_form = std::min(tokens_of_a_form, later.tokens_of_a_form);
  }

  ValueDistance closed{kClosedFormTolerance}, fast{kFloat32Tolerance};
  ReplayCheck replay;
  KeptSetCheck kept_sets;
  ChannelCheck channels;
  std::vector<AgreementTable::Head> heads;
  Index tokens_of_a_form = kNoLimit;  ///< at least so many of every head
};

/// What is asked of every head group.
class Verification {
 public:
  Verification(const Dump& dump, const VerifyOptions& options, const Compute& compute)
      : dump_(dump), options_(options), compute_(compute), every_(dump.shape().l) {
    token_options_.window = options.window;
    token_options_.metrics = metrics_of(dump);
    for (const TokenMetric m : kTokenMetrics.all())
      if (token_options_.metrics.contains(m)) metrics_.push_back(m);
    forms_ = closed_forms(dump.shape(), token_options_.metrics, options.window);
    pairs_ = token_pairs(token_options_.metrics);
    std::iota(every_.begin(), every_.end(), Index{0});
  }

  /// Of the head group number `turn`.
  Findings head(Index layer, Index kv_head, Index turn) const {
    Workers& workers = compute_.workers;
    const DumpShape& shape = dump_.shape();
    Findings found(dump_, options_.window, compute_);
    const auto group = load_head_group<double>(dump_, layer, kv_head);
    const auto zero_of = [&](TokenMetric metric, double epsilon) {
      return rounding_of_zero(group, metric, std::max(options_.window, shape.T - shape.l), epsilon);
    };
    const TokenMetrics judged = token_metrics_cpu<double>(group, token_options_, workers);
    const std::vector<std::vector<Index>> tokens =
        dealt_tokens(shape.l, options_.tokens, largest_tokens(judged, forms_), turn);
    const std::vector<std::vector<double>> sums = brute_force_sums(group, forms_, tokens, workers);
    for (std::size_t f = 0; f < forms_.size(); ++f) {
      const TokenMetric m = forms_[f].metric;
      found.closed.add(layer, kv_head, m, tokens[f], at_tokens(judged[m], tokens[f]), sums[f],
                       zero_of(m, 2.2e-16));
      found.tokens_of_a_form = std::min(found.tokens_of_a_form, std::ssize(tokens[f]));
    }
    if (dump_.has(Tensor::o)) found.replay.add(group);

    std::optional<HeadGroup<float>> single;
    if (in_float32(compute_.precision)) single = load_head_group<float>(dump_, layer, kv_head);
    const HeadGroup<float>* const also = single ? &*single : nullptr;
    const TokenMetric cost = token_options_.metrics.contains(TokenMetric::exact_remove)
                                 ? TokenMetric::exact_remove
                                 : TokenMetric::keydiff;
    found.kept_sets.add(group, also, judged[cost].row(0).transpose());
    found.channels.add(group, also);
    if (single) {
      const TokenMetrics fast = compute_.backend.token_metrics(*single, token_options_, workers);
      for (const TokenMetric m : metrics_)
        found.fast.add(layer, kv_head, m, every_, at_tokens(fast[m], every_), at_tokens(judged[m], every_),
                       zero_of(m, 6e-8));
    }
    found.heads.push_back({layer, kv_head, token_agreements(judged, pairs_, workers)});
    return found;
  }

  VerifyResult result(const Findings& found) const {
    const auto heads = std::ssize(found.heads);
    const Index l = dump_.shape().l;
    const Index sampled = options_.tokens <= 0 ? l : std::min(options_.tokens, l);
    VerifyResult result;
    result.table = {pairs_, found.heads};
    result.checks.push_back(
        forms_.empty()
            ? left_out("closed forms", "the dump holds no queries of the window or the decoding steps")
            : found.closed.check(
                  "closed forms",
                  fmt::format("{} heads x {} tokens{} x {} metrics", heads, sampled,
                              found.tokens_of_a_form < sampled
                                  ? fmt::format(" (at least {} a metric)", found.tokens_of_a_form)
                                  : "",
                              forms_.size())));
    result.checks.push_back(
        in_float32(compute_.precision)
            ? found.fast.check(compute_.backend.name() == "cuda" ? "CUDA backend" : "float32 backend",
                               fmt::format("{} heads x {} tokens x {} metrics", heads, l, metrics_.size()))
            : left_out("float32 backend", "not asked for (--precision f64)"));
    result.checks.push_back(found.kept_sets.check());
    result.checks.push_back(found.channels.check());
    result.checks.push_back(dump_.has(Tensor::o) ? found.replay.check()
                                                 : left_out("replay", "the dump has no o.npy"));
    return result;
  }

 private:
  const Dump& dump_;
  const VerifyOptions& options_;
  Compute compute_;
  TokenOptions token_options_;
  std::vector<TokenMetric> metrics_;
  std::vector<ClosedForm> forms_;
  std::vector<TokenPair> pairs_;
  std::vector<Index> every_;  // of the prompt's positions
};

}  // namespace

bool VerifyResult::ok() const {
  return std::all_of(checks.begin(), checks.end(), [](const Check& check) { return check.ok(); });
}

VerifyResult verify(const Dump& dump, const VerifyOptions& options, const Compute& compute) {
  const Verification verification(dump, options, compute);
  const Index n_kv = dump.shape().n_kv, total = std::ssize(options.layers) * n_kv;
  const auto report = [&](Index done) {
    if (options.on_progress) options.on_progress(done, total);
  };
  std::vector<std::unique_ptr<Findings>> heads(total);
  std::mutex mutex;
  Index done = 0;
  report(done);
  const auto verify_head = [&](Index at) {
    heads[at] = std::make_unique<Findings>(verification.head(options.layers[at / n_kv], at % n_kv, at));
    const std::lock_guard lock(mutex);
    report(++done);
  };
  const std::size_t bytes =
      head_group_bytes(dump.shape(), dump.has(Tensor::wo), sizeof(double) + sizeof(float));
  if (bytes > kLargeHeadGroup)
    for (Index at = 0; at < total; ++at) verify_head(at);
  else
    compute.workers.parallel_for(total, verify_head);
  Findings found(dump, options.window, compute);
  for (const auto& head : heads) found.merge(*head);
  return verification.result(found);
}

}  // namespace kvreplay
