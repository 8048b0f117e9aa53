#include "tests/analysis/kvreplay_program.hpp"
#include "tests/analysis/result_files.hpp"
#include "tests/support/catch.hpp"

#include <nlohmann/json.hpp>

using namespace kvreplay::test;
namespace fs = std::filesystem;

namespace {

/// A small dump as a capture leaves it that was interrupted: layer 1 has its first 30 of 70 positions.
void make_interrupted(const std::string& dump) {
  make_small_dump(dump);
  const fs::path path = fs::path(dump) / "manifest.json";
  auto manifest = nlohmann::json::parse(file_text(path));
  manifest["incomplete"] = true;
  write_file(path, manifest.dump());
  for (const char* name : {"q", "k", "v", "o"}) {
    const fs::path file = fs::path(dump) / "layer_01" / (std::string(name) + ".npy");
    if (!fs::exists(file)) continue;
    std::string bytes = file_text(file);
    const Npy array = npy_of(bytes);
    const std::size_t head = array.data.size() / array.shape[0], row = head / array.shape[1];
    for (std::size_t h = 0; h < array.shape[0]; ++h)
      for (std::size_t i = 30 * row; i < head; ++i)
        bytes[bytes.size() - array.data.size() + h * head + i] = '\0';
    write_file(file, bytes);
  }
}

}  // namespace

TEST_CASE("info tells a second reading", "[cli]") {
  const TempDir temp;
  const std::string dump = temp / "dump";
  make_small_dump(dump);
  CHECK_FALSE(contains(run_kvreplay({"info", dump}).out, "read again"));
  CHECK_FALSE(contains(run_kvreplay({"info", dump}).out, "q_ref"));
  add_second_reading(dump, 12);
  const ProcessResult info = run_kvreplay({"info", dump, "--values"});
  CHECK(info.code == 0);
  CHECK(contains(info.out, "\nread again  12 queries on positions 61-72\n"));
  CHECK(contains(info.out, "[4, 12, 8]"));
  CHECK_FALSE(contains(info.out, "kvzip"));
  const auto json = nlohmann::json::parse(run_kvreplay({"info", dump, "--json"}).out);
  CHECK(json["reference_rows"] == nlohmann::json({{"kind", "repeat"}, {"first", 61}, {"rows", 12}}));
  CHECK(contains(run_kvreplay({"info", dump, "--prompt-len", "50"}).out,
                 "\nread again  12 queries on positions 61-72, of a prompt of 61 tokens\n"));
}

TEST_CASE("info tells the layers of an interrupted capture, everything else refuses it", "[cli]") {
  const TempDir temp;
  const std::string dump = temp / "dump", out = temp / "r";
  make_interrupted(dump);
  const ProcessResult info = run_kvreplay({"info", dump});
  CHECK(info.code == 2);
  CHECK(contains(info.out, "interrupted"));
  CHECK(contains(info.out, "\nlayer 0     whole, 70 of 70 positions written\n"));
  CHECK(contains(info.out, "\nlayer 1     not whole, 30 of 70 positions written\n"));
  CHECK(info.err == "kvreplay: " + dump +
                        ": expected a whole dump, found one whose capture was interrupted, 1 of " +
                        "2 layers whole: capture it again\n");

  const ProcessResult json = run_kvreplay({"info", dump, "--json"});
  CHECK(json.code == 2);
  CHECK(json.err == info.err);
  const auto found = nlohmann::json::parse(json.out);
  CHECK(found["incomplete"] == true);
  CHECK(found["whole_layers"] == 1);
  CHECK(found["layers"][1] ==
        nlohmann::json({{"whole", false}, {"written", 30}, {"positions", 70}, {"fault", nullptr}}));
  const ProcessResult quiet = run_kvreplay({"info", dump, "--quiet"});
  CHECK(quiet.out.empty());
  CHECK(quiet.err == info.err);

  fs::resize_file(fs::path(dump) / "layer_00/v.npy", 1000);
  const ProcessResult cut = run_kvreplay({"info", dump});
  CHECK(contains(cut.out, "\nlayer 0     not whole, 0 of 70 positions written; v.npy is cut short by "));
  CHECK(contains(cut.err, "0 of 2 layers whole"));

  for (const char* command : {"tokens", "evict", "budget", "channels", "analyze"}) {
    INFO(command);
    CHECK(contains(complaint({command, dump, "--out", out}), "interrupted; kvreplay info " + dump + " says"));
    CHECK_FALSE(fs::exists(out));
  }
  CHECK(contains(complaint({"verify", dump}), "interrupted; kvreplay info " + dump));
}

TEST_CASE("info says why a capture has no rope and no wo", "[cli]") {
  const TempDir temp;
  const std::string dump = temp / "dump";
  make_small_dump(dump);
  const fs::path path = fs::path(dump) / "manifest.json";
  auto manifest = nlohmann::json::parse(file_text(path));
  manifest.erase("rope");
  manifest["rope_note"] = "no rope: the layers turn in several ways";
  manifest["wo_note"] = "no wo: layer 1 has no plain o_proj weight";
  write_file(path, manifest.dump());
  remove_tensor(dump, "wo");
  const ProcessResult info = run_kvreplay({"info", dump});
  CHECK(info.code == 0);
  CHECK(contains(info.out, "rope        the manifest has no rope (the layers turn in several ways)\n"));
  CHECK(contains(info.out, "note: there is no wo: layer 1 has no plain o_proj weight\n"));
  const auto json = nlohmann::json::parse(run_kvreplay({"info", dump, "--json"}).out);
  CHECK(json["rope_note"] == "the manifest has no rope (the layers turn in several ways)");
  CHECK(json["incomplete"] == false);
}
