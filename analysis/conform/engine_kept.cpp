#include "analysis/conform/engine_kept.hpp"

#include "data/error.hpp"
#include "data/json_fields.hpp"
#include "data/mapped_file.hpp"
#include "data/npy_header.hpp"
#include "data/npy_read.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace kvreplay::conform {
namespace {

/// One head's kept tokens in the form of the file: positions, or with `mask` a 0 or 1 for each position.
struct HeadList {
  std::vector<double> values;
  bool mask = false;
};
using LayerLists = std::vector<HeadList>;

bool is_mask(const std::vector<double>& values, Index last, Index l) {
  return last == l && l > 2 && std::ranges::all_of(values, [](double v) { return v == 0 || v == 1; });
}

/// The rows of an array [heads, n], or of one [n].
LayerLists rows_of(const NpyNumbers& array, std::size_t first, Index rows, Index l) {
  const Index n = array.shape.empty() ? 0 : array.shape.back();
  const bool mask = is_mask(array.values, n, l);
  LayerLists lists;
  for (Index row = 0; row < rows; ++row) {
    const auto begin = array.values.begin() + static_cast<Index>(first) + row * n;
    lists.push_back({{begin, begin + n}, mask});
  }
  return lists;
}

void drop_batch(NpyNumbers& array, std::size_t dimensions) {
  if (array.shape.size() == dimensions + 1 && array.shape.front() == 1)
    array.shape.erase(array.shape.begin());
}

std::vector<LayerLists> of_npy(const std::string& where, Index l) {
  NpyNumbers array = read_npy_numbers(where);
  drop_batch(array, 3);
  if (array.shape.empty() || array.shape.size() > 3)
    throw InputError(
        where, fmt::format("shape [layers, heads, {}] of booleans, or [layers, heads, n] of positions", l),
        "shape " + shape_text(array.shape));
  const Index layers = array.shape.size() > 1 ? array.shape.front() : 1,
              heads = array.shape.size() > 2 ? array.shape[1] : 1;
  const LayerLists all = rows_of(array, 0, layers * heads, l);
  std::vector<LayerLists> lists;
  for (Index layer = 0; layer < layers; ++layer)
    lists.emplace_back(all.begin() + layer * heads, all.begin() + (layer + 1) * heads);
  return lists;
}

/// The whole numbers in a name.
std::vector<Index> numbers_in(const std::string& name) {
  std::vector<Index> found;
  for (std::size_t at = 0; at < name.size();) {
    if (std::isdigit(static_cast<unsigned char>(name[at])) == 0) {
      ++at;
      continue;
    }
    const std::size_t begin = at;
    while (at < name.size() && std::isdigit(static_cast<unsigned char>(name[at])) != 0) ++at;
    found.push_back(index_in(name.substr(begin, at - begin), 1'000'000).value_or(1'000'000));
  }
  return found;
}

std::vector<LayerLists> of_npz(const std::string& where, Index layers, Index l) {
  std::map<std::pair<Index, Index>, HeadList> heads;
  const auto add = [&](const std::string& name, Index layer, Index head, HeadList&& list) {
    if (layer >= layers)
      throw InputError(where, fmt::format("layers 0 to {}", layers - 1), fmt::format("'{}'", name));
    if (!heads.emplace(std::pair(layer, head), std::move(list)).second)
      throw InputError(where, "every head once",
                       fmt::format("layer {}, head {} again in '{}'", layer, head, name));
  };
  for (auto& [name, array] : read_npz_numbers(where)) {
    const std::vector<Index> numbers = numbers_in(name);
    const bool of_head = numbers.size() == 2;
    drop_batch(array, of_head ? 1 : 2);
    if (numbers.empty() || numbers.size() > 2 || array.shape.size() != (of_head ? 1u : 2u))
      throw InputError(
          where, "members of a layer, [heads, n], as 'layer_03', or of a head, [n], as 'layer_03_head_1'",
          fmt::format("'{}' of shape {}", name, shape_text(array.shape)));
    LayerLists lists = rows_of(array, 0, of_head ? 1 : array.shape.front(), l);
    for (std::size_t h = 0; h < lists.size(); ++h)
      add(name, numbers[0], of_head ? numbers[1] : static_cast<Index>(h), std::move(lists[h]));
  }
  std::vector<LayerLists> lists(static_cast<std::size_t>(layers));
  for (auto& [place, list] : heads) {
    LayerLists& layer = lists[place.first];
    if (std::ssize(layer) != place.second)
      throw InputError(where, fmt::format("head {} of layer {}", std::ssize(layer), place.first),
                       fmt::format("head {} next", place.second));
    layer.push_back(std::move(list));
  }
  return lists;
}

/// Nesting depth of lists of numbers: 1 for one list.
int depth_of(const Json& json) {
  return json.is_array() ? 1 + (json.empty() ? 0 : depth_of(json.front())) : 0;
}

std::vector<double> list_of_numbers(const Json& json, const std::string& where) {
  if (!json.is_array()) throw InputError(where, "a list of positions", json_text(json));
  std::vector<double> values;
  for (const Json& value : json) {
    if (!value.is_number()) throw InputError(where, "a list of positions", json_text(value));
    values.push_back(value.get<double>());
  }
  return values;
}

std::vector<LayerLists> of_json(const std::filesystem::path& file, Index l) {
  constexpr std::uintmax_t kMostText = std::uintmax_t{1} << 30;
  const std::string where = file.string();
  const Json json = parse_json(file_text(file, kMostText), where);
  Index page = 1;
  const Json* lists = &json;
  if (json.is_object()) {
    const JsonFields fields(json, where);
    constexpr std::string_view kKnown[] = {"page", "pages"};
    fields.check_keys(kKnown);
    page = fields.positive_integer("page").value_or(1);
    lists = &fields.at("pages");
  }
  const int depth = depth_of(*lists);
  if (depth < 1 || depth > 3)
    throw InputError(where,
                     "lists of positions, [layers][heads][..], or {\"page\": N, \"pages\": such lists}",
                     json_text(json));
  const auto tokens_of = [&](const Json& list) {
    const std::vector<double> pages = list_of_numbers(list, where);
    if (page == 1) return HeadList{pages};
    HeadList tokens;
    for (const double number : pages)
      for (Index at = 0; at < page; ++at) {
        const double p = number * static_cast<double>(page) + static_cast<double>(at);
        if (at == 0 || p < static_cast<double>(l))
          tokens.values.push_back(p);  // the last page may have fewer
      }
    return tokens;
  };
  std::vector<LayerLists> found;
  if (depth == 1) return {{tokens_of(*lists)}};
  for (const Json& layer : *lists) {
    LayerLists& of_layer = found.emplace_back();
    if (depth == 2)
      of_layer.push_back(tokens_of(layer));
    else if (!layer.is_array())
      throw InputError(where, "a list of heads", json_text(layer));
    else
      for (const Json& head : layer) of_layer.push_back(tokens_of(head));
  }
  return found;
}

void take(const HeadList& list, std::span<std::uint8_t> kept, const std::string& where) {
  const Index l = std::ssize(kept);
  if (list.mask) {
    std::ranges::copy(list.values, kept.begin());
    return;
  }
  for (const double value : list.values) {
    if (value == -1) continue;  // where arrays have room for more
    if (!(value >= 0 && value < static_cast<double>(l)) || value != std::floor(value))
      throw InputError(where, fmt::format("positions 0 to {} of the prompt", l - 1),
                       fmt::format("{}", value));
    std::uint8_t& at = kept[static_cast<std::size_t>(value)];
    if (at != 0) throw InputError(where, "every position once", fmt::format("{:.0f} twice", value));
    at = 1;
  }
}

}  // namespace

