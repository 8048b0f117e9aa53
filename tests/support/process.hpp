#pragma once

#include "tests/support/temp_dir.hpp"

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace kvreplay::test {

struct ProcessResult {
  int code = -1;  ///< the exit code, or 128 + the signal that ended it
  std::string out, err;
  std::size_t peak_bytes = 0;  ///< the most memory it held at once
};

struct ProcessOptions {
  std::filesystem::path folder;                  ///< to run in; empty: this process's own
  std::optional<std::size_t> largest_file = {};  ///< writes beyond this fail, as on a full disk
};

/// A child process whose output is kept.
class Process {
 public:
  explicit Process(const std::vector<std::string>& arguments, const ProcessOptions& options = {});
  ~Process();  ///< kills it where it still runs
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void send(int signal) const;
  bool running();
  ProcessResult wait();

 private:
  TempDir output_;
  pid_t pid_ = -1;
  std::optional<int> status_;
  std::size_t peak_bytes_ = 0;

  void collect(int flags);
};

ProcessResult run(const std::vector<std::string>& arguments, const ProcessOptions& options = {});

/// A file's bytes; empty where there is none.
std::string file_text(const std::filesystem::path& path);

}  // namespace kvreplay::test
