#include "tests/bench/host_numbers.hpp"

#include "sim/cuda/half.hpp"

namespace kvreplay::bench {

HostNumbers::HostNumbers(const HeadGroup<float>& group, Input input) : stored_(cuda::stored_numbers(group)) {
  std::vector<const HeadMatrix<float>*> matrices{&group.k, &group.v};
  for (const HeadMatrix<float>& q : group.q) matrices.push_back(&q);
  for (const HeadMatrix<float>* m : matrices) {
    const auto n = static_cast<std::size_t>(m->size());
    if (input == Input::f32) {
      memory_.emplace_back(m->data(), n * sizeof(float));
      continue;
    }
    std::vector<std::uint16_t>& halves = halves_.emplace_back(n);
    for (std::size_t i = 0; i < n; ++i) halves[i] = cuda::to_half(m->data()[i]);
    memory_.emplace_back(halves.data(), n * sizeof(std::uint16_t));
  }
  stored_.type = input == Input::f32 ? cuda::NumberType::f32 : cuda::NumberType::f16;
  stored_.k = memory_[0].first;
  stored_.v = memory_[1].first;
  for (std::size_t g = 0; g < stored_.q.size(); ++g) stored_.q[g] = memory_[2 + g].first;
}

}  // namespace kvreplay::bench
