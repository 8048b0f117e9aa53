#include "analysis/capture/architectures.hpp"
#include "analysis/capture/capture.hpp"
#include "analysis/capture/dump_writer.hpp"
#include "data/console.hpp"
#include "data/error.hpp"
#include "data/mapped_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <exception>
#include <filesystem>
#include <ggml-backend.h>
#include <ggml.h>
#include <iterator>
#include <llama.h>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// The only file that includes llama.cpp.

namespace kvreplay {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSoftmax = "kq_soft_max";  // of all architectures, without flash attention
constexpr Index kMostRows = 512;                      // of a chunk
constexpr Index kMostLogits = Index{1} << 26;         // float32, of one layer and chunk
constexpr std::uintmax_t kMostText = 1 << 30;         // bytes of a prompt

/// The last error that llama.cpp reported, on one line.
std::string& last_complaint() {
  static std::string line;
  return line;
}

void keep_complaint(ggml_log_level level, const char* text, void*) {
  std::string line = text;
  while (!line.empty() && (line.back() == '\n' || line.back() == ' ')) line.pop_back();
  if (level == GGML_LOG_LEVEL_ERROR && last_complaint().empty()) last_complaint() = line;
}

struct FreeModel {
  void operator()(llama_model* model) const { llama_model_free(model); }
};
struct FreeContext {
  void operator()(llama_context* context) const { llama_free(context); }
};
using Model = std::unique_ptr<llama_model, FreeModel>;
using Context = std::unique_ptr<llama_context, FreeContext>;

Model load_model(const fs::path& path, bool vocabulary_only) {
  llama_model_params params = llama_model_default_params();
  params.vocab_only = vocabulary_only;
  last_complaint().clear();
  Model model(llama_model_load_from_file(path.c_str(), params));
  if (!model)
    throw InputError(path.string(), "a whole GGUF file that llama.cpp can run",
                     last_complaint().empty() ? "none" : last_complaint());
  return model;
}

std::optional<std::string> metadata(const llama_model& model, const std::string& key) {
  std::string value(256, '\0');
  const int length = llama_model_meta_val_str(&model, key.c_str(), value.data(), value.size());
  if (length < 0) return std::nullopt;
  return value.substr(0, std::min<std::size_t>(length, value.size() - 1));
}

std::vector<llama_token> tokens_of(const llama_vocab* vocab, const std::string& text, bool begins) {
  std::vector<llama_token> tokens(text.size() + 8);
  const int count = llama_tokenize(vocab, text.data(), static_cast<int>(text.size()), tokens.data(),
                                   static_cast<int>(tokens.size()), begins, false);
  tokens.resize(std::max(count, 0));
  return tokens;
}

std::string text_of(const llama_vocab* vocab, llama_token token) {
  std::string text(64, '\0');
  int length = llama_token_to_piece(vocab, token, text.data(), static_cast<int>(text.size()), 0, true);
  if (length < 0) {
    text.resize(-length);
    length = llama_token_to_piece(vocab, token, text.data(), static_cast<int>(text.size()), 0, true);
  }
  text.resize(std::max(length, 0));
  return text;
}

float float_param(const ggml_tensor& tensor, int at) {
  float value = 0;
  std::memcpy(&value, &tensor.op_params[at], sizeof value);
  return value;
}

/// The rotation of one layer, as the manifest has it; or a note why there is none.
struct Rotation {
  bool interleaved = false;
  double theta = 0;  ///< 0: the frequencies follow from no theta
  double attention_factor = 1;
  std::vector<double> inv_freq = {};
  std::string note = {};
};

Rotation rotation_of(const ggml_tensor& rope) {
  const int dims = rope.op_params[1], mode = rope.op_params[2];
  if ((mode != 0 && mode != GGML_ROPE_TYPE_NEOX) || rope.op_params[15] != 0)
    return {.note =
                fmt::format("no rope: llama.cpp's rotation of mode {} is none that the format has", mode)};
  if (float_param(rope, 7) != 0)
    return {.note = "no rope: YaRN mixes frequencies, which this capture does not read"};
  std::vector<float> factors;
  if (rope.src[2] != nullptr) {
    factors.resize(dims / 2);
    ggml_backend_tensor_get(rope.src[2], factors.data(), 0, factors.size() * sizeof(float));
  }
  const double base = float_param(rope, 5), scale = float_param(rope, 6);
  Rotation turn{mode == 0, scale == 1 && factors.empty() ? base : 0, float_param(rope, 8), {}};
  for (int i = 0; i < dims / 2; ++i)
    turn.inv_freq.push_back(std::pow(base, -2.0 * i / dims) * scale / (factors.empty() ? 1 : factors[i]));
  return turn;
}

/// Facts of one layer's attention, read from the graph.
struct LayerFacts {
  double scale = 0;
  double softcap = 0;  ///< 0: none
  Rotation rotation;
  bool windowed = false;
};

bool is_view(ggml_op op) {
  return op == GGML_OP_VIEW || op == GGML_OP_PERMUTE || op == GGML_OP_RESHAPE || op == GGML_OP_CONT;
}

/// Sees every tensor of the graph when it is computed: reads facts, rounds q, k and v, hands rows on.
class GraphReader {
 public:
  GraphReader(const Architecture& architecture, Index layers) : architecture_(architecture), facts_(layers) {}

