#pragma once

#include "analysis/results/result_folder.hpp"
#include "analysis/tokens/token_agreement.hpp"

#include <string>
#include <vector>

namespace kvreplay {

/// The agreement of every pair in every head, to be summed up over heads.
struct AgreementTable {
  struct Head {
    Index layer = 0;
    Index kv_head = 0;
    std::vector<Agreement> agreements;  ///< one a pair
  };
  std::vector<TokenPair> pairs;
  std::vector<Head> heads;
};

/// The median over the heads where the figure is defined; nan where it is in none.
double median_over_heads(const AgreementTable& table, std::size_t pair, AgreementFigure figure);

/// Heads (indices into table.heads) by Spearman's rho of a pair, the lowest first, those without one left
/// out.
std::vector<std::size_t> worst_heads(const AgreementTable& table, std::size_t pair);

/// For the end of a run: a line a score; per reference the median Spearman and recall@10%, and the worst
/// head.
std::string compact_text(const AgreementTable& table);

/// For verify: a block a reference, a line a score with relative error, Spearman, recall@10%, mass@10%
/// (medians over heads) and the heads that it follows least.
std::string full_text(const AgreementTable& table);
Json full_json(const AgreementTable& table);

}  // namespace kvreplay
