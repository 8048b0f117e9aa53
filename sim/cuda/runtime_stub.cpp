#include "sim/cuda/runtime.hpp"

namespace kvreplay::cuda {
namespace {

[[noreturn]] void refuse() { throw DeviceError("this build has no CUDA backend"); }

}  // namespace

Devices find_devices() { return {{}, "this build has no CUDA backend"}; }
std::size_t free_memory() { return 0; }
void use_device(int) { refuse(); }
int current_device() { refuse(); }
bool is_pageable(const void*) { refuse(); }
int capability() { refuse(); }
std::size_t shared_memory_limit() { refuse(); }

Stream::Stream() { refuse(); }
Stream::~Stream() = default;
void* Stream::handle() const { refuse(); }
void Stream::synchronize() const { refuse(); }
void Stream::wait_for(const Stream&) const { refuse(); }

Event::Event() { refuse(); }
Event::~Event() = default;
void Event::record(const Stream&) { refuse(); }
bool Event::reached() const { refuse(); }
void Event::wait() const { refuse(); }
double Event::milliseconds(const Event&, const Event&) { refuse(); }

namespace detail {
void* allocate(Place, std::size_t) { refuse(); }
void release(Place, void*) noexcept {}
void copy(void*, const void*, std::size_t, const Stream&) { refuse(); }
void fill_zero(void*, std::size_t, const Stream&) { refuse(); }
}  // namespace detail
}  // namespace kvreplay::cuda
