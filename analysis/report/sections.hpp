#pragma once

#include "analysis/options/option.hpp"
#include "analysis/report/figure.hpp"
#include "analysis/results/metric_table.hpp"
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

/// The text of the prompt with the cost of each token and the policies that evict it; empty if the dump has
/// no text or does not exist any more.
std::optional<Section> prompt_section(const Tables& tables);

/// Entry of a table's maps in the first list of the map of heads.
const char* kind_of_map(Table table);
/// The settings of a summary as a table: those of its objects `keys`.
std::string settings_table(const nlohmann::ordered_json& summary, std::initializer_list<const char*> keys);
/// "layer 3, head 1", in the order of a table's heads.
std::vector<std::string> head_names(const ResultReader& results);

/// Plots by layer, one line a prompt; empty if the folder lacks the results.
std::optional<Figure> budget_layers_figure(const OverDumpsReader& results);
std::optional<Figure> channel_layers_figure(const OverDumpsReader& results);
/// Main plots of every analysis; for an analysis that the folder lacks, the command that adds it.
Section figures_over_dumps(const OverDumpsReader& results);
/// Recommended settings for several numbers of bytes; empty without evictions that recipes can use.
std::optional<Section> recipe_section(const OverDumpsReader& results);
/// Claims of papers, as effects with their intervals over the dumps.
Section claims_over_dumps(const OverDumpsReader& results);

/// A field as text; empty if it is missing or null.
std::string text_in(const nlohmann::ordered_json& json, const char* key);

/// Facts about a run for the head of a page: names and values, as far as they are known.
std::vector<std::pair<std::string, std::string>> facts_of(const ResultReader& results);
/// One line on the shape of the model and the dump, and the layers computed.
std::string lead_of(const ResultReader& results);
/// Notes and what was left out, each once.
std::vector<std::string> remarks_of(const ResultReader& results);

/// Share of tokens that every head keeps at every compression ratio (LU-KV, fig. 2b and 7 to 9): the `lu` of
/// every dump, their mean, which is the profile, and the mean of the exact optima. Empty if no folder has a
/// profile of `lu`.
std::optional<Figure> allocation_figure(const OverDumpsReader& results);

}  // namespace kvreplay::report
