#pragma once

#include "analysis/drawing/animation.hpp"
#include "viewer/app/film_view.hpp"
#include "viewer/gl/canvas.hpp"
#include "viewer/questions/budget_slide.hpp"

#include <cstddef>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <vector>

namespace kvreplay::viewer {

struct FilmOptions {
  float width = 1000, height = 600;  ///< points
  float scale = 1;                   ///< pixels a point
  bool all_heads = false;            ///< else the selected one
};

/// How a budget slides from the whole prompt to a twentieth, as an APNG: drawn beside the window's frames,
/// picture by picture, once all of it is computed. Lives and dies with the window's OpenGL context current.
class Film {
 public:
  /// Throws InputError for sizes that OpenGL cannot have.
  Film(std::filesystem::path path, const FilmOptions& options, const std::shared_ptr<const Run>& run,
       std::optional<BudgetSlide::Head> head, std::array<WhatIfSettings, 2> settings);

  const std::filesystem::path& path() const { return path_; }
  /// Asks for what is missing, or draws what comes next. Throws InputError where it cannot be made.
  void go_on(PanelContext& context, bool dark);
  bool done() const { return done_; }
  /// Whether another frame is due at once: nothing has to be waited for.
  bool draws() const { return slide_.done() && !done_ && !waits_; }
  double progress() const { return slide_.progress(); }
  std::size_t bytes() const { return bytes_; }  ///< of the file, once it is done

 private:
  std::filesystem::path path_;
  Canvas canvas_;
  BudgetSlide slide_;
  FilmView view_;
  Animation animation_;
  std::size_t step_ = 0, bytes_ = 0;
  bool waits_ = false, done_ = false;
  int quiet_ = 0;
};

}  // namespace kvreplay::viewer
