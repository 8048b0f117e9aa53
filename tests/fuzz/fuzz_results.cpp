// A result folder of which one file was damaged: refused with an InputError, or compared and shown. The
// folders in the one that KVREPLAY_FUZZ_RESULTS names are copied first. An input is one file's number, what
// is done to it, where, and a text.

#include "analysis/report/report.hpp"
#include "analysis/results/compare.hpp"
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
#include <string>
#include <vector>

namespace fs = std::filesystem;
using namespace kvreplay;

namespace {

/// A file of one of the folders.
struct File {
  fs::path path, results;
  ResultReader whole;  ///< of the folder as it was
  std::string bytes;
};

std::vector<File> copied(const fs::path& to) {
  const char* original = std::getenv("KVREPLAY_FUZZ_RESULTS");
  if (original == nullptr) std::abort();
  fs::copy(original, to, fs::copy_options::recursive);
  std::vector<File> files;
  for (const auto& results : fs::directory_iterator(to)) {
    const ResultReader whole(original / results.path().filename());
    for (const auto& entry : fs::recursive_directory_iterator(results))
      if (entry.is_regular_file())
        files.push_back({entry.path(), results.path(), whole, test::read_file(entry.path())});
  }
  std::sort(files.begin(), files.end(), [](const File& a, const File& b) { return a.path < b.path; });
  return files;
}

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
  static const test::TempDir temp;
  static const std::vector<File> files = copied(temp / "results");
  if (size < 4) return 0;
  const File& file = files[bytes[0] % files.size()];
  write_file(file.path, damaged(file.bytes, bytes[1], bytes[2] * 256U + bytes[3],
                                std::string(reinterpret_cast<const char*>(bytes) + 4, size - 4)));
  try {
    const ResultReader results(file.results);
    report::make_page(results, "");
    plain_text(compare(results, {}, file.whole, {}), 12);
  } catch (const InputError&) {
  }
  write_file(file.path, file.bytes);
  return 0;
}
