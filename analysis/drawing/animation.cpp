#include "analysis/drawing/animation.hpp"

#include "data/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <limits>
#include <png.h>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <zlib.h>

namespace kvreplay {
namespace {

std::uint32_t packed(Rgb color) {
  return static_cast<std::uint32_t>(color.r) << 16 | static_cast<std::uint32_t>(color.g) << 8 | color.b;
}
double channel(std::uint32_t color, int c) { return static_cast<double>(color >> (16 - 8 * c) & 255U); }

/// Colours that become one, or are split further.
struct ColorBox {
  std::size_t begin, end;  // of Palette::uses
  int widest = 0;          // the channel in which they differ most
  double mean = 0;         // there
  double spread = 0;       // squares of what all pixels are off from the mean, there
};

ColorBox box_of(std::span<const Palette::Use> uses, std::size_t begin, std::size_t end) {
  ColorBox box{begin, end};
  for (int c = 0; c < 3; ++c) {
    double pixels = 0, sum = 0, squares = 0;
    for (const Palette::Use& use : uses.subspan(begin, end - begin)) {
      const auto weight = static_cast<double>(use.pixels);
      pixels += weight;
      sum += weight * channel(use.color, c);
      squares += weight * channel(use.color, c) * channel(use.color, c);
    }
    const double spread = squares - sum * sum / pixels;
    if (c > 0 && spread <= box.spread) continue;
    box.widest = c;
    box.mean = sum / pixels;
    box.spread = spread;
  }
  if (end - begin == 1) box.spread = 0;
  return box;
}

Rgb most_used(std::span<const Palette::Use> uses) {
  const auto use = std::max_element(uses.begin(), uses.end(),
                                    [](const Palette::Use& a, const auto& b) { return a.pixels < b.pixels; });
  const auto byte = [&](int shift) { return static_cast<std::uint8_t>(use->color >> shift & 255U); };
  return {byte(16), byte(8), byte(0)};
}

struct Rectangle {
  Index x = 0, y = 0, width = 0, height = 0;
};

using Indices = std::vector<std::uint8_t>;

/// Where two pictures differ; one pixel where they do not.
Rectangle changed(const Indices& before, const Indices& now, Index width, Index height) {
  Index left = width, right = -1, top = height, bottom = -1;
  for (Index y = 0; y < height; ++y)
    for (Index x = 0; x < width; ++x) {
      if (before[y * width + x] == now[y * width + x]) continue;
      left = std::min(left, x);
      right = std::max(right, x);
      top = std::min(top, y);
      bottom = y;
    }
  if (right < 0) return {0, 0, 1, 1};
  return {left, top, right - left + 1, bottom - top + 1};
}

constexpr std::uint8_t kAsBefore = 0;  // the palette's transparent entry

std::vector<std::byte> indexed_png(const Indices& pixels, Index width, Index height,
                                   const std::vector<Rgb>& colors) {
  std::vector<std::uint8_t> map = {0, 0, 0, 0};  // kAsBefore
  for (const Rgb& color : colors) map.insert(map.end(), {color.r, color.g, color.b, 255});
  // A fixed number of palette entries gives the pixels of all files one depth.
  map.resize(4 * std::size_t{256}, 255);
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(width);
  image.height = static_cast<png_uint_32>(height);
  image.format = PNG_FORMAT_RGBA_COLORMAP;
  image.colormap_entries = 256;
  std::vector<std::byte> bytes(PNG_IMAGE_PNG_SIZE_MAX(image));
  png_alloc_size_t size = bytes.size();
  if (png_image_write_to_memory(&image, bytes.data(), &size, 0, pixels.data(), 0, map.data()) == 0)
    throw InputError(
        fmt::format("a picture of {} x {}: libpng says {}", image.width, image.height, image.message));
  bytes.resize(size);
  return bytes;
}

void append_number(std::vector<std::byte>& bytes, std::uint32_t number, int count = 4) {
  for (int i = count - 1; i >= 0; --i) bytes.push_back(static_cast<std::byte>(number >> (8 * i) & 255U));
}

/// A file's signature, and how long what stands around a chunk's data is.
constexpr std::size_t kSignature = 8, kAround = 12;

struct Chunk {
  std::string_view type;
  std::span<const std::byte> data, whole;
};

/// Views into `png`, which outlives them.
std::vector<Chunk> chunks_of(std::span<const std::byte> png) {
  std::vector<Chunk> chunks;
  for (std::size_t at = kSignature; at + kAround <= png.size();) {
    std::size_t size = 0;
    for (std::size_t i = 0; i < 4; ++i) size = size << 8 | static_cast<std::size_t>(png[at + i]);
    chunks.push_back({{reinterpret_cast<const char*>(&png[at + 4]), 4},
                      png.subspan(at + 8, size),
                      png.subspan(at, size + kAround)});
    at += size + kAround;
  }
  return chunks;
}

void append_chunk(std::vector<std::byte>& png, std::string_view type, std::span<const std::byte> data) {
  append_number(png, static_cast<std::uint32_t>(data.size()));
  const std::size_t checked = png.size();
  for (const char letter : type) png.push_back(static_cast<std::byte>(letter));
  png.insert(png.end(), data.begin(), data.end());
  const auto crc =
      crc32(0, reinterpret_cast<const Bytef*>(&png[checked]), static_cast<uInt>(png.size() - checked));
  append_number(png, static_cast<std::uint32_t>(crc));
}

/// Writes the chunks of an APNG, which count their own order.
class ApngWriter {
 public:
  void whole(std::span<const std::byte> chunk) { png_.insert(png_.end(), chunk.begin(), chunk.end()); }
  void control(std::size_t frames) {
    std::vector<std::byte> data;
    append_number(data, static_cast<std::uint32_t>(frames));
    append_number(data, 0);  // plays: again and again
    append_chunk(png_, "acTL", data);
  }
  void frame(const Rectangle& area, int milliseconds, bool over) {
    std::vector<std::byte> data;
    append_number(data, sequence_++);
    for (const Index number : {area.width, area.height, area.x, area.y})
      append_number(data, static_cast<std::uint32_t>(number));
    append_number(data, static_cast<std::uint32_t>(milliseconds), 2);
    append_number(data, 1000, 2);
    append_number(data, 0, 1);             // afterwards it stays
    append_number(data, over ? 1 : 0, 1);  // over what was there, or in its place
    append_chunk(png_, "fcTL", data);
  }
  void frame_data(std::span<const std::byte> compressed) {
    std::vector<std::byte> data;
    append_number(data, sequence_++);
    data.insert(data.end(), compressed.begin(), compressed.end());
    append_chunk(png_, "fdAT", data);
  }
  std::vector<std::byte> take() { return std::move(png_); }

