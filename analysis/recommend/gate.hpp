#pragma once

#include "analysis/options/option.hpp"
#include "analysis/recommend/recommend.hpp"

#include <optional>
#include <string>
#include <vector>

// A limit on the loss of the worst prompt, for continuous integration.

namespace kvreplay::recommend {

struct GateOptions {
  std::string check;                 ///< the measured case to judge; empty: the recommended setting
  std::optional<double> fail_above;  ///< nats, or output error without gradients
  std::optional<double> fail_flips;  ///< share of decoding steps whose likeliest token changes
  std::string junit;                 ///< file to write

  bool is_set() const { return fail_above || fail_flips; }
};

namespace recommend_option {
inline constexpr OptionFacts check{"check", "CASE",
                                   "Judge this measured case and choose nothing: a format as q4_0+hadamard, "
                                   "snapkv~4@0.8 as in evictions.csv, or a recipe's name"},
    fail_above{"fail-above", "NATS",
               "Exit with 1 if the worst prompt loses more: of the case, or of the setting that is chosen"},
    fail_flips{"fail-flips", "SHARE",
               "Exit with 1 if on any prompt more of the decoding steps change their likeliest token, of a "
               "case that kvvalidate.py measured"},
    junit{"junit", "FILE", "Write the judgement of every prompt as JUnit XML"};
}  // namespace recommend_option

/// The loss of one prompt.
struct GatedPrompt {
  std::string name;
  double loss = kNan;
  double flips = kNan;  ///< share of steps whose likeliest token changes; NaN if not measured
  std::string failure;  ///< empty: within the limits
};

struct Gate {
  std::string text;  ///< the case, or the setting that was chosen
  std::string unit;  ///< "nats, true KL"
  std::vector<GatedPrompt> prompts;

  bool passes() const;
};

/// Judges a measured case: by its KL where the model writes into the cache, else its KL where the cache is
/// stored, else its predicted nats, else its output error. One kind for all prompts. Throws OptionError for a
/// case that is not measured, and for flips of a case that was not validated.
Gate gate_of_case(const MeasuredLevers& measured, const GateOptions& options);
/// Judges the choice within one budget by its loss on prompts that did not choose it.
Gate gate_of_choice(const MeasuredLevers& measured, const Recommendation& of, const GateOptions& options);

/// One line: the worst prompt, the limit, and whether it is met.
std::string gate_text(const Gate& gate, const GateOptions& options);
Json gate_json(const Gate& gate);
/// A test suite per gate, a test case per prompt.
std::string junit_text(const std::vector<Gate>& gates);

}  // namespace kvreplay::recommend
