#include "analysis/recommend/levers.hpp"

#include "analysis/eviction/eviction_options.hpp"
#include "analysis/results/dump_set.hpp"
#include "analysis/results/figures.hpp"
#include "analysis/results/kept_text.hpp"
#include "analysis/results/over_dumps.hpp"
#include "analysis/results/validation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace kvreplay::recommend {
namespace {

/// One result folder, and what its levers come to.
class Folder {
 public:
  explicit Folder(const ResultReader& results)
      : results_(results), layers_(results.shape().layers), n_kv_(results.shape().n_kv) {
    const std::string where = results.folder().string();
    if (!results.has(Table::evictions))
      throw InputError(where, "results of evict or analyze", "none of evictions");
    if (std::ssize(results.layers()) != layers_)
      throw InputError(where, fmt::format("all {} of the dump", counted(layers_, "layer")),
                       fmt::format("{}", results.layers().size()));
    const Json& bytes = results.summary().at("totals").value("prompt_bytes", Json());
    if (!bytes.is_number())
      throw InputError(where, "results that say what the whole prompt takes",
                       "none (of an earlier version; evict writes them: --force)");
    prompt_bytes_ = bytes.get<double>();
    const Json options = results.summary().at("options").value("evict", Json::object());
    for (const char* key : {"window", "sinks", "recent", "pool", "by", "channels"})
      if (const Json& value = options.value(key, Json()); !value.is_null())
        throw InputError(where,
                         "policies with options of their own, as snapkv[window=64], and no pruned channels",
                         fmt::format("{} {} of all of them", key, json_text(value)));
    if (options.value("per_query_head", false))
      throw InputError(where, "a cache for every KV head", "one for every query head");
    const Json all_stored = options.value("stored", Json::object());
    for (const auto& [name, of_layers] : all_stored.items()) {
      std::vector<Quantization>& stored = formats_[name];
      for (const Json& layer : of_layers)
        stored.push_back(quantization_in(layer, where + ": options: stored"));
      if (std::ssize(stored) != layers_)
        throw InputError(where + ": options: stored", "every layer's", fmt::format("{}", stored.size()));
    }
    read();
  }

  struct Found {
    Lever lever;
    Vector<double> bytes, row, error;  ///< [layers x n_kv]
    Vector<double> step;               ///< [layers]
    double bytes_of_model = kNan, step_of_model = kNan, output_error = kNan, kl = kNan;
  };
  const std::map<std::string, Found>& found() const { return found_; }
  /// In the order of the table, those of recipes apart.
  const std::vector<std::string>& order() const { return order_; }
  const std::map<std::string, Found>& recipes() const { return recipes_; }
  double prompt_bytes() const { return prompt_bytes_; }
  const std::vector<std::string>& left_out() const { return left_out_; }

 private:
  void read() {
    const std::string rows =
        results_.summary().at("dump").value("T", Index{0}) > results_.shape().l ? "future" : "window";
    each_figure(results_, Table::evictions, [&](const TableFigure& figure) {
      Found* const found = found_of(figure);
      if (found == nullptr) return;
      const std::string& metric = figure.metric();
      const Index head = figure.kv_head ? figure.layer_row * n_kv_ + *figure.kv_head : 0;
      if (metric == "bytes") {
        if (figure.kv_head) found->bytes[head] = figure.value;
        if (!figure.layer) found->bytes_of_model = figure.value;
      } else if (figure["rows"] != rows) {
        return;
      } else if (metric == "loss_row" && figure.kv_head) {
        found->row[head] = figure.value;
      } else if (metric == "output_error") {
        if (figure.kv_head) found->error[head] = figure.value;
        if (!figure.layer) found->output_error = figure.value;
      } else if (metric == "loss_step") {
        if (!figure.layer) found->step_of_model = figure.value;
        if (figure.layer && !figure.kv_head) found->step[figure.layer_row] = figure.value;
      }
    });
    each_measured(results_, Table::evictions, [&](const TableFigure& figure) {
      if (figure.metric() != name_of(ValidationFigure::kl)) return;
      if (Found* const found = found_of(figure)) found->kl = figure.value;
    });
  }

  /// Null for what no recipe can do.
  Found* found_of(const TableFigure& figure) {
    const std::string key =
        fmt::format("{}|{}|{}|{}", figure["policy"], figure["semantics"], figure["phase"], figure["budget"]);
    const auto at = place_.find(key);
    if (at != place_.end()) return at->second;
    Found* found = nullptr;
    if (figure["policy"].starts_with(kRecipe) && figure["semantics"] == "given") {
      found = &recipes_.emplace(figure["policy"].substr(kRecipe.size()), found_none({})).first->second;
    } else if (auto lever = lever_of(figure)) {
      // What tells it from those of other folders, too.
      std::string name = fmt::format("{}|{}|{}", lever->evicts ? lever->evicts->name : "",
                                     lever->evicts ? figure["semantics"] : "", lever->budget);
      for (const Quantization& stored : lever->stored) name += to_json(stored).dump();
      if (const auto there = found_.find(name); there != found_.end()) return place_[key] = nullptr;
      order_.push_back(name);
      found = &found_.emplace(name, found_none(std::move(*lever))).first->second;
    } else {
      place_in(left_out_, figure["policy"]);
    }
    return place_[key] = found;
  }

