#include "analysis/findings/candidates.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

// Sums over all heads that a few of them rule: channels.csv, whose reconstruction errors add up.

namespace kvreplay {
namespace {

constexpr double kRules = 0.5;    // of the sum
constexpr double kFewest = 10;    // at most one head of so many
constexpr double kOutlying = 10;  // times the median channel

/// The fewest heads that hold half of a sum, the heaviest first, and their share.
struct Rulers {
  std::vector<std::size_t> heads;
  double share = 0;
  std::size_t of = 0;  // heads
};
Rulers rulers_of(const std::vector<double>& heads) {
  std::vector<std::size_t> order;
  for (std::size_t h = 0; h < heads.size(); ++h)
    if (!std::isnan(heads[h])) order.push_back(h);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return heads[a] > heads[b]; });
  const double all = std::accumulate(order.begin(), order.end(), 0.0,
                                     [&](double sum, std::size_t h) { return sum + heads[h]; });
  Rulers rulers{{}, 0, order.size()};
  for (const std::size_t h : order) {
    if (!(all > 0) || rulers.share >= kRules) break;
    rulers.heads.push_back(h);
    rulers.share += heads[h] / all;
  }
  return rulers;
}

/// "layer 0 heads 0 and 1", "layer 0 head 1 and layer 3 head 0"
std::string places_of(const Rulers& rulers, const FigureTables& tables) {
  std::map<Index, std::vector<Index>> by_layer;
  for (const std::size_t h : rulers.heads)
    by_layer[tables.layers[h / static_cast<std::size_t>(tables.shape.n_kv)]].push_back(static_cast<Index>(h) %
                                                                                       tables.shape.n_kv);
  std::vector<std::string> places;
  for (auto& [layer, heads] : by_layer) {
    std::sort(heads.begin(), heads.end());
    places.push_back(fmt::format("layer {} head{} {}", layer, heads.size() == 1 ? "" : "s",
                                 fmt::join(heads, heads.size() == 2 ? " and " : ", ")));
  }
  return fmt::format("{}", fmt::join(places, " and "));
}

}  // namespace

KeyReach key_reach(const Dump& dump, Index layer, Index kv_head) {
  const Index d = dump.shape().d;
  std::vector<float> keys(static_cast<std::size_t>(dump.shape().T * d));
  dump.read(Tensor::k, layer, kv_head, keys.data());
  std::vector<double> reach(static_cast<std::size_t>(d), 0.0);
  for (std::size_t at = 0; at < static_cast<std::size_t>(dump.shape().l * d); ++at)
    reach[at % reach.size()] = std::max(reach[at % reach.size()], std::abs(static_cast<double>(keys[at])));
  const auto most = std::max_element(reach.begin(), reach.end());
  return {most - reach.begin(), *most, median(reach)};
}

std::optional<Finding> ruled_sum(const FigureTables& tables, const TokenSource& tokens) {
  const FigureTable& channels = tables.channels;
  Wanted common = {{"metric", name_of(ChannelFigure::reconstruction_error)}, {"rows", "window"}};
  const std::optional<std::string> middle = middle_ratio(channels, common);
  if (!middle) return std::nullopt;
  const std::string& ratio = *middle;
  common = with(common, "ratio", ratio);
  const FigureEntry* entry = channels.find(with(common, "method", "think"));
  if (entry == nullptr) entry = channels.find(common);
  if (entry == nullptr) return std::nullopt;
  const Rulers rulers = rulers_of(entry->heads);
  if (rulers.heads.empty() ||
      kFewest * static_cast<double>(rulers.heads.size()) > static_cast<double>(rulers.of))
    return std::nullopt;

  const std::string& method = channels.key(*entry, "method");
  const std::size_t n_kv = static_cast<std::size_t>(tables.shape.n_kv), heaviest = rulers.heads.front();
  const Index layer = tables.layers[heaviest / n_kv], head = static_cast<Index>(heaviest % n_kv);
  Finding finding{
      FindingKind::sum,
      fmt::format("{} of {} heads hold{} {:.0f} % of the model's reconstruction error ({}, {:g} of the key "
                  "channels pruned): {}",
                  rulers.heads.size(), rulers.of, rulers.heads.size() == 1 ? "s" : "", 100 * rulers.share,
                  method, number_in(ratio), places_of(rulers, tables)),
      rulers.share * static_cast<double>(rulers.of) / static_cast<double>(rulers.heads.size()),
      {Table::channels,
       {{"method", method},
        {"ratio", ratio},
        {"rows", "window"},
        {"metric", std::string(name_of(ChannelFigure::reconstruction_error))}},
       layer,
       head}};
  const FigureEntry* const relative =
      channels.find({{"metric", name_of(ChannelFigure::relative_reconstruction_error)},
                     {"rows", "window"},
                     {"ratio", ratio},
                     {"method", method},
                     {"semantics", channels.key(*entry, "semantics")},
                     {"recent", channels.key(*entry, "recent")}});
  if (relative != nullptr)
    finding.text += fmt::format("; relative to the logits it is {} over all heads, {} in the median head",
                                value_text(relative->model), value_text(median(relative->heads)));
  if (const auto reach = tokens.keys ? tokens.keys(layer, head) : std::nullopt;
      reach && reach->most >= kOutlying * reach->median)
    finding.text +=
        fmt::format("; in layer {} head {} keys reach {} in channel {}, where the median channel has {}",
                    layer, head, value_text(reach->most), reach->channel, value_text(reach->median));
  finding.text += '.';
  return finding;
}

}  // namespace kvreplay
