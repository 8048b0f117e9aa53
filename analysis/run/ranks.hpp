#pragma once

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace kvreplay {

/// The processes that share one run, numbered from 0. This class is a single process; ranks_mpi.cpp has the
/// ranks of an MPI launcher. To be called from one thread. Every wait for other ranks calls the function of a
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

  /// Gathers every rank's bytes, in order of rank. All ranks call it, and none returns before all have
  /// called.
  virtual std::vector<std::string> gather(std::string bytes) { return {std::move(bytes)}; }

  /// True if another rank ends the run; that rank's failure is the one to report.
  virtual bool fails_elsewhere() { return false; }
  /// Claims the end of the run for this rank. Returns false if another rank already has it.
  virtual bool announce_failure() { return true; }
  /// Ends all ranks at once with this exit code.
  [[noreturn]] virtual void abort(int code) { std::exit(code); }

  /// Marks work that rank 0 does without the others: no rank will call gather().
  void stand_alone() { alone_ = true; }
  bool alone() const { return alone_ || size() == 1; }

  /// Function that is called while this rank waits for others, as long as the object lives.
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

  /// True once this rank has called gather(): from then on a rank that fails has to abort().
  bool have_met() const { return met_; }

 protected:
  std::function<void()> check_;
  bool met_ = false;

 private:
  bool alone_ = false;
};

/// The ranks of this process' launcher (mpirun, srun), or the process alone. Throws InputError if there is a
/// launcher and this build has no MPI, or another MPI than the launcher's.
std::unique_ptr<Ranks> start_ranks(int* argc, char*** argv);

/// "with MPI (Open MPI 4.1.4)", or nothing.
std::string mpi_version();

/// Rank and number of ranks, from the launcher's environment variables; size 1 without a launcher.
struct Launched {
  int rank = 0, size = 1;
};
Launched launched();

/// Failure of a run that is the same on every rank: the line of the first rank that failed.
struct SharedFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Runs `work` on every rank. If it throws on some rank, SharedFailure is thrown on all.
void together(Ranks& ranks, const std::function<void()>& work);

/// Threads for each rank, such that the ranks of a machine share its cores: the sum of the cores that this
/// rank may use, each divided by the number of ranks of its machine that may use it; at least 1. All ranks
/// call it.
int fair_threads(Ranks& ranks);

}  // namespace kvreplay
