#include "viewer/model/kept_paint.hpp"

#include "data/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace kvreplay::viewer {
namespace {

/// Reads what a text is made of, from the left.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text), rest_(text) {}

  bool at_end() {
    skip();
    return rest_.empty();
  }
  bool take(std::string_view word) {
    skip();
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }
  Index number() {
    skip();
    Index value = -1;
    const auto read = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (read.ec != std::errc() || value < 0) fail("a whole number");
    rest_.remove_prefix(static_cast<std::size_t>(read.ptr - rest_.data()));
    return value;
  }
  [[noreturn]] void fail(const std::string& expected) const {
    throw InputError("tokens kept by hand", expected,
                     fmt::format("'{}' at {}", rest_.substr(0, 12), text_.size() - rest_.size()));
  }

 private:
  void skip() { rest_.remove_prefix(std::min(rest_.find_first_not_of(' '), rest_.size())); }
  std::string_view text_, rest_;
};

/// "5-9,12" of ascending numbers.
std::string ranges_text(const std::vector<Index>& tokens) {
  std::string text;
  for (std::size_t i = 0; i < tokens.size();) {
    std::size_t last = i;
    while (last + 1 < tokens.size() && tokens[last + 1] == tokens[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += last == i ? fmt::format("{}", tokens[i]) : fmt::format("{}-{}", tokens[i], tokens[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace

KeptPaint KeptPaint::of_text(std::string_view text) {
  /// Tokens of a range: more than any prompt has are a slip.
  constexpr Index kMost = 1 << 24;
  KeptPaint paint;
  Reader read(text);
  while (!read.at_end()) {
    std::optional<PaintMark> mark;
    for (const PaintMarkFacts& facts : kPaintMarks)
      if (!mark && read.take(facts.name)) mark = facts.id;
    if (!mark) read.fail("keep, pin or evict");
    std::vector<Index> tokens;
    do {
      const Index first = read.number(), last = read.take("-") ? read.number() : first;
      if (last < first || last >= kMost) read.fail("an ascending range");
      for (Index token = first; token <= last; ++token) tokens.push_back(token);
    } while (read.take(","));
    std::optional<Head> head;
    if (read.take("in")) {
      const Index layer = read.number();
      if (!read.take(".")) read.fail("LAYER.HEAD");
      head = {layer, read.number()};
    }
    for (const Index token : tokens) paint.marks_[head][token] = *mark;
    if (!read.take(";") && !read.at_end()) read.fail("';'");
  }
  return paint;
}

std::string KeptPaint::text() const {
  std::string text;
  for (const auto& [head, marks] : marks_)
    for (const PaintMarkFacts& facts : kPaintMarks) {
      std::vector<Index> tokens;
      for (const auto& [token, mark] : marks)
        if (mark == facts.id) tokens.push_back(token);
      if (tokens.empty()) continue;
      text += fmt::format("{}{} {}", text.empty() ? "" : "; ", facts.name, ranges_text(tokens));
      if (head) text += fmt::format(" in {}.{}", head->first, head->second);
    }
  return text;
}

void KeptPaint::mark(std::span<const Index> tokens, std::optional<PaintMark> mark, std::optional<Head> head) {
  for (const Index token : tokens) {
    for (auto& [other, marks] : marks_)
      if (other == head || !head) marks.erase(token);  // what holds in all heads holds in each
    if (mark) marks_[head][token] = *mark;
  }
  std::erase_if(marks_, [](const auto& item) { return item.second.empty(); });
}

Index KeptPaint::count(PaintMark mark) const {
  Index found = 0;
  for (const auto& [head, marks] : marks_)
    found += std::count_if(marks.begin(), marks.end(), [&](const auto& item) { return item.second == mark; });
  return found;
}

std::vector<MarkedToken> KeptPaint::of_head(Head head) const {
  std::map<Index, PaintMark> found;
  for (const std::optional<Head>& one : {std::optional<Head>(head), std::optional<Head>()})
    if (const auto own = marks_.find(one); own != marks_.end())
      found.insert(own->second.begin(), own->second.end());
  std::vector<MarkedToken> marks;
  marks.reserve(found.size());
  for (const auto& [token, mark] : found) marks.push_back({token, mark});
  return marks;
}

}  // namespace kvreplay::viewer
