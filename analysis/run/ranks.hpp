#pragma once

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace kvreplay {

/// The processes that share one run, numbered from 0. This is the only one there is; ranks_mpi.cpp has those
/// of an MPI launcher. To be called from one thread. Whatever waits for others calls the function of a
/// WhileWaiting every few milliseconds and lets its exceptions out.
class Ranks {
 public:
  Ranks() = default;
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;
  virtual ~Ranks() = default;

  virtual int rank() const { return 0; }
  virtual int size() const { return 1; }
  /// Among the ranks of the same machine.
  virtual int local_rank() const { return 0; }

  /// Everybody's bytes, by rank. All ranks call it, and none returns before all have.
  virtual std::vector<std::string> gather(std::string bytes) { return {std::move(bytes)}; }

  /// Whether another rank ends the run: its failure is the one to be told.
  virtual bool fails_elsewhere() { return false; }
  /// That this rank ends it. False where another one came first.
  virtual bool announce_failure() { return true; }
  /// Ends all ranks at once with this exit code.
  [[noreturn]] virtual void abort(int code) { std::exit(code); }

  /// For work that rank 0 does without the others: nobody will meet it.
  void stand_alone() { alone_ = true; }
  bool alone() const { return alone_ || size() == 1; }

  /// What is looked at while this rank waits for others, as long as this lives.
  class WhileWaiting {
   public:
    WhileWaiting(Ranks& ranks, std::function<void()> check) : ranks_(ranks) {
      ranks_.check_ = std::move(check);
    }
    WhileWaiting(const WhileWaiting&) = delete;
    WhileWaiting& operator=(const WhileWaiting&) = delete;
    ~WhileWaiting() { ranks_.check_ = {}; }

   private:
    Ranks& ranks_;
  };

  /// Whether the ranks have come to gather() yet: from then on a rank that fails has to abort().
  bool have_met() const { return met_; }

 protected:
  std::function<void()> check_;
  bool met_ = false;

 private:
  bool alone_ = false;
};

/// The ranks of this process' launcher (mpirun, srun), or the process alone. Throws InputError where there is
/// a launcher and this build has no MPI, or another MPI than the launcher's.
std::unique_ptr<Ranks> start_ranks(int* argc, char*** argv);

/// "with MPI (Open MPI 4.1.4)", or nothing.
std::string mpi_version();

/// How a launcher tells a process that it is one of several: 1 where there is none.
struct Launched {
  int rank = 0, size = 1;
};
Launched launched();

/// What ended a run on every rank alike: the line of the first rank that failed.
struct SharedFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Does it on every rank; where it throws on some, SharedFailure on all.
void together(Ranks& ranks, const std::function<void()>& work);

/// How many threads each rank should have such that a machine's are shared out: the cores that it may use,
/// each divided by the number of ranks of its machine that may use it too; at least 1. All ranks call it.
int fair_threads(Ranks& ranks);

}  // namespace kvreplay
