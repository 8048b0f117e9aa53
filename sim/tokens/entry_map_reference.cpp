#include "sim/attention.hpp"
#include "sim/tokens/entry_map.hpp"

#include <cmath>
#include <limits>

// Every entry from its definition (METRICS.md), in float64.

namespace kvreplay {
namespace {

using Group = HeadGroup<double>;

/// v_p - o_i as sum over the columns m, a sink's among them, of a_im (v_p - v_m): nothing cancels where p
/// holds the row.
Vector<double> value_less_output(const Group& group, Index g, const Vector<double>& z,
                                 const Vector<double>& a, Index p) {
  const Vector<double> v_p = group.v.row(p).transpose();
  Vector<double> difference = Vector<double>::Zero(group.d_v());
  for (Index m = 0; m < a.size(); ++m)
    if (a[m] > 0.0 && m != p) difference += a[m] * (v_p - group.v.row(m).transpose());
  if (group.rule.sink_logit.empty()) return difference;
  Index top = 0;
  a.maxCoeff(&top);
  const double sink = group.rule.sink_logit[g];
  // 1 for a sink so far above all logits that none has any weight
  const double sink_weight = a[top] > 0.0 ? a[top] * std::exp(sink - z[top]) : 1.0;
  return difference + sink_weight * v_p;
}

/// z_raw dz/dz_raw: z itself without a soft cap. d/dx of c tanh(x/c) is 1 / cosh^2(x/c).
double taylor_logit(const AttentionRule& rule, double raw) {
  if (!rule.softcap) return raw;
  const double cosh = std::cosh(raw / *rule.softcap);
  return raw / (cosh * cosh);
}

std::optional<TokenChange> change_of(EntryTerm entry) {
  if (entry == EntryTerm::exact_value) return TokenChange::zero_value;
  if (entry == EntryTerm::exact_key) return TokenChange::zero_key;
  if (entry == EntryTerm::exact_joint) return TokenChange::zero_key_and_value;
  if (entry == EntryTerm::exact_remove) return TokenChange::remove;
  return std::nullopt;
}

}  // namespace

std::vector<double> entries_reference(const Group& group, Index g, Index i, EntryTerm entry,
                                      const std::vector<Index>& tokens) {
  std::vector<double> out(tokens.size(), std::numeric_limits<double>::quiet_NaN());
  const LogitRow logits = attention_logits(group, g, i);
  const Vector<double> a = attention_weights(group, g, logits.z);
  Vector<double> exact;
  if (const auto change = change_of(entry)) exact = brute_force_errors(group, g, i, *change, tokens);
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    const Index p = tokens[t];
    if (p < group.first_visible(i) || p >= group.end_visible(i)) continue;
    const Vector<double> v_p = group.v.row(p).transpose();
    const double z = taylor_logit(group.rule, logits.raw[p]), a_sq = a[p] * a[p];
    switch (entry) {
      case EntryTerm::logit:
        out[t] = logits.z[p];
        break;
      case EntryTerm::attn:
        out[t] = a[p];
        break;
      case EntryTerm::attn_sq:
        out[t] = a_sq;
        break;
      case EntryTerm::value:
        out[t] = a_sq * v_p.squaredNorm();
        break;
      case EntryTerm::key:
        out[t] = a_sq * z * z * value_less_output(group, g, logits.z, a, p).squaredNorm();
        break;
      case EntryTerm::joint:
        out[t] = a_sq * (v_p + z * value_less_output(group, g, logits.z, a, p)).squaredNorm();
        break;
      case EntryTerm::exact_value:
      case EntryTerm::exact_key:
      case EntryTerm::exact_joint:
      case EntryTerm::exact_remove:
        out[t] = exact[static_cast<Index>(t)];
    }
  }
  return out;
}

}  // namespace kvreplay
