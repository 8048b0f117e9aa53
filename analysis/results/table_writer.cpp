#include "analysis/results/table_writer.hpp"

#include "data/console.hpp"
#include "data/npy_write.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <map>
#include <span>

namespace kvreplay {
namespace {

std::vector<std::string> columns_of(Table table, std::span<const std::string> metrics) {
  std::vector<std::string> columns = split_list(facts_of(table).columns);
  columns.insert(columns.end(), metrics.begin(), metrics.end());
  return columns;
}

}  // namespace

TableWriter::TableWriter(const ResultFolder& folder, Table table, std::span<const std::string> metrics)
    : folder_(folder),
      table_(table),
      columns_(columns_of(table, metrics)),
      row_(columns_.size()),
      csv_(folder.file(file_of(table)), fmt::format("{}", fmt::join(columns_, ","))) {}

std::string& TableWriter::field(std::string_view column) {
  const auto found = std::ranges::find(columns_, column);
  assert(found != columns_.end());
  return row_[found - columns_.begin()];
}

TableWriter& TableWriter::at(std::optional<Index> layer, std::optional<Index> head) {
  for (std::string& text : row_) text.clear();
  if (layer) set("layer", *layer);
  if (head) set("kv_head", *head);
  return *this;
}

TableWriter& TableWriter::set(std::string_view column, std::string_view value) {
  field(column) = value;
  return *this;
}

void TableWriter::add_row(std::string_view metric, double value) {
  note_if_none(metric, value);
  set("metric", metric).set("value", value);
  end_row();
}

void TableWriter::end_row() {
  for (const std::string& text : row_) csv_.add(text);
  csv_.end_row();
}

void TableWriter::note_if_none(std::string_view figure, double value) {
  if (std::isfinite(value)) return;
  const std::string &layer = field("layer"), &head = field("kv_head");
  const std::string place = layer.empty()  ? "the model"
                            : head.empty() ? "layer " + layer
                                           : fmt::format("layer {} head {}", layer, head);
  std::vector<std::string>& places = empty_[std::string(figure)];
  if (places.empty() || places.back() != place) places.push_back(place);
}

std::size_t TableWriter::finish() {
  csv_.finish();
  std::map<std::vector<std::string>, std::vector<std::string>> figures;  // by the same heads
  for (const auto& [figure, places] : empty_) figures[places].push_back(figure);
  for (const auto& [places, names] : figures) {
    constexpr std::size_t kNamed = 8;
    folder_.note(fmt::format("{}: no {} of {}: what it is relative to is 0, or too small to tell from 0",
                             file_of(table_), fmt::join(names, ", "), first_names(places, kNamed)));
  }
  return csv_.rows();
}

void write_map(const ResultFolder& folder, const MapName& name, const HeadFigures& figures,
               std::span<const double> heads) {
  const std::size_t shape[] = {figures.layers.size(), static_cast<std::size_t>(figures.n_kv)};
  write_npy(folder.file("maps/" + name.text() + ".npy"), shape, heads);
}

}  // namespace kvreplay
