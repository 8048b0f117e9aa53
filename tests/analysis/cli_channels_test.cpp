#include "tests/analysis/channel_runs.hpp"
#include "tests/support/catch.hpp"

#include <nlohmann/json.hpp>

#include <cmath>
#include <numeric>

// Output of `kvreplay channels`, and the laws that its figures obey. tests/golden/golden_channels.py judges
// the numbers themselves.

using namespace kvreplay::test;
using Json = nlohmann::json;
namespace fs = std::filesystem;

namespace {

const std::vector<std::string> kHeads = {"0,0", "0,1", "1,0", "1,1"};
const std::vector<std::string> kScopes = {"0,0", "0,1", "0,", "1,0", "1,1", "1,", ","};
const std::vector<std::string> kErrors = {"reconstruction_error", "relative_reconstruction_error",
                                          "output_error"};
constexpr std::size_t kTokens = 61, kDim = 8, kRecent = 32;

ChannelFigures channels(const std::string& dump, const std::string& out,
                        const std::vector<std::string>& more = {}) {
  run_command("channels", dump, out, more);
  return ChannelFigures(out);
}

const char* pruned_at(const std::string& ratio) {
  return ratio == "0" ? "0" : ratio == "0.3" ? "2" : "4";  // of 8
}

/// The sum of H over a set, of rows r of both.
double error_of(const Npy& H, const Npy& pruned, std::size_t r) {
  const std::vector<double> all = H.as<double>();
  const std::vector<char> set = row_of<char>(pruned, r);
  const std::size_t d = set.size();
  double error = 0;
  for (std::size_t c = 0; c < d; ++c)
    for (std::size_t e = 0; e < d; ++e)
      if (set[c] != 0 && set[e] != 0) error += all[(r * d + c) * d + e];
  return error;
}

}  // namespace

