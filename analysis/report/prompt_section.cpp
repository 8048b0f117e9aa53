#include "analysis/report/prompt_text.hpp"
#include "analysis/report/sections.hpp"
#include "analysis/report/text.hpp"
#include "analysis/results/csv.hpp"
#include "analysis/results/figures.hpp"
#include "analysis/results/kept_text.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace kvreplay::report {
namespace {

constexpr const char* kNothing = "nothing";
/// Room on a printed page in two columns: lines, and characters a line.
constexpr Index kPrintedLines = 84, kPrintedWidth = 66;

/// CSS class for the share of heads that evict a token: none, up to a quarter, a half, three quarters, all.
std::string strike_class(Index kept, Index heads) {
  const Index evicted = heads - kept;
  return evicted == 0 ? "" : fmt::format("e{}", (4 * evicted + heads - 1) / heads);
}

std::string span(const std::string& text, const std::string& tint, const std::string& strike) {
  const std::string both = tint + (tint.empty() || strike.empty() ? "" : " ") + strike;
  return both.empty() ? fmt::format("<span>{}</span>", escaped(text))
                      : fmt::format("<span class=\"{}\">{}</span>", both, escaped(text));
}

std::string tint_class(Index tint) { return tint == 0 ? "" : fmt::format("t{}", tint); }

std::string text_html(const PromptText& text) {
  std::vector<std::string> texts;
  for (const Index token : text.shown)
    texts.push_back(flowing_text(text.text[static_cast<std::size_t>(token)]));
  const std::size_t printed = fitting(texts, kPrintedLines, kPrintedWidth);
  std::string html;
  for (std::size_t i = 0; i < text.shown.size(); ++i) {
    const Index token = text.shown[i], before = i == 0 ? -1 : text.shown[i - 1];
    if (i == printed)
      html += fmt::format("<b class=\"printed\">... {} more tokens on the page itself</b><i>",
                          text.shown.size() - i);
    if (token > before + 1) html += fmt::format("<b>... {} tokens ...</b>", token - before - 1);
    const Index tint =
        text.metrics.empty()
            ? 0
            : tint_of_level(static_cast<Index>(kBase64Digits.find(text.metrics.front().levels.front()[i])));
    html += span(texts[i], tint_class(tint),
                 text.policies.empty() ? "" : strike_class(text.policies.front().kept[i], text.kept_heads));
  }
  return html + (printed < text.shown.size() ? "</i>" : "");
}

/// Legend of the text: its tints and strikes.
std::string key_html(const PromptText& text) {
  std::string html;
  if (!text.metrics.empty()) {
    std::array<std::pair<Index, Index>, 8> ranks{};
    const auto of_levels = ranks_of_levels(text.tokens);
    for (std::size_t level = 64; level-- > 1;) {
      const auto& [first, last] = of_levels[level];
      if (first == 0) continue;
      auto& of_tint = ranks[static_cast<std::size_t>(tint_of_level(static_cast<Index>(level)))];
      if (of_tint.first == 0) of_tint.first = first;
      of_tint.second = last;
    }
    html += "<p class=\"key\">rank";
    for (std::size_t tint = 8; tint-- > 1;)
      if (const auto& [first, last] = ranks[tint]; first != 0)
        html += " " + span(first == last ? fmt::format("{}", first) : fmt::format("{}-{}", first, last),
                           tint_class(static_cast<Index>(tint)), "");
    html += "</p>";
  }
  if (!text.policies.empty()) {
    html += "<p class=\"key\">evicted by";
    for (const auto& [part, strike] :
         {std::pair{"a quarter", "e1"}, {"half", "e2"}, {"3/4", "e3"}, {"all", "e4"}})
      html += " " + span(part, "", strike);
    html += fmt::format(" of {} heads</p>", text.kept_heads);
  }
  return html;
}

std::string counts_of(const TextPolicy& policy) {
  std::vector<std::uint8_t> bytes;
  for (const std::uint16_t kept : policy.kept)
    bytes.insert(bytes.end(), {static_cast<std::uint8_t>(kept), static_cast<std::uint8_t>(kept >> 8)});
  return base64(bytes);
}

std::string json_of(const PromptText& text) {
  std::vector<std::pair<Index, Index>> passages;
  for (const Index token : text.shown) {
    if (passages.empty() || passages.back().second != token) passages.emplace_back(token, token);
    ++passages.back().second;
  }
  const auto pair = [](const std::pair<Index, Index>& one) {
    return fmt::format("[{},{}]", one.first, one.second);
  };
  const std::string scopes = json_list(
      text.scopes, [](const TextScope& scope) { return fmt::format("[{},{}]", scope.from, scope.to); });
  const std::string metrics = json_list(text.metrics, [](const TextMetric& metric) {
    return fmt::format("{{\"name\":{},\"values\":\"{}\",\"levels\":{}}}", json_string(metric.name),
                       base64_floats(metric.values), json_list(metric.levels, json_string));
  });
  const std::string policies = json_list(text.policies, [](const TextPolicy& policy) {
    return fmt::format("{{\"name\":{},\"option\":{},\"kept\":\"{}\",\"heads\":{}}}", json_string(policy.name),
                       json_string(named_policy(policy.name)), counts_of(policy),
                       json_list(policy.heads, json_string));
  });
  return fmt::format(
      "{{\"tokens\":{},\"heads\":{},\"passages\":{},\"ranks\":{},\"scopes\":{},\"metrics\":{},"
      "\"policies\":{}}}",
      text.tokens, text.kept_heads, json_list(passages, pair), json_list(ranks_of_levels(text.tokens), pair),
      scopes, metrics, policies);
}

/// A row a token shown: sums over all heads, and how many of them keep it.
std::string csv_of(const PromptText& text) {
  std::vector<std::string> columns{"token", "text"};
  for (const TextMetric& metric : text.metrics) columns.push_back(metric.name);
  for (const TextPolicy& policy : text.policies) columns.push_back("kept by " + policy.name);
  CsvTable csv(joined(columns));
  for (std::size_t i = 0; i < text.shown.size(); ++i) {
    csv.add(text.shown[i]).add(text.text[static_cast<std::size_t>(text.shown[i])]);
    for (const TextMetric& metric : text.metrics) csv.add(metric.values[i]);
    for (const TextPolicy& policy : text.policies) csv.add(policy.kept[i]);
    csv.end_row();
  }
  return csv.take();
}

std::vector<Pick> picks_of(const PromptText& text) {
  Pick heads{"head", {}}, metrics{"tinted by", {}}, a{"A, evicted by", {}}, b{"B, evicted by", {}};
  for (const TextScope& scope : text.scopes) heads.options.push_back(scope.name);
  for (const TextMetric& metric : text.metrics) metrics.options.push_back(named_metric(metric.name));
  for (const TextPolicy& policy : text.policies) a.options.push_back(named_policy(policy.name));
  for (Pick* const pick : {&metrics, &a}) pick->options.emplace_back(kNothing);
  b.options = a.options;
  if (text.policies.size() > 1) std::swap(b.options[0], b.options[1]);
  if (text.policies.empty()) return {heads, metrics};
  return {heads, metrics, a, b, {"struck through", {"A", "B"}}};
}

/// Note on the parts of the prompt that the page has no room for.
std::string note_of(const PromptText& text) {
  std::string note;
  if (std::ssize(text.shown) < text.tokens)
    note = fmt::format(
        "{} of {} tokens stand here: the first and the last {}, and the passages of {} that hold the tokens "
        "of "
        "highest rank{}; the folder has all of them.",
        text.shown.size(), text.tokens, kPassage, kPassage,
        text.metrics.empty() ? "" : fmt::format(" by {}", text.metrics.front().name));
  const auto has_heads = [](const TextPolicy& one) { return !one.heads.empty(); };
  const auto policies = std::ranges::count_if(text.policies, has_heads);
  std::vector<std::string_view> metrics;
  for (const TextMetric& one : text.metrics)
    if (one.levels.size() > 1) metrics.push_back(one.name);
  if (metrics.size() < text.metrics.size() || policies < std::ssize(text.policies))
    note += fmt::format(
        "{}Of single heads the page has room for {} of {} metrics{} and {} of {} policies; the others are "
        "over "
        "all heads.",
        note.empty() ? "" : " ", metrics.size(), text.metrics.size(),
        metrics.empty() || metrics.size() == text.metrics.size()
            ? ""
            : fmt::format(" ({})", fmt::join(metrics, ", ")),
        policies, text.policies.size());
  return note;
}

}  // namespace

