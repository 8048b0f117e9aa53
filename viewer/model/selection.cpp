#include "viewer/model/selection.hpp"

#include "analysis/options/option.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kvreplay::viewer {
namespace {

Index in_range(Index index, Index count) {
  return std::clamp(index, Index{0}, std::max(count - 1, Index{0}));
}

/// `step` further among `count`, round again.
Index round_again(Index index, Index count, Index step) {
  if (count <= 0) return 0;
  return ((in_range(index, count) + step % count) + count) % count;
}

}  // namespace

std::string chosen_text(const std::vector<Index>& tokens) {
  const std::string chosen = counted(std::ssize(tokens), "token") + " chosen";
  if (tokens.empty()) return chosen;
  return tokens.size() == 1 ? fmt::format("{}: {}", chosen, tokens.front())
                            : fmt::format("{}, from {} to {}", chosen, tokens.front(), tokens.back());
}

Selection within(Selection selection, const DumpShape& shape) {
  selection.layer = in_range(selection.layer, shape.layers);
  selection.kv_head = in_range(selection.kv_head, shape.n_kv);
  if (selection.query_head)
    selection.query_head = in_range(*selection.query_head, shape.n_kv > 0 ? shape.group() : 0);
  if (selection.row && (*selection.row < shape.first_query() || *selection.row >= shape.T))
    selection.row.reset();
  const auto beyond = [&](Index token) { return token < 0 || token >= shape.l; };
  if (selection.token && beyond(*selection.token)) selection.token.reset();
  if (selection.channels)
    selection.channels = {in_range(selection.channels->first, shape.d),
                          in_range(selection.channels->second, shape.d)};
  std::vector<Index>& tokens = selection.tokens;
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  tokens.erase(std::remove_if(tokens.begin(), tokens.end(), beyond), tokens.end());
  return selection;
}

Selection next_head(Selection selection, const DumpShape& shape, int step) {
  selection = within(std::move(selection), shape);
  if (shape.n_kv <= 0) return selection;
  const Index at =
      round_again(selection.layer * shape.n_kv + selection.kv_head, shape.layers * shape.n_kv, step);
  selection.layer = at / shape.n_kv;
  selection.kv_head = at % shape.n_kv;
  return selection;
}

Selection next_layer(Selection selection, const DumpShape& shape, int step) {
  selection = within(std::move(selection), shape);
  selection.layer = round_again(selection.layer, shape.layers, step);
  return selection;
}

}  // namespace kvreplay::viewer
