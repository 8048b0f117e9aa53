#include "analysis/channels/layer_channels.hpp"

#include "analysis/drawing/picture.hpp"
#include "analysis/results/map_name.hpp"
#include "data/npy_write.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>

namespace kvreplay {
namespace {

void write_matrices(AtomicFile file, const std::vector<Matrix<double>>& matrices) {
  const auto d = static_cast<std::size_t>(matrices.front().rows());
  const std::size_t shape[] = {matrices.size(), d, d};
  std::vector<double> all;
  for (const Matrix<double>& matrix : matrices)
    all.insert(all.end(), matrix.data(), matrix.data() + matrix.size());
  write_npy(std::move(file), shape, std::span<const double>(all));
}

void write_rows(AtomicFile file, std::size_t rows,
                const std::function<const Vector<double>&(std::size_t)>& row) {
  std::vector<double> all;
  for (std::size_t r = 0; r < rows; ++r) all.insert(all.end(), row(r).data(), row(r).data() + row(r).size());
  const std::size_t shape[] = {rows, all.size() / rows};
  write_npy(std::move(file), shape, std::span<const double>(all));
}

/// The largest entry off the diagonal: what a picture of interactions is about.
double largest_off_diagonal(const Matrix<double>& H) {
  Matrix<double> off = H;
  off.diagonal().setZero();
  return off.cwiseAbs().maxCoeff();
}

template <class Number>
void get(ByteReader& in, std::vector<Number>& x) {
  x = in.get<Number>();
}
void get(ByteReader& in, Vector<double>& x) {
  const std::vector<double> values = in.get<double>();
  x = Eigen::Map<const Vector<double>>(values.data(), std::ssize(values));
}
void get(ByteReader& in, Matrix<double>& x) {  // square
  const std::vector<double> values = in.get<double>();
  const auto d = static_cast<Index>(std::lround(std::sqrt(static_cast<double>(values.size()))));
  x = Eigen::Map<const Matrix<double>>(values.data(), d, d);
}

}  // namespace

void LayerChannels::begin(const ChannelPlan& plan, const DumpShape& shape) {
  const auto rows = static_cast<std::size_t>(plan.per_query_head() ? shape.n_q : shape.n_kv);
  interaction.assign(rows, {});
  outputs.assign(plan.needs_outputs() ? rows : 0, {});
  spectrum.assign(rows, {});
  order.assign(plan.rules.size(), {});
  for (std::size_t rule = 0; rule < plan.rules.size(); ++rule)
    if (plan.rules[rule].has_order()) order[rule].resize(rows);
  pruned.assign(plan.cases.size(), std::vector<ChannelSet>(rows));
  window.assign(shape.n_q, {});
  future.assign(plan.future.count() > 0 ? window.size() : 0, {});
  rope_partner.clear();
}

template <class Self, class Visit>
void LayerChannels::each_part(Self& self, Index kv_head, Index G, const Visit& visit) {
  const auto heads = self.window.size(),
             rows_a_head = self.interaction.size() * static_cast<std::size_t>(G) / heads;
  for (std::size_t at = 0; at < rows_a_head; ++at) {
    const std::size_t row = static_cast<std::size_t>(kv_head) * rows_a_head + at;
    visit(self.interaction[row]);
    if (!self.outputs.empty()) visit(self.outputs[row]);
    visit(self.spectrum[row]);
    for (auto& rule : self.order)
      if (!rule.empty()) visit(rule[row]);
    for (auto& sets : self.pruned) visit(sets[row]);
  }
  for (Index h = kv_head * G; h < (kv_head + 1) * G; ++h)
    for (auto* const moments : {&self.window, &self.future}) {
      if (moments->empty()) continue;
      visit((*moments)[h].mean);
      visit((*moments)[h].deviation);
    }
}

void LayerChannels::save(Index kv_head, Index G, ByteWriter& out) const {
  each_part(*this, kv_head, G, [&](const auto& part) {
    out.put(std::span(part.data(), static_cast<std::size_t>(part.size())));
  });
}

void LayerChannels::load(Index kv_head, Index G, ByteReader& in) {
  each_part(*this, kv_head, G, [&](auto& part) { get(in, part); });
}

void LayerChannels::write(const ResultFolder& folder, Index layer, const ChannelPlan& plan) const {
  const auto file = [&](const std::string& name) {
    return folder.layer_file(layer, "channels/" + name + ".npy");
  };
  const std::size_t rows = interaction.size(), d = static_cast<std::size_t>(interaction.front().rows());
  const std::size_t shape[] = {rows, d};
  write_matrices(file("interaction"), interaction);
  if (!outputs.empty()) write_matrices(file("output_interaction"), outputs);
  write_rows(
      file("spectrum"), rows, [&](std::size_t r) -> const auto& { return spectrum[r]; });
  for (const auto& [name, moments] : {std::pair{"window", &window}, std::pair{"future", &future}}) {
    if (moments->empty()) continue;
    const auto& all = *moments;
    write_rows(
        file(fmt::format("query_{}_mean", name)),
        all.size(), [&](std::size_t h) -> const auto& { return all[h].mean; });
    write_rows(
        file(fmt::format("query_{}_std", name)),
        all.size(), [&](std::size_t h) -> const auto& { return all[h].deviation; });
  }
  if (!rope_partner.empty()) {
    const std::size_t one[] = {d};
    write_npy(
        file("rope_pair"), one,
        std::span<const std::int32_t>(std::vector<std::int32_t>(rope_partner.begin(), rope_partner.end())));
  }
  for (std::size_t rule = 0; rule < plan.rules.size(); ++rule) {
    if (order[rule].empty()) continue;
    std::vector<std::int32_t> all(rows * d, -1);
    for (std::size_t r = 0; r < rows; ++r)
      std::copy(order[rule][r].begin(), order[rule][r].end(),
                all.begin() + static_cast<std::ptrdiff_t>(r * d));
    write_npy(file(file_word(plan.rules[rule].name) + "_order"), shape, std::span<const std::int32_t>(all));
  }
  for (std::size_t c = 0; c < plan.cases.size(); ++c) {
    std::vector<std::uint8_t> all;
    for (const ChannelSet& set : pruned[c]) all.insert(all.end(), set.begin(), set.end());
    write_npy_bool(file(plan.cases[c].file_name), shape, all);
  }
  if (plan.png) write_pictures(folder, layer);
}

void LayerChannels::write_pictures(const ResultFolder& folder, Index layer) const {
  constexpr Index kSide = 640;
  const auto draw = [&](const std::vector<Matrix<double>>& matrices, const char* name) {
    for (std::size_t r = 0; r < matrices.size(); ++r) {
      const Index cell = std::max<Index>(kSide / matrices[r].rows(), 1);
      write_file(folder.layer_file(layer, fmt::format("channels/{}-{}.png", name, r)),
                 heatmap_png(matrices[r], largest_off_diagonal(matrices[r]), cell));
    }
  };
  draw(interaction, "interaction");
  draw(outputs, "output_interaction");
}

}  // namespace kvreplay
