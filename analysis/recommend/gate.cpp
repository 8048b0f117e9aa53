#include "analysis/recommend/recommend.hpp"
#include "data/number_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace kvreplay::recommend {
namespace {

using Figures = std::vector<const ModelFigures*>;  // of every prompt

/// Names by which --check finds a lever: as in evictions.csv, and by its format alone.
bool is_named(const Lever& lever, const std::string& name) {
  const std::string budget = lever.budget.empty() ? "" : "@" + lever.budget;
  return name == lever.policy + budget || (lever.keeps_all() && name == lever.format);
}

std::pair<std::string, Figures> case_named(const MeasuredLevers& measured, const std::string& name) {
  Figures figures;
  for (std::size_t n = 0; n < measured.levers.size(); ++n)
    if (is_named(measured.levers[n], name)) {
      for (const MeasuredPrompt& prompt : measured.prompts) figures.push_back(&prompt.everywhere[n]);
      return {measured.levers[n].text(), figures};
    }
  for (const OtherCase& other : measured.others)
    if (other.text == name) {
      for (const ModelFigures& one : other.of_prompts) figures.push_back(&one);
      return {(other.recipe ? "recipe " : "") + other.text, figures};
    }
  std::vector<std::string> names;
  for (const Lever& lever : measured.levers)
    names.push_back(lever.keeps_all()      ? lever.format
                    : lever.budget.empty() ? lever.policy
                                           : lever.policy + "@" + lever.budget);
  for (const OtherCase& other : measured.others) names.push_back(other.text);
  throw OptionError(recommend_option::check, names_text(names, Listed::some), fmt::format("'{}'", name));
}

void judge(GatedPrompt& prompt, const GateOptions& options) {
  std::vector<std::string> failures;
  // A loss that is not known does not pass.
  if (options.fail_above && !(prompt.loss <= *options.fail_above))
    failures.push_back(
        fmt::format("{} above {}", short_number(prompt.loss), short_number(*options.fail_above)));
  if (options.fail_flips && !(prompt.flips <= *options.fail_flips))
    failures.push_back(fmt::format("{} of the likeliest tokens change, above {}", percent(prompt.flips),
                                   percent(*options.fail_flips)));
  prompt.failure = fmt::format("{}", fmt::join(failures, "; "));
}

std::string escaped_xml(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
    }
  }
  return out;
}

}  // namespace

bool Gate::passes() const {
  return std::ranges::all_of(prompts, [](const GatedPrompt& prompt) { return prompt.failure.empty(); });
}

Gate gate_of_case(const MeasuredLevers& measured, const GateOptions& options) {
  const std::pair<std::string, Figures> found = case_named(measured, options.check);
  const auto& [text, figures] = found;
  struct Kind {
    const char* unit;
    double ModelFigures::*figure;
    double ModelFigures::*same_top1 = &ModelFigures::same_top1;
  };
  constexpr Kind kKinds[] = {
      {"nats, true KL of a written cache", &ModelFigures::written, &ModelFigures::written_same_top1},
      {"nats, true KL", &ModelFigures::kl},
      {"predicted nats", &ModelFigures::nats},
      {"output error", &ModelFigures::output_error}};
  const Kind* const kind = std::ranges::find_if(kKinds, [&](const Kind& one) {
    return &one == std::end(kKinds) - 1 || std::ranges::all_of(found.second, [&](const ModelFigures* of) {
      return std::isfinite(of->*one.figure);
    });
  });
  Gate gate{text, kind->unit, {}};
  for (std::size_t p = 0; p < figures.size(); ++p) {
    GatedPrompt& prompt = gate.prompts.emplace_back();
    prompt = {measured.prompts[p].name, figures[p]->*kind->figure, 1 - figures[p]->*kind->same_top1, ""};
    if (options.fail_flips && std::isnan(prompt.flips))
      throw OptionError(recommend_option::fail_flips, "a case that kvvalidate.py measured",
                        "none of " + text);
    judge(prompt, options);
  }
  return gate;
}

Gate gate_of_choice(const MeasuredLevers& measured, const Recommendation& of, const GateOptions& options) {
  Gate gate{fmt::format("within {}: {}", of.memory.text, way_text(of.winner().use, of.winner().where)),
            measured.written   ? "nats, true KL of a written cache, of each prompt if the others choose"
            : measured.in_nats ? "predicted nats of each prompt if the others choose"
                               : "output error of each prompt if the others choose",
            {}};
  for (std::size_t p = 0; p < measured.prompts.size(); ++p) {
    const std::vector<double>& held_out = of.winner().held_out;
    gate.prompts.push_back(
        {measured.prompts[p].name, held_out.empty() ? of.winner().chosen.nats : held_out[p], kNan, ""});
    judge(gate.prompts.back(), options);
  }
  return gate;
}

std::string gate_text(const Gate& gate, const GateOptions& options) {
  const auto worst = [&](double GatedPrompt::*figure) -> const GatedPrompt& {
    return *std::ranges::max_element(gate.prompts, {}, [&](const GatedPrompt& prompt) {
      return std::isnan(prompt.*figure) ? std::numeric_limits<double>::infinity() : prompt.*figure;
    });
  };
  std::string text = fmt::format("{}: {}", gate.passes() ? "passes" : "fails", gate.text);
  if (const GatedPrompt& prompt = worst(&GatedPrompt::loss); options.fail_above)
    text += fmt::format("; worst prompt {}: {} ({}), limit {}", prompt.name, short_number(prompt.loss),
                        gate.unit, short_number(*options.fail_above));
  if (const GatedPrompt& prompt = worst(&GatedPrompt::flips); options.fail_flips)
    text += fmt::format("; {} of the likeliest tokens of prompt {} change, limit {}", percent(prompt.flips),
                        prompt.name, percent(*options.fail_flips));
  return text;
}

Json gate_json(const Gate& gate) {
  Json prompts = Json::array();
  for (const GatedPrompt& prompt : gate.prompts) {
    Json& json = prompts.emplace_back(Json{{"prompt", prompt.name}, {"loss", prompt.loss}});
    if (!std::isnan(prompt.flips)) json["flips"] = prompt.flips;
    json["passes"] = prompt.failure.empty();
  }
  return {{"case", gate.text}, {"unit", gate.unit}, {"passes", gate.passes()}, {"prompts", prompts}};
}

std::string junit_text(const std::vector<Gate>& gates) {
  std::string text = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n";
  for (const Gate& gate : gates) {
    const std::string suite = escaped_xml(gate.text);
    text += fmt::format(" <testsuite name=\"{}\" tests=\"{}\" failures=\"{}\">\n", suite, gate.prompts.size(),
                        std::ranges::count_if(
                            gate.prompts, [](const GatedPrompt& prompt) { return !prompt.failure.empty(); }));
    for (const GatedPrompt& prompt : gate.prompts) {
      text += fmt::format("  <testcase classname=\"{}\" name=\"{}\"", suite, escaped_xml(prompt.name));
      text += prompt.failure.empty()
                  ? "/>\n"
                  : fmt::format("><failure message=\"{}\"/></testcase>\n", escaped_xml(prompt.failure));
    }
    text += " </testsuite>\n";
  }
  return text + "</testsuites>\n";
}

}  // namespace kvreplay::recommend