TEST_CASE("the result folder of channels is as its format says", "[cli][channels]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  const std::string semantics = GENERATE("paper", "official", "kvpress");
  const std::string precision = semantics == "kvpress" ? "f32" : "f64";
  const bool official = semantics == "official";
  const std::vector<std::string> orders = {"magnitude", "think", "iap", "output", "rope_pairs"},
                                 searches = {"exchange", "exchange+think", "convex"},
                                 methods = joined(orders, searches), ratios = {"0", "0.3", "0.5"};
  const fs::path out = temp / "r";
  const ChannelFigures csv = channels(temp / "dump", out,
                                      {"--method", fmt::format("{}", fmt::join(methods, ",")), "--ratio",
                                       "0,0.3,0.5", "--semantics", semantics, "--precision", precision});

  // arrays
  const std::size_t n = official ? 4 : 2;
  using Shape = std::vector<std::size_t>;
  std::map<std::string, std::pair<std::string, Shape>> files = {
      {"interaction", {"<f8", {n, kDim, kDim}}},
      {"output_interaction", {"<f8", {n, kDim, kDim}}},
      {"spectrum", {"<f8", {n, kDim}}},
      {"rope_pair", {"<i4", {kDim}}}};
  for (const char* moment : {"window_mean", "window_std", "future_mean", "future_std"})
    files[fmt::format("query_{}", moment)] = {"<f8", {4, kDim}};
  for (const std::string& method : orders) files[method + "_order"] = {"<i4", {n, kDim}};
  for (const std::string& method : methods)
    for (const std::string& ratio : ratios) files[method + "-" + ratio] = {"|b1", {n, kDim}};
  std::set<std::string> names, maps;
  for (const auto& file : files) names.insert(file.first + ".npy");
  for (const std::size_t layer : {0, 1}) {
    CHECK(names_in(out / fmt::format("layer_0{}", layer)) == std::set<std::string>{"channels"});
    CHECK(names_in(out / fmt::format("layer_0{}/channels", layer)) == names);
    for (const auto& [name, want] : files) {
      INFO(name);
      const Npy array = channel_array(out, layer, name);
      CHECK(array.descr == want.first);
      CHECK(array.shape == want.second);
    }
    CHECK(channel_array(out, layer, "rope_pair").as<std::int32_t>() ==
          std::vector<std::int32_t>{4, 5, 6, 7, 0, 1, 2, 3});
  }

  // rows of the table: which there are, and what their columns hold
  std::size_t rows = 0;
  for (const std::string& scope : kScopes) {
    CHECK(csv.has(scope, "-", "window", "off_diagonal_share"));
    CHECK(csv.has(scope, "-", "window", "rope_pair_share"));
    rows += 2;
    for (const std::string& method : methods)
      for (const std::string& ratio : ratios) {
        const std::string which = method + "-" + ratio;
        for (const char* metric : {"reconstruction_error", "relative_reconstruction_error",
                                   "reconstruction_gain", "output_error", "output_gain"})
          for (const char* on : {"window", "future"}) {
            INFO(scope << " " << which << " " << metric << " " << on);
            CHECK(csv.has(scope, which, on, metric));
            ++rows;
          }
        CHECK(csv.has(scope, which, "", "bytes"));
        const bool layer = scope == "0," || scope == "1,";
        for (const char* on : {"window", "future"})
          for (const char* metric : {"layer_output_error", "layer_output_gain"})
            CHECK(csv.has(scope, which, on, metric) == layer);
        const bool bound = method == "convex" && !official;
        for (const char* metric : {"lower_bound", "proven"})
          CHECK(csv.has(scope, which, "window", metric) == bound);
        rows += 1 + (layer ? 4 : 0) + (bound ? 2 : 0);
      }
  }
  CHECK(csv.rows().size() == rows);
  for (const CsvRow& row : csv.rows()) {
    CHECK(row.at("semantics") == semantics);
    CHECK(row.at("recent") == (semantics == "kvpress" ? "0" : "32"));
    if (row.at("method") == "rope_pairs")
      CHECK(std::stoul(row.at("pruned")) <= std::stoul(pruned_at(row.at("ratio"))));
    else
      CHECK(row.at("pruned") == (row.at("method").empty() ? "" : pruned_at(row.at("ratio"))));
    CHECK((row.at("rows") == "") == (row.at("metric") == "bytes"));
  }

  // a map for every figure of a head
  maps = {"off_diagonal_share.npy", "rope_pair_share.npy"};
  for (const CsvRow& row : csv.rows())
    if (!row.at("method").empty() && row.at("metric") != "bytes" && !row.at("metric").starts_with("layer_"))
      maps.insert(fmt::format("{}-{}~{}~{}.npy", row.at("method"), row.at("ratio"), row.at("rows"),
                              row.at("metric")));
  CHECK(names_in(out / "maps") == maps);
  for (const std::string& name : maps) {
    const Npy map = npy_file(out / "maps" / name);
    CHECK(map.descr == "<f8");
    CHECK(map.shape == Shape{2, 2});
  }
  const Npy map = npy_file(out / "maps/iap-0.5~future~output_error.npy"),
            share = npy_file(out / "maps/off_diagonal_share.npy");
  for (std::size_t head = 0; head < 4; ++head) {
    CHECK(map.as<double>()[head] == csv.at(kHeads[head], "iap-0.5", "future", "output_error"));
    CHECK(share.as<double>()[head] == csv.at(kHeads[head], "-", "window", "off_diagonal_share"));
  }

  const Json summary = Json::parse(file_text(out / "summary.json"));
  const Json& options = summary["options"]["channels"];
  CHECK(options["methods"] == methods);
  CHECK(options["ratios"] == std::vector<double>{0, 0.3, 0.5});
  CHECK(options["semantics"] == semantics);
  CHECK(options["recent"] == (semantics == "kvpress" ? 0 : 32));
  CHECK(options["window"] == 32);
  CHECK(options["protect"].is_null());
  const Json& totals = summary["totals"];
  CHECK(totals["channel_rows"] == rows);
  CHECK(totals["channel_window_rows"] == 32);
  CHECK(totals["channel_errors"].size() == methods.size() * ratios.size());
  for (const auto& [which, error] : totals["channel_errors"].items())
    CHECK(error.get<double>() == csv.at(",", which, "future", "output_error"));
  REQUIRE(summary["left_out"].size() == 1);
  CHECK(summary["left_out"][0]["what"] ==
        "loss_row, loss_head, loss_layer, loss_step, loss_joint, dnll");  // the dump has no gradients
  CHECK(contains(summary["notes"].dump(), "errors do not feed back"));
  CHECK_FALSE(fs::exists(out / ".kvreplay"));
}

