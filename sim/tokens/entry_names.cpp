#include "sim/tokens/entry_map.hpp"

namespace kvreplay {
namespace {

struct EntryFacts {
  Entry entry;
  std::string_view name;
  std::optional<TokenMetric> metric;
};

constexpr std::array<EntryFacts, kEntries> kEntryFacts{{
    {Entry::logit, "logit", std::nullopt},
    {Entry::attn, "attn", TokenMetric::attn},
    {Entry::attn_sq, "attn_sq", TokenMetric::attn_sq},
    {Entry::value, "value", TokenMetric::value},
    {Entry::key, "key", TokenMetric::key},
    {Entry::joint, "joint", TokenMetric::joint},
    {Entry::exact_value, "exact_value", TokenMetric::exact_value},
    {Entry::exact_key, "exact_key", TokenMetric::exact_key},
    {Entry::exact_joint, "exact_joint", TokenMetric::exact_joint},
    {Entry::exact_remove, "exact_remove", TokenMetric::exact_remove},
}};

static_assert([] {
  for (std::size_t e = 0; e < kEntries; ++e)
    if (static_cast<std::size_t>(kEntryFacts[e].entry) != e) return false;
  return true;
}());

}  // namespace

const std::array<Entry, kEntries>& all_entries() {
  static constexpr std::array<Entry, kEntries> all = [] {
    std::array<Entry, kEntries> entries{};
    for (std::size_t e = 0; e < kEntries; ++e) entries[e] = kEntryFacts[e].entry;
    return entries;
  }();
  return all;
}

std::string_view name_of(Entry entry) { return kEntryFacts[static_cast<std::size_t>(entry)].name; }

std::optional<Entry> entry_named(std::string_view name) {
  for (const EntryFacts& facts : kEntryFacts)
    if (facts.name == name) return facts.entry;
  return std::nullopt;
}

std::optional<TokenMetric> metric_of(Entry entry) {
  return kEntryFacts[static_cast<std::size_t>(entry)].metric;
}

}  // namespace kvreplay
