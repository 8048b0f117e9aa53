#pragma once

#include "analysis/options/option.hpp"
#include "analysis/report/figure.hpp"
#include "analysis/results/figure_table.hpp"
#include "analysis/results/over_dumps.hpp"
#include "analysis/results/result_reader.hpp"

#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay::report {

// One each; without figures where the folder does not hold what they need. `missing` then says what would.
Section overview_section(const Tables& tables);
Section head_map_section(const Tables& tables);
Section token_section(const Tables& tables);
Section eviction_section(const Tables& tables);
Section compensation_section(const Tables& tables);
Section budget_section(const Tables& tables);
Section channel_section(const Tables& tables);
Section validation_section(const Tables& tables);
Section claim_section(const Tables& tables);
Section run_section(const Tables& tables);

/// The text of the prompt with what its tokens cost and who evicts them; nothing where the dump has no text,
/// or is not there any more.
std::optional<Section> prompt_section(const Tables& tables);

/// What the first list of the map of heads says of maps of a table.
const char* kind_of_map(Table table);
/// The settings of a summary as a table: those of its objects `keys`.
std::string settings_table(const nlohmann::ordered_json& summary, std::initializer_list<const char*> keys);
/// "layer 3, head 1", in the order of a table's heads.
std::vector<std::string> head_names(const ResultReader& results);

/// Figures by layer, a line a prompt; nothing where the folder lacks them.
std::optional<Figure> budget_layers_figure(const OverDumpsReader& results);
std::optional<Figure> channel_layers_figure(const OverDumpsReader& results);
/// The main figures of every analysis; of those that the folder does not hold, what would make them.
Section figures_over_dumps(const OverDumpsReader& results);
/// What is recommended within several numbers of bytes; nothing without evictions that recipes can have.
std::optional<Section> recipe_section(const OverDumpsReader& results);
/// What papers claim, as effects with their intervals over the dumps.
Section claims_over_dumps(const OverDumpsReader& results);

/// A field as text; empty where there is none or it is null.
std::string text_in(const nlohmann::ordered_json& json, const char* key);

/// How results came about, for the head of a page: names and values, those that are known.
std::vector<std::pair<std::string, std::string>> facts_of(const ResultReader& results);
/// What was computed of what, as a line.
std::string lead_of(const ResultReader& results);
/// Notes and what was left out, each once.
std::vector<std::string> remarks_of(const ResultReader& results);

/// What every head keeps at every compression (LU-KV, fig. 2b and 7 to 9): the `lu` of every dump, their
/// mean, which is the profile, and the mean of the exact optima. Nothing where no folder has a profile of
/// `lu`.
std::optional<Figure> allocation_figure(const OverDumpsReader& results);

}  // namespace kvreplay::report
