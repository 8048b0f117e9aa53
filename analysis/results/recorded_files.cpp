#include "analysis/results/recorded_files.hpp"

#include "analysis/results/csv.hpp"
#include "analysis/results/text_file.hpp"
#include "data/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <set>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace kvreplay {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kColumns = "name,bytes,xxh3\n";

/// A file descriptor, closed with it.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_;
};

bool stays_below(const fs::path& name) {
  return !name.empty() && name.is_relative() && name.has_filename() &&
         std::ranges::none_of(name, [](const fs::path& part) { return part == ".." || part == "."; });
}

bool read_number(std::string_view text, std::uint64_t& number, int base) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  return error == std::errc() && end == text.data() + text.size();
}

/// The folder `name` below another, reached through folders alone; none where it is not.
Descriptor open_folder(const fs::path& folder, const fs::path& name) {
  constexpr int kFolder = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
  Descriptor at(::open(folder.c_str(), kFolder));
  for (const fs::path& part : name)
    if (at) at = Descriptor(::openat(at.get(), part.c_str(), kFolder | O_NOFOLLOW));
  return at;
}

bool is_regular(const Descriptor& folder, const char* name) {
  struct stat found = {};
  return ::fstatat(folder.get(), name, &found, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(found.st_mode);
}

void remove_temporaries(const Descriptor& folder) {
  std::vector<std::string> names;
  DIR* const listing = ::fdopendir(::dup(folder.get()));
  if (listing == nullptr) return;
  while (const dirent* entry = ::readdir(listing))
    if (AtomicFile::is_temporary(entry->d_name)) names.emplace_back(entry->d_name);
  ::closedir(listing);
  for (const std::string& name : names)
    if (is_regular(folder, name.c_str())) ::unlinkat(folder.get(), name.c_str(), 0);
}

}  // namespace

std::string text_of(std::span<const RecordedFile> files) {
  std::string text(kColumns);
  for (const RecordedFile& file : files)
    text += fmt::format("{},{},{:016x}\n", csv_field(file.name), file.contents.bytes, file.contents.xxh3);
  return text;
}

std::vector<RecordedFile> recorded_files(std::string_view text, const fs::path& where) {
  const auto damaged = [&] {
    return InputError(where.string(), "kvreplay's record of what it wrote", "a damaged file");
  };
  if (!text.starts_with(kColumns)) throw damaged();
  std::vector<RecordedFile> files;
  try {
    CsvReader csv(where, std::string(text));
    for (std::vector<std::string> row; csv.next(row);) {
      RecordedFile file{row[0], {}};
      if (!stays_below(file.name) || !read_number(row[1], file.contents.bytes, 10) ||
          !read_number(row[2], file.contents.xxh3, 16))
        throw damaged();
      files.push_back(std::move(file));
    }
  } catch (const InputError&) {
    throw damaged();
  }
  return files;
}

std::string hash_of_files(std::string_view record) {
  return fmt::format("{:016x}", contents_of(std::as_bytes(std::span(record))).xxh3);
}

std::vector<RecordedFile> files_of_results(const fs::path& folder, const Json& summary) {
  const fs::path path = folder / "files.csv";
  const std::string text = file_text(path, kMostRecord);
  if (summary.contains(kHashOfFiles) && summary[kHashOfFiles] != hash_of_files(text))
    throw InputError(path.string(), "the record that summary.json was written with", "another");
  return recorded_files(text, path);
}

