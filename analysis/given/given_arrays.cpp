#include "analysis/given/given_arrays.hpp"

#include "data/file_contents.hpp"
#include "data/npy_read.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <span>
#include <string_view>
#include <system_error>

namespace kvreplay {
namespace {

constexpr std::string_view kDump = "{dump}";

bool is_plain_character(unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '.'; }

/// A name becomes part of file names and of policies.
bool is_plain(const std::string& name) {
  return name.front() != '.' && std::ranges::all_of(name, is_plain_character);
}

[[noreturn]] void refuse_taken(const OptionFacts& option, const std::string& name) {
  throw OptionError(option, "a name of its own", fmt::format("'{}', which is taken", name));
}

}  // namespace

std::string contents_fingerprint(std::span<const std::byte> bytes) {
  return fmt::format("{:016x}", contents_of(bytes).xxh3);
}

void take_infinities(std::vector<double>& values, Index heads, Index l, const std::string& where) {
  for (std::ptrdiff_t begin = 0; begin < std::ssize(values); begin += l) {
    const std::span head(values.data() + begin, static_cast<std::size_t>(l));
    double least = 0, most = 0;
    for (std::size_t p = 0; p < head.size(); ++p) {
      if (std::isnan(head[p]))
        throw InputError(
            where, "numbers",
            fmt::format("NaN at layer {}, head {}, position {}", begin / l / heads, begin / l % heads, p));
      if (std::isfinite(head[p])) least = std::min(least, head[p]), most = std::max(most, head[p]);
    }
    for (double& value : head)
      if (std::isinf(value)) value = value > 0 ? most + (most - least + 1) : least - (most - least + 1);
  }
}

std::string NamedFile::of_dump(const std::string& dump) const {
  std::string path = file;
  for (std::size_t at = 0; (at = path.find(kDump, at)) != std::string::npos; at += dump.size())
    path.replace(at, kDump.size(), dump);
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(path, ignored);
  return is_folder ? (std::filesystem::path(path) / (dump + ".npy")).string() : path;
}

std::vector<std::string> names_of(const std::vector<NamedFile>& files) {
  std::vector<std::string> names;
  for (const NamedFile& file : files) names.push_back(file.name);
  return names;
}

NamedFile OptionValue<NamedFile>::parse(const OptionFacts& option, const std::string& word) {
  const auto equals = word.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == word.size())
    throw OptionError(option, "name=FILE.npy", fmt::format("'{}'", word));
  return {word.substr(0, equals), word.substr(equals + 1)};
}

void require_own_name(const OptionFacts& option, const std::string& name) {
  if (name.empty() || !is_plain(name))
    throw OptionError(option, "a name of letters, digits, '_' and '.'", fmt::format("'{}'", name));
  if (kTokenMetrics.named(name) || kBases.named(name) || name == "none") refuse_taken(option, name);
  if (spells_missing(name))
    throw OptionError(
        option, "a name that tables can hold",
        fmt::format("'{}', which their readers take for a missing value, an infinity or a truth value",
                    name));
}

std::string as_own_name(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return !is_plain_character(static_cast<unsigned char>(c)); }, '_');
  return text;
}

void require_one_a_dump(const OptionFacts& option, const std::vector<NamedFile>& files, std::size_t dumps) {
  for (const NamedFile& named : files)
    if (dumps > 1 && named.of_dump("a") == named.of_dump("b"))
      throw OptionError(option,
                        fmt::format("an array for each of the {} dumps: {}=PATH with {} in it, or a folder "
                                    "with one <dump>.npy a dump",
                                    dumps, named.name, kDump),
                        fmt::format("'{}'", named.file));
}

