#include "analysis/capture/dump_writer.hpp"

#include "data/atomic_file.hpp"
#include "data/error.hpp"
#include "data/npy_write.hpp"
#include "sim/attention.hpp"
#include "sim/head_group.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fcntl.h>
#include <mutex>
#include <system_error>
#include <unistd.h>

namespace kvreplay {
namespace {

namespace fs = std::filesystem;

void write_at(int fd, std::span<const std::byte> bytes, std::size_t at, const fs::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_to_write(path, errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    at += static_cast<std::size_t>(written);
  }
}

bool of_dump(const fs::directory_entry& entry) {
  const std::string name = entry.path().filename().string();
  if (name == "manifest.json" || name == "tokens.json") return true;
  return name.starts_with("layer_") && entry.is_directory() &&
         std::ranges::all_of(fs::directory_iterator(entry.path()),
                             [](const auto& file) { return file.path().extension() == ".npy"; });
}

fs::path temporary_of(const fs::path& folder) {
  const fs::path whole = folder.filename().empty() ? folder.parent_path() : folder;
  return whole.parent_path() / (whole.filename().string() + ".capturing");
}

}  // namespace

void round_to(Dtype dtype, std::span<float> values, const std::string& where) {
  if (dtype != Dtype::f16) return;
  for (float& value : values) {
    value = half_to_float(float_to_half(value));
    if (!std::isfinite(value))
      throw InputError(fmt::format(
          "{}: expected numbers within float16's 65504, found larger ones or none (dtype float32 has room)",
          where));
  }
}

void require_free(const fs::path& folder, bool force) {
  if (!fs::exists(folder)) return;
  if (!fs::is_directory(folder)) throw InputError(folder.string(), "a folder", "a file");
  for (const auto& entry : fs::directory_iterator(folder))
    if (!force || !of_dump(entry))
      throw InputError(folder.string(), force ? "a dump and nothing else" : "an empty folder (or --force)",
                       entry.path().filename().string());
}

DumpWriter::DumpWriter(fs::path folder, bool force, Dtype dtype, Index layers, Index positions)
    : folder_(std::move(folder)),
      temporary_(temporary_of(folder_)),
      force_(force),
      dtype_(dtype),
      layers_(layers),
      positions_(positions) {
  require_free(folder_, force_);
  require_free(temporary_, true);  // of a capture that was killed
  std::error_code error;
  fs::remove_all(temporary_, error);
  fs::create_directories(temporary_, error);
  if (error) fail_to_write(temporary_, error.value());
  write_file(temporary_ / "manifest.json", "{\"incomplete\": true}\n");
}

DumpWriter::~DumpWriter() {
  for (const auto& [key, file] : files_)
    if (file.fd >= 0) ::close(file.fd);
  std::error_code ignored;
  fs::remove_all(temporary_, ignored);
}

DumpWriter::File& DumpWriter::begun(Tensor tensor, Index layer, Index heads, Index width) {
  const auto [size, first] = sizes_.try_emplace(tensor, heads, width);
  if (size->second != std::pair(heads, width))
    throw InputError(
        fmt::format("layer {}, {}", layer, name_of(tensor)),
        fmt::format("{} heads of {} channels as before", size->second.first, size->second.second),
        fmt::format("{} of {}", heads, width));
  File& file = files_[{tensor, layer}];
  if (file.fd >= 0) return file;
  const fs::path path =
      temporary_ / fmt::format("layer_{:02}", layer) / fmt::format("{}.npy", name_of(tensor));
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  file.fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file.fd < 0) fail_to_write(path, errno);
  const std::size_t shape[] = {static_cast<std::size_t>(heads), static_cast<std::size_t>(positions_),
                               static_cast<std::size_t>(width)};
  const std::string header = npy_header(kDtypes[dtype_].descr, shape);
  file.header = header.size();
  const auto bytes = static_cast<off_t>(header.size() + shape[0] * shape[1] * shape[2] * size_of(dtype_));
  if (const int reason = ::posix_fallocate(file.fd, 0, bytes); reason != 0) fail_to_write(path, reason);
  write_at(file.fd, std::as_bytes(std::span(header)), 0, path);
  return file;
}

