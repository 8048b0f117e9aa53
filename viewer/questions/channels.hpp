#pragma once

#include "analysis/channels/head_channels.hpp"
#include "analysis/results/result_reader.hpp"
#include "sim/channels/arrangement.hpp"
#include "viewer/questions/job_queue.hpp"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace kvreplay::viewer {

class Run;
struct PanelContext;

// Interactions between the key channels of one head, and the exact cost of pruning some of them. Every metric
// equals that of `kvreplay channels` with the same options. If a policy variant selects channels for every
// query head separately (official), a head has G parts, else one.

/// Without ratios.
struct ChannelSettings : ChannelOptions {
  bool operator==(const ChannelSettings&) const = default;
};
/// For sessions.
BoundOptions bound(ChannelSettings& settings);

/// True if all keys of a prompt of length l are recent ones, which stay whole; with recent = 0 none would be.
bool all_keys_recent(const ChannelSettings& settings, Index l);
/// Key of everything that channel_head() and channel_outputs() depend on besides the head. The plan's ratios
/// and cases are ignored, here and below: the dashboard requests one ratio at a time.
Key basis_key(const ChannelPlan& plan);

/// Data that serve every ratio and method: 3 d^2 numbers of 8 bytes for each part.
struct ChannelHead {
  std::vector<ChannelPart> parts;
  std::vector<ChannelMoments> window, future;  ///< of every query head's channels; empty where unknown
  double off_diagonal_share = 0, rope_pair_share = 0;  ///< means over the parts
};
/// `readers`: Run::readers() of the head; null: the group is alone.
ChannelHead channel_head(const HeadGroup<float>& group, const ChannelPlan& plan, JobControl& job,
                         const HeadGroup<float>* readers = nullptr);

/// The output-space matrix, of all that choose channels together: 2 G |window| l d d_v flops.
struct ChannelOutputs {
  std::vector<Matrix<double>> outputs;  ///< [parts] of [d, d]
};
ChannelOutputs channel_outputs(const HeadGroup<float>& group, const ChannelPlan& plan,
                               const ChannelHead& head, JobControl& job);

/// One method at one ratio, over all parts.
struct ChannelPruning : PrunedChannels {
  std::string method;
  struct RowFigures {
    double relative_reconstruction = 0;  ///< of the logits' square
    double error = 0;                    ///< output_error
  };
  RowFigures window, future;  ///< nan where there are no future rows
};
struct ChannelPrunings {
  double ratio = 0;
  Index asked = 0;                      ///< channels that the ratio asks for
  std::vector<ChannelPruning> methods;  ///< in the plan's order, without those that wait for outputs
  std::vector<std::string> waiting;     ///< methods that need outputs, where `outputs` is null
};
/// `ratio` in [0, 1), else InputError. The full outputs are formed anew each time, at the cost of about one
/// method more.
ChannelPrunings channel_prunings(const HeadGroup<float>& group, const ChannelPlan& plan,
                                 const ChannelHead& head, const ChannelOutputs* outputs, double ratio,
                                 JobControl& job);

std::size_t bytes_of(const ChannelHead& head);
inline std::size_t bytes_of(const ChannelOutputs& answer) { return bytes_with(answer, answer.outputs); }
inline std::size_t bytes_of(const ChannelPruning& one) { return bytes_with(one, one.method, one.pruned); }
inline std::size_t bytes_of(const ChannelPrunings& prunings) {
  return bytes_with(prunings, prunings.methods);
}

/// Results of `kvreplay channels` for one head. A result folder contains no key norms, protected channels or
/// split of H into rows: these members are empty.
struct ChannelRecord {
  ChannelHead head;
  ChannelOutputs outputs;                 ///< no parts where no method needed it
  std::vector<ChannelPrunings> prunings;  ///< by ratio, ascending
  std::string semantics;
};

/// Reason why a run has no results on a layer's channels, as one clause; nothing if it has.
std::optional<std::string> why_no_channel_results(const ResultReader& results, Index layer);
/// Throws InputError where it has not, or a file is not what it should be.
ChannelRecord read_channels(const ResultReader& results, Index layer, Index kv_head);
inline std::size_t bytes_of(const ChannelRecord& answer) {
  return bytes_with(answer, answer.head, answer.outputs, answer.prunings);
}

/// Data of the selected head's channels that are known in this frame.
struct ChannelAnswers {
  Key key;  ///< everything that `head` and `outputs` depend on
  Index layer = 0;
  std::shared_ptr<const ChannelHead> head;
  std::shared_ptr<const ChannelOutputs> outputs;    ///< null too where a run's results have none
  std::shared_ptr<const ChannelPrunings> prunings;  ///< of the ratio asked for, or of an older one (`stale`)
  std::vector<double> ratios;                       ///< those that there are; empty: any
  bool pending = false, stale = false;
  std::string error;
};

/// Reason why neither the run's dump, which is missing, nor its results provide the interactions of channels;
/// nothing if either does.
std::optional<std::string> why_no_channels(const Run& run, Index layer);

/// Order of a matrix's channels in its display.
class ChannelPlaces {
 public:
  ChannelPlaces() = default;
  /// `channels`: the one at each place, a permutation of 0..d-1.
  explicit ChannelPlaces(std::vector<Index> channels);
  Index d() const { return std::ssize(channels_); }
  Index channel(Index place) const { return channels_[static_cast<std::size_t>(place)]; }
  Index place(Index channel) const { return places_[static_cast<std::size_t>(channel)]; }
  /// Values of the channels, [d], reordered by their places.
  template <class Value>
  std::vector<Value> placed(const std::vector<Value>& by_channel) const {
    std::vector<Value> by_place;
    for (const Index channel : channels_) by_place.push_back(by_channel[static_cast<std::size_t>(channel)]);
    return by_place;
  }

 private:
  std::vector<Index> channels_, places_;
};

/// Radians that RoPE turns each channel of a layer by a position, [d]; empty where the run does not say.
std::vector<double> rope_frequencies(const Run& run, Index layer);
/// Reason why a layer's channels cannot be arranged in this order, as one clause; nothing if they can.
/// Requires `answers.head`.
std::optional<std::string> why_not_arranged(const Run& run, const ChannelAnswers& answers,
                                            ChannelArrangement arrangement);
/// By H of a part; as stored where why_not_arranged().
ChannelPlaces arranged(const Run& run, const ChannelAnswers& answers, std::size_t part,
                       ChannelArrangement arrangement);

/// Asks the queue for them: from the dump, or from what `kvreplay channels` left where the dump is gone.
class ChannelQuestions {
 public:
  /// `settings.methods` are all that the dump can give.
  ChannelAnswers ask(PanelContext& context, const ChannelSettings& settings, double ratio);
  /// Data of any KV head of the selected layer that depend on no ratio: `head`, and `outputs` if
  /// `with_outputs`.
  ChannelAnswers ask_matrices(PanelContext& context, const ChannelSettings& settings, Index kv_head,
                              bool with_outputs);

 private:
  /// Settings made into a plan, or why they cannot be.
  struct Settled {
    Key run;
    ChannelSettings settings;
    std::shared_ptr<const ChannelPlan> plan;
    Key basis;
    std::string error;
  };
  void settle(const Run& run, const ChannelSettings& settings);
  /// `fills`: JobRequest's.
  ChannelAnswers ask_basis(PanelContext& context, Index kv_head, bool with_outputs, bool fills) const;
  void ask_prunings(PanelContext& context, double ratio, ChannelAnswers& all) const;

  Settled settled_;
};

}  // namespace kvreplay::viewer
