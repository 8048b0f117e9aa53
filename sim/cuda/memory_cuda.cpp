#include "sim/cuda/block_list.hpp"
#include "sim/cuda/runtime_cuda.hpp"

#include <map>
#include <mutex>
#include <new>
#include <unordered_map>

// Memory that is released is kept for the next request of its size: to get it from the driver and to give it
// back makes the whole device wait.

namespace kvreplay::cuda::detail {
namespace {

constexpr int kHost = -1;

struct Block {
  int where;  ///< a device, or kHost
  std::size_t bytes;
};
struct Memory {
  std::mutex mutex;
  std::unordered_map<void*, Block> in_use;
  std::map<int, BlockList> kept;
};
Memory& memory_of_all() {
  static Memory& all = *new Memory;  // there to the end: the driver may be gone before
  return all;
}

cudaError_t from_driver(int where, void** memory, std::size_t bytes) {
  return where == kHost ? cudaMallocHost(memory, bytes) : cudaMalloc(memory, bytes);
}
void to_driver(int where, void* memory) {
  if (where == kHost)
    cudaFreeHost(memory);
  else
    cudaFree(memory);
}

void give_back_kept(int where) {
  Memory& all = memory_of_all();
  std::vector<void*> blocks;
  {
    const std::lock_guard lock(all.mutex);
    blocks = all.kept[where].take_all();
  }
  for (void* block : blocks) to_driver(where, block);
}

[[noreturn]] void throw_out_of_memory(int where, std::size_t bytes) {
  std::string line = where == kHost ? "out of pinned host memory: " : "out of device memory: ";
  line += std::to_string(bytes) + " bytes wanted";
  if (where != kHost) line += ", " + std::to_string(free_memory()) + " free";
  throw OutOfDeviceMemory(line);
}

}  // namespace

void* allocate(Place place, std::size_t bytes) {
  const int where = place == Place::device ? current_device() : kHost;
  Memory& all = memory_of_all();
  std::size_t taken = BlockList::rounded(bytes);
  {
    const std::lock_guard lock(all.mutex);
    if (void* const kept = all.kept[where].take(taken)) {
      all.in_use[kept] = {where, taken};
      return kept;
    }
  }
  void* memory = nullptr;
  cudaError_t error = from_driver(where, &memory, taken);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // not to be found by the next call
    give_back_kept(where);
    taken = bytes;
    error = from_driver(where, &memory, taken);
  }
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw_out_of_memory(where, bytes);
  }
  check(error);
  const std::lock_guard lock(all.mutex);
  all.in_use[memory] = {where, taken};
  return memory;
}

void release(Place place, void* memory) noexcept {
  if (memory == nullptr) return;
  finish_own_work();  // else the next owner would find it in use
  Memory& all = memory_of_all();
  try {
    const std::lock_guard lock(all.mutex);
    const auto found = all.in_use.find(memory);
    all.kept[found->second.where].give(memory, found->second.bytes);
    all.in_use.erase(found);
  } catch (const std::bad_alloc&) {
    to_driver(place == Place::device ? 0 : kHost, memory);
  }
}

std::size_t kept_memory(int device) {
  Memory& all = memory_of_all();
  const std::lock_guard lock(all.mutex);
  return all.kept[device].bytes();
}

}  // namespace kvreplay::cuda::detail