void DumpWriter::append(Tensor tensor, Index layer, Index heads, Index width, std::span<const float> rows) {
  File& file = begun(tensor, layer, heads, width);
  const Index n = std::ssize(rows) / (heads * width);
  if (file.rows + n > positions_)
    throw InputError(fmt::format("layer {}, {}", layer, name_of(tensor)), fmt::format("{} rows", positions_),
                     "more");
  std::vector<float> of_head(static_cast<std::size_t>(n * width));
  for (Index head = 0; head < heads; ++head) {
    for (Index row = 0; row < n; ++row)
      std::copy_n(rows.begin() + (row * heads + head) * width, width, of_head.begin() + row * width);
    const auto bytes = encode<float>(dtype_, of_head);
    const auto at = static_cast<std::size_t>((head * positions_ + file.rows) * width) * size_of(dtype_);
    write_at(file.fd, bytes, file.header + at, temporary_ / name_of(tensor));
  }
  file.rows += n;
}

void DumpWriter::append_wo(Index layer, Index d_model, std::span<float> values) {
  round_to(dtype_, values, fmt::format("layer {}, wo", layer));
  const auto [heads, width] = size_of_rows(Tensor::o);
  const std::size_t shape[] = {static_cast<std::size_t>(heads), static_cast<std::size_t>(width),
                               static_cast<std::size_t>(d_model)};
  AtomicFile file(temporary_ / fmt::format("layer_{:02}", layer) / "wo.npy");
  file.write(npy_header(kDtypes[dtype_].descr, shape));
  write_file(std::move(file), encode<float>(dtype_, values));
}

std::pair<Index, Index> DumpWriter::size_of_rows(Tensor tensor) const {
  const auto found = sizes_.find(tensor);
  return found == sizes_.end() ? std::pair<Index, Index>() : found->second;
}

const fs::path& DumpWriter::finish(const Json& manifest, const Json& tokens) {
  for (Index layer = 0; layer < layers_; ++layer)
    for (const Tensor tensor : {Tensor::q, Tensor::k, Tensor::v, Tensor::o}) {
      File& file = files_[{tensor, layer}];
      if (file.rows != positions_)
        throw InputError(fmt::format("layer {}, {}", layer, name_of(tensor)),
                         fmt::format("{} rows", positions_), fmt::format("{}", file.rows));
      if (::close(std::exchange(file.fd, -1)) != 0) fail_to_write(temporary_ / name_of(tensor), errno);
    }
  const auto replaced = Json::error_handler_t::replace;  // tokens may be parts of characters
  write_file(temporary_ / "tokens.json", tokens.dump(-1, ' ', false, replaced) + "\n");
  write_file(temporary_ / "manifest.json", manifest.dump(1, ' ', false, replaced) + "\n");
  return temporary_;
}

void DumpWriter::commit() {
  require_free(folder_, force_);
  std::error_code error;
  fs::remove_all(folder_, error);
  if (!error) fs::rename(temporary_, folder_, error);
  if (error) fail_to_write(folder_, error.value());
}

std::pair<double, Index> largest_deviation(const Dump& dump, Workers& workers) {
  const DumpShape& s = dump.shape();
  std::pair<double, Index> worst{0, 0};
  std::mutex mutex;
  workers.parallel_for(s.layers * s.n_kv, [&](Index item) {
    const Index layer = item / s.n_kv, kv_head = item % s.n_kv;
    const auto group = load_head_group<double>(dump, layer, kv_head, {.first_row = s.l - 1, .others = false});
    for (Index g = 0; g < s.group(); ++g) {
      Matrix<double> o(s.T - (s.l - 1), s.d_v);
      dump.read(Tensor::o, layer, kv_head * s.group() + g, o.data(), s.l - 1);
      for (const Index i : {s.l - 1, s.T - 1}) {
        const auto row = o.row(i - (s.l - 1)).transpose();
        const double norm = row.norm();
        const double apart = (attention_output(group, g, i) - row).norm() / std::max(norm, 1e-30);
        const std::lock_guard lock(mutex);
        worst = std::max(worst, {apart, layer});
      }
    }
  });
  return worst;
}

}  // namespace kvreplay
