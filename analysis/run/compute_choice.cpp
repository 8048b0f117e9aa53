#include "analysis/run/compute_choice.hpp"

#include "analysis/results/figures.hpp"
#include "sim/backend/backend_cuda.hpp"
#include "sim/cuda/runtime.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

namespace kvreplay {
namespace {

/// Error message for a word that is none of the values; empty if it is one. Below: the value with this name.
template <class T, std::size_t N>
std::string not_among(const std::array<T, N>& values, const std::string& word) {
  std::vector<std::string> words;
  for (const T value : values) words.push_back(OptionValue<T>::text(value));
  const auto is_word = [&](const std::string& known) { return same_name(known, word); };
  return std::ranges::any_of(words, is_word)
             ? ""
             : fmt::format("expected {}, found '{}'", fmt::join(words, " or "), word);
}
template <class T, std::size_t N>
T among(const std::array<T, N>& values, const std::string& word) {
  return *std::ranges::find_if(values,
                               [&](const T value) { return same_name(OptionValue<T>::text(value), word); });
}

constexpr std::array kBackends{BackendChoice::automatic, BackendChoice::cpu, BackendChoice::cuda};
constexpr std::array kPrecisions{Precision::f32, Precision::f64, Precision::tensor};

}  // namespace

ChosenCompute choose_compute(const ComputeWish& wish) {
  using enum BackendChoice;
  const bool tensor = wish.precision == Precision::tensor, asked_for = tensor || wish.device.has_value();
  ChosenCompute chosen{std::make_shared<const Backend>(), wish.precision, ""};
  std::string why_no_device;
  if (wish.backend != cpu) {
    if (wish.precision == Precision::f64) {
      why_no_device = "float64 is computed on the CPU";
    } else if (wish.backend == automatic && !asked_for && wish.multiply_adds &&
               too_little_for_cuda(*wish.multiply_adds)) {
      why_no_device = "it is done there before a GPU has started";
    } else {
      try {
        chosen.backend = cuda_backend(wish.may_fall_back && wish.backend == automatic,
                                      tensor ? Products::tensor : Products::f32,
                                      {.share = wish.share, .number = wish.device});
        return chosen;
      } catch (const cuda::DeviceError& error) {
        why_no_device = error.what();
        if (wish.device)
          throw OptionError(option_text("{} {}: {}", compute_option::device, *wish.device, why_no_device));
      }
    }
    if (wish.backend == cuda)
      throw OptionError(option_text("{} cuda: {}; use auto or cpu", compute_option::backend, why_no_device));
    chosen.note = fmt::format("auto: {}", why_no_device);
  }
  if (tensor)
    throw OptionError(option_text("{} tensor: {}; use f32 or f64", compute_option::precision,
                                  why_no_device.empty() ? "it is computed on a GPU" : why_no_device));
  return chosen;
}

std::string code_text(const ComputeDevice& device) {
  return cuda::dotted(device.code) + (device.from_ptx ? ", by the driver from PTX" : "");
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