  /// Where rows go, and which layer of the dump one of the model is; none: nothing is written.
  DumpWriter* writer = nullptr;
  std::vector<Index> place;  ///< [layers], -1: not in the dump
  Dtype dtype = Dtype::f16;
  Workers* workers = nullptr;
  bool probes_windows =
      false;  ///< reads the mask's last row: a layer that sees fewer of the cells has a window
  std::exception_ptr failure;

  const std::vector<LayerFacts>& facts() const { return facts_; }

  /// A ggml_backend_sched_eval_callback; `self` is a GraphReader.
  static bool callback(ggml_tensor* tensor, bool ask, void* self) {
    auto& reader = *static_cast<GraphReader*>(self);
    try {
      if (reader.workers->stopping() || reader.failure) return false;
      return ask ? reader.wants(*tensor) : (reader.take(*tensor), true);
    } catch (...) {
      reader.failure = std::current_exception();
      return false;
    }
  }
  void rethrow() const {
    if (workers->stopping()) throw Interrupted();
    if (failure) std::rethrow_exception(failure);
  }
  /// The cells that the last row of each layer saw in the latest probe.
  std::vector<Index> seen_cells;

 private:
  struct Named {
    std::string_view name;
    Index layer = -1;
  };
  static Named named(const ggml_tensor& tensor) {
    const std::string_view whole = ggml_get_name(&tensor);
    const std::size_t dash = whole.rfind('-');
    Named found{whole.substr(0, dash)};
    if (dash != std::string_view::npos) {
      const auto [end, error] =
          std::from_chars(whole.data() + dash + 1, whole.data() + whole.size(), found.layer);
      if (error != std::errc() || end != whole.data() + whole.size()) found.layer = -1;
    }
    return found;
  }
  bool is(const GraphTensor& which, const ggml_tensor& tensor, const Named& as) const {
    return as.name == which.name && which.operation == ggml_op_name(tensor.op) && as.layer >= 0 &&
           as.layer < std::ssize(facts_);
  }
  std::optional<Tensor> captured(const ggml_tensor& tensor, const Named& as) const {
    if (is(architecture_.q, tensor, as)) return Tensor::q;
    if (is(architecture_.k, tensor, as)) return Tensor::k;
    if (is(architecture_.v, tensor, as)) return Tensor::v;
    if (is(architecture_.o, tensor, as)) return Tensor::o;
    return std::nullopt;
  }

  bool wants(const ggml_tensor& tensor) {
    const Named as = named(tensor);
    if (as.layer < 0 || as.layer >= std::ssize(facts_)) return false;
    if (as.name == kSoftmax && tensor.op == GGML_OP_SOFT_MAX) {
      read_softmax(tensor, as.layer);
      return probes_windows;
    }
    return captured(tensor, as).has_value();
  }

