#pragma once

#include "sim/channels/channel_interaction.hpp"
#include "sim/channels/output_interaction.hpp"
#include "sim/eviction/decode/decode.hpp"
#include "sim/eviction/exact/greedy.hpp"
#include "sim/eviction/kept_outputs.hpp"
#include "sim/head_group.hpp"
#include "sim/schedule.hpp"
#include "sim/tokens/token_metrics.hpp"
#include "sim/tokens/token_readings.hpp"

#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

// Which hardware computes. Callers name a backend and never a twin; each function is documented where its
// twins are.

namespace kvreplay {

/// The CPU, and a device for what it has twins of. float64 runs on the CPU whatever the backend, but for the
/// exact searches, which are in float64 only.
class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  /// "cpu" or "cuda".
  virtual std::string_view name() const { return "cpu"; }
  /// Whether token_metrics() is quicker with the group's numbers as its dump holds them.
  virtual bool reads_stored() const { return false; }
  /// How many calls the CPU took over for want of device memory.
  virtual Index fell_back() const { return 0; }

  /// `stored`: the group's numbers as its dump holds them, less to bring to a device; null where there are
  /// none. The bits do not depend on it.
  template <class T>
  TokenMetrics token_metrics(const HeadGroup<T>& group, const TokenOptions& options, Workers& workers,
                             const StoredGroup* stored = nullptr) const {
    ReadMetrics read = run([&] { return read_metrics_cpu(group, options, workers); }, twins_.read_metrics,
                           group, options, workers, stored);
    return finished_metrics(std::move(read), group, options, workers);
  }
  template <class T>
  OutputChanges<T> output_changes(const HeadGroup<T>& group, RowRange rows, std::span<const KeptSet> sets,
                                  bool with_vectors, Workers& workers) const {
    return run([&] { return kvreplay::output_changes(group, rows, sets, with_vectors, workers); },
               twins_.output_changes, group, rows, sets, with_vectors, workers);
  }
  template <class T>
  Matrix<double> gram_f64(const HeadMatrix<T>& x, const std::vector<Index>& rows, Workers& workers) const {
    return run([&] { return kvreplay::gram_f64(x, rows, workers); }, twins_.gram_f64, x, rows);
  }
  template <class T>
  Matrix<double> query_gram(const HeadGroup<T>& group, RowRange rows, Workers& workers) const {
    return run([&] { return kvreplay::query_gram(group, rows, workers); }, twins_.query_gram, group, rows);
  }
  template <class T>
  Matrix<double> output_interaction(const HeadGroup<T>& group, RowRange rows, const PrunableKeys& keys,
                                    Workers& workers) const {
    return run([&] { return kvreplay::output_interaction(group, rows, keys, workers); },
               twins_.output_interaction, group, rows, keys, workers);
  }
  GreedyPath greedy_exact(const HeadGroup<double>& group, RowRange rows, Index keep, Workers& workers) const {
    return run([&] { return kvreplay::greedy_exact(group, rows, keep, workers); }, twins_.greedy_exact, group,
               rows, keep, workers);
  }
  KeptSet exchange(const HeadGroup<double>& group, RowRange rows, KeptSet start, Workers& workers) const {
    return run([&] { return kvreplay::exchange(group, rows, start, workers); }, twins_.exchange, group, rows,
               start, workers);
  }
  template <class T>
  std::vector<DecodeReplay<T>> decode_replays(const HeadGroup<T>& group, std::span<const DecodeRequest> runs,
                                              const std::vector<Matrix<T>>& full, Workers& workers) const {
    return run([&] { return kvreplay::decode_replays(group, runs, full, workers); }, twins_.decode_replays,
               group, runs, full, workers);
  }

 protected:
  /// What runs on a device instead, each with the types that it is given; empty where there is no twin.
  struct Twins {
    std::function<ReadMetrics(const HeadGroup<float>&, const TokenOptions&, Workers&, const StoredGroup*)>
        read_metrics = {};
    std::function<OutputChanges<float>(const HeadGroup<float>&, RowRange, std::span<const KeptSet>, bool,
                                       Workers&)>
        output_changes = {};
    std::function<Matrix<double>(const HeadMatrix<float>&, const std::vector<Index>&)> gram_f64 = {};
    std::function<Matrix<double>(const HeadGroup<float>&, RowRange)> query_gram = {};
    std::function<Matrix<double>(const HeadGroup<float>&, RowRange, const PrunableKeys&, Workers&)>
        output_interaction = {};
    std::function<GreedyPath(const HeadGroup<double>&, RowRange, Index, Workers&)> greedy_exact = {};
    std::function<KeptSet(const HeadGroup<double>&, RowRange, KeptSet, Workers&)> exchange = {};
    std::function<std::vector<DecodeReplay<float>>(const HeadGroup<float>&, std::span<const DecodeRequest>,
                                                   const std::vector<Matrix<float>>&, Workers&)>
        decode_replays = {};
  };
  explicit Backend(Twins twins) : twins_(std::move(twins)) {}

  /// Calls it with a device at hand; false where the CPU is to take over.
  virtual bool on_device(const std::function<void()>& /*work*/) const { return false; }

 private:
  template <class OnCpu, class Result, class First, class... Rest, class Numbers, class... Arguments>
  std::invoke_result_t<OnCpu> run(const OnCpu& on_cpu, const std::function<Result(First, Rest...)>& twin,
                                  const Numbers& numbers, Arguments&... arguments) const {
    if constexpr (std::is_same_v<First, const Numbers&>) {
      std::optional<Result> result;
      if (twin && on_device([&] { result = twin(numbers, arguments...); })) return std::move(*result);
    }
    return on_cpu();
  }

  Twins twins_;
};

inline const Backend& cpu_backend() {
  static const Backend backend;
  return backend;
}

enum class Precision { f32, f64, tensor };
constexpr std::string_view name_of(Precision precision) {
  return precision == Precision::f32 ? "f32" : precision == Precision::f64 ? "f64" : "tensor";
}
/// Whether numbers are float32, where matrix units round them further too.
constexpr bool in_float32(Precision precision) { return precision != Precision::f64; }

/// What a computation runs on: these threads, this backend for what it has twins of, and numbers of this
/// precision where it is not said otherwise. What it names must outlive it.
struct Compute {
  Compute(Workers& threads, const Backend& hardware = cpu_backend(),  // NOLINT: threads say enough
          Precision numbers = Precision::f32)
      : workers(threads), backend(hardware), precision(numbers) {}

  Workers& workers;
  const Backend& backend;
  Precision precision;
};

}  // namespace kvreplay
