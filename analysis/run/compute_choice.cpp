#include "analysis/run/compute_choice.hpp"

#include "sim/backend_cuda.hpp"
#include "sim/backend_matrix.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

namespace kvreplay {
namespace {

/// Of words that stand for values: what is wrong with one, and which value it is.
template <class T, std::size_t N>
std::string not_among(const std::array<T, N>& values, const std::string& word) {
  std::vector<std::string> words;
  for (const T value : values) words.push_back(OptionValue<T>::text(value));
  return std::find(words.begin(), words.end(), word) != words.end()
             ? ""
             : fmt::format("expected {}, found '{}'", fmt::join(words, " or "), word);
}
template <class T, std::size_t N>
T among(const std::array<T, N>& values, const std::string& word) {
  return *std::find_if(values.begin(), values.end(),
                       [&](const T value) { return OptionValue<T>::text(value) == word; });
}

constexpr std::array kBackends{BackendChoice::automatic, BackendChoice::cpu, BackendChoice::cuda};
constexpr std::array kPrecisions{Precision::f32, Precision::f64, Precision::tensor};

}  // namespace

ChosenCompute choose_compute(BackendChoice choice, Precision precision, bool may_fall_back,
                             std::optional<int> share) {
  using compute_option::backend;
  const bool tensor = precision == Precision::tensor;
  ChosenCompute chosen{std::make_shared<const Backend>(), precision, ""};
  const std::string why_not = choice == BackendChoice::cpu  ? ""
                              : precision == Precision::f64 ? "float64 is computed on the CPU"
                                                            : why_no_cuda();
  const bool on_cpu =
      choice == BackendChoice::cpu || (choice == BackendChoice::automatic && !why_not.empty());
  if (tensor && on_cpu) {
    if (const MatrixUnit* unit = matrix_unit())
      chosen.backend = std::make_shared<const MatrixBackend>(*unit);
    else
      throw OptionError(option_text("{} tensor: {}{}; use f32 or f64", compute_option::precision,
                                    why_not.empty() ? "" : why_not + ", and ", why_no_matrix_unit()));
  }
  if (choice == BackendChoice::cpu) return chosen;
  if (choice == BackendChoice::cuda && !why_not.empty())
    throw OptionError(option_text("{} cuda: {}; use auto or cpu", backend, why_not));
  if (why_not.empty())
    chosen.backend = cuda_backend(may_fall_back && choice == BackendChoice::automatic,
                                  tensor ? Products::tensor : Products::f32, share);
  else
    chosen.note = fmt::format("auto: {}", why_not);
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
