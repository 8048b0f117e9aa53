#include "data/npz.hpp"

#include "data/error.hpp"
#include "data/mapped_file.hpp"
#include "data/zip_directory.hpp"

#include <fmt/format.h>
#include <zip.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

namespace kvreplay {

/// Where the archive's bytes are: in a file that must stay as it is, or in memory.
struct NpzArchive::Backing {
  std::string where;
  std::filesystem::path path;  ///< empty: in memory
  FileState opened;
  std::span<const std::byte> memory;
};

namespace {

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
  explicit Zip(const NpzArchive::Backing& backing) : where_(backing.where), bytes_(backing.memory) {
    if (!backing.path.empty()) {
      file_.emplace(backing.path, backing.opened, 0, backing.opened.size);
      bytes_ = file_->bytes();
    }
    // libzip takes nothing at all for an archive without members.
    if (bytes_.empty()) throw InputError(where_, "an .npz (zip) archive", "an empty file");
    const std::lock_guard lock(header_mutex());
    zip_error_t error;
    zip_error_init(&error);
    zip_source_t* source = zip_source_buffer_create(bytes_.data(), bytes_.size(), 0, &error);
    if (source) {
      zip_.reset(zip_open_from_source(source, ZIP_RDONLY, &error));
      if (!zip_) zip_source_free(source);
    }
    const std::string reason = zip_ ? "" : zip_error_strerror(&error);
    zip_error_fini(&error);
    require_unchanged();
    if (!zip_) throw InputError(where_, "an .npz (zip) archive", reason);
  }

  zip_t* get() const { return zip_.get(); }
  std::span<const std::byte> bytes() const { return bytes_; }
  void require_unchanged() const {
    if (file_) file_->require_unchanged();
  }

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
  const std::string& where_;
  std::optional<MappedFile> file_;
  std::span<const std::byte> bytes_;
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

/// All of a member by way of libzip, which compares its checksum at the end.
void read_member(const NpzArchive::Backing& backing, std::uint64_t index, const NpzArchive::Member& member,
                 const ByteSource::Visit& visit) {
  Cursor cursor(backing, index, backing.where + ":" + member.name, member.bytes);
  std::vector<std::byte> piece(std::min(piece_bytes, member.bytes));
  while (cursor.position() < member.bytes) {
    const std::uint64_t count = std::min<std::uint64_t>(piece.size(), member.bytes - cursor.position());
    cursor.read(piece.data(), count);
    visit(std::span(piece).first(count));
  }
}

/// A stored member, mapped like a file of its own.
class StoredMemberSource : public FileSource {
 public:
  StoredMemberSource(std::shared_ptr<const NpzArchive::Backing> backing, std::uint64_t index,
                     const NpzArchive::Member& member)
      : FileSource(backing->path, backing->opened, *member.offset, member.bytes),
        backing_(std::move(backing)),
        index_(index),
        member_(member) {}
  void read_all(const Visit& visit) const override { read_member(*backing_, index_, member_, visit); }

 private:
  std::shared_ptr<const NpzArchive::Backing> backing_;
  std::uint64_t index_;
  NpzArchive::Member member_;
};

class MemberSource : public ByteSource {
 public:
  MemberSource(std::shared_ptr<const NpzArchive::Backing> backing, std::uint64_t index,
               const NpzArchive::Member& member)
      : backing_(std::move(backing)),
        index_(index),
        member_(member),
        where_(backing_->where + ":" + member.name),
        size_(member.bytes) {}

  std::uint64_t size() const override { return size_; }
  bool as_it_lies() const override { return false; }
  void read_all(const Visit& visit) const override { read_member(*backing_, index_, member_, visit); }

  void read(std::uint64_t begin, std::uint64_t end, bool in_one_piece, const Visit& visit) const override {
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
  NpzArchive::Member member_;
  std::string where_;
  std::uint64_t size_;
  mutable std::mutex mutex_;
  mutable std::unique_ptr<Cursor> cursor_;
};

}  // namespace

NpzArchive::NpzArchive(std::shared_ptr<const Backing> backing) : backing_(std::move(backing)) {
  const Zip zip(*backing_);
  const zip_int64_t entries = zip_get_num_entries(zip.get(), 0);
  const auto located = locate_stored_members(zip.bytes());
  for (zip_int64_t i = 0; i < entries; ++i) {
    const zip_stat_t status = zip.stat(static_cast<std::uint64_t>(i));
    if (status.encryption_method != ZIP_EM_NONE) {
      throw InputError(backing_->where + ":" + status.name, "a member that is not encrypted",
                       "an encrypted one");
    }
    const bool stored = status.comp_method == ZIP_CM_STORE;
    if (!stored && status.comp_method != ZIP_CM_DEFLATE) {
      throw InputError(backing_->where + ":" + status.name, "a stored or deflated member",
                       fmt::format("compression method {}", status.comp_method));
    }
    // Deflate reaches 1032:1 at most: a larger claim is a lie that memory would be set aside for.
    if (status.comp_size > zip.bytes().size() ||
        (stored ? status.size != status.comp_size : status.size / 1032 > status.comp_size)) {
      throw InputError(backing_->where + ":" + status.name, "a size that the archive can hold",
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
  return NpzArchive(std::make_shared<const Backing>(Backing{path.string(), path, state_of(path), {}}));
}

NpzArchive NpzArchive::from_memory(std::span<const std::byte> bytes, std::string where) {
  return NpzArchive(std::make_shared<const Backing>(Backing{std::move(where), {}, {}, bytes}));
}

std::shared_ptr<const ByteSource> NpzArchive::source(std::size_t member) const {
  const Member& found = members_.at(member);
  if (!found.offset) return std::make_shared<MemberSource>(backing_, member, found);
  if (!backing_->path.empty()) {
    return std::make_shared<StoredMemberSource>(backing_, member, found);
  }
  return std::make_shared<MemorySource>(backing_->memory.subspan(*found.offset, found.bytes));
}

}  // namespace kvreplay
