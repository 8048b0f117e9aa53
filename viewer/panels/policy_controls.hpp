#pragma once

#include "analysis/eviction/eviction_options.hpp"
#include "analysis/options/option.hpp"
#include "data/facts_table.hpp"
#include "sim/eviction/policy.hpp"
#include "viewer/questions/policy_settings.hpp"
#include "viewer/widgets/controls.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

// Pieces of controls for policies, as wide as their cell.

namespace kvreplay::viewer {

/// A combo box that shows `now`: the number of the choice that was made, or nothing.
std::optional<std::size_t> combo(const char* id, const std::string& now, const std::vector<Choice>& choices);
/// A combo box of everything in a table of facts; true where the choice changed.
template <class Facts, std::size_t N>
bool combo(const char* id, const FactsTable<Facts, N>& table, decltype(Facts::id)& chosen) {
  const auto at = combo(id, std::string(table[chosen].name), choices_of(table));
  if (!at) return false;
  chosen = table.all()[*at];
  return true;
}
/// An option's whole number, from its least to `most`, that may be left out; `own` is shown in its place
/// then. True where it changed.
bool edit_optional(const OptionFacts& option, std::optional<Index>& value, const std::string& own,
                   Index most);

// Settings that most people leave alone: behind a button, which names those that were changed.

/// The button, beside the last control where there is room. While its popup is open: true, with a table of
/// names and controls begun; end_settings() ends it. `changed` is what the button says, "recent 16, sinks 4";
/// empty: that nothing was changed.
bool settings_button(const std::string& changed);
/// Begins the row of an option; the control that follows is as wide as its cell.
void settings_row(const OptionFacts& option);
void end_settings();

/// A slider over the share that is kept, in percent and steps of a tenth of one; `sigma` is the rest. `flags`
/// are ImGuiSliderFlags.
void edit_kept_share(double& sigma, const char* format, int flags = 0);

/// A slider over what `budget` counts in, share or tokens, of a prompt of l tokens; true where it changed.
bool edit_kept(KeptBudget& budget, Index l, const char* share_format = "%.1f %%", int flags = 0);
/// Counts in the other, at what is kept now.
void count_otherwise(KeptBudget& budget, Index l, Semantics semantics);

/// While it lives, what is edited is the queue's budget where it is linked: it begins as that, and what
/// became of it is the queue's from then on.
class LinkedBudget {
 public:
  LinkedBudget(KeptBudget& queue, KeptBudget& edited, bool linked)
      : queue_(queue), edited_(edited), before_(queue), linked_(linked) {
    if (linked_) edited_ = queue_;
  }
  ~LinkedBudget() {
    if (linked_ && !(edited_ == before_)) queue_ = edited_;
  }
  LinkedBudget(const LinkedBudget&) = delete;
  LinkedBudget& operator=(const LinkedBudget&) = delete;

 private:
  KeptBudget &queue_, &edited_;
  KeptBudget before_;
  bool linked_;
};
/// A chain, closed while a setting goes with the queue's budget and window; link_width() pixels wide.
void link_toggle(bool& linked);
float link_width();

/// A row's control for pooling, or the policy's own, which `own` names.
void edit_pooling(std::optional<Pooling>& pool, const std::string& own);

}  // namespace kvreplay::viewer
