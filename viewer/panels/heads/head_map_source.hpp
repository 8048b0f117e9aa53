#pragma once

#include "viewer/panels/panel.hpp"
#include "viewer/panels/what_if_heads.hpp"
#include "viewer/work/figure_map.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace kvreplay::viewer {

/// Which figures of heads the selected run has, and the values of one of them as far as they are known.
/// Figures of a result folder are read; those that it lacks are computed from the dump, head by head, and so
/// is what the settings of What if cost. Drawing thread only.
class HeadMapSource {
 public:
  /// Takes what the desk has by now and asks for what is missing. Before anything else in a frame.
  void look(PanelContext& context);
  /// In the order of the menu; empty while a result folder is read.
  const std::vector<FigureInfo>& figures() const { return figures_; }
  /// Null where the run has no such figure.
  const FigureInfo* find(const std::string& name) const;
  /// Another number whenever figures() is another list.
  std::uint64_t list() const { return list_; }

  /// Asks for one of figures(), or takes up with what was asked before.
  void ask(PanelContext& context, const FigureInfo& figure);
  /// What the last ask() came to; null where nothing is known yet.
  const std::shared_ptr<const FigureMap>& map() const { return map_; }
  /// Says what the map's values depend on.
  const Key& key() const { return key_; }
  bool from_results() const { return from_results_; }
  bool pending() const { return pending_; }
  Index heads() const { return heads_; }  ///< that the map will have
  /// What could not be read or computed, a line each.
  const std::vector<std::string>& problems() const { return problems_; }

 private:
  void list_figures(const Run& run, const ResultFigures* results);
  void ask_results(PanelContext& context, const FigureInfo& figure);
  void ask_dump(PanelContext& context, const FigureInfo& figure);
  void ask_setting(PanelContext& context, const FigureInfo& figure, const SettingFigure& of);
  void take_heads(PanelContext& context);
  /// A head of the dump: its figures, without its tokens.
  struct Known {
    std::shared_ptr<const HeadSummary> summary;
    std::string error;
  };

  Key run_key_;
  std::vector<FigureInfo> figures_;
  std::uint64_t list_ = 0;
  std::shared_ptr<const ResultFigures> results_;

  std::shared_ptr<const FigureMap> map_;
  Key key_;
  bool from_results_ = false, pending_ = false;
  Index heads_ = 0;
  std::vector<std::string> problems_, list_problems_;

  Key live_key_;             // run and window that live_ is of
  std::vector<Known> live_;  // [layers * n_kv]
  Index live_known_ = 0;     // how many have come in
  std::array<WhatIfHeads, 2> settings_;
};

}  // namespace kvreplay::viewer
