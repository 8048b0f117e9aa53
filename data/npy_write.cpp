#include "data/npy_write.hpp"

#include "data/atomic_file.hpp"
#include "data/npy/npy_bytes.hpp"

#include <fmt/format.h>

#include <bit>
#include <cassert>
#include <string>

namespace kvreplay {
namespace {

static_assert(std::endian::native == std::endian::little, "arrays are written as they stand in memory");

template <class T>
void write_array(const std::filesystem::path& path, std::string_view descr,
                 std::span<const std::size_t> shape, std::span<const T> values) {
  [[maybe_unused]] std::size_t count = 1;
  for (const std::size_t extent : shape) count *= extent;
  assert(count == values.size());
  AtomicFile file(path);
  const std::string header = npy_header(descr, shape);
  file.write(std::as_bytes(std::span(header)));
  file.write(std::as_bytes(values));
  file.commit();
}

}  // namespace

void write_npy(const std::filesystem::path& path, std::span<const std::size_t> shape,
               std::span<const float> values) {
  write_array(path, "<f4", shape, values);
}

void write_npy(const std::filesystem::path& path, std::span<const std::size_t> shape,
               std::span<const double> values) {
  write_array(path, "<f8", shape, values);
}

void write_npy(const std::filesystem::path& path, std::span<const std::size_t> shape,
               std::span<const std::int32_t> values) {
  write_array(path, "<i4", shape, values);
}

void write_npy_bool(const std::filesystem::path& path, std::span<const std::size_t> shape,
                    std::span<const std::uint8_t> values) {
  write_array(path, "|b1", shape, values);
}

void write_npy_as(const std::filesystem::path& path, Dtype dtype, std::span<const std::size_t> shape,
                  std::span<const float> values) {
  AtomicFile file(path);
  const std::string header = npy_header(npy_descr(dtype), shape);
  file.write(std::as_bytes(std::span(header)));
  file.write(encode(dtype, values));
  file.commit();
}

}  // namespace kvreplay
