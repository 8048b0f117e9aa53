#pragma once

#include "sim/tokens/token_metrics.hpp"
#include "viewer/model/value_scale.hpp"

#include <optional>
#include <string>

namespace kvreplay::viewer {

/// What the looks of a text mean.
struct TextLegend {
  TokenMetric metric = TokenMetric::exact_remove;
  const ValueScale* scale = nullptr;  ///< of the tint; null: not known
  bool by_rank = false;
  std::string less;  ///< name of the run that is subtracted; empty: none
  Index l = 0;
  Index heads = 0;            ///< whose kept sets are shown; 0: none is known
  std::optional<Index> kept;  ///< tokens of the prompt, where it is one head's set
  char setting = 'A';
};

/// A line of it, or two where it is narrow.
void draw_legend(const TextLegend& legend);

}  // namespace kvreplay::viewer
