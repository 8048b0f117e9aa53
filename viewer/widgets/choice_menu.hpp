#pragma once

#include "data/facts_table.hpp"
#include "viewer/model/choice.hpp"

#include <functional>
#include <imgui.h>
#include <optional>
#include <span>
#include <string>
#include <vector>

// The one way in which menus of names look: what it is in plain words, then its name, under headings; long
// ones with a field that takes the keyboard and leaves what matches.

namespace kvreplay::viewer {

/// The entries, in a popup or combo that is open: the number of the one that was chosen, or nothing. `now` is
/// the name that is marked. `tree`, where there is one, draws them as menus within menus while nothing is
/// typed; what is chosen there is its own affair.
std::optional<std::size_t> choice_list(std::span<const Choice> choices, const std::string& now,
                                       const std::function<void()>& tree = {});

/// A combo box that shows `now`, as wide as the next item.
std::optional<std::size_t> choice_combo(const char* id, const std::string& now,
                                        std::span<const Choice> choices, ImGuiComboFlags flags = 0);

/// Everything in a table of facts, with as much as it says of each.
template <class Facts, std::size_t N>
std::vector<Choice> choices_of(const FactsTable<Facts, N>& table) {
  std::vector<Choice> choices;
  for (const Facts& one : table) {
    Choice choice{.name = std::string(one.name)};
    if constexpr (requires { one.plain; }) choice.plain = one.plain;
    if constexpr (requires { one.meaning; }) choice.tip = one.meaning;
    choices.push_back(std::move(choice));
  }
  return choices;
}

/// "attention paid to it, summed\nattn: Attention that the window pays ..": for tooltips.
std::string about(const Choice& choice);

}  // namespace kvreplay::viewer
