#pragma once

#include "data/dump.hpp"
#include "data/facts_table.hpp"

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Tokens that are kept or evicted by hand, whatever a policy says.

namespace kvreplay::viewer {

enum class PaintMark {
  keep,   ///< beyond the budget
  pin,    ///< within it: what the policy wants least of the others goes
  evict,  ///< nothing takes its place
};
struct PaintMarkFacts {
  PaintMark id;
  std::string_view name, does, meaning;
};
inline constexpr auto kPaintMarks = facts_table<PaintMarkFacts>({
    {PaintMark::keep, "keep", "keeps", "Stays, beyond the budget"},
    {PaintMark::pin, "pin", "pins",
     "Stays within the budget: what the policy wants least of the others goes"},
    {PaintMark::evict, "evict", "evicts", "Goes, and nothing takes its place"},
});

struct MarkedToken {
  Index token = 0;
  PaintMark mark = PaintMark::keep;
  bool operator==(const MarkedToken&) const = default;
};

/// The marks of all heads. As text, which sessions and settings keep: "keep 5-9,12; evict 3 in 2.1", where
/// 2.1 is layer 2, KV head 1, and without "in" all heads are meant.
class KeptPaint {
 public:
  using Head = std::pair<Index, Index>;  ///< layer and KV head

  /// Throws InputError, one line, for another text.
  static KeptPaint of_text(std::string_view text);
  std::string text() const;

  /// Marks these tokens in one head, or in all (empty); no mark leaves them to the policy again.
  void mark(std::span<const Index> tokens, std::optional<PaintMark> mark, std::optional<Head> head);
  bool empty() const { return marks_.empty(); }
  /// Marks of a kind, counting one that is meant for all heads once.
  Index count(PaintMark mark) const;
  /// Marks that apply to a head, ascending; its own marks override those for all heads.
  std::vector<MarkedToken> of_head(Head head) const;
  bool operator==(const KeptPaint&) const = default;

 private:
  std::map<std::optional<Head>, std::map<Index, PaintMark>> marks_;  // no empty ones
};

}  // namespace kvreplay::viewer
