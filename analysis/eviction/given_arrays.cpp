#include "analysis/eviction/given_arrays.hpp"

#include "data/file_contents.hpp"
#include "data/npy_read.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <span>

namespace kvreplay {
namespace {

/// A name becomes part of file names and of policies.
bool is_plain(const std::string& name) {
  return name.front() != '.' && std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '_' || c == '.';
         });
}

template <class T, class Read>
std::vector<GivenArray<T>> read_all(const OptionFacts& option, const std::vector<NamedFile>& files,
                                    const DumpShape& shape, const Read& read) {
  const std::array<Index, 3> expected{shape.layers, shape.n_kv, shape.l};
  std::vector<GivenArray<T>> all;
  for (const NamedFile& named : files) {
    if (!is_plain(named.name))
      throw OptionError(option, "a name of letters, digits, '_' and '.'", fmt::format("'{}'", named.name));
    const bool taken =
        kTokenMetrics.named(named.name) || kBases.named(named.name) || named.name == "none" ||
        std::any_of(all.begin(), all.end(), [&](const auto& g) { return g.name == named.name; });
    if (taken)
      throw OptionError(option, "a name of its own", fmt::format("'{}', which is taken", named.name));
    all.push_back({named.name, read(named.file, std::span<const Index>(expected))});
  }
  return all;
}

std::string hash_of(std::span<const std::byte> bytes) {
  return fmt::format("{:016x}", contents_of(bytes).xxh3);
}

}  // namespace

std::vector<GivenArray<double>> read_given_scores(const std::vector<NamedFile>& files,
                                                  const DumpShape& shape) {
  return read_all<double>(
      evict_option::score, files, shape,
      [](const std::string& file, std::span<const Index> expected) { return read_npy(file, expected); });
}

std::vector<GivenArray<std::uint8_t>> read_given_kept(const std::vector<NamedFile>& files,
                                                      const DumpShape& shape) {
  return read_all<std::uint8_t>(
      evict_option::kept, files, shape,
      [](const std::string& file, std::span<const Index> expected) { return read_npy_bool(file, expected); });
}

GivenScores scores_of_head(const std::vector<GivenArray<double>>& scores, Index head, Index l) {
  GivenScores mine;
  for (const GivenArray<double>& score : scores)
    mine.push_back(Eigen::Map<const Vector<double>>(score.values.data() + head * l, l));
  return mine;
}

std::optional<Index> common_count(const GivenArray<std::uint8_t>& kept, const DumpShape& shape) {
  std::optional<Index> common;
  for (Index head = 0; head < shape.layers * shape.n_kv; ++head) {
    const auto begin = kept.values.begin() + head * shape.l;
    const Index n = std::count(begin, begin + shape.l, std::uint8_t{1});
    if (common && *common != n) return std::nullopt;
    common = n;
  }
  return common;
}

std::string contents_fingerprint(const GivenArray<double>& given) {
  return hash_of(std::as_bytes(std::span(given.values)));
}
std::string contents_fingerprint(const GivenArray<std::uint8_t>& given) {
  return hash_of(std::as_bytes(std::span(given.values)));
}

}  // namespace kvreplay