TEST_CASE("matrices, orders and sets of channels belong together", "[cli][channels]") {
  const TempDir temp;
  const std::string ratios = "0,0.3,0.5,0.7";
  const ChannelFigures csv = channels(sample_dump(), temp / "r",
                                      {"--layers", "1,4", "--method",
                                       "magnitude,think,iap,output,rope_pairs,exchange,exchange+output,"
                                       "convex",
                                       "--ratio", ratios});
  constexpr std::size_t d = 64;
  for (const std::size_t layer : {1, 4}) {
    const Npy H = channel_array(temp / "r", layer, "interaction"),
              M = channel_array(temp / "r", layer, "output_interaction"),
              spectrum = channel_array(temp / "r", layer, "spectrum");
    const std::vector<double> all = H.as<double>(), outputs = M.as<double>();
    const std::vector<std::int32_t> partner =
        channel_array(temp / "r", layer, "rope_pair").as<std::int32_t>();
    for (std::size_t head = 0; head < 2; ++head) {
      INFO("layer " << layer << ", KV head " << head);
      const auto entry = [&](std::size_t c, std::size_t e) { return all[(head * d + c) * d + e]; };
      double trace = 0, squares = 0, off = 0, pairs = 0, diagonal = 0;
      std::vector<double> costs;
      for (std::size_t c = 0; c < d; ++c) {
        costs.push_back(entry(c, c));
        trace += entry(c, c);
        diagonal += std::abs(entry(c, c));
        for (std::size_t e = 0; e < d; ++e) {
          REQUIRE(entry(c, e) == entry(e, c));
          REQUIRE(outputs[(head * d + c) * d + e] == outputs[(head * d + e) * d + c]);
          REQUIRE(entry(c, e) * entry(c, e) <= entry(c, c) * entry(e, e) * (1 + 1e-12));
          squares += entry(c, e) * entry(c, e);
          if (c != e) off += std::abs(entry(c, e));
          if (partner[c] == static_cast<int>(e)) pairs += std::abs(entry(c, e));
        }
      }
      const std::string scope = fmt::format("{},{}", layer, head);
      CHECK(csv.at(scope, "-", "window", "off_diagonal_share") == Approx(off / (off + diagonal)));
      CHECK(csv.at(scope, "-", "window", "rope_pair_share") == Approx(pairs / off));
      const std::vector<double> values = row_of<double>(spectrum, head);
      CHECK(std::is_sorted(values.rbegin(), values.rend()));
      CHECK(std::accumulate(values.begin(), values.end(), 0.0) == Approx(trace));
      CHECK(std::inner_product(values.begin(), values.end(), values.begin(), 0.0) == Approx(squares));
      CHECK(values.back() > -1e-12 * values.front());

      // think's order is that of the diagonal
      std::vector<std::int32_t> ascending(d);
      std::iota(ascending.begin(), ascending.end(), 0);
      std::stable_sort(ascending.begin(), ascending.end(),
                       [&](std::int32_t a, std::int32_t b) { return costs[a] < costs[b]; });
      CHECK(row_of<std::int32_t>(channel_array(temp / "r", layer, "think_order"), head) == ascending);

      for (const char* method : {"magnitude", "think", "iap", "output", "rope_pairs"}) {
        const std::vector<std::int32_t> order =
            row_of<std::int32_t>(channel_array(temp / "r", layer, fmt::format("{}_order", method)), head);
        CHECK(std::set<std::int32_t>(order.begin(), order.end()).size() == d);  // every channel, once
        CHECK(*std::min_element(order.begin(), order.end()) == 0);
        CHECK(*std::max_element(order.begin(), order.end()) == static_cast<int>(d - 1));
        for (const auto& [ratio, n] :
             {std::pair<const char*, std::size_t>{"0", 0}, {"0.3", 19}, {"0.5", 32}, {"0.7", 44}}) {
          INFO(method << " " << ratio);
          const std::vector<char> set =
              row_of<char>(channel_array(temp / "r", layer, fmt::format("{}-{}", method, ratio)), head);
          const bool odd_pair = method == std::string("rope_pairs") && n % 2 == 1;
          CHECK(marked(set) == (odd_pair ? n - 1 : n));
          if (method == std::string("output")) continue;  // its swaps leave the order
          for (std::size_t i = 0; i < d; ++i) CHECK((set[order[i]] != 0) == (i < marked(set)));
        }
      }
      // the error of a set is the sum of H over it
      for (const char* method :
           {"magnitude", "think", "iap", "output", "rope_pairs", "exchange", "exchange+output", "convex"})
        for (const char* ratio : {"0.3", "0.5", "0.7"}) {
          const std::string which = fmt::format("{}-{}", method, ratio);
          INFO(which);
          CHECK(csv.at(scope, which, "window", "reconstruction_error") ==
                Approx(error_of(H, channel_array(temp / "r", layer, which), head)).epsilon(1e-10));
        }
    }
  }
}