  /// Scale and soft cap, back from the softmax to the captured q, which thereby is what attention reads.
  void read_softmax(const ggml_tensor& softmax, Index layer) {
    const auto refuse = [&](const std::string& found) {
      throw InputError(fmt::format("layer {}", layer),
                       fmt::format("softmax of scale * q.k with the q of {} ({})", architecture_.q.name,
                                   architecture_.q.operation),
                       found);
    };
    LayerFacts& facts = facts_[layer];
    facts.scale = float_param(softmax, 0);
    if (float_param(softmax, 1) != 0) refuse("a bias by distance (ALiBi)");
    if (softmax.src[2] != nullptr) refuse("sink logits, which this capture does not read");
    const ggml_tensor* at = softmax.src[0];
    if (at->op == GGML_OP_SCALE && at->src[0]->op == GGML_OP_UNARY &&
        ggml_get_unary_op(at->src[0]) == GGML_UNARY_OP_TANH && at->src[0]->src[0]->op == GGML_OP_SCALE) {
      facts.softcap = float_param(*at, 0);
      if (facts.scale != 1) refuse("a scale behind a soft cap");
      facts.scale = float_param(*at->src[0]->src[0], 0) * facts.softcap;
      at = at->src[0]->src[0]->src[0];
    }
    if (at->op != GGML_OP_MUL_MAT) refuse(ggml_op_name(at->op));
    for (at = at->src[1]; !is(architecture_.q, *at, named(*at)); at = at->src[0]) {
      if (at->op == GGML_OP_SCALE && float_param(*at, 1) == 0)
        facts.scale *= float_param(*at, 0);
      else if (!is_view(at->op) || at->src[0] == nullptr)
        refuse(fmt::format("{} of {}", ggml_op_name(at->op), ggml_get_name(at)));
    }
  }

  void take(ggml_tensor& tensor) {
    const Named as = named(tensor);
    if (as.name == kSoftmax) return count_seen(*tensor.src[1], as.layer);
    const std::optional<Tensor> which = captured(tensor, as);
    if (!which) return;
    if (tensor.type != GGML_TYPE_F32 || !ggml_is_contiguous(&tensor))
      throw InputError(ggml_get_name(&tensor), "float32 without gaps", ggml_type_name(tensor.type));
    if (which == Tensor::k) facts_[as.layer].rotation = rotation_of(tensor);
    rows_.resize(ggml_nelements(&tensor));
    ggml_backend_tensor_get(&tensor, rows_.data(), 0, ggml_nbytes(&tensor));
    round_to(dtype, rows_, fmt::format("layer {}, {}", as.layer, name_of(*which)));
    if (which != Tensor::o && dtype == Dtype::f16)
      ggml_backend_tensor_set(&tensor, rows_.data(), 0, ggml_nbytes(&tensor));
    if (writer == nullptr || place[as.layer] < 0) return;
    Index heads = tensor.ne[1], width = tensor.ne[0];
    if (which == Tensor::o) {  // [heads * d_v, n]
      heads = writer->size_of_rows(Tensor::q).first;
      width /= heads;
    }
    writer->append(*which, place[as.layer], heads, width, rows_);
  }

  void count_seen(const ggml_tensor& mask, Index layer) {
    seen_cells.resize(facts_.size());
    std::vector<std::byte> row(ggml_row_size(mask.type, mask.ne[0]));
    ggml_backend_tensor_get(&mask, row.data(), 0, row.size());  // of one row
    Index seen = 0;
    for (Index cell = 0; cell < mask.ne[0]; ++cell) {
      float value = 0;
      if (mask.type == GGML_TYPE_F16) {
        std::uint16_t half = 0;
        std::memcpy(&half, row.data() + 2 * cell, 2);
        value = half_to_float(half);
      } else {
        std::memcpy(&value, row.data() + 4 * cell, 4);
      }
      seen += value == 0 ? 1 : 0;
    }
    seen_cells[layer] = seen;
    facts_[layer].windowed = seen < 3;
  }

