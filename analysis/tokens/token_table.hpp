#pragma once

#include "analysis/results/result_folder.hpp"
#include "analysis/tokens/token_agreement.hpp"
#include "data/atomic_file.hpp"

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

/// For verify: a line a score, a column a reference, the median over heads of Spearman's rho.
std::string rank_text(const AgreementTable& table);
/// A row a pair: every figure's median over heads, and the head that the score follows least.
void write_medians(AtomicFile file, const AgreementTable& table);
/// The same, with three heads.
Json full_json(const AgreementTable& table);

}  // namespace kvreplay
