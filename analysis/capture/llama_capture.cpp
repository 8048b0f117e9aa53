#include "analysis/capture/architectures.hpp"
#include "analysis/capture/capture.hpp"
#include "analysis/capture/conversation.hpp"
#include "analysis/capture/dump_writer.hpp"
#include "analysis/capture/llama_model.hpp"
#include "data/console.hpp"
#include "data/error.hpp"
#include "data/mapped_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <filesystem>
#include <ggml-backend.h>
#include <ggml.h>
#include <llama.h>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvreplay {
namespace {

namespace fs = std::filesystem;

constexpr Index kMostRows = 512;               // of a chunk
constexpr Index kMostLogits = Index{1} << 26;  // float32, of one layer and chunk

constexpr std::string_view kSoftmax = "kq_soft_max";  // of all architectures, without flash attention

/// The rotation of one layer, as the manifest has it; or a note why there is none.
struct LayerRotation {
  bool interleaved = false;
  double theta = 0;  ///< 0: the frequencies follow from no theta
  double attention_factor = 1;
  std::vector<double> inv_freq = {};
  std::string note = {};
};

/// Facts of one layer's attention, read from the graph.
struct LayerFacts {
  double scale = 0;
  double softcap = 0;  ///< 0: none
  LayerRotation rotation;
  std::vector<float> sinks;  ///< a logit per query head; none: empty
  bool windowed = false;
};

float float_param(const ggml_tensor& tensor, int at) {
  float value = 0;
  std::memcpy(&value, &tensor.op_params[at], sizeof value);
  return value;
}

/// YaRN's share of the unscaled frequency, by pair: 1 for fast ones, 0 for slow ones.
double yarn_share(const ggml_tensor& rope, int pair) {
  float ends[2];
  ggml_rope_yarn_corr_dims(rope.op_params[1], rope.op_params[4], float_param(rope, 5), float_param(rope, 9),
                           float_param(rope, 10), ends);
  const double along = (pair - ends[0]) / std::max(0.001, static_cast<double>(ends[1]) - ends[0]);
  return (1 - std::clamp(along, 0.0, 1.0)) * float_param(rope, 7);
}

LayerRotation rotation_of(const ggml_tensor& rope) {
  const int dims = rope.op_params[1], mode = rope.op_params[2];
  if ((mode != 0 && mode != GGML_ROPE_TYPE_NEOX) || rope.op_params[15] != 0)
    return {.note =
                fmt::format("no rope: llama.cpp's rotation of mode {} is none that the format has", mode)};
  std::vector<float> factors;
  if (rope.src[2] != nullptr) {
    factors.resize(dims / 2);
    ggml_backend_tensor_get(rope.src[2], factors.data(), 0, factors.size() * sizeof(float));
  }
  const double base = float_param(rope, 5), scale = float_param(rope, 6);
  const bool yarn = float_param(rope, 7) != 0;
  LayerRotation turn{mode == 0, scale == 1 && factors.empty() ? base : 0, float_param(rope, 8), {}};
  if (yarn) turn.attention_factor *= 1 + 0.1 * std::log(1 / scale);
  for (int i = 0; i < dims / 2; ++i) {
    const double share = yarn ? yarn_share(rope, i) : 0;
    turn.inv_freq.push_back(std::pow(base, -2.0 * i / dims) * (scale * (1 - share) + share) /
                            (factors.empty() ? 1 : factors[i]));
  }
  return turn;
}

bool is_view(ggml_op op) {
  return op == GGML_OP_VIEW || op == GGML_OP_PERMUTE || op == GGML_OP_RESHAPE || op == GGML_OP_CONT;
}

/// Sees every tensor of the graph when it is computed: reads facts, rounds q, k and v, hands rows on.
class GraphReader {
 public:
  explicit GraphReader(Index layers) : facts_(layers) {}

  /// Where rows go, and which layer of the dump one of the model is; none: nothing is written.
  DumpWriter* writer = nullptr;
  std::vector<Index> place;  ///< [layers], -1: not in the dump
  Dtype dtype = Dtype::f16;
  Workers* workers = nullptr;
  bool probes_windows = false;  ///< reads the mask's last row: a layer that sees fewer cells has a window

  const std::vector<LayerFacts>& facts() const { return facts_; }

  /// A ggml_backend_sched_eval_callback; `self` is a GraphReader.
  static bool callback(ggml_tensor* tensor, bool ask, void* self);
  /// Throws what stopped the graph, if anything did: Interrupted, or the reader's own failure.
  void rethrow() const;

