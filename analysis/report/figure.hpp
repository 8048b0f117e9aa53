#pragma once

#include "analysis/results/schema.hpp"

#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay::report {

/// A file beside the page.
struct FigureFile {
  std::string name, bytes;
};

/// A picture of the page with what belongs to it.
struct Figure {
  std::string name;                            ///< unique; the stem of its files
  std::string heading;                         ///< plain text, as `reading` and `note`
  std::string reading;                         ///< how to read it
  std::string note;                            ///< what was thinned or left out
  std::string body;                            ///< HTML
  std::vector<const FigureFacts*> shows = {};  ///< what its lists offer, for the page to explain
  std::vector<FigureFile> files;
};

struct Section {
  std::string id, heading;
  std::string missing;  ///< why it has no figures, and what would write them; plain text
  std::vector<Figure> figures;
  std::string html;  ///< after the figures
};

/// "Lower is better (of oracle_recall higher)": which way is better, of most figures and of the others.
std::string directions_text(std::span<const FigureFacts* const> figures);

/// The picture as a file that carries its styles.
FigureFile svg_file(const std::string& stem, const std::string& svg);
FigureFile csv_file(const std::string& stem, std::string csv);

/// A list to pick from.
struct Pick {
  std::string label;
  std::vector<std::string> options;
};
/// The lists, for the page's script; the first options are those of the picture that stands there.
std::string picks_html(const std::vector<Pick>& picks);

/// Data for the page's script. `json` is an object.
std::string data_html(const std::string& json);

/// Several pictures in the same place: the first shows, and stands beside the page; lists choose another.
class Variants {
 public:
  explicit Variants(std::string name) : name_(std::move(name)) {}

  bool empty() const { return all_.empty(); }
  /// The picture's id in the page, if it is the next to be added.
  std::string next_id() const;
  /// `picked` has an option of each list; `drawing` is what svg_of() and csv_of() take.
  template <class Drawing>
  void add(std::vector<std::string> picked, const Drawing& drawing) {
    all_.push_back({std::move(picked), svg_of(drawing)});
    if (all_.size() == 1) files_ = {svg_file(name_, all_.front().html), csv_file(name_, csv_of(drawing))};
  }
  /// Name, body and files, with a list for each label; not to be called where nothing was added.
  Figure figure(const std::vector<std::string>& labels) const;

 private:
  struct Variant {
    std::vector<std::string> picked;
    std::string html;
  };

  std::string name_;
  std::vector<Variant> all_;
  std::vector<FigureFile> files_;
};

}  // namespace kvreplay::report
