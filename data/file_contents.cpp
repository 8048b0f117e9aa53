#include "data/file_contents.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace kvreplay {

FileContents contents_of(std::span<const std::byte> bytes) {
  return {bytes.size(), XXH3_64bits(bytes.data(), bytes.size())};
}

struct ContentsHash::State {
  alignas(64) XXH3_state_t xxh3{};
  std::uint64_t bytes = 0;
};

ContentsHash::ContentsHash() : state_(std::make_unique<State>()) { XXH3_64bits_reset(&state_->xxh3); }
ContentsHash::~ContentsHash() = default;

void ContentsHash::add(std::span<const std::byte> bytes) {
  XXH3_64bits_update(&state_->xxh3, bytes.data(), bytes.size());
  state_->bytes += bytes.size();
}

FileContents ContentsHash::contents() const { return {state_->bytes, XXH3_64bits_digest(&state_->xxh3)}; }

}  // namespace kvreplay
