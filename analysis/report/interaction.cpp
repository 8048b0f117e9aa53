#include "analysis/drawing/color_scale.hpp"
#include "analysis/drawing/picture.hpp"
#include "analysis/report/sections.hpp"
#include "analysis/report/svg.hpp"
#include "analysis/report/text.hpp"
#include "analysis/results/csv.hpp"
#include "analysis/results/map_name.hpp"
#include "analysis/results/result_folder.hpp"
#include "data/dtype.hpp"
#include "data/error.hpp"
#include "data/npy_header.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvreplay::report {
namespace {

namespace fs = std::filesystem;

/// Entries of all heads together; a page carries 1.4 bytes of each, as half of a symmetric matrix is enough.
constexpr double kMostEntries = 5e6;
constexpr const char* kFirstSelection = "iap-0.5";
constexpr double kLeft = 62, kTop = 30, kSide = 400, kStrip = 8;

struct Head {
  std::string name;
  Matrix<double> values;
  double limit = 0;  ///< the largest |entry| off the diagonal: where colours end
  std::vector<std::string>
      pruned;  ///< of each selection, "0110..."; empty where it has a set for each query head
};

/// Selections with arrays; the one to show comes first.
std::vector<std::string> selections_of(const Tables& tables) {
  std::vector<std::string> names;
  const fs::path folder = fs::path(layer_name(tables.results.layers().front())) / "channels";
  for (const std::string& method : tables.channels.distinct("method"))
    for (const std::string& ratio : tables.channels.distinct("ratio"))
      if (const std::string name = fmt::format("{}-{}", file_word(method), ratio);
          !method.empty() && !ratio.empty() && tables.results.has(folder / (name + ".npy")))
        names.push_back(name);
  const auto first = std::find(names.begin(), names.end(), kFirstSelection);
  if (first != names.end()) std::rotate(names.begin(), first, first + 1);
  return names;
}

void read_layer(const ResultReader& results, Index layer, const std::vector<std::string>& selections,
                std::vector<Head>& heads) {
  const fs::path folder = fs::path(layer_name(layer)) / "channels";
  const Index n_kv = results.shape().n_kv, d = results.shape().d;
  const auto matrices = results.array(folder / "interaction.npy");
  const Index count = matrices.shape.empty() ? 0 : matrices.shape[0];
  if (matrices.shape != std::vector<Index>{count, d, d} || (count != n_kv && count != results.shape().n_q))
    throw InputError((results.folder() / folder / "interaction.npy").string(),
                     fmt::format("shape [{}, {}, {}]", n_kv, d, d), "shape " + shape_text(matrices.shape));
  const std::size_t first = heads.size();
  for (Index head = 0; head < count; ++head) {
    Head made;
    made.name = fmt::format("layer {}, {}head {}", layer, count == n_kv ? "" : "query ", head);
    made.values = Eigen::Map<const Matrix<double>>(matrices.values.data() + head * d * d, d, d);
    for (Index r = 0; r < d; ++r)
      for (Index c = 0; c < d; ++c)
        if (r != c && std::isfinite(made.values(r, c)))
          made.limit = std::max(made.limit, std::abs(made.values(r, c)));
    heads.push_back(std::move(made));
  }
  for (const std::string& selection : selections) {
    const auto pruned = results.array(folder / (selection + ".npy"));
    for (Index head = 0; head < count; ++head) {
      std::string bits;
      if (pruned.shape == std::vector<Index>{count, d})
        for (Index c = 0; c < d; ++c) bits += pruned.values[head * d + c] != 0 ? '1' : '0';
      heads[first + static_cast<std::size_t>(head)].pruned.push_back(std::move(bits));
    }
  }
}

/// Rows of the upper triangle over the limit, as float16.
std::string packed(const Head& head) {
  std::vector<std::uint8_t> bytes;
  const double unit = head.limit > 0 ? head.limit : 1;
  for (Index r = 0; r < head.values.rows(); ++r)
    for (Index c = r; c < head.values.cols(); ++c) {
      const auto share = static_cast<float>(std::clamp(head.values(r, c) / unit, -60000.0, 60000.0));
      const std::uint16_t bits = float_to_half(share);
      bytes.push_back(static_cast<std::uint8_t>(bits & 0xFF));
      bytes.push_back(static_cast<std::uint8_t>(bits >> 8));
    }
  return base64(bytes);
}

std::string image_of(const Head& head) {
  const auto bytes = heatmap_png(head.values, head.limit);
  return "data:image/png;base64," +
         base64({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()});
}

/// Bars beside the pruned channels, above the map and to the right of it.
std::string strip_path(const std::string& bits) {
  std::string path;
  const double cell = kSide / static_cast<double>(std::max<std::size_t>(bits.size(), 1));
  for (std::size_t c = 0; c < bits.size(); ++c)
    if (bits[c] == '1')
      path += fmt::format("M{} {}h{}v{}h-{}zM{} {}h{}v{}h-{}z", px(kLeft + cell * static_cast<double>(c)),
                          px(kTop - kStrip - 2), px(cell), px(kStrip), px(cell), px(kLeft + kSide + 2),
                          px(kTop + cell * static_cast<double>(c)), px(kStrip), px(cell), px(kStrip));
  return path;
}

std::string svg_of(const Head& head, const std::string& selection) {
  const Index d = head.values.rows();
  Svg svg("interaction", kLeft + kSide + 40, kTop + kSide + 84,
          "Interaction of the key channels, " + head.name);
  svg.raw(
      fmt::format("<image x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" preserveAspectRatio=\"none\" "
                  "style=\"image-rendering:pixelated\" href=\"{}\"/>",
                  px(kLeft), px(kTop), px(kSide), px(kSide), image_of(head)));
  svg.rect(kLeft, kTop, kSide, kSide, "class=\"frame\"");
  const double cell = kSide / static_cast<double>(d);
  for (Index c = 0; c < d; c += std::max<Index>(1, (d + 7) / 8)) {
    const double middle = cell * (static_cast<double>(c) + 0.5);
    svg.text(kLeft + middle, kTop + kSide + 16, "middle", std::to_string(c));
    svg.text(kLeft - 6, kTop + middle + 4, "end", std::to_string(c));
  }
  svg.text(kLeft + kSide / 2, kTop + kSide + 34, "middle", "channel d", "label");
  svg.text(13, kTop + kSide / 2, "middle", "channel c", "label",
           fmt::format("transform=\"rotate(-90 13 {})\"", px(kTop + kSide / 2)));
  svg.raw(fmt::format("<path class=\"strip\" data-strip=\"\" d=\"{}\"/>",
                      head.pruned.empty() ? "" : strip_path(head.pruned.front())));
  if (!selection.empty())
    svg.text(kLeft + kSide, 12, "end", fmt::format("green: pruned by {}", selection), "label",
             "data-strip-name=\"\"");
  const double y = kTop + kSide + 50;
  for (int i = 0; i < 40; ++i)
    svg.rect(kLeft + 4.5 * i, y, 4.9, 9,
             fmt::format("fill=\"{}\"", hex(diverging_color((i + 0.5) / 20 - 1))));
  svg.text(kLeft, y + 22, "start", shown(-head.limit), "", "data-low=\"\"");
  svg.text(kLeft + 90, y + 22, "middle", "0");
  svg.text(kLeft + 180, y + 22, "end", shown(head.limit), "", "data-high=\"\"");
  svg.rect(kLeft, kTop, kSide, kSide, "class=\"probe\"");
  return svg.finish();
}

std::string csv_of(const Head& head) {
  std::string csv = "c,d,H\n";
  for (Index r = 0; r < head.values.rows(); ++r)
    for (Index c = 0; c < head.values.cols(); ++c)
      csv += fmt::format("{},{},{}\n", r, c, csv_number(head.values(r, c)));
  return csv;
}

std::string json_of(const std::vector<Head>& heads, Index d) {
  const std::string all = json_list(heads, [](const Head& head) {
    return fmt::format(R"({{"limit":{},"pruned":{},"upper":"{}"}})", json_number(head.limit),
                       json_list(head.pruned, json_string), packed(head));
  });
  return fmt::format(R"({{"d":{},"frame":{{"left":{},"top":{},"side":{},"strip":{}}},"heads":{}}})", d, kLeft,
                     kTop, kSide, kStrip, all);
}

}  // namespace

