#include "data/npz.hpp"

#include "data/error.hpp"
#include "data/mapped_file.hpp"

#include <fmt/format.h>
#include <zip.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

namespace kvreplay {

/// The archive's file, which must stay as it is.
struct NpzArchive::Backing {
  std::filesystem::path path;
  FileState opened;
  std::string where() const { return path.string(); }
};

namespace {

// Signatures and sizes of a zip archive's records: APPNOTE.TXT 6.3, sections 4.3.7 to 4.3.16.
constexpr std::uint64_t local_signature = 0x04034b50, entry_signature = 0x02014b50,
                        end_signature = 0x06054b50, end64_signature = 0x06064b50,
                        locator64_signature = 0x07064b50;
/// Without names, extra fields and comments.
constexpr std::uint64_t local_bytes = 30, entry_bytes = 46, end_bytes = 22, end64_bytes = 56,
                        locator64_bytes = 20;
constexpr std::uint64_t in_zip64_field = 0xffffffff;  // for a value that needs 64 bits

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

constexpr std::uint64_t piece_bytes = std::uint64_t{1} << 18;
// Reads that end this early (headers, small members) leave no decompressor behind.
constexpr std::uint64_t no_cursor_below = std::uint64_t{1} << 16;

/// Held while libzip reads headers: it converts their times to the local zone, which is a global of the C
/// library.
std::mutex& header_mutex() {
  static std::mutex mutex;
  return mutex;
}

struct ZipClose {
  void operator()(zip_t* zip) const { zip_discard(zip); }
};
struct ZipFileClose {
  void operator()(zip_file_t* file) const { zip_fclose(file); }
};

/// An open archive. libzip's handles must not be shared between threads, so every reader opens its own.
class Zip {
 public:
  explicit Zip(const NpzArchive::Backing& backing)
      : where_(backing.where()), file_(backing.path, backing.opened, 0, backing.opened.size) {
    // libzip takes nothing at all for an archive without members.
    if (bytes().empty()) throw InputError(where_, "an .npz (zip) archive", "an empty file");
    const std::lock_guard lock(header_mutex());
    zip_error_t error;
    zip_error_init(&error);
    zip_source_t* source = zip_source_buffer_create(bytes().data(), bytes().size(), 0, &error);
    if (source) {
      zip_.reset(zip_open_from_source(source, ZIP_RDONLY, &error));
      if (!zip_) zip_source_free(source);
    }
    const std::string reason = zip_ ? "" : zip_error_strerror(&error);
    zip_error_fini(&error);
    file_.require_unchanged();
    if (!zip_) throw InputError(where_, "an .npz (zip) archive", reason);
  }

  zip_t* get() const { return zip_.get(); }
  std::span<const std::byte> bytes() const { return file_.bytes(); }
  void require_unchanged() const { file_.require_unchanged(); }

  zip_stat_t stat(std::uint64_t index) const {
    zip_stat_t status;
    constexpr zip_uint64_t needed = ZIP_STAT_NAME | ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE |
                                    ZIP_STAT_COMP_METHOD | ZIP_STAT_ENCRYPTION_METHOD;
    if (zip_stat_index(zip_.get(), index, 0, &status) != 0 || (status.valid & needed) != needed) {
      throw InputError(where_, "a readable archive", fmt::format("no entry for member {}", index));
    }
    return status;
  }

 private:
  std::string where_;
  MappedFile file_;
  std::unique_ptr<zip_t, ZipClose> zip_;
};

/// One pass through a member of `size` bytes. Who reaches its end has had its checksum compared.
class Cursor {
 public:
  Cursor(const NpzArchive::Backing& backing, std::uint64_t index, std::string where, std::uint64_t size)
      : zip_(backing), where_(std::move(where)), size_(size) {
    const std::lock_guard lock(header_mutex());
    file_.reset(zip_fopen_index(zip_.get(), index, 0));
    if (!file_) throw InputError(where_, "a readable member", zip_strerror(zip_.get()));
  }

  std::uint64_t position() const { return position_; }

  void read(std::byte* out, std::uint64_t count) {
    while (count > 0) {
      const zip_int64_t got = zip_fread(file_.get(), out, count);
      zip_.require_unchanged();
      if (got <= 0) {
        throw InputError(where_, fmt::format("{} more bytes behind byte {}", count, position_),
                         got == 0 ? "the end of the member" : zip_file_strerror(file_.get()));
      }
      out += got;
      position_ += static_cast<std::uint64_t>(got);
      count -= static_cast<std::uint64_t>(got);
    }
    std::byte beyond;
    if (position_ == size_ && zip_fread(file_.get(), &beyond, 1) != 0)
      throw InputError(where_, "bytes that agree with the archive's checksum", "others");
  }

