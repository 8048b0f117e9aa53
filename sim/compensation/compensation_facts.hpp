#pragma once

#include "sim/compensation/mergers.hpp"

#include <optional>
#include <string_view>

// Methods by which kept tokens make up for evicted ones. Definitions: sim/compensation/COMPENSATION.md.

namespace kvreplay {

enum class Compensation { none, mass, values, fit, mean, cam, d2o, kvmerger, keepkv, merging_press };

struct CompensationFacts {
  Compensation id;
  std::string_view name;
  std::string_view plain;               ///< what it does, in plain words, for menus
  std::string_view meaning;             ///< one line
  bool fits_mass = false;               ///< biases are fitted to reference rows
  bool fits_values = false;             ///< values are
  bool slot = false;                    ///< adds one more token's key, value and bias to the kept ones
  std::optional<Merging> merging = {};  ///< evicted tokens are merged into kept ones
  constexpr bool fits() const { return fits_mass || fits_values; }
};
constexpr CompensationFacts merging_facts(Compensation id, Merging merging) {
  return {.id = id,
          .name = name_of(merging),
          .plain = kMergings[merging].plain,
          .meaning = kMergings[merging].meaning,
          .merging = merging};
}
inline constexpr auto kCompensations = facts_table<CompensationFacts>({
    {.id = Compensation::none, .name = "none", .plain = "nothing", .meaning = "What is kept, as it was"},
    {.id = Compensation::mass,
     .name = "mass",
     .plain = "weights that add up as before",
     .meaning =
         "A bias on every kept token's logit, so that the weights add up as before (Attention Matching)",
     .fits_mass = true},
    {.id = Compensation::values,
     .name = "values",
     .plain = "values fitted to the outputs",
     .meaning = "Kept values fitted to the outputs by ridge regression (GRKV)",
     .fits_values = true},
    {.id = Compensation::fit,
     .name = "fit",
     .plain = "weights, then values, fitted",
     .meaning = "mass, then values",
     .fits_mass = true,
     .fits_values = true},
    {.id = Compensation::mean,
     .name = "mean",
     .plain = "one more token: the mean of the evicted",
     .meaning =
         "One more token: the mean key and value of the evicted, with the logarithm of their number as bias",
     .slot = true},
    merging_facts(Compensation::cam, Merging::cam),
    merging_facts(Compensation::d2o, Merging::d2o),
    merging_facts(Compensation::kvmerger, Merging::kvmerger),
    merging_facts(Compensation::keepkv, Merging::keepkv),
    merging_facts(Compensation::merging_press, Merging::merging_press),
});
constexpr std::string_view name_of(Compensation method) { return kCompensations[method].name; }

}  // namespace kvreplay
