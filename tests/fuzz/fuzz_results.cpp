// A result folder of which one file was damaged: refused with an InputError, or compared and shown. The
// folder that KVREPLAY_FUZZ_RESULTS names is copied first. An input is one file's number, what is done to it,
// where, and a text.

#include "analysis/report/report.hpp"
#include "analysis/results/compare_report.hpp"
#include "analysis/results/result_reader.hpp"
#include "data/atomic_file.hpp"
#include "data/error.hpp"
#include "tests/support/read_file.hpp"
#include "tests/support/temp_dir.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace fs = std::filesystem;
using namespace kvreplay;

namespace {

struct Folder {
  Folder() : path(temp / "results") {
    const char* original = std::getenv("KVREPLAY_FUZZ_RESULTS");
    if (original == nullptr) std::abort();
    fs::copy(original, path, fs::copy_options::recursive);
    for (const auto& entry : fs::recursive_directory_iterator(path))
      if (entry.is_regular_file()) files.emplace_back(entry.path(), test::read_file(entry.path()));
    std::sort(files.begin(), files.end());
  }
  test::TempDir temp;
  fs::path path;
  std::vector<std::pair<fs::path, std::string>> files;
};

std::string damaged(std::string whole, std::uint8_t how, std::size_t where, const std::string& text) {
  const std::size_t at = whole.size() * where / 65536;
  switch (how % 4) {
    case 0:
      return text;
    case 1:
      return whole.replace(at, text.size(), text);
    case 2:
      return whole.insert(at, text);
    default:
      return whole.substr(0, at) + text;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  static const Folder folder;
  static const ResultReader whole(std::getenv("KVREPLAY_FUZZ_RESULTS"));
  if (size < 4) return 0;
  const auto& [file, text] = folder.files[bytes[0] % folder.files.size()];
  write_file(file, damaged(text, bytes[1], bytes[2] * 256U + bytes[3],
                           std::string(reinterpret_cast<const char*>(bytes) + 4, size - 4)));
  try {
    const ResultReader results(folder.path);
    report::make_page(results, "");
    plain_text(comparison_of(results, {}, whole, {}), 12);
  } catch (const InputError&) {
  }
  write_file(file, text);
  return 0;
}
