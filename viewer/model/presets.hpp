#pragma once

#include "data/facts_table.hpp"
#include "viewer/model/layout.hpp"

#include <array>
#include <optional>
#include <string_view>

namespace kvreplay::viewer {

/// A question for which panels and settings can be arranged.
enum class Preset { bad_heads, policies, channels, decode };

struct PresetFacts {
  Preset id;
  std::string_view name;
  std::string_view title, hint;  ///< of the action
  PanelKind panel;               ///< the one that answers, which gets the keyboard
  std::string_view layout;       ///< as a session has it; panels that it leaves out go where they belong
};
inline constexpr auto kPresets = facts_table<PresetFacts>({
    {Preset::bad_heads, "bad-heads", "Find bad heads",
     "panels for: which heads does a score misrank, and why", PanelKind::heads,
     R"({"root": {"bar": "vertical", "share": 0.4, "parts": [
         {"bar": "horizontal", "share": 0.72, "parts": [
           {"panels": ["heads"]}, {"panels": ["inspector", "jobs"]}]},
         {"bar": "horizontal", "share": 0.5, "parts": [
           {"panels": ["tokens", "channels"], "front": "tokens"},
           {"panels": ["scatter", "curves", "what-if", "budgets", "decode", "validation"],
            "front": "scatter"}]}]}})"},
    {Preset::policies, "policies", "Compare policies", "panels for: what do two policies keep and cost",
     PanelKind::what_if,
     R"({"root": {"bar": "vertical", "share": 0.44, "parts": [
         {"panels": ["what-if"]},
         {"bar": "horizontal", "share": 0.5, "parts": [
           {"panels": ["tokens", "channels", "heads", "inspector", "jobs"], "front": "tokens"},
           {"panels": ["curves", "scatter", "budgets", "decode", "validation"], "front": "curves"}]}]}})"},
    {Preset::channels, "channels", "Channels", "panels for: which key channels interact, which can go",
     PanelKind::channels,
     R"({"root": {"bar": "vertical", "share": 0.26, "parts": [
         {"bar": "horizontal", "share": 0.6, "parts": [
           {"panels": ["heads"]}, {"panels": ["inspector", "jobs"]}]},
         {"panels": ["channels", "tokens", "scatter", "curves", "what-if", "budgets", "decode",
                     "validation"], "front": "channels"}]}})"},
    {Preset::decode, "decode", "Decoding", "panels for: how errors grow over decoding steps",
     PanelKind::decode,
     R"({"root": {"bar": "vertical", "share": 0.26, "parts": [
         {"bar": "horizontal", "share": 0.6, "parts": [
           {"panels": ["heads"]}, {"panels": ["inspector", "jobs"]}]},
         {"bar": "horizontal", "share": 0.62, "parts": [
           {"panels": ["decode", "budgets", "validation", "channels"], "front": "decode"},
           {"panels": ["tokens", "curves", "scatter", "what-if"], "front": "tokens"}]}]}})"},
});

/// The panels for the question.
Layout layout_for(Preset preset);

}  // namespace kvreplay::viewer
