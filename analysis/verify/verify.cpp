#include "analysis/verify/verify.hpp"

#include "analysis/results/agreement.hpp"
#include "analysis/verify/check.hpp"
#include "sim/attention.hpp"
#include "sim/backend.hpp"
#include "sim/cache/cache.hpp"
#include "sim/cache/cache_outputs.hpp"
#include "sim/channels/channel_basis.hpp"
#include "sim/channels/channel_interaction.hpp"
#include "sim/head_group.hpp"
#include "sim/schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay {
namespace {

/// Inputs of the check of channels: sets of channels, keys of the output-space matrix, and caches.
struct ChannelCase {
  std::vector<ChannelSet> pruned;  ///< from the keys of `prunable`
  KeptSet prunable;
  RowRange rows;      ///< of the output-space matrix
  PrunableKeys keys;  ///< of the same
  std::vector<Cache<double>> caches;
};

/// Expected results, by the definitions: the errors of the logits, the matrix, and the changes by row set.
struct ExpectedOfChannels {
  std::vector<double> errors;
  Matrix<double> interaction;
  std::vector<std::pair<RowRange, std::vector<OutputChangeReference>>> changes;
};

/// Half of the channels by ThinK, seven in ten by IAP.
std::vector<ChannelSet> pruned_sets(const ChannelBasis& basis, Index d) {
  const auto selected = [&](const char* name, Index count) {
    const ChannelRule rule = *channel_rule_named(name);
    return select_channels(rule, basis.scores, channel_order(rule, basis.scores), count).pruned;
  };
  return {selected("think", d / 2), selected("iap", 7 * d / 10)};
}

/// Two caches: one with all tokens and fewer channels; one with every other token, fewer channels and four
/// bits.
template <class T>
std::vector<Cache<T>> compressed_caches(const HeadGroup<T>& group, const ChannelBasis& basis,
                                        const std::vector<ChannelSet>& pruned, Index recent) {
  const KeptSet all(static_cast<std::size_t>(group.l), 1);
  KeptSet alternate = all;
  for (std::size_t p = 1; p < alternate.size(); p += 2) alternate[p] = 0;
  return {compressed_cache(group, {all, pruned[0], basis.keys.prunable}),
          compressed_cache(group, {alternate, pruned[1], without_recent(alternate, recent),
                                   Quantization::kivi(4, 32, 16)})};
}

constexpr Index kVerifiedKeys = 128;  // of the output-space matrix: its definition takes T d_v for each

/// At most kVerifiedKeys of the prunable keys.
PrunableKeys sampled_keys(PrunableKeys keys) {
  const std::vector<Index> prunable = positions(keys.prunable);
  keys.prunable.assign(keys.prunable.size(), 0);
  if (!prunable.empty())
    for (const Index at : sampled_tokens(std::ssize(prunable), kVerifiedKeys, {}))
      keys.prunable[prunable[at]] = 1;
  return keys;
}

/// Pruned key channels against brute force: the error of the logits by H against both products, the
/// output-space matrix of the last two window rows and of 128 keys (evenly spread, where there are more)
/// against its definition, and the outputs over two compressed caches (half of the channels; every other
/// token, more channels gone, four bits) against attention over what they hold. The channels and caches are
/// what float32, where it is judged, would choose and hold: both types are judged on the same. Deviations are
/// relative to the sum of |H| over the set, the matrix' largest entry, and the full outputs' norm. What is
/// judged in float32 is the backend's, but for the caches, which are the CPU's.
class ChannelCheck : public OutputCheck {
 public:
  ChannelCheck(const Dump& dump, Index window, const Compute& compute)
      : OutputCheck(dump, window, compute),
        window_asked_(std::min(window, kVerifiedRows)),
        recent_(std::min(default_recent(Semantics::paper), dump.shape().l / 2)) {}

  void add(const HeadGroup<double>& group, const HeadGroup<float>* single) {
    if (window_.count() == 0) return;
    const ChannelBasis wide = basis(group), narrow = single != nullptr ? basis(*single) : wide;
    ChannelCase judged_on;
    judged_on.pruned = pruned_sets(narrow, group.d());
    judged_on.prunable = wide.keys.prunable;
    judged_on.rows = {std::max(window_.begin, window_.end - 2), window_.end};
    judged_on.keys = sampled_keys(wide.keys);
    std::vector<Cache<float>> narrow_caches;
    if (single != nullptr) {
      narrow_caches = compressed_caches(*single, narrow, judged_on.pruned, recent_);
      for (const Cache<float>& cache : narrow_caches) judged_on.caches.push_back(converted<double>(cache));
    } else {
      judged_on.caches = compressed_caches(group, wide, judged_on.pruned, recent_);
    }
    const ExpectedOfChannels want = expected(group, judged_on);
    compare(group, wide, judged_on, judged_on.caches, want, kOutputTolerance, f64_, f64_);
    if (single != nullptr)
      compare(*single, narrow, judged_on, narrow_caches, want, kFloat32OutputTolerance,
              compute_.backend.name() == "cpu" ? f32_ : on_device_, f32_);
    count_head();
  }
  Check check() const {
    return OutputCheck::check("channels, caches", "2 caches", "the norm",
                              "the dump holds no queries of the prompt");
  }

