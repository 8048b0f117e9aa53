#include "analysis/commands/under_way.hpp"

#include "analysis/run/run.hpp"
#include "data/console.hpp"

#include <fmt/format.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <unistd.h>
#include <utility>

namespace kvreplay {

ProgressBar::ProgressBar(bool wanted, std::string label)
    : drawing_(wanted && ::isatty(STDERR_FILENO) == 1),
      label_(label.empty() ? "" : std::move(label) + "  ") {}

ProgressBar::~ProgressBar() {
  if (drawn_) to_stderr("\r\033[K");
}

void ProgressBar::show(Index done, Index total) {
  const auto now = Clock::now();
  if (!drawing_ || (drawn_ && done < total && now - last_ < std::chrono::milliseconds(100))) return;
  to_stderr(fmt::format("\r\033[K{}{}", label_, progress_line(done, total, seconds_since(begin_))));
  std::fflush(stderr);
  last_ = now;
  drawn_ = true;
}

namespace {

constexpr long kPatienceNanoseconds = 700'000'000;

std::atomic<Workers*> g_workers{nullptr};
std::atomic<bool> g_interrupted{false};
std::string g_message;  // set before the handlers are, so they may read it
timer_t g_timer{};

extern "C" void on_interrupt(int) {
  if (g_interrupted.exchange(true)) return;
  if (Workers* workers = g_workers.load()) workers->stop();
  const itimerspec patience = {{0, 0}, {0, kPatienceNanoseconds}};
  timer_settime(g_timer, 0, &patience, nullptr);
}

extern "C" void on_patience_over(int) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, g_message.data(), g_message.size());
  ::_exit(InterruptGuard::kExitCode);
}

void handle(int signal, void (*handler)(int), int flags) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, nullptr);
}

}  // namespace

InterruptGuard::InterruptGuard(Workers& workers, const std::string& message) {
  g_message = message.empty() ? "" : complaint("kvreplay", message);
  g_workers = &workers;
  g_interrupted = false;
  handle(SIGALRM, on_patience_over, 0);
  timer_create(CLOCK_MONOTONIC, nullptr, &g_timer);  // SIGALRM, as setitimer, but callable from a handler
  for (const int signal : {SIGINT, SIGTERM}) handle(signal, on_interrupt, SA_RESTART);
}

InterruptGuard::~InterruptGuard() {
  for (const int signal : {SIGINT, SIGTERM}) handle(signal, g_interrupted ? SIG_IGN : SIG_DFL, 0);
  timer_delete(g_timer);
  g_workers = nullptr;
}

const std::string& interrupt_message() { return g_message; }

}  // namespace kvreplay
