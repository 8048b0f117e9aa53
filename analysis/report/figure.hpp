#pragma once

#include "analysis/drawing/axis.hpp"
#include "analysis/drawing/color_scale.hpp"
#include "analysis/results/figure_facts.hpp"
#include "analysis/results/schema.hpp"
#include "data/dump.hpp"

#include <cstddef>
#include <filesystem>
#include <optional>
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
  std::string reading;                         ///< how to read the figure
  std::string note = {};                       ///< data that were thinned or left out
  std::string body = {};                       ///< HTML
  std::vector<const FigureFacts*> shows = {};  ///< figures in its lists, for the page to explain
  std::vector<FigureFile> files = {};
};

struct Section {
  std::string id, heading;
  std::string missing;  ///< why it has no figures, and what would write them; plain text
  std::vector<Figure> figures;
  std::string html;                        ///< after the figures
  std::vector<std::string> findings = {};  ///< lines before them; plain text
};
/// With those of the figures that there are; `missing` where there is none.
Section section_of(const char* id, const char* heading, std::vector<std::optional<Figure>> figures,
                   const char* missing);

/// "Lower is better (of oracle_recall higher)": which way is better, of most figures and of the others.
std::string directions_text(std::span<const FigureFacts* const> figures);

/// The picture as a file that carries its styles.
FigureFile svg_file(const std::string& stem, const std::string& svg);
FigureFile csv_file(const std::string& stem, std::string csv);

/// A list to pick from; its first option is that of the picture that stands there.
struct Pick {
  std::string label;
  std::vector<std::string> options;
};
std::string picks_html(const std::vector<Pick>& picks);
/// The body and the files of a picture that the page's script draws anew, as `kind` of picture and from
/// `json`, an object, where another option is picked.
void add_drawing(Figure& figure, const std::vector<Pick>& picks, std::string_view kind,
                 const std::string& svg, const std::string& json, std::string csv);

/// Several pictures in one place: the first is shown, and its files are written next to the page; lists
/// choose another.
class Variants {
 public:
  explicit Variants(std::string name) : name_(std::move(name)) {}

  /// `picked` has an option of each list; `drawing` is what svg_of() and csv_of() take, still without its id.
  template <class Drawing>
  void add(std::vector<std::string> picked, Drawing drawing) {
    drawing.id = name_ + "-" + std::to_string(all_.size());
    all_.push_back({std::move(picked), svg_of(drawing)});
    if (all_.size() == 1) files_ = {svg_file(name_, all_.front().html), csv_file(name_, csv_of(drawing))};
  }
  /// With a list for each label; nothing where nothing was added.
  std::optional<Figure> figure(const std::vector<std::string>& labels, std::string heading,
                               std::string reading, std::vector<const FigureFacts*> shows = {}) const;

 private:
  struct Variant {
    std::vector<std::string> picked;
    std::string html;
  };

  std::string name_;
  std::vector<Variant> all_;
  std::vector<FigureFile> files_;
};

/// A sentence, plain text, and the id of what it is about; where that shows one head, which, the token of it,
/// and what its lists are to show, by their labels.
struct LinkedSentence {
  std::string text, id;
  std::optional<std::pair<Index, Index>> head = {};  ///< layer and KV head
  std::optional<Index> token = {};
  std::vector<std::pair<std::string, std::string>> picked = {};
};

struct Page {
  std::string title;
  std::string lead;                           ///< the run, in a sentence; plain text
  std::vector<LinkedSentence> findings = {};  ///< the findings to read first
  std::vector<std::pair<std::string, std::string>> facts;
  std::vector<std::string> remarks;  ///< remarks to read before any number
  std::vector<Section> sections;
  std::filesystem::path results = {};  ///< the one result folder that it shows; empty: none, or several
  Index kv_heads = 0, tokens = 0;      ///< of it; tokens of the prompt
};

/// One HTML file that needs no other. `figure_folder` is the folder of the plots' files and `results` the
/// result folder, as links from the page.
std::string html_of(const Page& page, const std::string& figure_folder, const std::string& results);

/// The dashboard panel that corresponds to a plot of this name; empty if none does.
std::string_view panel_of_figure(std::string_view name);

/// Colour scale for all values of a metric: [0, 1] for shares, [-1, 1] for correlations, symmetric about 0
/// for values of both signs, logarithmic for positive values that span more than a factor of 30.
ColorScale color_scale(FigureScale scale, std::span<const double> values);

/// Axis for values of a metric: all of [0, 1] for shares, at most [-1, 1] for correlations, 0 included for
/// gains.
Axis figure_axis(std::string label, FigureScale scale, std::span<const double> values);

}  // namespace kvreplay::report
