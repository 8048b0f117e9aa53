#pragma once

#include <string>
#include <vector>

namespace kvreplay::report {

/// A file beside the page.
struct FigureFile {
  std::string name, bytes;
};

/// A picture of the page with what belongs to it.
struct Figure {
  std::string name;     ///< unique; the stem of its files
  std::string heading;  ///< plain text, as `reading` and `note`
  std::string reading;  ///< how to read it
  std::string note;     ///< what was thinned or left out
  std::string body;     ///< HTML
  std::vector<FigureFile> files;
};

struct Section {
  std::string id, heading;
  std::string missing;  ///< why it has no figures, and what would write them; plain text
  std::vector<Figure> figures;
  std::string html;  ///< after the figures
};

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

/// One of several pictures in the same place.
struct Variant {
  std::vector<std::string> picked;  ///< one option of each list
  std::string html;
};
/// The first shows; the lists choose another.
std::string variants_html(const std::vector<std::string>& labels, const std::vector<Variant>& variants);

}  // namespace kvreplay::report
