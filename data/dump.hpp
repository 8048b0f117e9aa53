#pragma once

#include "data/dtype.hpp"
#include "data/file_contents.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvreplay {

using Index = std::ptrdiff_t;

/// The tensors a dump may hold per layer; q, k and v always.
enum class Tensor { q, k, v, wo, o, residual_norm, g_future, g_window, g_nll, q_ref, gate, h_ref_norm };

struct TensorFacts {
  Tensor id;
  std::string_view name;
  std::string_view axes;  ///< of one layer
  bool optional = false;
  /// True for gradients with respect to o. Their dtype is independent of the other tensors': a difference is
  /// no error.
  bool of_gradients = false;
  /// The number of axes of one layer: three; four with samples behind the heads; or one (rows), read as one
  /// head of one channel.
  constexpr std::size_t axis_count() const {
    return 1 + static_cast<std::size_t>(std::count(axes.begin(), axes.end(), ','));
  }
};
inline constexpr auto kTensors =
    facts_table<TensorFacts>({{Tensor::q, "q", "n_q, T_q, d"},
                              {Tensor::k, "k", "n_kv, T, d"},
                              {Tensor::v, "v", "n_kv, T, d_v"},
                              {Tensor::wo, "wo", "n_q, d_v, d_model", true},
                              {Tensor::o, "o", "n_q, T_q, d_v", true},
                              {Tensor::residual_norm, "residual_norm", "T", true},
                              {Tensor::g_future, "g_future", "n_q, S, R_F, d_v", true, true},
                              {Tensor::g_window, "g_window", "n_q, S, R_W, d_v", true, true},
                              {Tensor::g_nll, "g_nll", "n_q, R_F, d_v", true, true},
                              {Tensor::q_ref, "q_ref", "n_q, R_ref, d", true},
                              {Tensor::gate, "gate", "n_q, T_q, d_v", true},
                              {Tensor::h_ref_norm, "h_ref_norm", "R_ref", true}});
constexpr std::string_view name_of(Tensor tensor) { return kTensors[tensor].name; }

/// The letters used everywhere for the sizes of a dump.
struct DumpShape {
  Index layers = 0;
  Index n_q = 0;         ///< query heads
  Index n_kv = 0;        ///< KV heads; query head h reads KV head h / G, G = n_q / n_kv
  Index d = 0;           ///< head dimension of queries and keys
  Index d_v = 0;         ///< head dimension of values
  Index d_model = 0;     ///< width of the output projection; 0 without wo
  Index T = 0;           ///< positions
  Index T_q = 0;         ///< positions with a query, the last T_q of T
  Index l = 0;           ///< prompt length; positions l..T-1 are decoding steps
  Index S = 0;           ///< samples of g_future and g_window; 0 without
  Index R_F = 0;         ///< rows of g_future and g_nll, the last positions of all; 0 without
  Index R_W = 0;         ///< rows of g_window, the last of the captured prompt; 0 without
  Index window_end = 0;  ///< length of the captured prompt: l, unless the dump was opened with another
  Index R_ref = 0;       ///< rows of q_ref, the first of a second pass over the captured prompt; 0 without

  Index group() const { return n_q / n_kv; }
  Index first_query() const { return T - T_q; }
  /// The extents of one layer of a tensor that the dump has, along the axes that kTensors names.
  std::vector<Index> extents(Tensor tensor) const;
  /// Number of matrices that Dump::read() has for one layer. Below: elements of each matrix.
  Index heads(Tensor tensor) const;
  Index head_size(Tensor tensor) const;
  /// The position of a tensor's first row.
  Index first_row(Tensor tensor) const {
    switch (tensor) {
      case Tensor::q:
      case Tensor::o:
      case Tensor::gate:
        return first_query();
      case Tensor::g_future:
      case Tensor::g_nll:
        return T - R_F;
      case Tensor::g_window:
        return window_end - R_W;
      case Tensor::q_ref:
      case Tensor::h_ref_norm:
        return window_end;
      case Tensor::k:
      case Tensor::v:
      case Tensor::wo:
      case Tensor::residual_norm:
        break;
    }
    return 0;
  }
};

/// The extents of a DumpShape that axes are named after.
struct AxisFacts {
  std::string_view name;
  Index DumpShape::*extent;
};
inline constexpr AxisFacts kAxes[] = {{"n_q", &DumpShape::n_q},    {"n_kv", &DumpShape::n_kv},
                                      {"d", &DumpShape::d},        {"d_v", &DumpShape::d_v},
                                      {"T", &DumpShape::T},        {"T_q", &DumpShape::T_q},
                                      {"S", &DumpShape::S},        {"d_model", &DumpShape::d_model},
                                      {"R_F", &DumpShape::R_F},    {"R_W", &DumpShape::R_W},
                                      {"R_ref", &DumpShape::R_ref}};
