#pragma once

#include "sim/cuda/runtime.hpp"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

namespace kvreplay::cuda {

/// Calls at once on a device: one computes while another's numbers are read, prepared and copied.
inline constexpr int kCallsAtOnce = 4;
/// Device memory that a call may take for work that can be split into smaller pieces. Equally large shares
/// remain for the calls that run at the same time.
inline std::size_t fair_share_of_memory() { return free_memory() / (kCallsAtOnce + 1); }

/// Gate for calls that share devices of one capability. The number of calls at once on each device is
/// limited, so that their memory is bounded. A thread that holds a turn must not request another before it
/// ends: two such threads would wait for each other. A gate works without a device, too.
class DeviceGate {
 public:
  /// A place on a device until it is gone.
  class Turn {
   public:
    Turn(Turn&& other) noexcept
        : gate_(std::exchange(other.gate_, nullptr)), place_(other.place_), entry_(other.entry_) {}
    Turn& operator=(Turn&&) = delete;
    ~Turn();
    /// Index of the device: 0 .. devices - 1.
    std::size_t place() const { return place_; }
    /// True if another call was on the device at any time since this one began.
    bool had_company() const { return gate_->had_company(place_, entry_); }

   private:
    friend class DeviceGate;
    Turn(DeviceGate* gate, std::size_t place, std::uint64_t entry)
        : gate_(gate), place_(place), entry_(entry) {}

    DeviceGate* gate_;
    std::size_t place_;
    std::uint64_t entry_;  // 0: it came to others
  };

  DeviceGate(std::size_t devices, int at_once) : places_(devices), at_once_(at_once) {}
  DeviceGate(const DeviceGate&) = delete;
  DeviceGate& operator=(const DeviceGate&) = delete;

  /// On the device with the fewest calls, the first of several; waits, in the order of asking, where all are
  /// full.
  Turn enter();
  /// With that device to itself: nobody enters it from now on, and who is there may finish.
  Turn enter_alone(std::size_t place);

  int running(std::size_t place) const;
  /// Calls that wait for a turn.
  std::size_t waiting() const;

 private:
  struct Place {
    int running = 0;
    bool taken_whole = false;
    std::uint64_t entries = 0;             // ever
    std::deque<std::uint64_t> want_whole;  // tickets, in the order of asking
  };

  std::size_t emptiest() const;
  void leave(std::size_t place);
  bool had_company(std::size_t place, std::uint64_t entry) const;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Place> places_;
  std::deque<std::uint64_t> queue_;  // tickets for any device, in the order of asking
  std::uint64_t tickets_ = 0;
  int at_once_;
};

/// call(place) in a turn. Where that runs out of device memory in company, once more alone: what it throws
/// then is what it throws.
template <class Call>
auto in_turn(DeviceGate& gate, Call call) {
  std::size_t place = 0;
  {
    const DeviceGate::Turn turn = gate.enter();
    place = turn.place();
    try {
      return call(place);
    } catch (const OutOfDeviceMemory&) {
      if (!turn.had_company()) throw;
    }
  }
  const DeviceGate::Turn turn = gate.enter_alone(place);
  return call(place);
}

}  // namespace kvreplay::cuda