  std::optional<Lever> lever_of(const TableFigure& figure) const {
    Lever lever;
    lever.policy = figure["policy"];
    lever.budget = figure["budget"];
    const std::size_t tilde = lever.policy.find('~');
    std::string name = lever.policy.substr(0, tilde),
                format = tilde == std::string::npos ? "" : lever.policy.substr(tilde + 1);
    if (figure["phase"] != "prefill" || knows_the_future(name) || evicts_nothing(name)) return std::nullopt;
    const auto semantics = kSemantics.named(figure["semantics"]);
    if (!semantics) return std::nullopt;  // a kept set of the user's, or a recipe
    lever.semantics = *semantics;
    if (name != "none") {
      try {
        lever.evicts = parse_policy(name, {});
      } catch (const OptionError&) {
        return std::nullopt;  // by a score of the user's
      }
      const auto budget = budget_labelled(lever.budget);
      if (!budget || kBases[lever.evicts->base].searches) return std::nullopt;
      lever.sigma = budget->ratio(results_.shape().l);
      if (lever.sigma <= 0 || lever.sigma >= 1) return std::nullopt;
    }
    if (format.empty() && formats_.size() == 1) format = formats_.begin()->first;
    if (const auto stored = formats_.find(format); stored != formats_.end()) {
      lever.format = format;
      lever.stored = stored->second;
    } else if (format.empty()) {
      lever.format = "16";
      lever.stored.assign(static_cast<std::size_t>(layers_), exact());
    } else {
      return std::nullopt;
    }
    if (std::ranges::all_of(lever.stored, &Quantization::stores_exactly)) {
      lever.format = "16";
      lever.stored.assign(lever.stored.size(), exact());
    }
    return lever;
  }

  Found found_none(Lever lever) const {
    const Vector<double> none = Vector<double>::Constant(layers_ * n_kv_, kNan);
    return {std::move(lever), none, none, none, Vector<double>::Constant(layers_, kNan)};
  }

  static Quantization exact() {
    Quantization stored;
    stored.residual = 0;
    return stored;
  }

  const ResultReader& results_;
  Index layers_, n_kv_;
  double prompt_bytes_ = 0;
  std::map<std::string, std::vector<Quantization>> formats_;
  static constexpr std::string_view kRecipe = "recipe~";
  std::map<std::string, Found> found_, recipes_;
  std::map<std::string, Found*> place_;
  std::vector<std::string> order_, left_out_;
};

/// What heads cost, so that a lever everywhere comes to what was measured of the model.
Vector<double> with_interactions(const Folder::Found& found, Index n_kv) {
  Vector<double> nats = found.row;
  double of_layers = 0;
  for (Index layer = 0; layer < found.step.size(); ++layer) {
    auto heads = nats.segment(layer * n_kv, n_kv);
    const double sum = heads.sum();
    if (sum > 0 && std::isfinite(found.step[layer])) heads *= found.step[layer] / sum;
    of_layers += heads.sum();
  }
  if (of_layers > 0 && std::isfinite(found.step_of_model)) nats *= found.step_of_model / of_layers;
  return nats;
}

/// The folders of single dumps, each with the name of its dump.
std::vector<std::pair<std::string, std::vector<ResultReader>>> by_prompt(
    std::span<const std::filesystem::path> folders) {
  std::vector<std::pair<std::string, std::vector<ResultReader>>> prompts;
  std::map<std::string, std::size_t> at;  // by what the dump holds
  const auto add = [&](const std::string& name, const ResultReader& results) {
    const Json& dump = results.summary().at("dump");
    const auto [place, is_new] = at.emplace(
        results.summary().value("layer_fingerprints", Json::object()).dump() + dump.dump(), prompts.size());
    if (is_new) prompts.push_back({name, {}});
    prompts[place->second].second.push_back(results);
  };
  for (const std::filesystem::path& folder : folders) {
    if (!OverDumpsReader::is_over_dumps(folder)) {
      const auto name = std::filesystem::absolute(folder).lexically_normal();
      add((name.has_filename() ? name.filename() : name.parent_path().filename()).string(),
          ResultReader(folder));
      continue;
    }
    const OverDumpsReader reader(folder);
    for (std::size_t d = 0; d < reader.dumps().size(); ++d) add(reader.names()[d], reader.dumps()[d]);
  }
  return prompts;
}

/// A prompt's levers, of all its folders.
struct FoundOfPrompt {
  std::map<std::string, std::pair<const Folder::Found*, double>> levers;  ///< with the whole prompt's bytes
  std::vector<std::string> order;
};

void add_recipes(const Folder& folder, std::size_t prompt, std::size_t prompts,
                 std::vector<MeasuredRecipe>& recipes) {
  for (const auto& [name, found] : folder.recipes()) {
    auto at = std::ranges::find(recipes, name, &MeasuredRecipe::name);
    if (at == recipes.end()) {
      const std::vector<double> none(prompts, kNan);
      at = recipes.insert(recipes.end(), {name, none, none, none, none});
    }
    at->bytes[prompt] = found.bytes_of_model / folder.prompt_bytes();
    at->nats[prompt] = found.step_of_model;
    at->output_error[prompt] = found.output_error;
    at->kl[prompt] = found.kl;
  }
}

}  // namespace