 private:
  struct Named {
    std::string_view name;
    Index layer = -1;
  };
  static Named named(const ggml_tensor& tensor);
  bool is(const GraphTensor& which, const ggml_tensor& tensor, const Named& as) const;
  std::optional<Tensor> captured(const ggml_tensor& tensor, const Named& as) const;
  bool wants(const ggml_tensor& tensor);
  void read_softmax(const ggml_tensor& softmax, Index layer);
  void take(ggml_tensor& tensor);
  void count_seen(const ggml_tensor& mask, Index layer);

  std::vector<LayerFacts> facts_;
  std::vector<float> rows_;
  std::exception_ptr failure_;
};

bool GraphReader::callback(ggml_tensor* tensor, bool ask, void* self) {
  auto& reader = *static_cast<GraphReader*>(self);
  try {
    if (reader.workers->stopping() || reader.failure_) return false;
    return ask ? reader.wants(*tensor) : (reader.take(*tensor), true);
  } catch (...) {
    reader.failure_ = std::current_exception();
    return false;
  }
}

void GraphReader::rethrow() const {
  if (workers->stopping()) throw Interrupted();
  if (failure_) std::rethrow_exception(failure_);
}

GraphReader::Named GraphReader::named(const ggml_tensor& tensor) {
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

bool GraphReader::is(const GraphTensor& which, const ggml_tensor& tensor, const Named& as) const {
  const std::string_view operation = ggml_op_name(tensor.op);
  return as.name == which.name && (operation == which.operation || operation == which.otherwise) &&
         as.layer >= 0 && as.layer < std::ssize(facts_);
}

std::optional<Tensor> GraphReader::captured(const ggml_tensor& tensor, const Named& as) const {
  if (is(kQ, tensor, as)) return Tensor::q;
  if (is(kK, tensor, as)) return Tensor::k;
  if (is(kV, tensor, as)) return Tensor::v;
  if (is(kO, tensor, as)) return Tensor::o;
  return std::nullopt;
}

bool GraphReader::wants(const ggml_tensor& tensor) {
  const Named as = named(tensor);
  if (as.layer < 0 || as.layer >= std::ssize(facts_)) return false;
  if (as.name == kSoftmax && tensor.op == GGML_OP_SOFT_MAX) {
    read_softmax(tensor, as.layer);
    return probes_windows;
  }
  return captured(tensor, as).has_value();
}

/// Scale and soft cap, back from the softmax to the captured q, which thereby is what attention reads.
void GraphReader::read_softmax(const ggml_tensor& softmax, Index layer) {
  const auto refuse = [&](const std::string& found) {
    throw InputError(fmt::format("layer {}", layer),
                     fmt::format("softmax of scale * q.k with the q of {} ({})", kQ.name, kQ.operation),
                     found);
  };
  LayerFacts& facts = facts_[layer];
  facts.scale = float_param(softmax, 0);
  if (float_param(softmax, 1) != 0) refuse("a bias by distance (ALiBi)");
  if (softmax.src[2] != nullptr && facts.sinks.empty()) {
    facts.sinks.resize(ggml_nelements(softmax.src[2]));
    ggml_backend_tensor_get(softmax.src[2], facts.sinks.data(), 0, ggml_nbytes(softmax.src[2]));
  }
  const ggml_tensor* at = softmax.src[0];
  if (at->op == GGML_OP_SCALE && at->src[0]->op == GGML_OP_UNARY &&
      ggml_get_unary_op(at->src[0]) == GGML_UNARY_OP_TANH && at->src[0]->src[0]->op == GGML_OP_SCALE) {
    facts.softcap = float_param(*at, 0);
    if (facts.scale != 1) refuse("a scale behind a soft cap");
    facts.scale = float_param(*at->src[0]->src[0], 0) * facts.softcap;
    at = at->src[0]->src[0]->src[0];
  }
  if (at->op != GGML_OP_MUL_MAT) refuse(ggml_op_name(at->op));
  for (at = at->src[1]; !is(kQ, *at, named(*at)); at = at->src[0]) {
    if (at->op == GGML_OP_SCALE && float_param(*at, 1) == 0)
      facts.scale *= float_param(*at, 0);
    else if (!is_view(at->op) || at->src[0] == nullptr)
      refuse(fmt::format("{} of {}", ggml_op_name(at->op), ggml_get_name(at)));
  }
}

void GraphReader::take(ggml_tensor& tensor) {
  const Named as = named(tensor);
  if (as.name == kSoftmax) return count_seen(*tensor.src[1], as.layer);
  const std::optional<Tensor> which = captured(tensor, as);
  if (!which) return;
  // Rows without gaps, but perhaps between those of others: a product may make q, k and v at once.
  const std::size_t row = tensor.ne[0] * (which == Tensor::o ? 1 : tensor.ne[1]) * sizeof(float);
  const std::size_t apart = which == Tensor::o ? tensor.nb[1] : tensor.nb[2];
  if (tensor.type != GGML_TYPE_F32 || tensor.nb[0] != sizeof(float) ||
      (which != Tensor::o && tensor.nb[1] != tensor.ne[0] * sizeof(float)))
    throw InputError(ggml_get_name(&tensor), "float32 without gaps", ggml_type_name(tensor.type));
  if (which == Tensor::k) facts_[as.layer].rotation = rotation_of(tensor);
  rows_.resize(ggml_nelements(&tensor));
  auto* const bytes = reinterpret_cast<std::byte*>(rows_.data());
  const std::size_t size = rows_.size() * sizeof(float), at_once = row == apart ? size : row;
  for (std::size_t at = 0; at < size; at += at_once)
    ggml_backend_tensor_get(&tensor, bytes + at, at / row * apart, at_once);
  round_to(dtype, rows_, fmt::format("layer {}, {}", as.layer, name_of(*which)));
  if (which != Tensor::o && dtype == Dtype::f16)
    for (std::size_t at = 0; at < size; at += at_once)
      ggml_backend_tensor_set(&tensor, bytes + at, at / row * apart, at_once);
  if (writer == nullptr || place[as.layer] < 0) return;
  Index heads = tensor.ne[1], width = tensor.ne[0];
  if (which == Tensor::o) {  // [heads * d_v, n]
    heads = writer->size_of_rows(Tensor::q).first;
    width /= heads;
  }
  writer->append(*which, place[as.layer], heads, width, rows_);
}

void GraphReader::count_seen(const ggml_tensor& mask, Index layer) {
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
  facts_[layer].windowed = seen < 3;
}

/// A text or a conversation, under the name of its dump.
struct Content {
  std::string name, where;
  std::string text, answer;  ///< the answer is decoded
  bool framed = false;
};

/// A prompt's tokens and its decoding steps', as far as a text gives them.
struct PromptTokens {
  fs::path out;
  std::vector<llama_token> ids;  ///< the prompt's first, then steps
  Index prompt = 0, decode = 0;
  bool greedy = true, was_there = false;
  Index positions() const { return prompt + decode; }
};

class LlamaCapture {
 public:
  LlamaCapture(const CaptureOptions& options, Workers& workers) : options_(options), workers_(workers) {
    model_ = load_model(options.model, true);
    architecture_ = metadata(*model_, "general.architecture").value_or("");
    if (!is_captured(architecture_))
      throw InputError(options.model.string(), "one of the architectures " + architecture_names(),
                       architecture_ + " (data/capture/kvcapture.py --gguf may know it)");
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
      dumps.push_back({.folder = prompt.out,
                       .layers = std::ssize(layers_),
                       .prompt = prompt.prompt,
                       .decode = prompt.decode,
                       .bytes = bytes_of(prompt),
                       .was_there = prompt.was_there});
    std::uint64_t bytes = 0;
    for (const CapturedDump& dump : dumps) bytes += dump.was_there ? 0 : dump.bytes;
    if (bytes == 0) return dumps;
    if (!options_.estimate) require_room(bytes);
    start();
    if (options_.estimate) {
      estimate(dumps);
      return dumps;
    }
    for (std::size_t i = 0; i < prompts_.size(); ++i)
      if (!dumps[i].was_there) take(prompts_[i], dumps[i]);
    return dumps;
  }

 private:
  std::optional<Index> number(const std::string& key) const {
    const auto text = metadata(*model_, architecture_ + "." + key);
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
      steps = tokens_of(vocab, file_text(*options_.continued, kMostText), false, false);
      if (steps.empty()) throw InputError(options_.continued->string(), "a text", "no token");
    }
    const std::vector<Content> contents = read_contents();
    std::set<std::string> names;
    for (const Content& content : contents) {
      PromptTokens prompt;
      prompt.out = contents.size() == 1 ? options_.out : options_.out / content.name;
      if (!names.insert(content.name).second)
        throw InputError(content.where, "prompts of different names", fmt::format("two of {}", content.name));
      prompt.ids = tokens_of(vocab, content.text, true, content.framed);
      if (content.text.empty() || prompt.ids.empty()) throw InputError(content.where, "a text", "no token");
      prompt.prompt = std::ssize(prompt.ids);
      if (options_.prompt_len) {
        if (*options_.prompt_len > prompt.prompt)
          throw InputError(content.where,
                           fmt::format("at least --prompt-len {} tokens", *options_.prompt_len),
                           fmt::format("{}", prompt.prompt));
        prompt.prompt = *options_.prompt_len;
      }
      append_answer(prompt.ids, content);
      prompt.ids.insert(prompt.ids.end(), steps.begin(), steps.end());
      const Index given = std::ssize(prompt.ids) - prompt.prompt;
      prompt.greedy = given == 0;
      prompt.decode = prompt.greedy ? options_.decode : std::min(options_.decode, given);
      prompt.ids.resize(prompt.greedy ? prompt.prompt : prompt.positions());
      if (context > 0 && prompt.positions() > context)
        throw InputError(content.where,
                         fmt::format("at most the {} positions of the model's context", context),
                         fmt::format("{} + {}", prompt.prompt, prompt.decode));
      prompt.was_there = options_.resume && is_there(prompt);
      if (!options_.estimate && !prompt.was_there) require_free(prompt.out, options_.force);
      prompts_.push_back(std::move(prompt));
    }
  }

  /// The tokens of an answer as they are behind the prompt, which may differ from those of the answer alone
  /// (by a space in front) or, if a token spans both, these.
  void append_answer(std::vector<llama_token>& ids, const Content& content) const {
    if (content.answer.empty()) return;
    const llama_vocab* vocab = llama_model_get_vocab(model_.get());
    std::vector<llama_token> whole = tokens_of(vocab, content.text + content.answer, true, content.framed);
    if (!std::ranges::equal(std::span(whole).first(std::min(ids.size(), whole.size())), ids)) {
      const std::vector<llama_token> alone = tokens_of(vocab, content.answer, false, content.framed);
      whole = ids;
      whole.insert(whole.end(), alone.begin(), alone.end());
    }
    ids = std::move(whole);
  }

  /// True if the dump is there. Throws InputError where it is one of another prompt.
  bool is_there(const PromptTokens& prompt) const {
    if (!fs::exists(prompt.out / "manifest.json")) return false;
    const Dump dump = Dump::open(prompt.out);
    const std::string file = (prompt.out / "tokens.json").string();
    const Json ids = parse_json_object(file_text(file, kMostText), file).value("ids", Json::array());
    bool same = dump.shape().l == prompt.prompt && std::ssize(ids) >= std::ssize(prompt.ids);
    for (std::size_t i = 0; same && i < prompt.ids.size(); ++i) same = ids[i] == prompt.ids[i];
    if (!same) throw InputError(file, fmt::format("the {} tokens of the prompt", prompt.prompt), "others");
    return true;
  }

  std::vector<Content> read_contents() const {
    std::vector<Content> contents;
    for (const fs::path& file : options_.prompts) {
      std::string text = file_text(file, kMostText);
      if (options_.chat && !text.empty()) {
        text.resize(text.find_last_not_of('\n') + 1);
        text = framed(*model_, std::vector<Message>{{"user", text}}, true, file.string());
      }
      contents.push_back({file.stem().string(), file.string(), std::move(text), "", options_.chat});
    }
    for (const fs::path& file : options_.messages) {
      const std::vector<Conversation> all = read_conversations(file);
      for (std::size_t i = 0; i < all.size(); ++i) {
        const std::string number = all.size() == 1 ? "" : fmt::format("-{:02}", i);
        contents.push_back(content_of(all[i], file.stem().string() + number, file.string() + number));
      }
    }
    return contents;
  }

  Content content_of(const Conversation& conversation, const std::string& name,
                     const std::string& where) const {
    const bool answered = conversation.back().role == "assistant";
    const std::span<const Message> all(conversation), asked = all.first(all.size() - (answered ? 1 : 0));
    if (asked.empty())
      throw InputError(where, "a conversation that somebody else begins", "only the assistant's turn");
    Content content{name, where, framed(*model_, asked, true, where), "", true};
    if (!answered) return content;
    const std::string whole = framed(*model_, all, false, where);
    if (!whole.starts_with(content.text))
      throw InputError(where, "an answer that the template has behind the prompt",
                       "another text once it is answered");
    content.answer = whole.substr(content.text.size());
    return content;
  }

  std::uint64_t bytes_of(const PromptTokens& prompt) const {
    const Index rows = prompt.positions() * (n_q_ + n_kv_) * (d_ + d_v_);
    const Index wo = options_.wo ? n_q_ * d_v_ * number("embedding_length").value_or(0) : 0;
    return static_cast<std::uint64_t>(std::ssize(layers_) * (rows + wo)) * size_of(options_.dtype);
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
    reader_ = std::make_unique<GraphReader>(all_layers_);
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
    context_ = new_context(*model_, params, options_.model.string());
    window_ = llama_model_n_swa(model_.get());
    if (window_ > 1) probe_windows();
  }

  llama_memory_t memory() const { return llama_get_memory(context_.get()); }

  void feed(std::span<const llama_token> ids, Index position) {
    const bool whole = decode(*context_, ids, position);
    reader_->rethrow();
    if (!whole) throw InputError(fmt::format("{}: llama.cpp cannot decode", options_.model.string()));
  }

  /// Two tokens at positions 0 and w - 1, then one at w: a layer with a window of w does not see the first.
  void probe_windows() {
    const std::vector<llama_token> two(2, prompts_.front().ids.front());
    feed(two, 0);
    llama_memory_seq_add(memory(), 0, 1, 2, static_cast<llama_pos>(window_ - 2));
    reader_->probes_windows = true;
    feed(std::span(two).first(1), window_);
    reader_->probes_windows = false;
    llama_memory_clear(memory(), true);
  }

  /// Times a chunk and a step of the longest prompt, the second of each.
  void estimate(std::vector<CapturedDump>& dumps) {
    const auto longest = std::ranges::max_element(prompts_, {}, &PromptTokens::prompt);
    const Index rows = std::min(chunk_, longest->prompt);
    const auto seconds = [&](Index count) {
      std::chrono::duration<double> took{};
      for (int time = 0; time < 2; ++time) {
        llama_memory_clear(memory(), true);
        const auto begin = std::chrono::steady_clock::now();
        feed(std::span(longest->ids).first(count), 0);
        took = std::chrono::steady_clock::now() - begin;
      }
      return took.count();
    };
    const double of_row = seconds(rows) / static_cast<double>(rows), of_step = seconds(1);
    for (CapturedDump& dump : dumps)
      dump.seconds = static_cast<double>(dump.prompt) * of_row + static_cast<double>(dump.decode) * of_step;
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
      feed(std::span(prompt.ids).subspan(at, n), at);
      at += n;
    }
    options_.on_progress(prompt.positions(), prompt.positions());
    reader_->writer = nullptr;
    for (std::size_t i = 0; options_.wo && i < layers_.size(); ++i) {
      OutputProjection found = output_projection(options_.model, layers_[i], n_q_, d_v_);
      writer.append_wo(static_cast<Index>(i), found.width, found.values);
    }
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
    add_sinks(json);
    add_rope(json);
    if (std::ssize(layers_) < all_layers_) json["layers"] = layers_;
    if (!options_.wo) json["wo_note"] = "no wo: kvreplay capture --wo writes it";
    json["weights"] = llama_ftype_name(llama_model_ftype(model_.get()));
    json["origin"] = fmt::format("kvreplay capture: llama.cpp {}, {} weights, float32 cache", llama_version(),
                                 llama_ftype_name(llama_model_ftype(model_.get())));
    return json;
  }

  void add_sinks(Json& json) const {
    const auto& facts = reader_->facts();
    Json sinks = Json::array();
    bool some = false;
    for (const Index layer : layers_) {
      const std::vector<float>& each = facts[layer].sinks;
      sinks.push_back(each.empty() ? Json() : Json(each));
      some = some || !each.empty();
    }
    if (some) json["sink_logit"] = std::move(sinks);
  }

  void add_rope(Json& json) const {
    const auto& facts = reader_->facts();
    const LayerRotation& first = facts[layers_.front()].rotation;
    Json each = Json::array();
    bool alike = true;
    for (const Index layer : layers_) {
      const LayerRotation& turn = facts[layer].rotation;
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
  std::string architecture_;
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