TEST_CASE("what pruning costs obeys its laws", "[cli][channels]") {
  const TempDir temp;
  const std::vector<std::string> starts = {"magnitude", "think", "iap", "output"},
                                 methods = joined(starts, {"exchange", "exchange+magnitude", "exchange+think",
                                                           "exchange+output", "convex"});
  const ChannelFigures csv = channels(
      sample_dump(), temp / "r",
      {"--layers", "0,3", "--method", fmt::format("{}", fmt::join(methods, ",")), "--ratio", "0,0.4,0.6"});
  const std::vector<std::string> heads = {"0,0", "0,1", "3,0", "3,1"};
  const double whole = 896 * (64 + 64) * 2;  // float16
  for (const std::string& method : methods)
    for (const std::string scope : {"0,0", "3,1", "0,", "3,", ","}) {
      const std::string none = method + "-0";
      for (const std::string& metric : joined(kErrors, {"reconstruction_gain", "output_gain"}))
        for (const char* rows : {"window", "future"}) CHECK(csv.at(scope, none, rows, metric) == 0.0);
      if (method == "convex") {
        CHECK(csv.at(scope, none, "window", "lower_bound") == 0.0);
        CHECK(csv.at(scope, none, "window", "proven") == 1.0);
      }
      const double selections = scope == "," ? 4 : scope.back() == ',' ? 2 : 1;
      CHECK(csv.at(scope, none, "", "bytes") == selections * whole);
      CHECK(csv.at(scope, method + "-0.4", "", "bytes") == selections * (whole - (896 - 32) * 25 * 2));
    }
  int improved = 0;
  for (const char* ratio : {"0.4", "0.6"}) {
    const auto which = [&](const std::string& method) { return fmt::format("{}-{}", method, ratio); };
    for (const std::string& head : heads) {
      INFO(head << " " << ratio);
      const auto error = [&](const std::string& method) {
        return csv.at(head, which(method), "window", "reconstruction_error");
      };
      const double rounding = 1e-10 * error("magnitude");
      for (const std::string& start : starts) {
        const std::string swapped = start == "iap" ? "exchange" : "exchange+" + start;
        INFO(start);
        CHECK(error(swapped) <= error(start) + rounding);
        improved += error(swapped) < 0.999 * error(start);
        CHECK(error("convex") <= error(swapped) + rounding);
      }
      const double bound = csv.at(head, which("convex"), "window", "lower_bound");
      CHECK(bound <= error("convex") + rounding);
      CHECK(bound > 0.9 * error("convex"));
      const double proven = csv.at(head, which("convex"), "window", "proven");
      CHECK((proven == 0.0 || proven == 1.0));
      if (proven == 1.0) CHECK(bound == Approx(error("convex")).epsilon(1e-9));
    }
    // a layer's figures are sums, the model's those of its layers; ratios are of sums
    for (const std::string& method : methods) {
      for (const char* rows : {"window", "future"}) {
        const auto sum = [&](const auto& of) {
          double total = 0;
          for (const std::string& head : heads) total += of(head);
          return total;
        };
        const auto reconstruction = [&](const std::string& scope) {
          return csv.at(scope, which(method), rows, "reconstruction_error");
        };
        const auto logits = [&](const std::string& scope) {  // ||Q K^T||^2
          return reconstruction(scope) / csv.at(scope, which(method), rows, "relative_reconstruction_error");
        };
        INFO(method << " " << rows << " " << ratio);
        CHECK(reconstruction(",") == Approx(sum(reconstruction)));
        CHECK(reconstruction("3,") == Approx(reconstruction("3,0") + reconstruction("3,1")));
        CHECK(logits(",") == Approx(sum(logits)));
        CHECK(logits("0,") == Approx(logits("0,0") + logits("0,1")));
        const auto output = [&](const std::string& scope) {
          return csv.at(scope, which(method), rows, "output_error");
        };
        CHECK(output(",") >= std::min(output("0,"), output("3,")));
        CHECK(output(",") <= std::max(output("0,"), output("3,")));
        CHECK(csv.at("0,", which(method), rows, "layer_output_error") > 0);
        CHECK_FALSE(csv.has(",", which(method), rows, "layer_output_error"));
        for (const std::string scope : {"0,0", "3,1", "3,", ","})
          for (const auto& [gain, of] : {std::pair{"reconstruction_gain", "reconstruction_error"},
                                         std::pair{"output_gain", "output_error"}}) {
            const double think = csv.at(scope, which("think"), rows, of);
            CHECK(csv.at(scope, which(method), rows, gain) ==
                  Approx((think - csv.at(scope, which(method), rows, of)) / think).margin(1e-12));
            if (method == "think") CHECK(csv.at(scope, which(method), rows, gain) == 0.0);
          }
      }
      CHECK(csv.at(",", which(method), "", "bytes") == 4 * csv.at("0,0", which(method), "", "bytes"));
    }
  }
  CHECK(improved > 10);
  double proven = 0;
  for (const std::string& head : heads) proven += csv.at(head, "convex-0.4", "window", "proven") / 4;
  CHECK(csv.at(",", "convex-0.4", "window", "proven") == Approx(proven));
  for (const char* share : {"off_diagonal_share", "rope_pair_share"}) {
    double mean = 0;
    for (const std::string& head : heads) mean += csv.at(head, "-", "window", share) / 4;
    CHECK(csv.at(",", "-", "window", share) == Approx(mean));
  }
}

