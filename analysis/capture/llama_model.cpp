#include "analysis/capture/llama_model.hpp"

#include "data/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <ggml-backend.h>
#include <ggml.h>
#include <gguf.h>

namespace kvreplay {
namespace {

namespace fs = std::filesystem;

/// The first error that llama.cpp reported since it was cleared, on one line.
std::string& complaint() {
  static std::string line;
  return line;
}

void keep_complaint(ggml_log_level level, const char* text, void*) {
  std::string line = text;
  while (!line.empty() && (line.back() == '\n' || line.back() == ' ')) line.pop_back();
  if (level == GGML_LOG_LEVEL_ERROR && complaint().empty()) complaint() = line;
}

}  // namespace

Model load_model(const fs::path& path, bool vocabulary_only) {
  llama_log_set(keep_complaint, nullptr);
  ggml_backend_load_all();
  if (!fs::is_regular_file(path))
    throw InputError(path.string(), "a GGUF file", fs::exists(path) ? "something else" : "none");
  llama_model_params params = llama_model_default_params();
  params.vocab_only = vocabulary_only;
  complaint().clear();
  Model model(llama_model_load_from_file(path.c_str(), params));
  if (!model)
    throw InputError(path.string(), "a whole GGUF file that llama.cpp can run",
                     complaint().empty() ? "none" : complaint());
  return model;
}

Context new_context(const llama_model& model, const llama_context_params& params, const std::string& where) {
  complaint().clear();
  Context context(llama_init_from_model(const_cast<llama_model*>(&model), params));
  if (!context) throw InputError(fmt::format("{}: llama.cpp cannot start: {}", where, complaint()));
  return context;
}

bool decode(llama_context& context, std::span<const llama_token> ids, Index position, bool all_logits) {
  complaint().clear();
  llama_batch batch = llama_batch_init(static_cast<int>(ids.size()), 0, 1);
  for (const llama_token id : ids) {
    const int at = batch.n_tokens++;
    batch.token[at] = id;
    batch.pos[at] = static_cast<llama_pos>(position + at);
    batch.n_seq_id[at] = 1;
    batch.seq_id[at][0] = 0;
    batch.logits[at] = static_cast<std::int8_t>(all_logits || at + 1 == std::ssize(ids));
  }
  const int failed = llama_decode(&context, batch);
  llama_batch_free(batch);
  return failed == 0;
}

std::optional<std::string> metadata(const llama_model& model, const std::string& key) {
  std::string value(256, '\0');
  const int length = llama_model_meta_val_str(&model, key.c_str(), value.data(), value.size());
  if (length < 0) return std::nullopt;
  return value.substr(0, std::min<std::size_t>(length, value.size() - 1));
}

std::vector<llama_token> tokens_of(const llama_vocab* vocab, const std::string& text, bool begins,
                                   bool special) {
  std::vector<llama_token> tokens(text.size() + 8);
  const int count = llama_tokenize(vocab, text.data(), static_cast<int>(text.size()), tokens.data(),
                                   static_cast<int>(tokens.size()), begins, special);
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

std::string framed(const llama_model& model, std::span<const Message> messages, bool asks,
                   const std::string& where) {
  const char* const chat_template = llama_model_chat_template(&model, nullptr);
  if (chat_template == nullptr) throw InputError(where, "a model with a chat template", "none");
  std::vector<llama_chat_message> chat;
  std::size_t size = 256;
  for (const Message& message : messages) {
    chat.push_back({message.role.c_str(), message.content.c_str()});
    size += 2 * (message.role.size() + message.content.size());
  }
  std::string text;
  for (int length = 0; length >= 0;) {
    text.resize(size);
    length = llama_chat_apply_template(chat_template, chat.data(), chat.size(), asks, text.data(),
                                       static_cast<int>(text.size()));
    if (length >= 0 && length <= std::ssize(text)) return text.substr(0, length);
    size = length;
  }
  throw InputError(where, "a chat template that llama.cpp knows (kvcapture.py --messages runs any)",
                   "another");
}

OutputProjection output_projection(const fs::path& path, Index layer, Index heads, Index d_v) {
  const std::string name = fmt::format("blk.{}.attn_output.weight", layer);
  ggml_context* tensors = nullptr;
  const std::unique_ptr<gguf_context, decltype(&gguf_free)> file(
      gguf_init_from_file(path.c_str(), {.no_alloc = true, .ctx = &tensors}), &gguf_free);
  const std::unique_ptr<ggml_context, decltype(&ggml_free)> held(tensors, &ggml_free);
  const ggml_tensor* const tensor = file ? ggml_get_tensor(tensors, name.c_str()) : nullptr;
  if (tensor == nullptr || tensor->ne[0] != heads * d_v || tensor->ne[2] != 1)
    throw InputError(path.string(),
                     fmt::format("{} of {} columns (without --wo it is not read)", name, heads * d_v),
                     tensor == nullptr ? "none" : fmt::format("{}", tensor->ne[0]));
  std::vector<char> bytes(ggml_nbytes(tensor));
  std::ifstream in(path, std::ios::binary);
  in.seekg(static_cast<std::streamoff>(
      gguf_get_data_offset(file.get()) +
      gguf_get_tensor_offset(file.get(), gguf_find_tensor(file.get(), name.c_str()))));
  if (!in.read(bytes.data(), std::ssize(bytes))) throw InputError(path.string(), "a whole file", "a cut one");
  const Index columns = tensor->ne[0], width = tensor->ne[1];
  std::vector<float> row(static_cast<std::size_t>(columns));
  OutputProjection found{width, std::vector<float>(static_cast<std::size_t>(columns * width))};
  const auto to_float = ggml_get_type_traits(tensor->type)->to_float;
  for (Index m = 0; m < width; ++m) {
    const char* const from = bytes.data() + m * tensor->nb[1];
    if (tensor->type == GGML_TYPE_F32)
      std::copy_n(reinterpret_cast<const float*>(from), columns, row.begin());
    else
      to_float(from, row.data(), columns);
    for (Index c = 0; c < columns; ++c) found.values[c * width + m] = row[c];
  }
  return found;
}

}  // namespace kvreplay
