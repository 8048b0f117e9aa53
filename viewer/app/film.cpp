#include "viewer/app/film.hpp"

#include "data/atomic_file.hpp"
#include "data/error.hpp"
#include "viewer/widgets/theme.hpp"

#include <utility>

namespace kvreplay::viewer {
namespace {

constexpr int kSteps = 44, kFrame = 170, kFirst = 1300, kLast = 2200;  // milliseconds each
constexpr double kLeastShare = 0.05;
constexpr float kTextSize = 13;  // points
/// Frames until scrolling and sizes have settled.
constexpr int kQuiet = 2;

}  // namespace

Film::Film(std::filesystem::path path, const FilmOptions& options, const std::shared_ptr<const Run>& run,
           std::optional<BudgetSlide::Head> head, std::array<WhatIfSettings, 2> settings)
    : path_(std::move(path)),
      canvas_(options.width, options.height, options.scale),
      slide_(run, head, std::move(settings), sliding_budgets(run->shape().l, kSteps, kLeastShare)),
      animation_(canvas_.width(), canvas_.height()) {}

void Film::go_on(PanelContext& context, bool dark) {
  if (!slide_.done()) {
    slide_.ask(context);
    if (!slide_.error().empty()) throw InputError(slide_.error());
    return;
  }
  use_theme(dark, canvas_.scale(), kTextSize);
  canvas_.frame(kTextSize, [&] {
    const bool there = view_.draw(context, slide_, step_);
    waits_ = !there;
    quiet_ = there ? quiet_ + 1 : 0;
    return quiet_ > kQuiet;
  });
  if (quiet_ <= kQuiet) return;
  const bool last = step_ + 1 == slide_.steps().size();
  animation_.add(canvas_.pixels(), step_ == 0 ? kFirst : last ? kLast : kFrame);
  ++step_;
  if (!last) return;
  const std::vector<std::byte> png = animation_.png();
  write_output(path_, png);
  bytes_ = png.size();
  done_ = true;
}

}  // namespace kvreplay::viewer