  // Decompresses up to `begin`. (zip_fseek is no way round it: some versions of libzip crash on damaged
  // archives.)
  void skip_to(std::uint64_t begin, std::vector<std::byte>& scratch) {
    scratch.resize(piece_bytes);
    while (position_ < begin) read(scratch.data(), std::min(piece_bytes, begin - position_));
  }

 private:
  Zip zip_;
  std::string where_;
  std::uint64_t size_;
  std::unique_ptr<zip_file_t, ZipFileClose> file_;
  std::uint64_t position_ = 0;
};

/// A stored member is mapped like a file of its own; libzip decompresses the others, and compares the
/// checksums of all.
class MemberSource : public ByteSource {
 public:
  MemberSource(std::shared_ptr<const NpzArchive::Backing> backing, std::uint64_t index,
               const NpzArchive::Member& member)
      : backing_(std::move(backing)),
        index_(index),
        where_(backing_->where() + ":" + member.name),
        size_(member.bytes) {
    if (member.offset) stored_.emplace(backing_->path, backing_->opened, *member.offset, member.bytes);
  }

  std::uint64_t size() const override { return size_; }
  bool as_it_lies() const override { return stored_.has_value(); }
  void read_all(const Visit& visit) const override {
    Cursor cursor(*backing_, index_, where_, size_);
    read_with(cursor, 0, size_, false, visit);
  }

  void read(std::uint64_t begin, std::uint64_t end, bool in_one_piece, const Visit& visit) const override {
    if (stored_) return stored_->read(begin, end, in_one_piece, visit);
    if (end <= no_cursor_below) {
      Cursor cursor(*backing_, index_, where_, size_);
      return read_with(cursor, begin, end, in_one_piece, visit);
    }
    const std::lock_guard lock(mutex_);
    // Taken out while in use: after a failure the next read starts afresh.
    std::unique_ptr<Cursor> cursor = std::move(cursor_);
    if (!cursor || cursor->position() > begin)
      cursor = std::make_unique<Cursor>(*backing_, index_, where_, size_);
    read_with(*cursor, begin, end, in_one_piece, visit);
    if (end < size_) cursor_ = std::move(cursor);
  }

 private:
  void read_with(Cursor& cursor, std::uint64_t begin, std::uint64_t end, bool in_one_piece,
                 const Visit& visit) const {
    std::vector<std::byte> scratch;
    cursor.skip_to(begin, scratch);
    const std::uint64_t piece = in_one_piece ? end - begin : std::min(piece_bytes, end - begin);
    scratch.resize(piece);
    while (begin < end) {
      const std::uint64_t count = std::min(piece, end - begin);
      cursor.read(scratch.data(), count);
      visit(std::span(scratch).first(count));
      begin += count;
    }
  }

  std::shared_ptr<const NpzArchive::Backing> backing_;
  std::uint64_t index_;
  std::string where_;
  std::uint64_t size_;
  std::optional<FileSource> stored_;
  mutable std::mutex mutex_;
  mutable std::unique_ptr<Cursor> cursor_;
};

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

NpzArchive::NpzArchive(std::shared_ptr<const Backing> backing) : backing_(std::move(backing)) {
  const Zip zip(*backing_);
  const zip_int64_t entries = zip_get_num_entries(zip.get(), 0);
  const auto located = locate_stored_members(zip.bytes());
  for (zip_int64_t i = 0; i < entries; ++i) {
    const zip_stat_t status = zip.stat(static_cast<std::uint64_t>(i));
    if (status.encryption_method != ZIP_EM_NONE) {
      throw InputError(backing_->where() + ":" + status.name, "a member that is not encrypted",
                       "an encrypted one");
    }
    const bool stored = status.comp_method == ZIP_CM_STORE;
    if (!stored && status.comp_method != ZIP_CM_DEFLATE) {
      throw InputError(backing_->where() + ":" + status.name, "a stored or deflated member",
                       fmt::format("compression method {}", status.comp_method));
    }
    // Deflate reaches 1032:1 at most: a larger claim is a lie that memory would be set aside for.
    if (status.comp_size > zip.bytes().size() ||
        (stored ? status.size != status.comp_size : status.size / 1032 > status.comp_size)) {
      throw InputError(backing_->where() + ":" + status.name, "a size that the archive can hold",
                       fmt::format("{} bytes from {}", status.size, status.comp_size));
    }
    Member member{status.name, status.size, std::nullopt};
    if (std::ssize(located) == entries) {
      const auto& found = located[i];
      if (found && found->name == member.name && found->bytes == member.bytes) member.offset = found->offset;
    }
    members_.push_back(std::move(member));
  }
}

NpzArchive NpzArchive::open(const std::filesystem::path& path) {
  return NpzArchive(std::make_shared<const Backing>(Backing{path, state_of(path)}));
}

std::shared_ptr<const ByteSource> NpzArchive::source(std::size_t member) const {
  return std::make_shared<MemberSource>(backing_, member, members_.at(member));
}

}  // namespace kvreplay