template <class T>
std::vector<GivenArray<T>> read_given(const OptionFacts& option, const std::vector<NamedFile>& files,
                                      const Dump& dump, bool per_query_head) {
  const DumpShape& shape = dump.shape();
  std::vector<GivenArray<T>> all;
  for (const NamedFile& named : files) {
    require_own_name(option, named.name);
    if (std::ranges::any_of(all, [&](const auto& g) { return g.name == named.name; }))
      refuse_taken(option, named.name);
    const std::string file = named.of_dump(dump.name());
    std::error_code ignored;
    if (files.size() > 1 && !std::filesystem::exists(file, ignored))
      throw InputError(
          file, "a readable file",
          "none (a comma separates files: one in a name stands behind a backslash, or in quotes)");
    try {
      const std::vector<Index> stored = per_query_head ? npy_shape(file) : std::vector<Index>();
      const bool apart = stored.size() == 3 && stored[1] == shape.n_q;
      const std::array<Index, 3> expected{shape.layers, apart ? shape.n_q : shape.n_kv, shape.l};
      GivenArray<T>& array = all.emplace_back();
      array.name = named.name;
      array.parts = apart ? shape.group() : 1;
      if constexpr (sizeof(T) == 1) {
        array.values = read_npy_bool(file, expected);
      } else {
        array.values = read_npy(file, expected);
        take_infinities(array.values, expected[1], shape.l, file);
      }
    } catch (const InputError& error) {
      if (file == named.file) throw;
      throw OptionError(
          option_text("{} {}, dump {}: {}", option, named.name, dump.name(), std::string(error.what())));
    }
  }
  return all;
}
template std::vector<GivenArray<double>> read_given(const OptionFacts&, const std::vector<NamedFile>&,
                                                    const Dump&, bool);
template std::vector<GivenArray<std::uint8_t>> read_given(const OptionFacts&, const std::vector<NamedFile>&,
                                                          const Dump&, bool);

void join_readers(std::vector<GivenArray<double>>& scores, const Dump& dump) {
  const Index width = dump.shape().n_kv * dump.shape().l;
  for (GivenArray<double>& score : scores) {
    const auto row = [&](Index layer) {
      return Eigen::Map<Vector<double>>(score.values.data() + layer * width, width);
    };
    for (Index layer = 0; score.parts == 1 && layer < dump.shape().layers; ++layer) {
      const std::vector<Index> readers = dump.readers(layer);
      if (readers.front() != layer || readers.size() == 1) continue;
      for (const Index reader : std::span(readers).subspan(1)) row(layer) += row(reader);
      constexpr double kMost = std::numeric_limits<double>::max();
      row(layer) = row(layer).cwiseMin(kMost).cwiseMax(-kMost);
      for (const Index reader : std::span(readers).subspan(1)) row(reader) = row(layer);
    }
  }
}

void require_joint(const OptionFacts& option, const std::vector<GivenArray<std::uint8_t>>& kept,
                   const Dump& dump) {
  const DumpShape& shape = dump.shape();
  for (const GivenArray<std::uint8_t>& array : kept)
    for (Index head = 0; array.parts == 1 && head < shape.layers * shape.n_kv; ++head) {
      const Index layer = head / shape.n_kv, g = head % shape.n_kv, of = dump.cache_of(layer);
      if (!std::ranges::equal(array.of(head, 0, shape.l), array.of(of * shape.n_kv + g, 0, shape.l)))
        throw OptionError(option_text("{} {}", option, array.name),
                          fmt::format("one kept set for layers {} and {}, which read one cache", of, layer),
                          fmt::format("others in KV head {}", g));
    }
}

GivenScores scores_of_head(const std::vector<GivenArray<double>>& scores, Index head, Index l,
                           std::optional<Index> part) {
  GivenScores mine;
  for (const GivenArray<double>& score : scores) {
    const auto row = [&](Index g) {
      return Eigen::Map<const Vector<double>>(score.of(head, g, l).data(), l);
    };
    mine.emplace_back(row(part.value_or(0)));
    for (Index g = 1; !part && g < score.parts; ++g) mine.back() += row(g);
  }
  return mine;
}

std::optional<Index> common_count(const GivenArray<std::uint8_t>& kept, const DumpShape& shape) {
  std::optional<Index> common;
  for (Index head = 0; head < shape.layers * shape.n_kv * kept.parts; ++head) {
    const auto begin = kept.values.begin() + head * shape.l;
    const Index n = std::count(begin, begin + shape.l, std::uint8_t{1});
    if (common && *common != n) return std::nullopt;
    common = n;
  }
  return common;
}

}  // namespace kvreplay