 private:
  std::vector<std::byte> png_;
  std::uint32_t sequence_ = 0;
};

}  // namespace

std::uint8_t Palette::of(Rgb color) const {
  const auto use = std::lower_bound(uses.begin(), uses.end(), packed(color),
                                    [](const Use& a, std::uint32_t wanted) { return a.color < wanted; });
  assert(use != uses.end() && use->color == packed(color));
  return use->index;
}

Palette palette_of(std::span<const std::vector<Rgb>> pictures, std::size_t most) {
  std::unordered_map<std::uint32_t, std::uint64_t> counts;
  for (const std::vector<Rgb>& picture : pictures)
    for (const Rgb& pixel : picture) ++counts[packed(pixel)];
  Palette palette;
  for (const auto& [color, pixels] : counts) palette.uses.push_back({color, pixels});
  std::vector<Palette::Use>& uses = palette.uses;
  const auto by_color = [](const Palette::Use& a, const Palette::Use& b) { return a.color < b.color; };
  std::sort(uses.begin(), uses.end(), by_color);
  std::vector<ColorBox> boxes;
  if (!uses.empty()) boxes.push_back(box_of(uses, 0, uses.size()));
  while (!boxes.empty() && boxes.size() < std::min(most, uses.size())) {
    // Boxes of one colour cannot be split: any other box comes first.
    const auto widest = std::max_element(boxes.begin(), boxes.end(), [](const ColorBox& a, const auto& b) {
      return std::pair(a.end - a.begin > 1, a.spread) < std::pair(b.end - b.begin > 1, b.spread);
    });
    const ColorBox box = *widest;
    const auto first = uses.begin() + static_cast<std::ptrdiff_t>(box.begin),
               last = uses.begin() + static_cast<std::ptrdiff_t>(box.end);
    auto middle = std::partition(
        first, last, [&](const Palette::Use& use) { return channel(use.color, box.widest) <= box.mean; });
    if (middle == last) --middle;  // their mean was rounded to the largest
    const auto at = static_cast<std::size_t>(middle - uses.begin());
    *widest = box_of(uses, box.begin, at);
    boxes.push_back(box_of(uses, at, box.end));
  }
  for (const ColorBox& box : boxes) {
    const auto those = std::span(uses).subspan(box.begin, box.end - box.begin);
    for (Palette::Use& use : those) use.index = static_cast<std::uint8_t>(palette.colors.size());
    palette.colors.push_back(most_used(those));
  }
  std::sort(uses.begin(), uses.end(), by_color);
  return palette;
}

void Animation::add(std::vector<Rgb> pixels, int milliseconds) {
  assert(std::ssize(pixels) == width_ * height_);
  constexpr int kLongest = std::numeric_limits<std::uint16_t>::max();
  if (!pictures_.empty() && pictures_.back() == pixels) {
    milliseconds_.back() = std::min(milliseconds_.back() + milliseconds, kLongest);
    return;
  }
  pictures_.push_back(std::move(pixels));
  milliseconds_.push_back(std::clamp(milliseconds, 0, kLongest));
}

std::vector<std::byte> Animation::png() const {
  if (pictures_.empty()) throw InputError("a film", "a frame", "none");
  const Palette palette = palette_of(pictures_, 255);
  const auto indices = [&](const std::vector<Rgb>& picture) {
    Indices of_picture(picture.size());
    std::transform(picture.begin(), picture.end(), of_picture.begin(), [&](Rgb color) {
      return static_cast<std::uint8_t>(palette.of(color) + 1);  // behind kAsBefore
    });
    return of_picture;
  };
  Indices shown = indices(pictures_.front());
  const std::vector<std::byte> first = indexed_png(shown, width_, height_, palette.colors);
  ApngWriter writer;
  writer.whole(std::span(first).first(kSignature));
  bool data_begun = false;
  for (const Chunk& chunk : chunks_of(first)) {
    if (chunk.type == "IEND") break;
    if (chunk.type == "IDAT" && !std::exchange(data_begun, true)) {
      writer.control(pictures_.size());
      writer.frame({0, 0, width_, height_}, milliseconds_.front(), false);
    }
    writer.whole(chunk.whole);
  }
  for (std::size_t f = 1; f < pictures_.size(); ++f) {
    const Indices now = indices(pictures_[f]);
    const Rectangle area = changed(shown, now, width_, height_);
    Indices part;
    for (Index y = area.y; y < area.y + area.height; ++y)
      for (Index x = area.x; x < area.x + area.width; ++x) {
        const Index at = y * width_ + x;
        part.push_back(shown[at] == now[at] ? kAsBefore : now[at]);
      }
    writer.frame(area, milliseconds_[f], true);
    const std::vector<std::byte> next = indexed_png(part, area.width, area.height, palette.colors);
    std::vector<std::byte> compressed;
    for (const Chunk& chunk : chunks_of(next))
      if (chunk.type == "IDAT") compressed.insert(compressed.end(), chunk.data.begin(), chunk.data.end());
    writer.frame_data(compressed);
    shown = now;
  }
  std::vector<std::byte> png = writer.take();
  append_chunk(png, "IEND", {});
  return png;
}

}  // namespace kvreplay
