#include "analysis/report/claim_tally.hpp"
#include "analysis/results/kept_text.hpp"
#include "sim/compensation/compensation_facts.hpp"

namespace kvreplay::report {
namespace {

struct OfMethod {
  Compensation method;
  const char* text;
};
/// That a method lowers the output error of what is kept as it was.
constexpr OfMethod kLowers[] = {
    {Compensation::mass,
     "Biases that give the kept tokens the whole prompt's mass lower the output error (Attention Matching)"},
    {Compensation::values, "Values fitted by ridge regression lower the output error (GRKV)"},
    {Compensation::fit, "Biases and then values, fitted, lower the output error (Attention Matching)"},
    {Compensation::cam, "Merging evicted values into kept ones lowers the output error (CaM)"},
    {Compensation::d2o,
     "Merging evicted tokens into the kept ones nearest to them lowers the output error (D2O)"},
    {Compensation::kvmerger, "Merging runs of similar keys lowers the output error (KVMerger)"},
    {Compensation::keepkv,
     "Merging that keeps the attention's perturbation at 0 lowers the output error (KeepKV)"},
    {Compensation::merging_press,
     "Merging by the keys' similarity lowers the output error (kvpress' MergingPress)"},
};

using Entry = FigureTable::Entry;

/// The output error of what a method makes of a kept set; `of` is one of the same set and another method.
const Entry* beside(const FigureTable& table, const Entry& of, std::string_view policy, Compensation method) {
  return table.find({{"metric", "output_error"},
                     {"rows", "future"},
                     {"policy", policy},
                     {"semantics", table.key(of, "semantics")},
                     {"phase", table.key(of, "phase")},
                     {"budget", table.key(of, "budget")},
                     {"method", name_of(method)}});
}

/// Layers in which each entry has less of the error than what `other` finds for it.
template <class Other>
Tally tally_of(const FigureTable& table, Compensation method, std::string_view policy, const Other& other) {
  Tally tally;
  for (const Entry& entry : table.entries()) {
    if (!table.matches(entry, {{"metric", "output_error"}, {"rows", "future"}, {"method", name_of(method)}}))
      continue;
    if (!policy.empty() && table.key(entry, "policy") != policy) continue;
    const Entry* const against = other(entry);
    if (against == nullptr) continue;
    for (std::size_t i = 0; i < entry.layers.size(); ++i) tally.compare(entry.layers[i], against->layers[i]);
    tally.texts.push_back(fmt::format("{}, {}: {:.3g} -> {:.3g}", table.key(entry, "policy"),
                                      kept_text(table.key(entry, "budget")), against->model, entry.model));
  }
  return tally;
}

std::string won(const Tally& tally) {
  return fmt::format("; layers x cases won: {}/{}", tally.held, tally.total);
}

}  // namespace

std::vector<Claim> compensation_claims(const Tables& tables) {
  const FigureTable& table = tables.compensation;
  std::vector<Claim> claims;
  for (const OfMethod& one : kLowers) {
    const Tally tally = tally_of(table, one.method, "", [&](const Entry& entry) {
      return beside(table, entry, table.key(entry, "policy"), Compensation::none);
    });
    claims.push_back(decided(one.text, tally,
                             "needs kvreplay evict --compensate none and the method, and decoding steps", "",
                             won(tally)));
  }
  const Tally tally = tally_of(table, Compensation::fit, "greedy_leverage", [&](const Entry& entry) {
    return beside(table, entry, "greedy_exact", Compensation::fit);
  });
  claims.push_back(decided(
      "Evicting what fitted values make up for best loses less, once they are fitted, than an exact search "
      "of the window with the same fit",
      tally,
      "needs kvreplay evict --policy greedy_leverage,greedy_exact --compensate fit, and decoding steps",
      "greedy_exact -> ", won(tally)));
  return claims;
}

}  // namespace kvreplay::report