std::optional<Figure> interaction_figure(const Tables& tables) {
  const ResultReader& results = tables.results;
  if (results.layers().empty()) return std::nullopt;
  const auto has = [&](Index layer) {
    return results.has(fs::path(layer_name(layer)) / "channels" / "interaction.npy");
  };
  if (!has(results.layers().front())) return std::nullopt;
  const auto layers = std::ssize(results.layers());
  const double of_layer = static_cast<double>(results.shape().n_kv) * static_cast<double>(results.shape().d) *
                          static_cast<double>(results.shape().d);
  const Index most = std::clamp<Index>(static_cast<Index>(kMostEntries / of_layer), 1, layers);
  const std::vector<std::string> selections = selections_of(tables);
  std::vector<Head> heads;
  for (Index i = 0; i < most; ++i) {
    const Index layer = results.layers()[i * layers / most];
    if (has(layer)) read_layer(results, layer, selections, heads);
  }
  std::vector<std::string> names;
  for (const Head& head : heads) names.push_back(head.name);

  Figure figure;
  figure.name = "interaction";
  figure.heading = "How key channels interact";
  figure.reading =
      "H of one head: pruning a set of channels changes the logits by the sum of H over that set, so that "
      "the diagonal is what a channel costs alone, red off it what two cost together on top, blue what they "
      "cancel. Colours end at the largest entry off the diagonal. Green bars: the channels that the "
      "selection prunes.";
  if (most < layers)
    figure.note = fmt::format("{} of {} layers are in this page; layer_*/channels/ holds all.", most, layers);
  add_drawing(figure, {{"head", names}, {"pruned by", selections}}, "heat",
              svg_of(heads.front(), selections.empty() ? "" : selections.front()),
              json_of(heads, results.shape().d), csv_of(heads.front()));
  return figure;
}

}  // namespace kvreplay::report
