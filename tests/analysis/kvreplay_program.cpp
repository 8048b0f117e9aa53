#include "tests/analysis/kvreplay_program.hpp"

#include "tests/support/catch.hpp"
#include "tests/support/places.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

namespace kvreplay::test {

namespace fs = std::filesystem;

std::vector<std::string> kvreplay_command(std::vector<std::string> arguments) {
  ::setenv("CUDA_VISIBLE_DEVICES", "", 1);  // the same hardware on every machine
  std::vector<std::string> command = {test::program()};
  for (std::string& argument : arguments) command.push_back(std::move(argument));
  return command;
}

ProcessResult run_kvreplay(std::vector<std::string> arguments, const ProcessOptions& options) {
  return run(kvreplay_command(std::move(arguments)), options);
}

ProcessResult succeed(std::vector<std::string> arguments, const ProcessOptions& options) {
  ProcessResult done = run_kvreplay(std::move(arguments), options);
  INFO(done.out << done.err);
  REQUIRE(done.code == 0);
  return done;
}

std::vector<std::string> joined(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

bool wait_for(const fs::path& path, Process& process) {
  while (!fs::exists(path) && process.running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return fs::exists(path);
}

std::string sample_dump() { return test::source_dir() / "data/samples/pystdlib-lm"; }

std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().lexically_relative(folder).generic_string();
    if (entry.path().filename() != "run.json")
      files[name] = entry.is_regular_file() ? file_text(entry.path()) : "(folder)";
  }
  return files;
}

std::string difference(const fs::path& a, const fs::path& b) {
  const auto in_a = contents(a), in_b = contents(b);
  for (const auto& [name, bytes] : in_a) {
    const auto other = in_b.find(name);
    if (other == in_b.end()) return name + " is missing from the second";
    if (other->second != bytes) return name + " differs";
  }
  for (const auto& [name, bytes] : in_b)
    if (in_a.count(name) == 0) return name + " is missing from the first";
  return "";
}

bool has_half_written(const fs::path& folder) {
  if (!fs::exists(folder)) return false;
  return std::any_of(fs::recursive_directory_iterator(folder), fs::recursive_directory_iterator(),
                     [](const fs::directory_entry& entry) { return entry.path().extension() == ".tmp"; });
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::size_t lines(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

}  // namespace kvreplay::test
