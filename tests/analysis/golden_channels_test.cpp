#include "tests/analysis/channel_runs.hpp"
#include "tests/support/catch.hpp"

#include <cstdint>

// Losses of layer 2 of the sample dump, as tests/golden/pin_channels.py computes them from the definitions:
// nothing here comes from the program. golden_channels.py compares all the rest.

using namespace kvreplay::test;

namespace {

constexpr std::size_t kLayer = 2;

struct Pruning {
  const char *semantics, *method;
  std::size_t selection;  ///< KV head, or query head under the official semantics
  std::uint64_t pruned;   ///< channel 0 the lowest bit
  double reconstruction;  ///< on the window
  double output;          ///< relative, on the decoding steps
};
constexpr Pruning kPrunings[] = {
    {"paper", "magnitude", 0, 0x0003ffff0047ffff, 5178764.29864, 0.0225828214529},
    {"paper", "magnitude", 1, 0xffe8124fffe8124f, 2764601.19794, 0.00191889026779},
    {"paper", "think", 0, 0x0028bfff4447dfff, 4419825.23739, 0.0382420454629},
    {"paper", "think", 1, 0xffe8120bfff8164f, 2589384.37115, 0.00183595818953},
    {"paper", "iap", 0, 0x0000ffff444fdfff, 4287317.01216, 0.0395570607139},
    {"paper", "iap", 1, 0xffe0121fffd8164f, 2286081.51681, 0.00183433431236},
    {"paper", "exchange", 0, 0x0000ffff444fdfff, 4287317.01216, 0.0395570607139},
    {"paper", "exchange", 1, 0xffe0121fffd8164f, 2286081.51681, 0.00183433431236},
    {"paper", "output", 0, 0x480cbfd7866fd67f, 7223991.3182, 0.0954040335734},
    {"paper", "output", 1, 0xdff1081f7f6a55ea, 4101373.19986, 0.00608490221985},
    {"paper", "rope_pairs", 0, 0x000bffff000bffff, 5243806.97359, 0.0233138186145},
    {"paper", "rope_pairs", 1, 0xffc8164fffc8164f, 2633138.58036, 0.0016409440339},
    {"official", "think", 0, 0xfbb836a8f75f52aa, 1320477.02772, 0.0231945098015},
    {"official", "think", 1, 0x0003ffff4007ffff, 1133459.4482, 0.034235665011},
    {"official", "think", 2, 0xfff0160fffd8160f, 822179.584848, 0.00134614061305},
    {"official", "think", 3, 0xffe89208fffb164b, 1328634.82315, 0.00230031198947},
    {"kvpress", "think", 0, 0x0028bfff4447dfff, 4761374.25024, 0.0976191568874},
    {"kvpress", "think", 1, 0xffe8120bfff8164f, 2716430.79354, 0.0228725957636},
};

struct Cache {
  const char *channels, *bits;
  std::size_t kv_head;
  double output;  ///< relative, on the decoding steps
  double bytes;
};
constexpr Cache kCaches[] = {
    {"iap:0.5", "4", 0, 0.013266997673, 72704},     {"iap:0.5", "4", 1, 0.00120103634368, 72704},
    {"", "2", 0, 0.0487606916595, 69632},           {"", "2", 1, 0.000367875218023, 69632},
    {"output:0.4", "", 0, 0.0128483225844, 186176}, {"output:0.4", "", 1, 0.00122327730891, 186176},
};

}  // namespace

TEST_CASE("pruned channels of the sample dump equal the judge's", "[golden][channels]") {
  const TempDir temp;
  for (const auto& [semantics, methods] :
       {std::pair{"paper", "magnitude,think,iap,exchange,output,rope_pairs"},
        {"official", "think"},
        {"kvpress", "think"}})
    run_command("channels", sample_dump(), temp / semantics,
                {"--layers", "2", "--ratio", "0.6", "--method", methods, "--semantics", semantics});
  std::map<std::string, double> per_head;
  for (const Pruning& want : kPrunings) {
    INFO(want.semantics << " " << want.method << " " << want.selection);
    const std::string which = fmt::format("{}-0.6", want.method);
    const std::vector<char> set =
        row_of<char>(channel_array(temp / want.semantics, kLayer, which), want.selection);
    std::uint64_t pruned = 0;
    for (std::size_t c = 0; c < set.size(); ++c) pruned |= std::uint64_t{set[c] != 0} << c;
    CHECK(pruned == want.pruned);
    const ChannelFigures csv(temp / want.semantics);
    const std::size_t selections = want.semantics == std::string("official") ? 2 : 1;
    const std::string scope = fmt::format("2,{}", want.selection / selections);
    per_head[want.semantics + (which + scope)] += want.reconstruction;
    if ((want.selection + 1) % selections == 0)
      CHECK(csv.at(scope, which, "window", "reconstruction_error") ==
            Approx(per_head[want.semantics + (which + scope)]).epsilon(1e-9));
    if (selections == 1)
      CHECK(csv.at(scope, which, "future", "output_error") == Approx(want.output).epsilon(1e-9));
  }
}

TEST_CASE("compressed caches of the sample dump cost what the judge says", "[golden][compress]") {
  const TempDir temp;
  std::map<std::string, Evictions> tables;
  for (const Cache& want : kCaches) {
    const std::string name = fmt::format("{}-{}", want.channels, want.bits);
    if (tables.count(name) == 0) {
      std::vector<std::string> options = {"--layers", "2", "--policy", "none"};
      if (*want.channels != '\0') options = joined(options, {"--channels", want.channels});
      if (*want.bits != '\0') options = joined(options, {"--bits", want.bits});
      run_command("evict", sample_dump(), temp / name, options);
      tables.emplace(name, Evictions(temp / name));
    }
    INFO(name << ", KV head " << want.kv_head);
    const std::string scope = fmt::format("2,{}", want.kv_head), run = "none,paper,prefill,";
    CHECK(tables.at(name).at(scope, run, "future", "output_error") == Approx(want.output).epsilon(1e-9));
    CHECK(tables.at(name).at(scope, run, "", "bytes") == want.bytes);
  }
}