  const Architecture& architecture_;
  std::vector<LayerFacts> facts_;
  std::vector<float> rows_;
};

/// A prompt's tokens and its decoding steps', as far as a text gives them.
struct PromptTokens {
  fs::path out;
  std::vector<llama_token> ids;  ///< the prompt's first, then steps
  Index prompt = 0, decode = 0;
  bool greedy = true;
  Index positions() const { return prompt + decode; }
};

class LlamaCapture {
 public:
  LlamaCapture(const CaptureOptions& options, Workers& workers) : options_(options), workers_(workers) {
    llama_log_set(keep_complaint, nullptr);
    ggml_backend_load_all();
    if (!fs::is_regular_file(options.model))
      throw InputError(options.model.string(), "a GGUF file",
                       fs::exists(options.model) ? "something else" : "none");
    model_ = load_model(options.model, true);
    const std::string name = metadata(*model_, "general.architecture").value_or("");
    architecture_ = architecture_named(name);
    if (architecture_ == nullptr)
      throw InputError(options.model.string(), "one of the architectures " + architecture_names(),
                       name + " (data/capture/kvcapture.py --gguf may know it)");
    n_q_ = number("attention.head_count").value_or(0);
    n_kv_ = number("attention.head_count_kv").value_or(n_q_);
    all_layers_ = number("block_count").value_or(0);
    const Index width = number("embedding_length").value_or(0);
    if (n_q_ < 1 || n_kv_ < 1 || all_layers_ < 1)
      throw InputError(options.model.string(), "layers of one number of heads", "several, or none");
    d_ = number("attention.key_length").value_or(width / n_q_);
    d_v_ = number("attention.value_length").value_or(width / n_q_);
    layers_ = options.layers(all_layers_);
    read_prompts();
  }

  std::vector<CapturedDump> run() {
    std::vector<CapturedDump> dumps;
    for (const PromptTokens& prompt : prompts_)
      dumps.push_back(
          {prompt.out, std::ssize(layers_), prompt.prompt, prompt.decode, bytes_of(prompt), 0, {}});
    if (options_.estimate) return dumps;
    std::uint64_t bytes = 0;
    for (const CapturedDump& dump : dumps) bytes += dump.bytes;
    require_room(bytes);
    start();
    for (std::size_t i = 0; i < prompts_.size(); ++i) take(prompts_[i], dumps[i]);
    return dumps;
  }

 private:
  std::optional<Index> number(const std::string& key) const {
    const auto text = metadata(*model_, std::string(architecture_->name) + "." + key);
    Index value = 0;
    if (!text || std::from_chars(text->data(), text->data() + text->size(), value).ec != std::errc())
      return std::nullopt;
    return value;
  }

  void read_prompts() {
    const llama_vocab* vocab = llama_model_get_vocab(model_.get());
    const Index context = number("context_length").value_or(0);
    std::vector<llama_token> steps;
    if (options_.continued) {
      steps = tokens_of(vocab, file_text(*options_.continued, kMostText), false);
      if (steps.empty()) throw InputError(options_.continued->string(), "a text", "no token");
    }
    std::set<fs::path> folders;
    for (const fs::path& file : options_.prompts) {
      PromptTokens prompt;
      prompt.out = options_.prompts.size() == 1 ? options_.out : options_.out / file.stem();
      if (!options_.estimate) require_free(prompt.out, options_.force);
      if (!folders.insert(prompt.out).second)
        throw InputError(file.string(), "prompts of different names", "two of " + file.stem().string());
      const std::string text = file_text(file, kMostText);
      prompt.ids = tokens_of(vocab, text, true);
      if (text.empty() || prompt.ids.empty()) throw InputError(file.string(), "a text", "no token");
      prompt.prompt = std::ssize(prompt.ids);
      if (options_.prompt_len) {
        if (*options_.prompt_len > prompt.prompt)
          throw InputError(file.string(),
                           fmt::format("at least --prompt-len {} tokens", *options_.prompt_len),
                           fmt::format("{}", prompt.prompt));
        prompt.prompt = *options_.prompt_len;
      }
      prompt.ids.insert(prompt.ids.end(), steps.begin(), steps.end());
      const Index given = std::ssize(prompt.ids) - prompt.prompt;
      prompt.greedy = given == 0;
      prompt.decode = prompt.greedy ? options_.decode : std::min(options_.decode, given);
      prompt.ids.resize(prompt.greedy ? prompt.prompt : prompt.positions());
      if (context > 0 && prompt.positions() > context)
        throw InputError(file.string(),
                         fmt::format("at most the {} positions of the model's context", context),
                         fmt::format("{} + {}", prompt.prompt, prompt.decode));
      prompts_.push_back(std::move(prompt));
    }
  }

  std::uint64_t bytes_of(const PromptTokens& prompt) const {
    return static_cast<std::uint64_t>(std::ssize(layers_) * prompt.positions() * (n_q_ + n_kv_) *
                                      (d_ + d_v_)) *
           size_of(options_.dtype);
  }

