#pragma once

#include "tests/support/process.hpp"

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace kvreplay::test {

/// The built program with these arguments, run to its end.
ProcessResult run_kvreplay(std::vector<std::string> arguments, const ProcessOptions& options = {});
/// As run_kvreplay(); the program must exit with code 0.
ProcessResult succeed(std::vector<std::string> arguments, const ProcessOptions& options = {});
/// One list behind the other.
std::vector<std::string> joined(std::vector<std::string> a, const std::vector<std::string>& b);
/// For Process, where the test is to meddle with it while it runs.
std::vector<std::string> kvreplay_command(std::vector<std::string> arguments);

/// Waits until the process has made a file; false where it ended without.
bool wait_for(const std::filesystem::path& path, Process& process);

/// The dump that the repository ships.
std::string sample_dump();

/// Every file below a folder, by its path in it; run.json left out, the one file two equal runs may differ
/// in.
std::map<std::string, std::string> contents(const std::filesystem::path& folder);
/// The first file in which two folders differ, or nothing.
std::string difference(const std::filesystem::path& a, const std::filesystem::path& b);

/// True if any file below a folder was never finished.
bool has_half_written(const std::filesystem::path& folder);

bool contains(const std::string& text, const std::string& part);
std::size_t lines(const std::string& text);

}  // namespace kvreplay::test
