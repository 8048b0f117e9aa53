#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

// What one process tells another of a head: numbers as they lie in memory.

namespace kvreplay {

class ByteWriter {
 public:
  template <class T>
  void put(std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    const std::uint64_t count = values.size();
    append(&count, sizeof(count));
    append(values.data(), values.size_bytes());
  }
  template <class T>
  void put(const std::vector<T>& values) {
    put(std::span<const T>(values));
  }
  std::string take() { return std::move(bytes_); }

 private:
  void append(const void* from, std::size_t count) {
    if (count > 0) bytes_.append(static_cast<const char*>(from), count);
  }
  std::string bytes_;
};

/// Reads what a ByteWriter was given, in the same order. Throws std::logic_error where something else was.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}

  template <class T>
  std::vector<T> get() {
    std::vector<T> values(count<T>());
    copy(values.data(), values.size() * sizeof(T));
    return values;
  }
  /// As many as there is room for.
  template <class T>
  void get(std::span<T> values) {
    if (count<T>() != values.size()) throw std::logic_error("another number of values than were sent");
    copy(values.data(), values.size_bytes());
  }
  bool at_end() const { return bytes_.empty(); }

 private:
  template <class T>
  std::size_t count() {
    std::uint64_t found = 0;
    copy(&found, sizeof(found));
    if (found > bytes_.size() / sizeof(T)) throw std::logic_error("fewer bytes than were sent");
    return static_cast<std::size_t>(found);
  }
  void copy(void* to, std::size_t count) {
    if (count > bytes_.size()) throw std::logic_error("fewer bytes than were sent");
    if (count > 0) std::memcpy(to, bytes_.data(), count);
    bytes_.remove_prefix(count);
  }
  std::string_view bytes_;
};

}  // namespace kvreplay
