#include "analysis/eviction/compensation_plan.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kvreplay {
namespace {

using namespace evict_option;

void require_compensable(const EvictionOptions& options) {
  const auto refuse = [](const OptionFacts& other, const std::string& why) {
    throw OptionError(option_text("{} and {}: {}", compensate, other, why));
  };
  for (const Phase& one : options.phases)
    if (one.decodes())
      throw OptionError(option_text("{}", compensate),
                        "phases that end with the prompt (prefill, blockwise:N)", one.name());
  if (options.per_query_head) refuse(per_query_head, "what is fitted serves all query heads of a KV head");
  if (options.channels) refuse(channels, "one or the other");
  if (options.bits) refuse(bits, "one or the other");
}

/// The rows asked for; where nobody says, those that the dump has.
Reference reference_of(const Dump& dump, const EvictionOptions& options) {
  if (!options.reference)
    return why_no_reference(dump, Reference::shifted) ? Reference::window : Reference::shifted;
  if (const auto why = why_no_reference(dump, *options.reference))
    throw OptionError(option_text("{}: {} is unavailable: {}", reference, name_of(*options.reference), *why));
  return *options.reference;
}

}  // namespace

bool CompensationPlan::fits() const {
  return std::any_of(cases.begin(), cases.end(),
                     [](const CompensationCase& which) { return kCompensations[which.method].fits(); });
}

bool CompensationPlan::merges() const {
  return std::any_of(cases.begin(), cases.end(), [](const CompensationCase& which) {
    return kCompensations[which.method].merging.has_value();
  });
}

CompensationPlan compensation_plan(const Dump& dump, const EvictionOptions& options,
                                   const EvictionPlan& evictions) {
  CompensationPlan plan;
  if (options.compensate.empty()) return plan;
  require_compensable(options);
  const bool fits = std::any_of(options.compensate.begin(), options.compensate.end(),
                                [](Compensation method) { return kCompensations[method].fits(); });
  plan.reference = {reference_of(dump, options), evictions.window_asked, options.reference_rows};
  if (const auto why = why_no_reference(dump, plan.reference.kind); fits && why)
    throw OptionError(option_text("{}: a fit is unavailable: {}", compensate, *why));
  for (const Compensation method : options.compensate)
    if (const auto merging = kCompensations[method].merging;
        merging && kMergings[*merging].needs_attention && evictions.window.count() == 0)
      throw OptionError(option_text("{}: {} is unavailable: the dump holds no query of the prompt",
                                    compensate, name_of(method)));
  plan.window = evictions.window;
  plan.future = evictions.future;
  plan.losses = evictions.losses;
  plan.elements = evictions.elements;
  std::vector<Compensation> methods;
  for (const Compensation method : options.compensate)
    if (std::find(methods.begin(), methods.end(), method) == methods.end()) methods.push_back(method);
  for (std::size_t e = 0; e < evictions.cases.size(); ++e)
    for (const Compensation method : methods) {
      const Index most = evictions.cases[e].kept.value_or(evictions.l);
      if (kCompensations[method].fits() && most > kMostFitted && most < evictions.l)
        plan.left_out.push_back({file_name(evictions, {e, method}),
                                 fmt::format("more than {} tokens are not fitted", kMostFitted)});
      else {
        if (plan.cases.empty() || plan.cases.back().eviction != e) plan.first.push_back(plan.cases.size());
        plan.cases.push_back({e, method});
      }
    }
  const DumpShape& shape = dump.shape();
  const Reference kind = plan.reference.kind;
  const Index there = kind == Reference::shifted  ? shape.l - shape.first_query()
                      : kind == Reference::repeat ? shape.R_ref
                                                  : Index{0};
  if (fits && there > plan.reference.most)
    plan.notes.push_back(option_text("fits look at {} of the {}'s {} queries ({})", plan.reference.most,
                                     kind == Reference::repeat ? "second reading" : "prompt", there,
                                     reference_positions));
  else if (fits && kind == Reference::shifted && there < shape.l)
    plan.notes.push_back(fmt::format(
        "fits look at {} queries: the dump holds those of {} of {} prompt positions", there, there, shape.l));
  else if (fits && !options.reference && kind == Reference::window)
    plan.notes.push_back(fmt::format("fits look at the last {} queries of the prompt, which are not {}: {}",
                                     std::min(plan.reference.window, shape.l - shape.first_query()),
                                     name_of(Reference::shifted),
                                     *why_no_reference(dump, Reference::shifted)));
  return plan;
}

std::string file_name(const EvictionPlan& evictions, const CompensationCase& which) {
  return fmt::format("{}-{}", evictions.cases[which.eviction].file_name(), name_of(which.method));
}

}  // namespace kvreplay