TEST_CASE("queries drift from the window to the decoding steps", "[cli][channels]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  channels(temp / "dump", temp / "r", {"--window", "7", "--method", "think", "--ratio", "0.5"});
  const Npy q = npy_file(fs::path(temp / "dump") / "layer_01/q.npy");
  REQUIRE(q.shape == std::vector<std::size_t>{4, kTokens + 9, kDim});
  const std::vector<float> all = q.as<float>();
  for (const auto& [name, begin, end] :
       {std::tuple<const char*, std::size_t, std::size_t>{"window", kTokens - 7, kTokens},
        {"future", kTokens, kTokens + 9}}) {
    const std::vector<double>
        means = channel_array(temp / "r", 1, fmt::format("query_{}_mean", name)).as<double>(),
        deviations = channel_array(temp / "r", 1, fmt::format("query_{}_std", name)).as<double>();
    const auto n = static_cast<double>(end - begin);
    for (std::size_t h = 0; h < 4; ++h)
      for (std::size_t c = 0; c < kDim; ++c) {
        INFO(name << ", head " << h << ", channel " << c);
        double mean = 0, variance = 0;
        for (std::size_t i = begin; i < end; ++i) mean += all[(h * q.shape[1] + i) * kDim + c] / n;
        for (std::size_t i = begin; i < end; ++i)
          variance += std::pow(all[(h * q.shape[1] + i) * kDim + c] - mean, 2) / n;
        CHECK(means[h * kDim + c] == Approx(mean).epsilon(1e-12));
        CHECK(deviations[h * kDim + c] == Approx(std::sqrt(variance)).epsilon(1e-12));
      }
  }
}