/// The axes of a tensor, in order.
std::vector<const AxisFacts*> axes_of(Tensor tensor);

/// Sampling of a dump's gradients, as far as its manifest states it.
struct GradientFacts {
  std::optional<Index> samples;  ///< S
  std::string labels;  ///< whose log-probabilities: "model" where they were drawn from its own predictions
  std::optional<Index> seed;
};

/// A question with a known answer, and the positions of both (the manifest's `task`).
struct QuestionFacts {
  struct Span {
    Index begin = 0, end = 0;  ///< positions, `end` not among them
    bool contains(Index position) const { return begin <= position && position < end; }
  };
  std::string task;
  std::string text, answer;   ///< the model's own, with its whole cache; empty if not stated
  std::vector<Span> needles;  ///< spans of the context that the question asks for
  Span asked, answered;
};

/// Rotary position embedding, as far as it is needed to undo it. Channel pairs beyond rotary_dim are not
/// rotated.
struct Rope {
  enum class Style { half, interleaved };
  Style style = Style::half;      ///< pairs (c, c + rotary_dim/2) or (2c, 2c+1)
  Index rotary_dim = 0;           ///< even, at most d
  std::vector<double> inv_freq;   ///< [rotary_dim / 2], radians a position
  double attention_factor = 1.0;  ///< cos and sin are multiplied by this
  /// True: llama.cpp holds channels c and d/2 + c of these keys (style half) side by side.
  bool interleaved_in_ggml = false;
};

/// Attention of one layer: z = scale q.k, soft-capped, then masked, then a softmax with an optional extra
/// sink column.
struct AttentionRule {
  /// 1 / sqrt(d) in most models. NaN until it is set; computations without a scale are refused.
  double scale = std::numeric_limits<double>::quiet_NaN();
  bool causal = true;
  std::optional<Index> sliding_window;  ///< a query at i sees p > i - sliding_window only
  bool two_sided = false;               ///< and p < i + sliding_window only
  std::optional<double> softcap;        ///< z := c tanh(z / c)
  std::vector<double> sink_logit;       ///< [n_q], or empty: no sink column

  /// The first position of a prompt of l tokens that a cache holds for later rows: those rows see the last
  /// sliding_window - 1 positions. 0 without a window, and with a two-sided one, which has no later rows.
  Index first_held(Index l) const {
    return sliding_window && !two_sided ? std::max<Index>(l - (*sliding_window - 1), 0) : 0;
  }
  /// The number of positions of a prompt of l tokens that a cache holds for later rows.
  Index held(Index l) const { return l - first_held(l); }
};

/// Bytes of a manifest.json that are read; far more than any has.
inline constexpr std::uintmax_t kMostManifest = std::uintmax_t{1} << 26;

/// Default name of a dump: the folder's name, or the file's name without its ending.
std::string dump_name(const std::filesystem::path& dump);

/// End of a prompt: a number of tokens, or a name in the manifest's prompt_ends.
struct PromptEnd {
  Index tokens = 0;
  std::string name = {};
  PromptEnd(Index count) : tokens(count) {}                 // NOLINT: a number is one
  PromptEnd(std::string named) : name(std::move(named)) {}  // NOLINT
};

struct DumpOptions {
  std::optional<PromptEnd> prompt_len;  ///< end of the prompt; unset: as the manifest says
  std::string name = {};                ///< name among several dumps; empty: dump_name()
};

/// One tensor of a layer in memory, as array libraries describe it. Who makes a Dump of it keeps its numbers.
struct MemoryArray {
  Tensor tensor = Tensor::q;
  Dtype dtype = Dtype::f32;
  const void* numbers = nullptr;
  std::vector<Index> shape;    ///< as kTensors says, perhaps with a batch of 1 before it
  std::vector<Index> strides;  ///< elements from one to the next along each axis, in either direction
};

/// One stored array, for `info` and for error messages.
struct DumpFile {
  std::string where;  ///< path, with the member's name behind it for .npz
  Tensor tensor = Tensor::q;
  Index layer = -1;  ///< -1: all layers stacked
  Dtype dtype = Dtype::f32;
  std::vector<Index> shape;  ///< as stored
  std::uintmax_t bytes = 0;  ///< of the array's data
};

struct TokenLabels {
  std::vector<std::int64_t> ids;
  std::vector<std::string> text;  ///< either empty or as long as T; likewise ids
};

