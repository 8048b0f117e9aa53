#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay::viewer {

/// Undo and redo of a state that is copied whole. Changes of one kind that follow each other closely (a run
/// of wheel steps) are one step, and so are those that a hand makes without letting go (a drag).
template <class State>
class History {
 public:
  using Clock = std::chrono::steady_clock;
  explicit History(State start, std::size_t most = 200) : now_(std::move(start)), most_(most) {}

  const State& now() const { return now_; }
  bool can_undo() const { return !past_.empty(); }
  bool can_redo() const { return !future_.empty(); }

  /// Takes `state` as the present one; the same state again is no change. `kind` names what was done; empty:
  /// never joined with what was done before. `held`: joined with the same kind however long ago that was.
  void record(State state, const std::string& kind = {}, Clock::time_point at = Clock::now(),
              bool held = false) {
    if (state == now_) return;
    const bool joined = !kind.empty() && kind == kind_ && (held || at - at_ < kJoined) && !past_.empty();
    if (joined && past_.back() == state) {
      undo();  // a drag that ends where it began is no step
      future_.clear();
      return;
    }
    if (!joined) {
      past_.push_back(std::move(now_));
      if (past_.size() > most_) past_.erase(past_.begin());
    }
    now_ = std::move(state);
    future_.clear();
    kind_ = kind;
    at_ = at;
  }
  /// Takes `state` as the present one without a step.
  void amend(State state) { now_ = std::move(state); }

  void undo() { step(past_, future_); }
  void redo() { step(future_, past_); }

 private:
  static constexpr std::chrono::milliseconds kJoined{700};
  void step(std::vector<State>& from, std::vector<State>& to) {
    if (from.empty()) return;
    to.push_back(std::move(now_));
    now_ = std::move(from.back());
    from.pop_back();
    kind_.clear();
  }

  State now_;
  std::vector<State> past_, future_;
  std::size_t most_;
  std::string kind_;
  Clock::time_point at_{};
};

}  // namespace kvreplay::viewer