GivenArray<std::uint8_t> read_engine_kept(const std::filesystem::path& file, const Dump& dump) {
  const DumpShape& shape = dump.shape();
  const std::string where = file.string(), ending = file.extension().string();
  if (ending != ".npy" && ending != ".npz" && ending != ".json")
    throw InputError(where, "a name that ends in .npy, .npz or .json", ending.empty() ? "none" : ending);
  const std::vector<LayerLists> lists = ending == ".npy"   ? of_npy(where, shape.l)
                                        : ending == ".npz" ? of_npz(where, shape.layers, shape.l)
                                                           : of_json(file, shape.l);
  if (std::ssize(lists) != shape.layers && lists.size() != 1)
    throw InputError(where, fmt::format("{} layers", shape.layers), counted(std::ssize(lists), "layer"));
  GivenArray<std::uint8_t> kept;
  kept.name = file.stem().string();
  for (const LayerLists& layer : lists)
    if (std::ssize(layer) == shape.n_q && shape.n_q != shape.n_kv) kept.parts = shape.group();
  const Index rows = shape.n_kv * kept.parts;
  kept.values.assign(static_cast<std::size_t>(shape.layers * rows * shape.l), 0);
  for (Index layer = 0; layer < shape.layers; ++layer) {
    const LayerLists& mine = lists[lists.size() == 1 ? 0 : layer];
    if (std::ssize(mine) != rows && mine.size() != 1)
      throw InputError(fmt::format("{}: layer {}", where, layer),
                       fmt::format("{} KV heads, or {} query heads in every layer", shape.n_kv, shape.n_q),
                       counted(std::ssize(mine), "head"));
    for (Index row = 0; row < rows; ++row)
      take(mine[mine.size() == 1 ? 0 : row],
           std::span(kept.values).subspan((layer * rows + row) * shape.l, shape.l),
           fmt::format("{}: layer {}, head {}", where, layer, row));
  }
  return kept;
}

}  // namespace kvreplay::conform
