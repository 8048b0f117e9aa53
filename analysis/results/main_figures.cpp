#include "analysis/results/main_figures.hpp"

#include "analysis/results/figures.hpp"
#include "analysis/results/kept_text.hpp"
#include "analysis/results/validation.hpp"
#include "data/utf8.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kvreplay {
namespace {

/// The blocks that a table's main figures are laid out in, still empty.
std::vector<Pivot> blocks_of(Table table) {
  std::vector<Pivot> blocks;
  if (const std::string_view all = facts_of(table).main; !all.empty()) {
    Pivot& block = blocks.emplace_back();
    block.table = table;
    block.title = all;
    return blocks;
  }
  std::vector<const FigureFacts*> figures(figures_of(table).begin(), figures_of(table).end());
  figures.insert(figures.end(), measured_figures(table).begin(), measured_figures(table).end());
  for (const FigureFacts* const facts : figures) {
    if (facts->main.empty()) continue;
    Pivot& block = blocks.emplace_back();
    block.table = table;
    block.metric = facts->name;
    block.title = facts->main;
    block.better = facts->better;
    block.scale = facts->scale;
  }
  return blocks;
}

/// Items that share their first key follow each other, in order of appearance: what comes from another folder
/// comes last.
void group_by_first_key(Pivot& pivot) {
  std::vector<std::string> firsts;
  std::vector<std::size_t> group, order;
  for (std::size_t i = 0; i < pivot.items.size(); ++i) {
    group.push_back(pivot.items[i].empty() ? 0 : place_in(firsts, pivot.items[i].front()));
    order.push_back(i);
  }
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return group[a] < group[b]; });
  Pivot old = pivot;
  for (std::size_t i = 0; i < order.size(); ++i) {
    pivot.items[i] = std::move(old.items[order[i]]);
    pivot.cells[i] = std::move(old.cells[order[i]]);
  }
}

}  // namespace

std::vector<Pivot> pivots(Table table, std::span<const std::string> keys,
                          std::span<const std::vector<std::string>> figures) {
  const auto key = [&](std::string_view name) -> std::optional<std::size_t> {
    const auto found = std::ranges::find(keys, name);
    return found == keys.end() ? std::nullopt : std::optional(static_cast<std::size_t>(found - keys.begin()));
  };
  const auto metric = key("metric"), rows = key("rows");
  std::vector<Pivot> all;
  const std::string_view across_key = facts_of(table).across;
  for (Pivot& pivot : blocks_of(table)) {
    std::vector<std::size_t> item_at;
    for (const std::string& name : split_list(facts_of(table).items))
      if (const auto at = key(name)) {  // a key that a comparison maps is gone
        pivot.item_keys.push_back(name);
        item_at.push_back(*at);
      }
    const auto setting = key(across_key);
    const auto wanted = [&](const std::vector<std::string>& figure) {
      return figure[0].empty() && figure[1].empty() &&
             (pivot.metric.empty() || figure[*metric] == pivot.metric);
    };
    const bool by_rows = rows && table != Table::agreement;
    if (by_rows) {
      for (const auto& figure : figures)
        if (wanted(figure) && (pivot.rows.empty() || figure[*rows] == "future")) pivot.rows = figure[*rows];
      if (!pivot.rows.empty()) pivot.title += fmt::format(", {} rows", pivot.rows);
    }
    FirstOfSwept is_first(table, keys);
    for (std::size_t f = 0; f < figures.size(); ++f) {
      const auto& figure = figures[f];
      if (!wanted(figure) || (by_rows && figure[*rows] != pivot.rows) || !is_first(figure)) continue;
      std::vector<std::string> item;
      for (const std::size_t at : item_at) item.push_back(figure[at]);
      const std::string across = setting ? setting_text(across_key, figure[*setting]) : std::string();
      const std::size_t column = place_in(pivot.settings, across), line = place_in(pivot.items, item);
      pivot.cells.resize(pivot.items.size());
      for (auto& cells : pivot.cells) cells.resize(pivot.settings.size());
      if (!pivot.cells[line][column]) pivot.cells[line][column] = f;
    }
    if (pivot.items.empty()) continue;
    group_by_first_key(pivot);
    all.push_back(std::move(pivot));
  }
  return all;
}

std::string setting_text(std::string_view across, const std::string& value) {
  if (across == "reference") return value;
  if (value.empty()) return fmt::format("no {}", across);
  return across == "ratio" ? fmt::format("ratio {}", value) : kept_text(value);
}

ItemNames item_names(const Pivot& pivot) {
  const std::vector<std::string> none(pivot.items.size());
  ItemNames names{"", none, none, std::vector<bool>(pivot.items.size())};
  const auto append = [](std::string& name, const std::string& part) {
    name += name.empty() || part.empty() ? part : fmt::format(" {}", part);
  };
  for (std::size_t k = 0; k < pivot.item_keys.size(); ++k) {
    const bool shared = k > 0 && std::ranges::all_of(pivot.items, [&](const auto& item) {
                          return item[k] == pivot.items.front()[k];
                        });
    if (shared) continue;
    append(names.heading, pivot.item_keys[k]);
    for (std::size_t i = 0; i < names.names.size(); ++i) {
      append(names.names[i], pivot.items[i][k]);
      append(names.shown[i], shown_key(pivot.table, pivot.item_keys[k], pivot.items[i][k]));
    }
  }
  for (std::size_t i = 0; i < pivot.items.size(); ++i)
    for (std::size_t k = 0; k < pivot.item_keys.size(); ++k)
      names.oracles[i] = names.oracles[i] || is_oracle(pivot.table, pivot.item_keys[k], pivot.items[i][k]);
  return names;
}

std::string aligned(std::span<const std::vector<std::string>> rows, std::string_view indent) {
  std::vector<std::size_t> widths;
  // Widths count characters, of which a letter beyond ASCII has several bytes.
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], characters_in(row[c]));
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line(indent);
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::string gap(widths[c] - characters_in(row[c]), ' ');
      line += c == 0 ? row[c] + gap : "  " + gap + row[c];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

std::string markdown(std::span<const std::vector<std::string>> rows) {
  std::string text;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    text += '|';
    for (const std::string& cell : rows[r]) {
      text += ' ';
      for (const char c : cell)
        text += c == '|' ? std::string("\\|") : c == '\n' ? std::string(" ") : std::string(1, c);
      text += " |";
    }
    text += '\n';
    if (r > 0) continue;
    for (std::size_t c = 0; c < rows[r].size(); ++c) text += c == 0 ? "|---|" : "---:|";
    text += '\n';
  }
  return text;
}

}  // namespace kvreplay