TEST_CASE("the settings of three sources differ as they say", "[cli][channels]") {
  const TempDir temp;
  const std::string dump = temp / "dump";
  make_small_dump(dump);
  const std::vector<std::string> options = {"--method", "think,iap,output", "--ratio", "0.5"};
  const auto with = [&](const std::string& out, const std::vector<std::string>& more) {
    return channels(dump, temp / out, joined(options, more));
  };
  const ChannelFigures paper = with("p", {"--recent", "0"}), kvpress = with("k", {"--semantics", "kvpress"}),
                       recent = with("kr", {"--semantics", "kvpress", "--recent", "5"}),
                       official = with("o", {"--semantics", "official"}), usual = with("u", {});
  // kvpress is the paper's with no recent keys
  REQUIRE(paper.rows().size() == kvpress.rows().size());
  for (std::size_t r = 0; r < paper.rows().size(); ++r) {
    CsvRow a = paper.rows()[r], b = kvpress.rows()[r];
    a.erase("semantics");
    b.erase("semantics");
    CHECK(a == b);
  }
  CHECK(usual.at("0,0", "iap-0.5", "", "bytes") - kvpress.at("0,0", "iap-0.5", "", "bytes") ==
        kRecent * 4 * 2);
  CHECK(recent.at("0,0", "iap-0.5", "", "bytes") - kvpress.at("0,0", "iap-0.5", "", "bytes") == 5 * 4 * 2);
  // ThinK's code: every query head has its own; its cache, too, counts as one of its own
  for (const std::size_t layer : {0, 1}) {
    const Npy H = channel_array(temp / "o", layer, "interaction");
    REQUIRE(H.shape == std::vector<std::size_t>{4, kDim, kDim});
    for (const std::size_t head : {0, 2})
      CHECK(row_of<double>(H, head * kDim) != row_of<double>(H, (head + 1) * kDim));
  }
  CHECK(official.at(",", "iap-0.5", "", "bytes") == 2 * usual.at(",", "iap-0.5", "", "bytes"));
  // with one query head to a KV head and no recent keys, all three are the same
  make_small_dump(temp / "mha", {"--q-heads", "2"});
  for (const char* semantics : {"paper", "official", "kvpress"})
    channels(temp / "mha", temp / fmt::format("m{}", semantics),
             joined(options, {"--recent", "0", "--semantics", semantics}));
  for (const char* other : {"mofficial", "mkvpress"})
    for (const char* file : {"interaction", "output_interaction", "think_order", "iap-0.5", "output-0.5"})
      CHECK(channel_array(temp / "mpaper", 1, file).data == channel_array(temp / other, 1, file).data);
}

TEST_CASE("ratios prune as many channels as their semantics says", "[cli][channels]") {
  const TempDir temp;
  make_small_dump(temp / "dump", {"--layers", "1", "--head-dim", "100", "--prompt", "40"});
  for (const auto& [semantics, pruned] : {std::pair{"paper", "29"}, {"official", "28"}, {"kvpress", "28"}}) {
    const ChannelFigures csv =
        channels(temp / "dump", temp / semantics,
                 {"--method", "think", "--ratio", "0.29", "--semantics", semantics, "--window", "4"});
    for (const CsvRow& row : csv.rows())
      if (!row.at("method").empty()) CHECK(row.at("pruned") == pruned);
    CHECK(marked(row_of<char>(channel_array(temp / semantics, 0, "think-0.29"), 0)) == std::stoul(pruned));
  }
}