 private:
  template <class T>
  ChannelBasis basis(const HeadGroup<T>& group) const {
    return channel_basis(group, KeptSet(static_cast<std::size_t>(group.l), 1),
                         {Semantics::paper, recent_, window_asked_, std::nullopt}, false, compute_);
  }
  ExpectedOfChannels expected(const HeadGroup<double>& group, const ChannelCase& judged_on) const {
    ExpectedOfChannels result;
    result.errors.resize(judged_on.pruned.size());
    std::vector<Matrix<double>> of_rows(judged_on.rows.count());
    const std::vector<Index> prunable = positions(judged_on.prunable);
    compute_.workers.parallel_for(std::ssize(of_rows) + std::ssize(result.errors), [&](Index item) {
      if (const Index n = item - std::ssize(of_rows); n >= 0) {
        result.errors[n] = reconstruction_error_reference(group, prunable, window_, judged_on.pruned[n]);
      } else {
        const Index i = judged_on.rows.begin + item;
        of_rows[item] = output_interaction_reference(group, {i, i + 1}, judged_on.keys);
      }
    });
    result.interaction = Matrix<double>::Zero(group.d(), group.d());
    for (const Matrix<double>& of_row : of_rows) result.interaction += of_row;
    for (const RowRange rows : {window_, future_})
      if (rows.count() > 0)
        result.changes.emplace_back(rows, references_in_parallel(rows, compute_.workers, [&](RowRange some) {
                                      return output_change_references(group, some, judged_on.caches);
                                    }));
    return result;
  }
  template <class T>
  void compare(const HeadGroup<T>& group, const ChannelBasis& basis, const ChannelCase& judged_on,
               const std::vector<Cache<T>>& caches, const ExpectedOfChannels& expected, double tolerance,
               Judged& matrices, Judged& outputs) {
    const auto judge_part = [&](const char* what, double deviation, Judged& judged) {
      judge(fmt::format("channels: layer {} KV head {}: {} {:.2g} off", group.layer, group.kv_head, what,
                        deviation),
            deviation, tolerance, judged);
    };
    for (std::size_t n = 0; n < judged_on.pruned.size(); ++n) {
      const ChannelSet& set = judged_on.pruned[n];
      const double away = std::abs(subset_error(basis.window, set) - expected.errors[n]);
      judge_part("error of the logits", share_of(away, subset_error(basis.window.cwiseAbs(), set)), matrices);
    }
    const Matrix<double> found =
        compute_.backend.output_interaction(group, judged_on.rows, judged_on.keys, compute_.workers);
    judge_part("the output-space matrix",
               share_of((found - expected.interaction).cwiseAbs().maxCoeff(),
                        expected.interaction.cwiseAbs().maxCoeff()),
               matrices);
    for (const auto& [rows, changes] : expected.changes) {
      const CacheOutputs<T> compressed(group, rows, compute_.workers);
      for (std::size_t n = 0; n < caches.size(); ++n)
        judge_part("outputs over a compressed cache",
                   share_of(panel_distance(compressed.change(caches[n], true).vectors, changes[n].change),
                            std::sqrt(changes[n].full_sq)),
                   outputs);
    }
  }

  Index window_asked_, recent_;
};

constexpr Index kRows = 128;

/// Relative L2 error allowed between a replayed output and o.npy of this type: what rounding o, and the
/// model's own arithmetic in that type, explains.
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

/// The attention output of rows that are spread evenly, recomputed for every query head, against the one that
/// the model left in the dump.
class ReplayCheck {
 public:
  ReplayCheck(const Dump& dump, Workers& workers) : dump_(dump), workers_(workers) {
    const Index n = std::min(kRows, dump.shape().T_q);
    for (Index r = 0; r < n; ++r) rows_.push_back(n == 1 ? 0 : r * (dump.shape().T_q - 1) / (n - 1));
  }

  /// Only where the dump has o.
  void add(const HeadGroup<double>& group) {
    const DumpShape& shape = dump_.shape();
    Matrix<double> stored(shape.T_q, shape.d_v);
    const Dtype dtype = dtype_of_output(group.layer);
    dtypes_.insert(dtype);
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
      worst_ = worse(worst_, relative);
      if (!(relative <= replay_tolerance(dtype)))
        failures_.push_back(
            fmt::format("replay: layer {} query head {}: relative L2 {:.2g} from o.npy ({}), tolerance {:g}",
                        group.layer, head, worse(0, relative), name_of(dtype), replay_tolerance(dtype)));
    }
    heads_ += group.G();
  }
  /// Adds the results of other heads, behind these.
  void merge(const ReplayCheck& later) {
    dtypes_.insert(later.dtypes_.begin(), later.dtypes_.end());
    heads_ += later.heads_;
    worst_ = worse(worst_, later.worst_);
    failures_.insert(failures_.end(), later.failures_.begin(), later.failures_.end());
  }
  Check check() const {
    Check check{.name = "replay", .failures = failures_};
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

/// Bound of a metric's rounding error where its exact value is 0 and outputs and values are rounded to
/// `epsilon`. If all values are equal, no token's removal changes anything, and rounding is all that there is
/// to compare.
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

/// Results of some heads.
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

/// All checks, applied to one head group at a time.
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

  /// Checks the head group with the number `turn`.
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
    found.heads.push_back(
        {layer, kv_head, token_agreements(judged, pairs_, workers, {}, group.first_held())});
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
  return std::ranges::all_of(checks, [](const Check& check) { return check.ok(); });
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
  const std::size_t bytes = head_group_bytes(dump, sizeof(double) + sizeof(float));
  if (bytes > kLargeHeadGroup)
    for (Index at = 0; at < total; ++at) verify_head(at);
  else
    compute.workers.parallel_for(total, verify_head);
  Findings found(dump, options.window, compute);
  for (const auto& head : heads) found.merge(*head);
  return verification.result(found);
}

}  // namespace kvreplay
