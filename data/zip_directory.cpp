#include "data/zip_directory.hpp"

#include "data/zip_records.hpp"

#include <algorithm>

namespace kvreplay {
namespace {

using namespace zip_records;

/// Little-endian fields of an archive, none of which is read unless it is there.
class Fields {
 public:
  explicit Fields(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::uint64_t size() const { return bytes_.size(); }
  bool holds(std::uint64_t offset, std::uint64_t count) const {
    return offset <= size() && count <= size() - offset;
  }
  std::uint64_t at(std::uint64_t offset, int width) const {
    std::uint64_t value = 0;
    for (int i = 0; i < width; ++i) {
      value |=
          static_cast<std::uint64_t>(bytes_[static_cast<std::size_t>(offset) + static_cast<std::size_t>(i)])
          << 8 * i;
    }
    return value;
  }
  bool starts_record(std::uint64_t offset, std::uint64_t signature, std::uint64_t count) const {
    return holds(offset, count) && at(offset, 4) == signature;
  }
  std::string_view text(std::uint64_t offset, std::uint64_t count) const {
    return {reinterpret_cast<const char*>(bytes_.data()) + offset, static_cast<std::size_t>(count)};
  }

 private:
  std::span<const std::byte> bytes_;
};

struct Directory {
  std::uint64_t offset = 0, entries = 0;
};

std::optional<Directory> find_directory(const Fields& zip) {
  // The end record is followed by a comment of at most 65535 bytes.
  constexpr std::uint64_t longest_comment = 0xffff;
  if (zip.size() < end_bytes) return std::nullopt;
  std::uint64_t end = zip.size() - end_bytes;
  const std::uint64_t last = end > longest_comment ? end - longest_comment : 0;
  while (zip.at(end, 4) != end_signature || zip.at(end + 20, 2) != zip.size() - end - end_bytes) {
    if (end == last) return std::nullopt;
    --end;
  }
  const std::uint64_t locator = end - locator64_bytes;
  if (end >= locator64_bytes && zip.starts_record(locator, locator64_signature, locator64_bytes)) {
    const std::uint64_t end64 = zip.at(locator + 8, 8);
    if (!zip.starts_record(end64, end64_signature, end64_bytes)) return std::nullopt;
    return Directory{zip.at(end64 + 48, 8), zip.at(end64 + 32, 8)};
  }
  return Directory{zip.at(end + 16, 4), zip.at(end + 10, 2)};
}

/// Replaces a field that is too large for its 32 bits with the next value of the zip64 extra field.
bool widen(const Fields& zip, std::uint64_t& value, std::uint64_t& extra, std::uint64_t extra_end) {
  if (value != in_zip64_field) return true;
  if (extra_end - extra < 8) return false;
  value = zip.at(extra, 8);
  extra += 8;
  return true;
}

/// The values of an entry's zip64 extra field, as the range [first, second); empty without one.
std::pair<std::uint64_t, std::uint64_t> zip64_extra(const Fields& zip, std::uint64_t begin,
                                                    std::uint64_t end) {
  while (end - begin >= 4) {
    const std::uint64_t count = zip.at(begin + 2, 2);
    if (count > end - begin - 4) break;
    if (zip.at(begin, 2) == 1) return {begin + 4, begin + 4 + count};
    begin += 4 + count;
  }
  return {end, end};
}

std::optional<StoredMember> stored_member(const Fields& zip, std::uint64_t entry) {
  const std::uint64_t flags = zip.at(entry + 8, 2), method = zip.at(entry + 10, 2);
  const std::uint64_t name_bytes = zip.at(entry + 28, 2), extra_bytes = zip.at(entry + 30, 2);
  const std::uint64_t name = entry + entry_bytes;
  auto [extra, extra_end] = zip64_extra(zip, name + name_bytes, name + name_bytes + extra_bytes);
  std::uint64_t bytes = zip.at(entry + 24, 4), compressed = zip.at(entry + 20, 4),
                local = zip.at(entry + 42, 4);
  for (std::uint64_t* const field : {&bytes, &compressed, &local}) {
    if (!widen(zip, *field, extra, extra_end)) return std::nullopt;
  }
  constexpr std::uint64_t encrypted = 1;
  if (method != 0 || (flags & encrypted) != 0 || bytes != compressed) return std::nullopt;
  if (!zip.starts_record(local, local_signature, local_bytes) || zip.at(local + 8, 2) != method)
    return std::nullopt;
  const std::uint64_t local_name = zip.at(local + 26, 2),
                      lead = local_bytes + local_name + zip.at(local + 28, 2);
  if (!zip.holds(local, lead) || !zip.holds(local + lead, bytes)) return std::nullopt;
  const StoredMember member{zip.text(name, name_bytes), local + lead, bytes};
  if (zip.text(local + local_bytes, local_name) != member.name) return std::nullopt;
  return member;
}

}  // namespace

std::vector<std::optional<StoredMember>> locate_stored_members(std::span<const std::byte> archive) {
  const Fields zip(archive);
  const auto directory = find_directory(zip);
  if (!directory) return {};
  std::vector<std::optional<StoredMember>> members;
  std::uint64_t entry = directory->offset;
  for (std::uint64_t i = 0; i < directory->entries; ++i) {
    if (!zip.starts_record(entry, entry_signature, entry_bytes)) return {};
    const std::uint64_t length =
        entry_bytes + zip.at(entry + 28, 2) + zip.at(entry + 30, 2) + zip.at(entry + 32, 2);
    if (!zip.holds(entry, length)) return {};
    members.push_back(stored_member(zip, entry));
    entry += length;
  }
  return members;
}

}  // namespace kvreplay