TEST_CASE("protected channels stay", "[cli][channels]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  const std::vector<std::string> options = {
      "--method", "magnitude,think,iap,exchange,output,convex,rope_pairs", "--ratio", "0.5,0.9"};
  // at least 4 and at most 4 of 8 channels: those of the largest norms, which magnitude would prune last
  channels(temp / "dump", temp / "all", options);
  const ChannelFigures csv = channels(temp / "dump", temp / "r", joined(options, {"--protect", "50:50"}));
  for (const std::size_t layer : {0, 1})
    for (std::size_t head = 0; head < 2; ++head) {
      const std::vector<std::int32_t> norms =
          row_of<std::int32_t>(channel_array(temp / "all", layer, "magnitude_order"), head);
      const std::set<std::int32_t> fixed(norms.begin() + 4, norms.end());
      for (const char* method : {"magnitude", "think", "iap", "exchange", "output", "convex", "rope_pairs"}) {
        INFO(layer << "," << head << " " << method);
        for (const char* ratio : {"0.5", "0.9"}) {
          const std::vector<char> set =
              row_of<char>(channel_array(temp / "r", layer, fmt::format("{}-{}", method, ratio)), head);
          for (const std::int32_t c : fixed) CHECK(set[c] == 0);
          if (method != std::string("rope_pairs")) CHECK(marked(set) == 4);
        }
        if (!fs::exists(temp / "r/layer_00/channels" / fmt::format("{}_order.npy", method))) continue;
        const std::vector<std::int32_t> order =
            row_of<std::int32_t>(channel_array(temp / "r", layer, fmt::format("{}_order", method)), head);
        const auto end = std::find(order.begin(), order.end(), -1);
        CHECK(std::count(end, order.end(), -1) == order.end() - end);  // -1 stands at the end
        CHECK(std::none_of(order.begin(), end, [&](std::int32_t c) { return fixed.count(c) == 1; }));
        CHECK((end - order.begin() == 4 || method == std::string("rope_pairs")));
      }
    }
  for (const CsvRow& row : csv.rows())
    if (!row.at("method").empty() && row.at("method") != "rope_pairs") CHECK(row.at("pruned") == "4");
  CHECK(Json::parse(file_text(temp / "r/summary.json"))["options"]["channels"]["protect"] ==
        std::vector<double>{50, 50});
  // "off" and an upper end of 0 protect nothing
  channels(temp / "dump", temp / "zero", joined(options, {"--protect", "0:0"}));
  for (const char* file : {"iap_order", "convex-0.5"})
    CHECK(channel_array(temp / "zero", 0, file).data == channel_array(temp / "all", 0, file).data);
}

TEST_CASE("what a method chooses itself is what a run of its own would have chosen", "[cli][channels]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  const std::string semantics = GENERATE("paper", "official");
  const auto run = [&](const char* out, std::vector<std::string> more) {
    more.insert(more.end(), {"--ratio", "0.3,0.5", "--semantics", semantics});
    return channels(temp / "dump", temp / out, more);
  };
  const ChannelFigures swept =
      run("swept", {"--method", "think,iap[protect=off/25:50,recent=32/16],think[recent=0],think[recent=16]",
                    "--protect", "10:20"});
  struct Own {
    const char *name, *method, *protect, *recent;
  };
  for (const Own& own : {Own{"think", "think", "10:20", "32"},
                         {"iap[protect=off,recent=32]", "iap", "off", "32"},
                         {"iap[protect=off,recent=16]", "iap", "off", "16"},
                         {"iap[protect=25:50,recent=32]", "iap", "25:50", "32"},
                         {"iap[protect=25:50,recent=16]", "iap", "25:50", "16"},
                         {"think[recent=0]", "think", "10:20", "0"},
                         {"think[recent=16]", "think", "10:20", "16"}}) {
    const std::string out =
        fmt::format("{}-{}-{}", own.method, std::string(own.protect).substr(0, 2), own.recent);
    const ChannelFigures alone = run(
        out.c_str(), {"--method", own.method, "--protect", own.protect, "--recent", own.recent, "--force"});
    for (const std::string& scope : kScopes)
      for (const char* ratio : {"0.3", "0.5"})
        for (const std::string& metric : kErrors) {
          INFO(own.name << " " << scope << " " << ratio << " " << metric);
          for (const char* rows : {"window", "future"})
            CHECK(swept.at(scope, fmt::format("{}-{}", own.name, ratio), rows, metric) ==
                  alone.at(scope, fmt::format("{}-{}", own.method, ratio), rows, metric));
        }
    std::string word = own.name;
    std::replace(word.begin(), word.end(), ':', '_');
    for (const char* array : {"-0.5", "_order"})
      CHECK(npy_file(temp / fmt::format("swept/layer_01/channels/{}{}.npy", word, array)).data ==
            npy_file(temp / fmt::format("{}/layer_01/channels/{}{}.npy", out, own.method, array)).data);
    for (const CsvRow& row : swept.rows())
      if (row.at("method") == own.name) CHECK(row.at("recent") == own.recent);
  }
  // A gain is over think with as many recent keys.
  for (const char* recent : {"32", "16"}) {
    const std::string think = recent == std::string("32") ? "think" : "think[recent=16]",
                      iap = fmt::format("iap[protect=25:50,recent={}]", recent);
    const double error = swept.at(",", iap + "-0.5", "window", "reconstruction_error"),
                 reference = swept.at(",", think + "-0.5", "window", "reconstruction_error");
    if (swept.has(",", iap + "-0.5", "window", "reconstruction_gain"))
      CHECK(swept.at(",", iap + "-0.5", "window", "reconstruction_gain") == (reference - error) / reference);
  }
}

