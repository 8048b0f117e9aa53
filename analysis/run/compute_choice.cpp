#include "analysis/run/compute_choice.hpp"

#include "analysis/results/figures.hpp"
#include "sim/backend/backend_cuda.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

namespace kvreplay {
namespace {

/// What is wrong with a word that should stand for a value, and which value it is.
template <class T, std::size_t N>
std::string not_among(const std::array<T, N>& values, const std::string& word) {
  std::vector<std::string> words;
  for (const T value : values) words.push_back(OptionValue<T>::text(value));
  return is_in(words, word) ? "" : fmt::format("expected {}, found '{}'", fmt::join(words, " or "), word);
}
template <class T, std::size_t N>
T among(const std::array<T, N>& values, const std::string& word) {
  return *std::ranges::find_if(values, [&](const T value) { return OptionValue<T>::text(value) == word; });
}

constexpr std::array kBackends{BackendChoice::automatic, BackendChoice::cpu, BackendChoice::cuda};
constexpr std::array kPrecisions{Precision::f32, Precision::f64, Precision::tensor};

}  // namespace

ChosenCompute choose_compute(BackendChoice choice, Precision precision, bool may_fall_back,
                             std::optional<int> share) {
  const bool tensor = precision == Precision::tensor;
  ChosenCompute chosen{std::make_shared<const Backend>(), precision, ""};
  std::string why_no_device;
  if (choice != BackendChoice::cpu)
    why_no_device = precision == Precision::f64 ? "float64 is computed on the CPU" : why_no_cuda();
  if (choice == BackendChoice::cuda && !why_no_device.empty())
    throw OptionError(option_text("{} cuda: {}; use auto or cpu", compute_option::backend, why_no_device));
  if (choice != BackendChoice::cpu && why_no_device.empty()) {
    chosen.backend = cuda_backend(may_fall_back && choice == BackendChoice::automatic,
                                  tensor ? Products::tensor : Products::f32, share);
    return chosen;
  }
  if (!why_no_device.empty()) chosen.note = fmt::format("auto: {}", why_no_device);
  if (tensor)
    throw OptionError(option_text("{} tensor: {}; use f32 or f64", compute_option::precision,
                                  why_no_device.empty() ? "it is computed on a GPU" : why_no_device));
  return chosen;
}

std::string OptionValue<BackendChoice>::complaint(const OptionFacts&, const std::string& word) {
  return not_among(kBackends, word);
}
BackendChoice OptionValue<BackendChoice>::parse(const OptionFacts&, const std::string& word) {
  return among(kBackends, word);
}
std::string OptionValue<BackendChoice>::text(BackendChoice choice) {
  return choice == BackendChoice::automatic ? "auto" : choice == BackendChoice::cpu ? "cpu" : "cuda";
}

std::string OptionValue<Precision>::complaint(const OptionFacts&, const std::string& word) {
  return not_among(kPrecisions, word);
}
Precision OptionValue<Precision>::parse(const OptionFacts&, const std::string& word) {
  return among(kPrecisions, word);
}

}  // namespace kvreplay
