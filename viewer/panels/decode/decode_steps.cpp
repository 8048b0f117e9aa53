#include "viewer/panels/decode/decode_steps.hpp"

#include "viewer/model/token_text.hpp"
#include "viewer/panels/decode/decode_controls.hpp"
#include "viewer/panels/decode/decode_list.hpp"
#include "viewer/widgets/controls.hpp"
#include "viewer/widgets/theme.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace kvreplay::viewer {
namespace {

/// The next one of any run, round the end.
PlaybackJump spike(const Run& run, const DecodeShown& shown) {
  for (const Index from : {shown.step, Index{-1}}) {
    std::optional<Index> found;
    for (const DecodeRun& one : shown.runs())
      if (const auto next = next_spike(one.error, from, true); next && (!found || *next < *found))
        found = next;
    if (found)
      return {found, fmt::format("To step {}, whose error stands out from those around it: {}", *found,
                                 token_text(run.labels(), shown.first_step() + *found, 24))};
  }
  return {std::nullopt, "No error stands out from those around it."};
}

/// "h2o loses 2.4 times what snapkv does, without token 379 'len', which leaves at step 3".
std::string divergence_text(const Run& run, const DecodeShown& shown, const Divergence& one,
                            const std::string& pinned) {
  const DecodeRun &mine = shown.runs()[one.run], *other = shown.pinned_run(one.run);
  std::string what = "it does in " + pinned;
  if (other == nullptr) {
    other = &shown.runs()[least_error(shown.runs()).value_or(0)];
    what = title_of(*other) + " does";
  }
  const std::string text = token_text(run.labels(), one.position, 16);
  return fmt::format("{} loses {} times what {}, without token {}{}, which {}", title_of(mine),
                     number_text(mine.error[one.step] / other->error[one.step]), what, one.position,
                     text.empty() ? "" : fmt::format(" '{}'", text),
                     fate_text(shown.now.fates[one.run], one.position));
}

/// The next run's, round the end.
PlaybackJump divergence(const Run& run, const DecodeShown& shown, const std::string& pinned) {
  if (shown.divergences.empty())
    return {std::nullopt,
            fmt::format("No policy loses more than {} times what {} for want of a token.", kDiverges,
                        shown.pinned != nullptr ? "it does in " + pinned : "the best one shown does")};
  const auto next = std::find_if(shown.divergences.begin(), shown.divergences.end(),
                                 [&](const Divergence& one) { return one.step > shown.step; });
  const Divergence& one = next != shown.divergences.end() ? *next : shown.divergences.front();
  return {one.step, fmt::format("To step {}: {}", one.step, divergence_text(run, shown, one, pinned))};
}

}  // namespace

void DecodeSteps::begin(AppState& state, const DecodeShown& shown) {
  const Index steps = shown.steps();
  first_step_ = shown.first_step();
  const std::optional<Index> row = state.selection().row;
  if (std::exchange(followed_row_, row) != row && row && *row >= first_step_) {
    now_ = *row - first_step_;
    chosen_ = true;
  }
  now_ = chosen_ ? std::clamp<Index>(now_, 0, steps - 1) : steps - 1;
  const Index to = playback_.advance(now_, steps, state.clock());
  if (to != now_) go_to(state, to);
  state.wakes_at = playback_.due();
}

void DecodeSteps::go_to(AppState& state, Index step) {
  now_ = step;
  chosen_ = true;
  Selection next = state.selection();
  next.row = first_step_ + step;
  followed_row_ = next.row;
  state.select(std::move(next), "decoding step");
}

void DecodeSteps::draw(PanelContext& context, const DecodeShown& shown, const std::string& pinned) {
  AppState& state = context.state;
  const Run& run = *state.run();
  std::optional<OutOfSight> controls(std::in_place, context.figure);
  const PlaybackHit hit = playback_buttons(playback_.playing(), now_, shown.steps(), spike(run, shown),
                                           divergence(run, shown, pinned));
  if (hit.to) go_to(state, *hit.to);
  if (hit.toggled) {
    if (playback_.playing()) {
      playback_.pause();
    } else {
      if (now_ + 1 >= shown.steps()) go_to(state, 0);
      playback_.play(state.clock());
    }
    state.wakes_at = playback_.due();
  }
  controls.reset();
  Index step = now_;
  if (context.figure)
    dim_text(fmt::format("step {}, position {}", step, first_step_ + step));
  else if (edit_step(run, shown.steps(), first_step_, step))
    go_to(state, step);
  for (const Divergence& one : shown.divergences)
    if (one.step == now_) elided_text(divergence_text(run, shown, one, pinned), theme().dim);
}

}  // namespace kvreplay::viewer