TEST_CASE("float32 finds the same channels and errors as float64", "[cli][channels]") {
  const TempDir temp;
  const std::vector<std::string> options = {
      "--method", "think,iap,exchange,output", "--ratio", "0,0.5", "--layers", "2"};
  const ChannelFigures exact = channels(sample_dump(), temp / "64", options),
                       single = channels(sample_dump(), temp / "32", joined(options, {"--precision", "f32"}));
  REQUIRE(exact.rows().size() == single.rows().size());
  for (std::size_t r = 0; r < exact.rows().size(); ++r) {
    CsvRow a = exact.rows()[r], b = single.rows()[r];
    const double want = std::stod(a["value"]), got = std::stod(b["value"]);
    INFO(a["kv_head"] << " " << a["method"] << " " << a["ratio"] << " " << a["rows"] << " " << a["metric"]);
    if (a["ratio"] == "0")
      CHECK(got == want);  // exactly 0
    else
      CHECK(got == Approx(want).epsilon(1e-4).margin(1e-5));
    a.erase("value");
    b.erase("value");
    CHECK(a == b);
  }
  for (const char* name : {"think-0.5", "iap-0.5", "exchange-0.5", "output-0.5"})
    CHECK(channel_array(temp / "32", 2, name).data == channel_array(temp / "64", 2, name).data);
}

TEST_CASE("pictures of interactions come with --png", "[cli][channels]") {
  const TempDir temp;
  make_small_dump(temp / "dump");
  const std::vector<std::string> options = {"--method", "think", "--ratio", "0.5"};
  const auto pictures = [&](const std::string& out) {
    std::set<std::string> names;
    for (const std::string& name : names_in(temp / out / "layer_01/channels"))
      if (name.ends_with(".png")) {
        names.insert(name);
        CHECK(file_text(temp / out / "layer_01/channels" / name).starts_with("\x89PNG\r\n\x1a\n"));
      }
    return names;
  };
  channels(temp / "dump", temp / "none", options);
  CHECK(pictures("none").empty());
  channels(temp / "dump", temp / "some", joined(options, {"--png"}));
  channels(temp / "dump", temp / "alone", joined(options, {"--png", "--threads", "1"}));
  CHECK(difference(temp / "some", temp / "alone") == "");
  CHECK(pictures("some") == std::set<std::string>{"interaction-0.png", "interaction-1.png"});
  channels(temp / "dump", temp / "all",
           {"--method", "output", "--ratio", "0.5", "--png", "--semantics", "official"});
  std::set<std::string> all;
  for (int head = 0; head < 4; ++head) {
    all.insert(fmt::format("interaction-{}.png", head));
    all.insert(fmt::format("output_interaction-{}.png", head));
  }
  CHECK(pictures("all") == all);
}

TEST_CASE("analyze runs channels too, with the same bytes", "[cli][channels]") {
  const TempDir temp;
  make_small_dump(temp / "dump", {"--layers", "1"});
  channels(temp / "dump", temp / "c");
  run_command("analyze", temp / "dump", temp / "only", {"--only", "channels"});
  CHECK(difference(temp / "c", temp / "only") == "");
  run_command("analyze", temp / "dump", temp / "all");
  for (const auto& [name, bytes] : contents(temp / "c"))
    if (name != "summary.json" && name != "files.csv" && bytes != "(folder)") {
      INFO(name);
      REQUIRE(fs::exists(temp / "all" / name));
      CHECK(file_text(temp / "all" / name) == bytes);
    }
  const Json summary = Json::parse(file_text(temp / "all/summary.json"));
  CHECK(summary["options"].contains("channels"));
  CHECK(summary["totals"]["channel_errors"] ==
        Json::parse(file_text(temp / "c/summary.json"))["totals"]["channel_errors"]);
}