/// A dump folder, or a single .npz in its place (data/DUMP-FORMAT.md). Opening it checks every file's header,
/// size and shape against the others and the manifest and throws InputError at the first that does not fit;
/// no tensor is read before it is asked for. Reading is thread safe.
class Dump {
 public:
  static Dump open(const std::filesystem::path& folder, const DumpOptions& options = {});
  /// As above. Throws InputError for a null pointer, such as a missing argv[1].
  static Dump open(const char* folder, const DumpOptions& options = {});
  /// One layer whose numbers are in memory and are checked as those of files are, under their tensors' names.
  /// `manifest`: manifest.json's text. `position`: of every key, [T] and ascending, where rows of k are not
  /// positions 0 to T - 1 of the model's sequence (as in a cache that has lost some); empty where they are.
  static Dump of_memory(const std::vector<MemoryArray>& arrays, std::string_view manifest = "{}",
                        const DumpOptions& options = {}, std::vector<Index> position = {});
  Dump(Dump&&) noexcept;
  Dump& operator=(Dump&&) noexcept;
  ~Dump();

  const std::filesystem::path& folder() const;
  /// Name among several dumps: DumpOptions::name, else dump_name().
  const std::string& name() const;
  const std::string& model() const;
  /// True if the manifest names the model; if not, model() is the dump's own name.
  bool states_model() const;
  const DumpShape& shape() const;
  /// The model's number of a layer, where the manifest says it; else the dump's own.
  Index model_layer(Index layer) const;
  AttentionRule rule(Index layer) const;
  /// The rotation of one layer; empty where the manifest has none, or one that is not understood (see
  /// rope_note()).
  std::optional<Rope> rope(Index layer) const;
  /// Why rope() is empty, as one clause; empty where it is not.
  const std::string& rope_note() const;
  bool has(Tensor tensor) const;
  /// eps, where W_O multiplies o_i / sqrt(mean(o_i^2) + eps), the mean over all heads' outputs of a row.
  std::optional<double> output_norm() const;
  /// True if W_O multiplies each head's output separately. False if the dump has no W_O, or a norm over all
  /// heads precedes it.
  bool projects_heads() const { return has(Tensor::wo) && !output_norm(); }
  /// True if, in addition, no gate precedes W_O: the projection is then the same for every row.
  bool projects_values() const { return projects_heads() && !has(Tensor::gate); }
  /// Factor on the output of a layer's attention before it is added to the residual stream.
  double output_multiplier(Index layer) const;
  /// The layer of this dump whose cache a layer reads: its own, or an earlier one's.
  Index cache_of(Index layer) const;
  /// The layers that read the cache of `layer`, ascending, itself among them. All have the rule of the first.
  std::vector<Index> readers(Index layer) const;
  /// The position of every key, [T]; empty where they are 0 to T - 1.
  const std::vector<Index>& position() const;
  const std::vector<DumpFile>& files() const;
  /// Reads the whole of files()[file], decompressed, and compares it with the checksum in its archive. Throws
  /// InputError on a mismatch.
  FileContents contents(std::size_t file) const;
  const std::optional<TokenLabels>& tokens() const;
  /// Facts that were inferred rather than stated, one line each, for the summary.
  const std::vector<std::string>& notes() const;
  /// The manifest's keys that nothing reads.
  const std::vector<std::string>& other_keys() const;
  /// Facts about the dump's gradients; empty if the manifest has none.
  const std::optional<GradientFacts>& gradients() const;
  /// The question at the end of the prompt; empty if the manifest has none.
  const std::optional<QuestionFacts>& question() const;
  /// Named lengths that the prompt may be cut to (DumpOptions::prompt_len).
  const std::vector<std::pair<std::string, Index>>& prompt_ends() const;

  /// Converts one head's matrix to T, row-major: q [T_q, d], k [T, d], v [T, d_v], wo [d_v, d_model], o [T_q,
  /// d_v], residual_norm [T, 1], g_future [S R_F, d_v], g_window [S R_W, d_v], g_nll [R_F, d_v], sample by
  /// sample, q_ref [R_ref, d], gate [T_q, d_v], h_ref_norm [R_ref, 1]. `head` counts KV heads for k and v, is
  /// 0 for residual_norm, and counts query heads for all else. Without the first `skipped` rows of each
  /// matrix. Throws InputError naming layer, head and position where a value is NaN or infinite.
  template <class T>
  void read(Tensor tensor, Index layer, Index head, T* out, Index skipped = 0) const;

  /// Where one head's matrix is in memory as T, row by row without gaps from an address that 16 divides:
  /// read() without a copy, which throws as that does unless `unchecked`. Null where it is not.
  template <class T>
  const T* in_memory(Tensor tensor, Index layer, Index head, Index skipped = 0, bool unchecked = false) const;

  /// The dtype of one layer's tensor where each of its heads lies in the file as read_stored() gives it: row
  /// by row without gaps, of 16 or 32 bits, in this machine's byte order, not deflated.
  std::optional<Dtype> stored_dtype(Tensor tensor, Index layer) const;
  /// Copies one head's matrix as it is stored, but for its first `skipped` rows: read() without the
  /// conversion, and without looking for NaN and infinity. Only where there is a stored_dtype().
  void read_stored(Tensor tensor, Index layer, Index head, std::byte* out, Index skipped = 0) const;

 private:
  struct Impl;
  explicit Dump(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvreplay
