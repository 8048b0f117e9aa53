#include "sim/head_group.hpp"

#include <iterator>
#include <span>
#include <utility>

namespace kvreplay {

std::optional<std::string> why_no_second_reading(const Dump& dump) {
  const DumpShape& shape = dump.shape();
  if (!dump.has(Tensor::q_ref)) return "the dump has no queries of a second reading";
  if (shape.window_end == shape.l) return std::nullopt;
  return "the dump's second reading is that of a prompt of " + std::to_string(shape.window_end) + " tokens";
}

template <class T>
HeadGroup<T> load_head_group(const Dump& dump, Index layer, Index kv_head, const HeadParts& parts) {
  const DumpShape& shape = dump.shape();
  const Index G = shape.group();
  const auto read = [&](Tensor tensor, Index head, Index rows, Index columns, Index skipped = 0) {
    const bool unchecked = tensor == Tensor::k && !parts.checked_keys;
    if (const T* there = dump.in_memory<T>(tensor, layer, head, skipped, unchecked))
      return HeadMatrix<T>::of(there, rows - skipped, columns);
    Matrix<T> matrix(rows - skipped, columns);
    dump.read<T>(tensor, layer, head, matrix.data(), skipped);
    return HeadMatrix<T>(std::move(matrix));
  };
  const Index unasked = std::clamp<Index>(parts.first_row - shape.first_query(), 0, shape.T_q - 1);

  HeadGroup<T> group;
  group.layer = layer;
  group.kv_head = kv_head;
  group.l = shape.l;
  group.rule = dump.rule(layer);
  if (!group.rule.sink_logit.empty()) {
    const auto first = group.rule.sink_logit.begin() + kv_head * G;
    group.rule.sink_logit = std::vector<double>(first, first + G);
  }
  group.rope = dump.rope(layer);
  group.position = dump.position();
  group.k = read(Tensor::k, kv_head, shape.T, shape.d);
  group.v =
      parts.values ? read(Tensor::v, kv_head, shape.T, shape.d_v) : HeadMatrix<T>::of(nullptr, 0, shape.d_v);
  const bool read_again = parts.others && !why_no_second_reading(dump);
  const Index prompt_queries = future_rows(shape.l, shape.T, shape.first_query()).begin - shape.first_query();
  for (Index h = kv_head * G; h < (kv_head + 1) * G; ++h) {
    group.q.push_back(read(Tensor::q, h, shape.T_q, shape.d, unasked));
    if (parts.others && dump.projects_heads()) {
      group.wo.push_back(read(Tensor::wo, h, shape.d_v, shape.d_model));
      if (dump.has(Tensor::gate))
        group.gate.push_back(read(Tensor::gate, h, shape.T_q, shape.d_v, prompt_queries));
    }
    if (read_again) group.q_ref.push_back(read(Tensor::q_ref, h, shape.R_ref, shape.d));
    if (read_again && dump.has(Tensor::h_ref_norm))
      group.h_ref_norm.push_back(read(Tensor::h_ref_norm, 0, shape.R_ref, 1));
  }
  const auto read_gradients = [&](Tensor tensor, Index samples, Index rows) {
    RowGradients<T> gradients;
    if (!parts.others || !dump.has(tensor)) return gradients;
    gradients.rows = {shape.first_row(tensor), shape.first_row(tensor) + rows};
    gradients.samples = samples;
    for (Index h = kv_head * G; h < (kv_head + 1) * G; ++h)
      gradients.g.push_back(read(tensor, h, samples * rows, shape.d_v));
    return gradients;
  };
  group.g_window = read_gradients(Tensor::g_window, shape.S, shape.R_W);
  group.g_future = read_gradients(Tensor::g_future, shape.S, shape.R_F);
  group.g_nll = read_gradients(Tensor::g_nll, 1, shape.R_F);
  return group;
}

template <class T>
HeadGroup<T> load_readers(const Dump& dump, Index layer, Index kv_head, const HeadParts& parts) {
  const std::vector<Index> readers = dump.readers(layer);
  HeadGroup<T> all = load_head_group<T>(dump, readers.front(), kv_head, parts);
  const auto append = [](auto& to, auto& from) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  };
  std::vector<double> sinks;
  bool any_sink = false;
  const auto add_sinks = [&](const HeadGroup<T>& group) {
    any_sink = any_sink || !group.rule.sink_logit.empty();
    for (Index g = 0; g < dump.shape().group(); ++g) sinks.push_back(group.sink(g));
  };
  add_sinks(all);
  for (const Index reader : std::span(readers).subspan(1)) {
    HeadParts without_cache = parts;
    without_cache.values = false;
    HeadGroup<T> more = load_head_group<T>(dump, reader, kv_head, without_cache);
    add_sinks(more);
    append(all.q, more.q);
    append(all.wo, more.wo);
    append(all.gate, more.gate);
    append(all.q_ref, more.q_ref);
    append(all.h_ref_norm, more.h_ref_norm);
    append(all.g_window.g, more.g_window.g);
    append(all.g_future.g, more.g_future.g);
    append(all.g_nll.g, more.g_nll.g);
  }
  if (any_sink) all.rule.sink_logit = std::move(sinks);
  return all;
}

template <class T>
HeadGroup<T> cache_group(const HeadGroup<T>& group, const std::vector<Index>& tokens, Index queries) {
  HeadGroup<T> cache;
  const Index n = std::ssize(tokens);
  cache.layer = group.layer;
  cache.kv_head = group.kv_head;
  cache.l = n;
  cache.rule = group.rule;
  cache.k.resize(n, group.d());
  const bool values = group.v.rows() > 0;
  cache.v.resize(values ? n : 0, group.d_v());
  for (Index p = 0; p < n; ++p) {
    cache.k.row(p) = group.k.row(tokens[p]);
    if (values) cache.v.row(p) = group.v.row(tokens[p]);
  }
  const Index first = queries > 0 ? tokens[n - queries] - group.first_query() : 0;
  for (const HeadMatrix<T>& q : group.q) cache.q.emplace_back(q.middleRows(first, queries));
  if (group.rule.sliding_window) {
    cache.position = tokens;
    if (!group.position.empty())
      for (Index& p : cache.position) p = group.position[p];
  }
  return cache;
}

template <class T>
HeadGroup<T> query_head_group(const HeadGroup<T>& group, Index g) {
  HeadGroup<T> head;
  head.layer = group.layer;
  head.kv_head = group.kv_head;
  head.l = group.l;
  head.rule = group.rule;
  if (!group.rule.sink_logit.empty()) head.rule.sink_logit = {group.rule.sink_logit[g]};
  head.q = {group.q[g]};
  head.k = group.k;
  head.v = group.v;
  if (!group.wo.empty()) head.wo = {group.wo[g]};
  if (!group.gate.empty()) head.gate = {group.gate[g]};
  head.rope = group.rope;
  const auto of_head = [&](const RowGradients<T>& all) {
    RowGradients<T> mine{all.rows, all.samples, {}};
    if (!all.g.empty()) mine.g = {all.g[g]};
    return mine;
  };
  head.g_window = of_head(group.g_window);
  head.g_future = of_head(group.g_future);
  head.g_nll = of_head(group.g_nll);
  if (!group.q_ref.empty()) head.q_ref = {group.q_ref[g]};
  if (!group.h_ref_norm.empty()) head.h_ref_norm = {group.h_ref_norm[g]};
  head.position = group.position;
  return head;
}

template decltype(load_head_group<float>) load_head_group<float>;
template decltype(load_head_group<double>) load_head_group<double>;
template decltype(load_readers<float>) load_readers<float>;
template decltype(load_readers<double>) load_readers<double>;
template decltype(cache_group<float>) cache_group<float>;
template decltype(cache_group<double>) cache_group<double>;
template decltype(query_head_group<float>) query_head_group<float>;
template decltype(query_head_group<double>) query_head_group<double>;

std::optional<StoredGroup> load_stored_group(const Dump& dump, Index layer, Index kv_head,
                                             const HeadParts& parts) {
  const std::optional<Dtype> dtype = dump.stored_dtype(Tensor::q, layer);
  if (!dtype || size_of(*dtype) != 2 || dump.stored_dtype(Tensor::k, layer) != dtype ||
      dump.stored_dtype(Tensor::v, layer) != dtype)
    return std::nullopt;
  const DumpShape& shape = dump.shape();
  const auto read = [&](Tensor tensor, Index head, Index rows, Index columns, Index skipped = 0) {
    auto bytes = std::make_unique_for_overwrite<std::byte[]>(2 * (rows - skipped) * columns);
    dump.read_stored(tensor, layer, head, bytes.get(), skipped);
    return bytes;
  };
  StoredGroup group;
  group.dtype = *dtype;
  group.first_query = std::clamp(parts.first_row, shape.first_query(), shape.T);
  group.k = read(Tensor::k, kv_head, shape.T, shape.d);
  if (parts.values) group.v = read(Tensor::v, kv_head, shape.T, shape.d_v);
  for (Index h = kv_head * shape.group(); h < (kv_head + 1) * shape.group(); ++h)
    group.q.push_back(read(Tensor::q, h, shape.T_q, shape.d, group.first_query - shape.first_query()));
  return group;
}

std::size_t head_group_bytes(const Dump& dump, std::size_t element_size) {
  const DumpShape& shape = dump.shape();
  std::size_t bytes = head_group_bytes(shape, dump.projects_heads(), element_size);
  if (dump.has(Tensor::wo) && dump.has(Tensor::gate))
    bytes +=
        shape.group() * future_rows(shape.l, shape.T, shape.first_query()).count() * shape.d_v * element_size;
  return bytes;
}

std::size_t head_group_bytes(const DumpShape& shape, bool with_wo, std::size_t element_size) {
  const Index G = shape.group();
  Index elements = G * (shape.T_q + shape.R_ref) * shape.d + shape.T * (shape.d + shape.d_v);
  elements += G * (shape.S * (shape.R_F + shape.R_W) + shape.R_F) * shape.d_v;  // gradients
  if (with_wo) elements += G * shape.d_v * shape.d_model;
  return elements * element_size;
}

template <class T>
std::size_t bytes_of(const HeadGroup<T>& group) {
  Index elements = group.k.size() + group.v.size();
  for (const auto* heads : {&group.q, &group.q_ref, &group.gate})
    for (const HeadMatrix<T>& rows : *heads) elements += rows.size();
  for (const Matrix<T>& wo : group.wo) elements += wo.size();
  for (const RowGradients<T>* gradients : {&group.g_window, &group.g_future, &group.g_nll})
    for (const Matrix<T>& g : gradients->g) elements += g.size();
  return static_cast<std::size_t>(elements) * sizeof(T);
}

template std::size_t bytes_of(const HeadGroup<float>&);
template std::size_t bytes_of(const HeadGroup<double>&);

}  // namespace kvreplay