std::string read_recorded(const fs::path& folder, const RecordedFile& file) {
  const fs::path path = folder / file.name;
  const auto changed = [&](const std::string& found) {
    return InputError(
        path.string(),
        fmt::format("the {} bytes that were written (XXH3 {:016x})", file.contents.bytes, file.contents.xxh3),
        found);
  };
  const Descriptor parent = open_folder(folder, fs::path(file.name).parent_path());
  const std::string name = path.filename().string();
  if (!parent) throw changed("none");
  const Descriptor in(::openat(parent.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat found = {};
  if (!in || ::fstat(in.get(), &found) != 0) throw changed(errno == ELOOP ? "a symbolic link" : "none");
  if (!S_ISREG(found.st_mode)) throw changed("no regular file");
  if (static_cast<std::uint64_t>(found.st_size) != file.contents.bytes)
    throw changed(fmt::format("{} bytes", found.st_size));
  std::string bytes(file.contents.bytes, '\0');
  for (std::size_t at = 0; at < bytes.size();) {
    const ssize_t got = ::read(in.get(), bytes.data() + at, bytes.size() - at);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) throw changed(got < 0 ? std::strerror(errno) : fmt::format("{} bytes", at));
    at += static_cast<std::size_t>(got);
  }
  if (contents_of(std::as_bytes(std::span(bytes))) != file.contents) throw changed("other bytes");
  return bytes;
}

void remove_files(const fs::path& folder, std::span<const std::string> names) {
  std::set<fs::path> folders = {""};
  if (const Descriptor top = open_folder(folder, "")) remove_temporaries(top);
  for (const std::string& name : names) {
    const fs::path path(name);
    if (!stays_below(path)) continue;
    const Descriptor parent = open_folder(folder, path.parent_path());
    if (!parent) continue;
    if (folders.insert(path.parent_path()).second) remove_temporaries(parent);
    const std::string file = path.filename().string();
    if (is_regular(parent, file.c_str()) && ::unlinkat(parent.get(), file.c_str(), 0) != 0)
      throw InputError(
          fmt::format("{}: cannot be removed: {}", (folder / path).string(), std::strerror(errno)));
  }
  // Longer names first: a folder may be empty once those in it are gone.
  std::set<fs::path> parents;
  for (fs::path at : folders)
    for (; !at.empty(); at = at.parent_path()) parents.insert(at);
  for (auto at = parents.rbegin(); at != parents.rend(); ++at)
    if (const Descriptor parent = open_folder(folder, at->parent_path()))
      ::unlinkat(parent.get(), at->filename().c_str(), AT_REMOVEDIR);  // fails where something is in it
}

namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kMostBytes = std::uintmax_t{1} << 40;

std::uint64_t hash_of(std::string_view text) { return contents_of(std::as_bytes(std::span(text))).xxh3; }

void append(std::string& bytes, std::uint64_t number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
}

/// True if the file ends as a record does: with a list of files at the place that its last bytes state. Other
/// files in a record's place may be of any size and are not read.
bool ends_like_a_record(const fs::path& path) {
  const MappedFile file(path);
  const std::span<const std::byte> bytes = file.bytes();
  const std::string begin = text_of(std::span<const RecordedFile>());
  std::uint64_t csv = 0;
  if (bytes.size() < 2 * sizeof csv) return false;
  const std::size_t end = bytes.size() - 2 * sizeof csv;
  std::memcpy(&csv, bytes.data() + end, sizeof csv);
  if (csv < begin.size() || csv > end) return false;
  return std::memcmp(bytes.data() + (end - csv), begin.data(), begin.size()) == 0;
}

}  // namespace

OtherDump::OtherDump(const fs::path& folder, Index layer)
    : InputError(
          fmt::format("{}: layer {} of the dump was another when it was computed", folder.string(), layer)) {}

std::string bytes_of(const LayerRecord& record) {
  std::string bytes = record.fingerprint;
  bytes.append(reinterpret_cast<const char*>(record.figures.data()), record.figures.size() * sizeof(double));
  const std::string csv = text_of(record.files);
  bytes += csv;
  append(bytes, csv.size());
  append(bytes, hash_of(bytes));
  return bytes;
}

LayerRecord read_layer_record(const fs::path& folder, const fs::path& name, Index layer,
                              const std::optional<std::string>& fingerprint) {
  const fs::path path = folder / name;
  const auto unlike = [&](const char* found) {
    return InputError(path.string(), "the record of a finished layer", found);
  };
  if (!fs::is_regular_file(fs::symlink_status(path))) throw unlike("no file");
  if (!ends_like_a_record(path)) throw unlike("a damaged file");
  const std::string all = file_text(path, kMostBytes);
  std::string_view bytes = all;
  std::uint64_t numbers[2] = {};
  if (bytes.size() < sizeof numbers) throw unlike("a damaged file");
  std::memcpy(numbers, bytes.data() + bytes.size() - sizeof numbers, sizeof numbers);
  const auto [csv, hash] = numbers;
  if (hash_of(bytes.substr(0, bytes.size() - sizeof hash)) != hash) throw unlike("a damaged file");
  bytes.remove_suffix(sizeof numbers);
  const std::string of_layer(bytes.substr(0, fingerprint ? fingerprint->size() : kFingerprintDigits));
  if (fingerprint && of_layer != *fingerprint) throw OtherDump(folder, layer);
  bytes.remove_prefix(of_layer.size());
  if (csv > bytes.size() || (bytes.size() - csv) % sizeof(double) != 0) throw unlike("a damaged file");
  LayerRecord record{of_layer, {}, recorded_files(bytes.substr(bytes.size() - csv), path)};
  record.figures.resize((bytes.size() - csv) / sizeof(double));
  std::memcpy(record.figures.data(), bytes.data(), record.figures.size() * sizeof(double));
  return record;
}

}  // namespace kvreplay
