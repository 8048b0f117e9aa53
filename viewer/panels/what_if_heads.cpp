#include "viewer/panels/what_if_heads.hpp"

#include "viewer/widgets/controls.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>

namespace kvreplay::viewer {
namespace {

/// Heads asked for at a time: enough to keep all threads busy, few enough for a frame.
constexpr int kAskedAtOnce = 24;
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

std::string whole(double value) {
  return std::isnan(value) ? number_text(value) : fmt::format("{:.0f}", value);
}
std::string percent(double value) {
  return std::isnan(value) ? number_text(value) : fmt::format("{:.1f} %", 100 * value);
}

}  // namespace

const std::array<WhatIfFigure, kWhatIfFigures>& what_if_figures() {
  static const std::array<WhatIfFigure, kWhatIfFigures> figures{{
      {"tokens",
       "Kept tokens",
       "tokens",
       "Tokens of the prompt that stay in the cache",
       {},
       [](const WhatIf& w) { return static_cast<double>(w.tokens); },
       whole},
      {"output_error_window", "Error, window", "",
       "output_error on the window rows: sum ||o_M - o||\xC2\xB2 / sum ||o||\xC2\xB2, o_M the attention over "
       "what is kept",
       true, [](const WhatIf& w) { return w.window.error; }, number_text},
      {"output_error_future", "Error, future", "",
       "output_error on the decoding steps: sum ||o_M - o||\xC2\xB2 / sum ||o||\xC2\xB2, o_M the attention "
       "over what is kept",
       true, [](const WhatIf& w) { return w.future.error; }, number_text},
      {"eviction_loss", "Eviction loss", "output",
       "Sum of oracle_importance over the evicted tokens (LU-KV eq. 6)", true,
       [](const WhatIf& w) { return w.eviction_loss; }, number_text},
      {"optimality_gap", "Optimality gap", "output",
       "Eviction loss less that of the best set of this size (LU-KV eq. 7)", true,
       [](const WhatIf& w) { return w.optimality_gap; }, number_text},
      {"oracle_recall", "Oracle recall", "",
       "Share of the kept tokens that the best set of this size keeps, too", false,
       [](const WhatIf& w) { return w.oracle_recall; }, percent},
      {"bytes", "Bytes", "bytes", "Keys and values kept, in the dump's number format", true,
       [](const WhatIf& w) { return w.bytes; }, bytes_text},
      {"bytes_saved", "Saved", "", "Share of the whole prompt's bytes that is saved", false,
       [](const WhatIf& w) { return w.prompt_bytes > 0 ? 1 - w.bytes / w.prompt_bytes : kNone; }, percent},
  }};
  return figures;
}

WhatIfFigures figures_of(const WhatIf& answer) {
  WhatIfFigures figures{};
  for (std::size_t i = 0; i < kWhatIfFigures; ++i) figures[i] = what_if_figures()[i].of(answer);
  return figures;
}

void WhatIfHeads::follow(const Run& run, const WhatIfSettings& settings) {
  const auto count = static_cast<std::size_t>(run.shape().layers * run.shape().n_kv);
  if (run_key_ != run.key() || heads_.size() != count) {
    run_key_ = run.key();
    n_kv_ = run.shape().n_kv;
    heads_.assign(count, {});
  } else if (settings_ == settings) {
    return;
  }
  settings_ = settings;
  for (Head& head : heads_) head.answered = head.failed = false;
  answered_ = failed_ = 0;
  error_.clear();
  ++version_;
}

void WhatIfHeads::ask(PanelContext& context) {
  int asked = 0;
  for (std::size_t h = 0; h < heads_.size() && asked < kAskedAtOnce; ++h) {
    Head& head = heads_[h];
    if (head.answered) continue;
    const auto number = static_cast<Index>(h);
    const Answer<WhatIf> answer =
        ask_what_if(context, settings_, number / n_kv_, number % n_kv_, Urgency::background, {});
    if (answer.pending) {
      ++asked;
      continue;
    }
    head.answered = true;
    ++answered_;
    ++version_;
    if (answer) {
      head.figures = figures_of(*answer);
    } else {
      head.figures.reset();
      head.failed = true;
      if (failed_++ == 0) error_ = answer.error;
    }
  }
}

const WhatIfFigures* WhatIfHeads::at(Index head) const {
  const auto h = static_cast<std::size_t>(head);
  return h < heads_.size() && heads_[h].figures ? &*heads_[h].figures : nullptr;
}

const WhatIfFigures* WhatIfHeads::current(Index head) const {
  const auto h = static_cast<std::size_t>(head);
  return h < heads_.size() && heads_[h].answered ? at(head) : nullptr;
}

double WhatIfHeads::mean(std::size_t figure) const {
  double sum = 0;
  Index n = 0;
  for (const Head& head : heads_)
    if (head.answered && head.figures && !std::isnan((*head.figures)[figure])) {
      sum += (*head.figures)[figure];
      ++n;
    }
  return n > 0 ? sum / static_cast<double>(n) : kNone;
}

HeatmapHit WhatIfMap::draw(ImVec2 size, const Run& run, const WhatIfHeads& a, const WhatIfHeads& b,
                           std::size_t figure, Show show, AppState& state) {
  const DumpShape& shape = run.shape();
  const auto value = [&](Index head) {
    const WhatIfFigures *first = a.at(head), *second = b.at(head);
    const auto of = [&](const WhatIfFigures* f) { return f != nullptr ? (*f)[figure] : kNone; };
    if (show == Show::difference) return of(second) - of(first);
    return of(show == Show::a ? first : second);
  };
  HeatmapContent content;
  content.key = fmt::format("{}what_if_map/{}/{}/{}/{}", run.key(), figure, static_cast<int>(show),
                            a.version(), b.version());
  if (key_ != content.key) {
    key_ = content.key;
    tiles_.clear();
  }
  content.size = {shape.layers, shape.n_kv};
  content.tile = [&](const TileKey& key) {
    std::shared_ptr<const Tile>& tile = tiles_[key];
    if (tile == nullptr) {
      TileBuilder builder(content.size, key);
      std::vector<float> cells(static_cast<std::size_t>(builder.end_column() - builder.first_column()));
      for (Index layer = builder.first_row(); layer < builder.end_row(); ++layer) {
        for (Index g = builder.first_column(); g < builder.end_column(); ++g)
          cells[static_cast<std::size_t>(g - builder.first_column())] =
              static_cast<float>(value(layer * shape.n_kv + g));
        builder.add_row(layer, cells.data());
      }
      tile = std::make_shared<const Tile>(builder.finish());
    }
    Answer<Tile> answer;
    answer.value = tile;
    return answer;
  };
  const WhatIfFigure& what = what_if_figures()[figure];
  content.quantity = show == Show::difference ? fmt::format("{}, B - A", what.title) : what.title;
  content.unit = what.unit;
  content.is_signed = show == Show::difference;
  content.row_name = "layer";
  content.column_name = "KV head";
  const Selection& selection = state.selection();
  content.row = selection.layer;
  content.column = selection.kv_head;
  content.hover_row = state.hover.layer;
  content.hover_column = state.hover.kv_head;
  content.hint = "No heads.";
  return heatmap_.draw("map", size, content, state.links);
}

}  // namespace kvreplay::viewer
