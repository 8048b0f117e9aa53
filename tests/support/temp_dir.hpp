#pragma once

#include <atomic>
#include <filesystem>
#include <random>
#include <string>

namespace kvreplay::test {

/// A new empty folder that is removed with everything in it at the end of the scope.
class TempDir {
 public:
  TempDir() {
    static std::atomic<unsigned> counter{0};
    static const unsigned process = std::random_device{}();
    path_ = std::filesystem::temp_directory_path() /
            ("kvreplay-test-" + std::to_string(process) + "-" + std::to_string(counter.fetch_add(1)));
    std::filesystem::create_directories(path_);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace kvreplay::test