  void require_room(std::uint64_t bytes) const {
    fs::path there = fs::absolute(options_.out);
    while (!fs::exists(there) && there.has_relative_path()) there = there.parent_path();
    std::error_code error;
    const auto room = fs::space(there, error);
    if (!error && room.available < bytes)
      throw InputError(options_.out.string(), fmt::format("room for {} bytes", bytes),
                       fmt::format("{} free", room.available));
  }

  void start() {
    model_ = load_model(options_.model, false);
    Index longest = 0;
    for (const PromptTokens& prompt : prompts_) longest = std::max(longest, prompt.positions());
    chunk_ = std::clamp<Index>(kMostLogits / (longest * n_q_), 16, kMostRows);
    reader_ = std::make_unique<GraphReader>(*architecture_, all_layers_);
    reader_->dtype = options_.dtype;
    reader_->workers = &workers_;
    llama_context_params params = llama_context_default_params();
    params.n_ctx = static_cast<std::uint32_t>(longest);
    params.n_batch = params.n_ubatch = static_cast<std::uint32_t>(chunk_);
    params.n_threads = params.n_threads_batch = workers_.threads();
    // Attention in float32 throughout: flash attention would read keys and values rounded to float16.
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.type_k = params.type_v = GGML_TYPE_F32;
    params.cb_eval = GraphReader::callback;
    params.cb_eval_user_data = reader_.get();
    params.abort_callback = [](void* data) { return static_cast<Workers*>(data)->stopping(); };
    params.abort_callback_data = &workers_;
    last_complaint().clear();
    context_.reset(llama_init_from_model(model_.get(), params));
    if (!context_)
      throw InputError(
          fmt::format("{}: llama.cpp cannot start: {}", options_.model.string(), last_complaint()));
    window_ = llama_model_n_swa(model_.get());
    if (window_ > 1) probe_windows();
  }

  llama_memory_t memory() const { return llama_get_memory(context_.get()); }

  void decode(std::span<llama_token> ids) {
    last_complaint().clear();
    const int failed =
        llama_decode(context_.get(), llama_batch_get_one(ids.data(), static_cast<int>(ids.size())));
    reader_->rethrow();
    if (failed != 0)
      throw InputError(
          fmt::format("{}: llama.cpp cannot decode: {}", options_.model.string(), last_complaint()));
  }

  /// Two tokens at positions 0 and w - 1, then one at w: a layer with a window of w does not see the first.
  void probe_windows() {
    std::vector<llama_token> two(2, prompts_.front().ids.front());
    decode(two);
    llama_memory_seq_add(memory(), 0, 1, 2, static_cast<llama_pos>(window_ - 2));
    reader_->probes_windows = true;
    decode(std::span(two).first(1));
    reader_->probes_windows = false;
    llama_memory_clear(memory(), true);
  }

  void take(PromptTokens prompt, CapturedDump& dump) {
    DumpWriter writer(prompt.out, options_.force, options_.dtype, std::ssize(layers_), prompt.positions());
    llama_memory_clear(memory(), true);
    reader_->writer = &writer;
    reader_->place.assign(all_layers_, -1);
    for (std::size_t i = 0; i < layers_.size(); ++i) reader_->place[layers_[i]] = static_cast<Index>(i);
    const llama_vocab* vocab = llama_model_get_vocab(model_.get());
    for (Index at = 0; at < prompt.positions();) {
      options_.on_progress(at, prompt.positions());
      if (at >= prompt.prompt && prompt.greedy) {
        const float* logits = llama_get_logits_ith(context_.get(), -1);
        prompt.ids.push_back(static_cast<llama_token>(
            std::max_element(logits, logits + llama_vocab_n_tokens(vocab)) - logits));
        if (!dump.ended && llama_vocab_is_eog(vocab, prompt.ids.back())) dump.ended = at - prompt.prompt;
      }
      const Index n = at < prompt.prompt ? std::min(chunk_, prompt.prompt - at) : 1;
      decode(std::span(prompt.ids).subspan(at, n));
      at += n;
    }
    options_.on_progress(prompt.positions(), prompt.positions());
    reader_->writer = nullptr;
    Json texts = Json::array();
    for (const llama_token id : prompt.ids) texts.push_back(text_of(vocab, id));
    const fs::path& folder =
        writer.finish(manifest(prompt, writer), {{"ids", prompt.ids}, {"text", std::move(texts)}});
    const auto [apart, layer] = largest_deviation(Dump::open(folder), workers_);
    dump.deviation = apart;
    if (!(apart <= most_deviation(options_.dtype)))
      throw InputError(
          fmt::format("{}, layer {}", options_.model.string(), layers_[layer]),
          fmt::format("attention over the captured q, k and v within {} of the model's output",
                      most_deviation(options_.dtype)),
          fmt::format("{:.2g}: scale, mask or an operation before the softmax is missing here", apart));
    writer.commit();
  }