std::optional<Section> prompt_section(const Tables& tables) {
  const PromptText text = prompt_text(tables);
  if (text.metrics.empty() && text.policies.empty()) return std::nullopt;
  Figure figure;
  figure.name = "text";
  figure.heading = "What of the prompt is lost, and what does it cost?";
  figure.reading = "The prompt as the model read it, in one head or all of them summed.";
  if (!text.metrics.empty())
    figure.reading += " The stronger the tint, the higher a token's rank by the metric.";
  if (!text.policies.empty())
    figure.reading += fmt::format(
        " Struck through is what a policy evicts ({}, phase {}, semantics {}); the stronger the line, the "
        "more heads evict it.",
        kept_text(text.budget), text.phase, text.semantics);
  figure.reading += " A click on a token marks it in every figure of tokens.";
  figure.note = note_of(text);
  figure.body = fmt::format(
      "{}<div class=\"prompt\" data-kind=\"text\" tabindex=\"0\" role=\"group\" "
      "aria-label=\"The prompt\">{}</div><p class=\"said\" hidden=\"\"></p>"
      "<script type=\"application/json\">{}</script>{}",
      picks_html(picks_of(text)), text_html(text), script_safe(json_of(text)), key_html(text));
  figure.files = {csv_file(figure.name, csv_of(text))};
  Section section{"prompt", "The prompt", "", {}, ""};
  section.figures.push_back(std::move(figure));
  return section;
}

}  // namespace kvreplay::report
