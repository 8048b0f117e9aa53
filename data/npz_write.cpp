#include "data/npz_write.hpp"

#include "data/error.hpp"
#include "data/npy/zip_records.hpp"
#include "data/npy_write.hpp"

#include <array>
#include <cassert>
#include <functional>
#include <limits>
#include <numeric>

namespace kvreplay {
namespace {

/// CRC-32 of zip archives, byte after byte.
std::uint32_t crc_of(std::span<const std::byte> bytes, std::uint32_t before = 0) {
  static constexpr auto kTable = [] {
    std::array<std::uint32_t, 256> table{};
    for (std::uint32_t i = 0; i < table.size(); ++i) {
      table[i] = i;
      for (int bit = 0; bit < 8; ++bit) table[i] = (table[i] >> 1) ^ (table[i] % 2 != 0 ? 0xedb88320U : 0U);
    }
    return table;
  }();
  std::uint32_t crc = ~before;
  for (const std::byte byte : bytes)
    crc = (crc >> 8) ^ kTable[(crc ^ static_cast<std::uint32_t>(byte)) & 0xff];
  return ~crc;
}

/// Fields of a zip structure, little-endian.
class Fields {
 public:
  Fields& two(std::size_t value) { return put(value, 2); }
  Fields& four(std::size_t value) { return put(value, 4); }
  Fields& text(std::string_view bytes) {
    bytes_ += bytes;
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  Fields& put(std::size_t value, int count) {
    for (int i = 0; i < count; ++i) bytes_ += static_cast<char>(value >> (8 * i) & 0xff);
    return *this;
  }
  std::string bytes_;
};

/// What the record before a member's bytes and the one in the directory share.
Fields& add_facts(Fields& fields, std::uint32_t crc, std::size_t bytes, std::size_t name) {
  constexpr std::size_t kVersion = 20, kFlags = 0, kStored = 0, kTime = 0, kFirstOfJanuary1980 = 0x21;
  fields.two(kVersion).two(kFlags).two(kStored).two(kTime).two(kFirstOfJanuary1980);
  return fields.four(crc).four(bytes).four(bytes).two(name).two(0);
}

NpzMember member(std::string_view name, std::string_view descr, const std::vector<std::size_t>& shape,
                 std::span<const std::byte> numbers, [[maybe_unused]] std::size_t values) {
  assert(std::accumulate(shape.begin(), shape.end(), std::size_t{1}, std::multiplies<>{}) == values);
  return {std::string(name), npy_header(descr, shape), numbers};
}

}  // namespace

NpzMember npz_member(std::string_view name, const std::vector<std::size_t>& shape,
                     std::span<const float> values) {
  return member(name, kDtypes[Dtype::f32].descr, shape, std::as_bytes(values), values.size());
}

NpzMember npz_member(std::string_view name, const std::vector<std::size_t>& shape,
                     std::span<const std::int32_t> values) {
  return member(name, "<i4", shape, std::as_bytes(values), values.size());
}

void write_npz(AtomicFile file, std::span<const NpzMember> members) {
  Fields directory;
  std::size_t at = 0;
  for (const NpzMember& member : members) {
    const std::string name = member.name + ".npy";
    const std::size_t bytes = member.header.size() + member.numbers.size();
    const std::uint32_t crc = crc_of(member.numbers, crc_of(std::as_bytes(std::span(member.header))));
    Fields local;
    add_facts(local.four(zip_records::local_signature), crc, bytes, name.size()).text(name);
    add_facts(directory.four(zip_records::entry_signature).two(20), crc, bytes, name.size());
    directory.two(0).two(0).two(0).four(0).four(at).text(name);
    at += local.bytes().size() + bytes;
    if (at > std::numeric_limits<std::uint32_t>::max())
      throw InputError(file.path().string(), "arrays of less than 4 GiB together", "more");
    file.write(local.bytes());
    file.write(member.header);
    file.write(member.numbers);
  }
  Fields end;
  end.four(zip_records::end_signature).two(0).two(0).two(members.size()).two(members.size());
  end.four(directory.bytes().size()).four(at).two(0);
  file.write(directory.bytes());
  file.write(end.bytes());
  file.commit();
}

}  // namespace kvreplay