  Json manifest(const PromptTokens& prompt, const DumpWriter& writer) const {
    const auto& facts = reader_->facts();
    const LayerFacts& first = facts[layers_.front()];
    Json json = {{"model", options_.name.empty()
                               ? metadata(*model_, "general.name").value_or(options_.model.stem().string())
                               : options_.name},
                 {"prompt_len", prompt.prompt},
                 {"total_len", prompt.positions()},
                 {"n_layers", layers_.size()},
                 {"n_q_heads", writer.size_of_rows(Tensor::q).first},
                 {"n_kv_heads", writer.size_of_rows(Tensor::k).first},
                 {"head_dim", writer.size_of_rows(Tensor::k).second},
                 {"dtype", name_of(options_.dtype)},
                 {"scale", first.scale},
                 {"causal", true}};
    Json windows = Json::array();
    bool some = false;
    for (const Index layer : layers_) {
      const LayerFacts& each = facts[layer];
      if (each.scale != first.scale || each.softcap != first.softcap)
        throw InputError(fmt::format("layer {}", layer), "one scale and soft cap in all layers", "several");
      windows.push_back(each.windowed ? Json(window_) : Json());
      some = some || each.windowed;
    }
    if (first.softcap > 0) json["logit_softcap"] = first.softcap;
    if (some) json["sliding_window"] = std::move(windows);
    add_rope(json);
    if (std::ssize(layers_) < all_layers_) json["layers"] = layers_;
    json["wo_note"] = "no wo: kvreplay capture does not write it";
    json["weights"] = llama_ftype_name(llama_model_ftype(model_.get()));
    json["origin"] = fmt::format("kvreplay capture: llama.cpp {}, {} weights, float32 cache", llama_version(),
                                 llama_ftype_name(llama_model_ftype(model_.get())));
    return json;
  }

  void add_rope(Json& json) const {
    const auto& facts = reader_->facts();
    const Rotation& first = facts[layers_.front()].rotation;
    Json each = Json::array();
    bool alike = true;
    for (const Index layer : layers_) {
      const Rotation& turn = facts[layer].rotation;
      if (!turn.note.empty()) {
        json["rope_note"] = turn.note;
        return;
      }
      if (turn.interleaved != first.interleaved || turn.attention_factor != first.attention_factor ||
          turn.inv_freq.size() != first.inv_freq.size()) {
        json["rope_note"] = "no rope: the layers turn in several ways";
        return;
      }
      alike = alike && turn.inv_freq == first.inv_freq;
      each.push_back(turn.inv_freq);
    }
    Json& rope = json["rope"] = {{"style", first.interleaved ? "interleaved" : "half"},
                                 {"rotary_dim", 2 * first.inv_freq.size()},
                                 {"attention_factor", first.attention_factor}};
    if (alike && first.theta > 0)
      rope["theta"] = first.theta;
    else
      rope["inv_freq"] = alike ? Json(first.inv_freq) : std::move(each);
  }

  const CaptureOptions& options_;
  Workers& workers_;
  Model model_;
  const Architecture* architecture_ = nullptr;
  Index n_q_ = 0, n_kv_ = 0, d_ = 0, d_v_ = 0, all_layers_ = 0, chunk_ = 0, window_ = 0;
  std::vector<Index> layers_;
  std::vector<PromptTokens> prompts_;
  std::unique_ptr<GraphReader> reader_;
  Context context_;  // goes first: the model and the reader outlive it
};

}  // namespace

std::vector<CapturedDump> capture(const CaptureOptions& options, Workers& workers) {
  return LlamaCapture(options, workers).run();
}

}  // namespace kvreplay
