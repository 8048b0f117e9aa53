#include "tests/support/process.hpp"

#include <csignal>
#include <fcntl.h>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace kvreplay::test {
namespace {

/// In the child, between fork and exec: only calls that are safe there.
[[noreturn]] void become(char* const* argv, const char* folder, const char* out, const char* err,
                         const ProcessOptions& options) {
  const int out_fd = ::open(out, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  const int err_fd = ::open(err, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  ::dup2(out_fd, STDOUT_FILENO);
  ::dup2(err_fd, STDERR_FILENO);
  if (*folder != '\0' && ::chdir(folder) != 0) ::_exit(127);
  if (options.largest_file) {
    const rlimit limit = {*options.largest_file, *options.largest_file};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    std::signal(SIGXFSZ, SIG_IGN);  // a write then fails with EFBIG
  }
  ::execv(argv[0], argv);
  ::_exit(127);
}

}  // namespace

Process::Process(const std::vector<std::string>& arguments, const ProcessOptions& options) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const std::string out = output_ / "out", err = output_ / "err", folder = options.folder.string();
  pid_ = ::fork();
  if (pid_ < 0) throw std::runtime_error("fork failed");
  if (pid_ == 0) become(argv.data(), folder.c_str(), out.c_str(), err.c_str(), options);
}

Process::~Process() {
  if (!running()) return;
  send(SIGKILL);
  wait();
}

void Process::send(int signal) const { ::kill(pid_, signal); }

void Process::collect(int flags) {
  int status = 0;
  rusage used = {};
  if (status_ || ::wait4(pid_, &status, flags, &used) != pid_) return;
  status_ = status;
  peak_bytes_ = static_cast<std::size_t>(used.ru_maxrss) * 1024;
}

bool Process::running() {
  collect(WNOHANG);
  return !status_;
}

ProcessResult Process::wait() {
  collect(0);
  ProcessResult result;
  const int ended = status_.value_or(-1);
  result.code = WIFEXITED(ended) ? WEXITSTATUS(ended) : 128 + WTERMSIG(ended);
  result.peak_bytes = peak_bytes_;
  result.out = file_text(output_ / "out");
  result.err = file_text(output_ / "err");
  return result;
}

ProcessResult run(const std::vector<std::string>& arguments, const ProcessOptions& options) {
  return Process(arguments, options).wait();
}

std::string file_text(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return std::move(text).str();
}

}  // namespace kvreplay::test
