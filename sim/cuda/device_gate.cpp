#include "sim/cuda/device_gate.hpp"

namespace kvreplay::cuda {

DeviceGate::Turn::~Turn() {
  if (gate_ != nullptr) gate_->leave(place_);
}

/// places_.size() where none may be entered.
std::size_t DeviceGate::emptiest() const {
  std::size_t best = places_.size();
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const Place& place = places_[i];
    if (place.running >= at_once_ || place.taken_whole || !place.want_whole.empty()) continue;
    if (best == places_.size() || place.running < places_[best].running) best = i;
  }
  return best;
}

DeviceGate::Turn DeviceGate::enter() {
  std::unique_lock lock(mutex_);
  const std::uint64_t ticket = ++tickets_;
  queue_.push_back(ticket);
  changed_.wait(lock, [&] { return queue_.front() == ticket && emptiest() < places_.size(); });
  queue_.pop_front();
  const std::size_t at = emptiest();
  Place& place = places_[at];
  ++place.entries;
  const std::uint64_t entry = place.running == 0 ? place.entries : 0;
  ++place.running;
  lock.unlock();
  changed_.notify_all();  // there may be room for the next one too
  return {this, at, entry};
}

DeviceGate::Turn DeviceGate::enter_alone(std::size_t at) {
  std::unique_lock lock(mutex_);
  Place& place = places_[at];
  const std::uint64_t ticket = ++tickets_;
  place.want_whole.push_back(ticket);
  changed_.wait(lock, [&] { return place.want_whole.front() == ticket && place.running == 0; });
  place.want_whole.pop_front();
  place.running = 1;
  place.taken_whole = true;
  return {this, at, ++place.entries};
}

void DeviceGate::leave(std::size_t at) {
  {
    const std::lock_guard lock(mutex_);
    --places_[at].running;
    places_[at].taken_whole = false;
  }
  changed_.notify_all();
}

bool DeviceGate::had_company(std::size_t at, std::uint64_t entry) const {
  const std::lock_guard lock(mutex_);
  return entry == 0 || places_[at].entries != entry;
}

int DeviceGate::running(std::size_t at) const {
  const std::lock_guard lock(mutex_);
  return places_[at].running;
}

std::size_t DeviceGate::waiting() const {
  const std::lock_guard lock(mutex_);
  std::size_t n = queue_.size();
  for (const Place& place : places_) n += place.want_whole.size();
  return n;
}

}  // namespace kvreplay::cuda