std::string Lever::text() const {
  std::string text = evicts ? fmt::format("{}, {}", evicts->name, kept_text(budget)) : "all tokens";
  if (evicts && semantics != Semantics::paper) text += fmt::format(" ({})", name_of(semantics));
  return text + (format == "16" ? "" : " in " + format);
}

MeasuredLevers read_levers(std::span<const std::filesystem::path> folders) {
  MeasuredLevers measured;
  std::vector<std::vector<Folder>> read;
  std::vector<FoundOfPrompt> prompts;
  const auto by = by_prompt(folders);
  for (const auto& [name, results] : by) {
    const ResultReader& first = results.front();
    const std::string model = model_of(first.summary().at("dump").value("model", ""));
    const DumpShape& shape = first.shape();
    if (read.empty()) {
      measured.model = model;
      measured.shape = shape;
      measured.bytes_of_token = static_cast<double>(2 * shape.layers * shape.n_kv * (shape.d + shape.d_v));
    }
    const DumpShape& of = measured.shape;
    if (model != measured.model || shape.layers != of.layers || shape.n_kv != of.n_kv || shape.d != of.d ||
        shape.d_v != of.d_v)
      throw InputError(first.folder().string(), fmt::format("results of {}, as the others", measured.model),
                       model);
    std::vector<Folder>& mine = read.emplace_back();
    for (const ResultReader& one : results) mine.emplace_back(one);
  }
  for (const std::vector<Folder>& mine : read) {
    FoundOfPrompt& prompt = prompts.emplace_back();
    for (const Folder& folder : mine) {
      for (const std::string& name : folder.order())
        if (prompt.levers.emplace(name, std::pair(&folder.found().at(name), folder.prompt_bytes())).second)
          prompt.order.push_back(name);
      for (const std::string& what : folder.left_out()) place_in(measured.notes, what);
      add_recipes(folder, prompts.size() - 1, read.size(), measured.recipes);
    }
  }
  if (!measured.notes.empty())
    measured.notes = {fmt::format("not for recipes: {}", fmt::join(measured.notes, ", "))};

  std::vector<std::string> names;
  std::size_t some = 0;
  for (const std::string& name : prompts.front().order) {
    const bool everywhere = std::ranges::all_of(
        prompts, [&](const FoundOfPrompt& prompt) { return prompt.levers.contains(name); });
    if (everywhere)
      names.push_back(name);
    else
      ++some;
  }
  if (names.empty())
    throw InputError(folders.front().string(),
                     "a policy and budget, or a format, that recipes can have, in all prompts", "none");
  if (some > 0)
    measured.notes.push_back(
        fmt::format("{} not in all prompts, left out", counted(static_cast<std::ptrdiff_t>(some), "case")));
  for (const std::string& name : names)
    measured.levers.push_back(prompts.front().levers.at(name).first->lever);
  for (const FoundOfPrompt& prompt : prompts)
    for (const std::string& name : names)
      measured.in_nats = measured.in_nats && prompt.levers.at(name).first->row.allFinite();

  const auto count = static_cast<Index>(names.size()), heads = measured.shape.layers * measured.shape.n_kv;
  for (std::size_t p = 0; p < prompts.size(); ++p) {
    MeasuredPrompt& prompt = measured.prompts.emplace_back();
    prompt.name = by[p].first;
    prompt.bytes = prompt.nats = Matrix<double>(count, heads);
    for (Index n = 0; n < count; ++n) {
      const auto& [found, whole] = prompts[p].levers.at(names[static_cast<std::size_t>(n)]);
      prompt.bytes.row(n) = found->bytes.transpose() / whole;
      if (measured.in_nats)
        prompt.nats.row(n) = with_interactions(*found, measured.shape.n_kv).transpose();
      else
        prompt.nats.row(n) = found->error.transpose() / static_cast<double>(heads);
      prompt.output_error.push_back(found->output_error);
      prompt.kl.push_back(found->kl);
    }
    if (!prompt.bytes.allFinite() || !prompt.nats.allFinite())
      throw InputError(by[p].second.front().folder().string(), "the bytes and losses of every head",
                       "some without");
    // Its bytes are another layer's, and so is the choice.
    if (measured.shape.layers > 1 && (prompt.bytes.colwise().sum().array() == 0).any())
      throw InputError(by[p].second.front().folder().string(), "layers that each have a cache",
                       "some that read another's");
  }
  return measured;
}

}  // namespace kvreplay::recommend
