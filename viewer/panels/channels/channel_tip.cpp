#include "viewer/panels/channels/channel_tip.hpp"

#include "viewer/widgets/controls.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace kvreplay::viewer {

void draw_channel_tip(const Run& run, const ChannelAnswers& answers, std::size_t part, ChannelPair at,
                      const ChannelSet* pruned, const std::string& method) {
  const Index first = at.first, second = at.second;
  const ChannelScores& scores = answers.head->parts[part].basis.scores;
  const std::optional<Rope> rope =
      run.dump() != nullptr ? run.dump()->rope(answers.layer) : std::optional<Rope>();
  ImGui::BeginTooltip();
  const auto channel = [&](const char* name, Index c) {
    const auto n = static_cast<std::size_t>(c);
    std::string text = fmt::format("{}", c);
    if (scores.key_sq.size() > c)
      text += fmt::format("   \xE2\x80\x96k\xE2\x80\x96 {}", number_text(std::sqrt(scores.key_sq[c])));
    figure(name, text);
    if (n < scores.rope_partner.size()) {
      const Index other = scores.rope_partner[n];
      std::string turns = other < 0 ? "not rotated" : fmt::format("rotates with {}", other);
      if (other >= 0 && rope) {
        const bool half = rope->style == Rope::Style::half;
        const auto pair = static_cast<std::size_t>(half ? std::min(c, other) : std::min(c, other) / 2);
        if (pair < rope->inv_freq.size())
          turns += fmt::format(", {} rad a position", number_text(rope->inv_freq[pair]));
      }
      dim_text(turns);
    }
    if (pruned != nullptr && (*pruned)[n] != 0) dim_text(fmt::format("pruned by {}", method));
  };
  channel("c", first);
  if (second != first) channel("e", second);
  ImGui::Separator();
  const auto pair = [&](const char* name, const Matrix<double>& matrix) {
    figure(fmt::format("{}_ce", name).c_str(), number_text(matrix(first, second)));
    if (first == second) return;
    ImGui::SameLine();
    const double scale = std::sqrt(matrix(first, first)) * std::sqrt(matrix(second, second));
    figure("normalised", number_text(matrix(first, second) / scale));
  };
  pair("H", scores.logits);
  if (answers.outputs != nullptr)
    pair("M", answers.outputs->outputs[std::min(part, answers.outputs->outputs.size() - 1)]);
  ImGui::EndTooltip();
}

}  // namespace kvreplay::viewer
