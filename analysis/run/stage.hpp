#pragma once

#include "analysis/options/option.hpp"
#include "analysis/results/result_folder.hpp"
#include "analysis/results/scoped_figures.hpp"
#include "data/dump.hpp"
#include "sim/compute.hpp"
#include "sim/head_group.hpp"
#include "sim/schedule.hpp"

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay {

/// Something that a run does not compute, and why, as one clause.
struct LeftOut {
  std::string what, why;
};

/// Names that share a reason on one line: "a, b (why)".
std::vector<std::string> left_out_lines(const std::vector<LeftOut>& left_out);

/// One analysis of a run. All stages of a run share one pass over the dump: the run loads a head group,
/// passes it to every stage, and lets each stage finish the layer. At the end each stage writes its tables
/// from the values (figures) that it kept; a run that is continued later needs nothing but those values. A
/// stage computes on the Compute that it was made with.
class Stage {
 public:
  Stage(const Dump& dump, const Compute& compute) : dump_(dump), compute_(compute) {}
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;
  virtual ~Stage() = default;

  /// Key of the stage's options in summary.json, and its name for --only.
  virtual std::string_view name() const = 0;
  /// Names of the parts of this run that run on the CPU only, whatever the backend.
  virtual std::vector<std::string> on_cpu() const { return {}; }
  /// All options that the results depend on, besides the dump, the precision and the layers.
  virtual Json options() const { return {}; }
  virtual std::vector<LeftOut> left_out() const { return {}; }
  virtual std::vector<OptionText> notes() const { return {}; }
  /// Warning before an expensive step. Logged only; not part of the results.
  virtual std::optional<OptionText> price() const { return {}; }

  /// Number of values that each head keeps for the tables.
  virtual std::size_t figures_per_head() const = 0;
  /// Number of values that a layer as a whole keeps; the tables need only their sums over the layers.
  virtual std::size_t figures_per_layer() const { return 0; }
  /// Parts of a head group that head() reads; no others are loaded. Default: all parts.
  virtual HeadParts parts() const { return {}; }
  virtual void begin_layer(Index) {}
  /// Called for every KV head of the layer, from any thread, for several heads at once.
  virtual void head(const HeadGroup<float>& group, std::span<double> figures) = 0;
  virtual void head(const HeadGroup<double>& group, std::span<double> figures) = 0;
  /// Called once all heads of the layer are done: writes the layer's files, and fills in the values of the
  /// layer as a whole. Values that depend on all heads may still be added to the heads' own.
  virtual void end_layer(const ResultFolder&, Index, LayerFigures) {}

  /// True if each layer's tables depend on the values of all layers; a run over some layers then writes no
  /// tables.
  virtual bool joins_layers() const { return false; }
  /// Writes the tables and maps of the whole run; returns its part of "totals" in summary.json.
  virtual Json write_tables(const ResultFolder& folder, const HeadFigures& figures) = 0;
  /// Closing text of the run: a short summary of its values.
  virtual std::string report(const HeadFigures&) const { return ""; }

  /// Second analysis that depends on the values of all layers and takes another pass over the dump; null if
  /// there is none. Its options are this stage's.
  virtual std::unique_ptr<Stage> follow_up(const HeadFigures&) const { return nullptr; }

 protected:
  const Dump& dump_;
  Compute compute_;
};

}  // namespace kvreplay
