#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvreplay::report {

/// What names a figure: columns of its table and their values.
using Wanted = std::vector<std::pair<std::string_view, std::string_view>>;

/// Entries of a table, found by the values of its key columns. An entry has `key`, a value for each of them.
template <class Entry>
class KeyedTable {
 public:
  bool empty() const { return entries_.empty(); }
  const std::vector<std::string>& key_columns() const { return columns_; }
  const std::vector<Entry>& entries() const { return entries_; }

  /// Empty where the table has no such column.
  const std::string& key(const Entry& entry, std::string_view column) const {
    const auto found = std::find(columns_.begin(), columns_.end(), column);
    static const std::string none;
    return found == columns_.end() ? none : entry.key[found - columns_.begin()];
  }

  bool matches(const Entry& entry, const Wanted& wanted) const {
    return std::all_of(wanted.begin(), wanted.end(),
                       [&](const auto& pair) { return key(entry, pair.first) == pair.second; });
  }

  /// The first entry with these values; null where there is none.
  const Entry* find(const Wanted& wanted) const {
    const auto found = std::find_if(entries_.begin(), entries_.end(),
                                    [&](const Entry& entry) { return matches(entry, wanted); });
    return found == entries_.end() ? nullptr : &*found;
  }

  /// The values of a column in entries that match, each once, in the table's order.
  std::vector<std::string> distinct(std::string_view column, const Wanted& wanted = {}) const {
    std::vector<std::string> values;
    for (const Entry& entry : entries_) {
      if (!matches(entry, wanted)) continue;
      const std::string& value = key(entry, column);
      if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
    }
    return values;
  }

 protected:
  std::vector<std::string> columns_;
  std::vector<Entry> entries_;
};

}  // namespace kvreplay::report
