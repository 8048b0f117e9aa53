#pragma once

#include "viewer/model/text_search.hpp"
#include "viewer/panels/panel.hpp"

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvreplay::viewer {

/// Matches of a text in the run's tokens; the answer of a job.
struct TextMatches {
  std::vector<TextMatch> all;
};
std::size_t bytes_of(const TextMatches& matches);

/// Finds tokens by what they say: what is typed is looked for in the background, and the match that is gone
/// to becomes the tokens chosen and, its first one, the token selected.
class FindBar {
 public:
  /// Opens it, or gives it the keyboard again.
  void open();
  /// False where it was closed already.
  bool close();
  bool is_open() const { return open_; }
  /// One line high, on the current line. Nothing while closed.
  void draw(PanelContext& context);
  std::span<const TextMatch> matches() const;

 private:
  void go(AppState& state, bool forward, bool from_here);
  std::string place(const AppState& state) const;

  bool open_ = false, focus_ = false;
  bool wanted_ = false;  // the first match behind `from_` is to be gone to once it is known
  Index from_ = 0;       // where the search began
  std::string typed_;
  Answer<TextMatches> found_;
};

}  // namespace kvreplay::viewer
