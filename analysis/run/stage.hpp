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

/// One analysis of a run. All stages of a run share one pass over the dump: the run loads a head group, hands
/// it to every stage, lets each end its layer, and at the end lets each make its tables from the figures that
/// it kept. So a run that goes on later needs nothing but those figures. A stage computes on the Compute that
/// it was made with.
class Stage {
 public:
  Stage(const Dump& dump, const Compute& compute) : dump_(dump), compute_(compute) {}
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;
  virtual ~Stage() = default;

  /// The key of its options in summary.json, and its name for --only.
  virtual std::string_view name() const = 0;
  /// What of this run has no kernels for a device: the CPU does it whatever the backend is.
  virtual std::vector<std::string> on_cpu() const { return {}; }
  /// Everything its results depend on besides the dump, the precision and the layers.
  virtual Json options() const { return {}; }
  virtual std::vector<LeftOut> left_out() const { return {}; }
  virtual std::vector<OptionText> notes() const { return {}; }
  /// What takes long, said before it begins: of this run, not of its results.
  virtual std::optional<OptionText> price() const { return {}; }

  /// How many figures a head keeps for the tables.
  virtual std::size_t figures_per_head() const = 0;
  /// How many it keeps of a layer as a whole, of which the tables need the sums over the layers alone.
  virtual std::size_t figures_per_layer() const { return 0; }
  /// What head() looks at of a head group: nothing else is read of it. All, unless a stage knows better.
  virtual HeadParts parts() const { return {}; }
  virtual void begin_layer(Index) {}
  /// Called for every KV head of the layer, from any thread, for several heads at once.
  virtual void head(const HeadGroup<float>& group, std::span<double> figures) = 0;
  virtual void head(const HeadGroup<double>& group, std::span<double> figures) = 0;
  /// Called once all heads of the layer are done: writes the layer's files, and fills in the figures of the
  /// layer as a whole. What all heads share may still be put among theirs.
  virtual void end_layer(const ResultFolder&, Index, LayerFigures) {}

  /// Whether one layer's tables depend on all layers' figures, so that a part of them has none.
  virtual bool joins_layers() const { return false; }
  /// Writes the tables and maps of the whole run; returns its part of "totals" in summary.json.
  virtual Json write_tables(const ResultFolder& folder, const HeadFigures& figures) = 0;
  /// What the run says at its end: a short plain text about the figures.
  virtual std::string report(const HeadFigures&) const { return ""; }

  /// A second analysis that depends on the figures of all layers, for another pass over the dump; null where
  /// there is none. Its options are this stage's.
  virtual std::unique_ptr<Stage> follow_up(const HeadFigures&) const { return nullptr; }

 protected:
  const Dump& dump_;
  Compute compute_;
};

}  // namespace kvreplay
