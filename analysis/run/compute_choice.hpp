#pragma once

#include "analysis/options/option.hpp"
#include "sim/backend.hpp"

#include <memory>
#include <optional>
#include <string>

// Choice of the hardware to compute on.

namespace kvreplay {

enum class BackendChoice { automatic, cpu, cuda };

namespace compute_option {
inline constexpr OptionFacts backend{"backend", "NAME",
                                     "What computes: auto (a GPU where there is one), cpu or cuda"},
    device{"device",           "N", "The GPU to compute on, numbered as kvreplay info --devices does",
           "the most capable", 0,   1023},
    precision{"precision", "NAME",
              "Arithmetic: f32, f64 or tensor (matrix units: 3 digits on a GPU, 2 on a CPU)"},
    threads{"threads",
            "N",
            "Threads; the results do not depend on it",
            "all cores, a fair share of them under mpirun",
            1,
            4096};
}  // namespace compute_option

struct ChosenCompute {
  std::shared_ptr<const Backend> backend;
  Precision precision = Precision::f32;
  std::string note;  ///< if the program chose: the reason that it is not a GPU
  Compute on(Workers& workers) const { return {workers, *backend, precision}; }
};

/// Requested hardware and precision.
struct ComputeWish {
  BackendChoice backend = BackendChoice::automatic;
  Precision precision = Precision::f32;
  std::optional<Index> device = {};  ///< the number of a GPU
  std::optional<int> share = {};     ///< argument of cuda_backend()
  /// With BackendChoice::automatic: true lets the CPU take over work at which a GPU fails.
  bool may_fall_back = true;
  /// Approximate amount of work, if known. With BackendChoice::automatic a small amount is left to the CPU.
  std::optional<double> multiply_adds = {};
};

/// Throws OptionError where this build or machine cannot do what is asked for.
ChosenCompute choose_compute(const ComputeWish& wish);

/// "9.0, by the driver from PTX": what a GPU runs.
std::string code_text(const ComputeDevice& device);

template <>
struct OptionValue<BackendChoice> {
  static std::string complaint(const OptionFacts& option, const std::string& word);
  static BackendChoice parse(const OptionFacts& option, const std::string& word);
  static std::string text(BackendChoice choice);
};

template <>
struct OptionValue<Precision> {
  static std::string complaint(const OptionFacts& option, const std::string& word);
  static Precision parse(const OptionFacts& option, const std::string& word);
  static std::string text(Precision precision) { return std::string(name_of(precision)); }
};

}  // namespace kvreplay
