#include "analysis/run/ranks.hpp"
#include "data/error.hpp"

#include <fmt/format.h>

#include <chrono>
#include <mpi.h>
#include <thread>

// Ranks of an MPI launcher. MPI is started only where there is one, so that a program without stays as quick
// to start as it was.

namespace kvreplay {
namespace {

constexpr int kFailure = 1;  // the tag of what announces one

class MpiRanks final : public Ranks {
 public:
  MpiRanks() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    MPI_Comm here = MPI_COMM_NULL;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &here);
    MPI_Comm_rank(here, &local_rank_);
    MPI_Comm_free(&here);
  }
  ~MpiRanks() override { MPI_Finalize(); }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int local_rank() const override { return local_rank_; }

  std::vector<std::string> gather(std::string bytes) override {
    met_ = true;
    const int mine = static_cast<int>(bytes.size());
    std::vector<int> counts(size_), offsets(counts.size());
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Iallgather(&mine, 1, MPI_INT, counts.data(), 1, MPI_INT, MPI_COMM_WORLD, &request);
    wait(request);
    for (std::size_t r = 1; r < counts.size(); ++r) offsets[r] = offsets[r - 1] + counts[r - 1];
    std::string all(static_cast<std::size_t>(offsets.back() + counts.back()), '\0');
    MPI_Iallgatherv(bytes.data(), mine, MPI_BYTE, all.data(), counts.data(), offsets.data(), MPI_BYTE,
                    MPI_COMM_WORLD, &request);
    wait(request);
    std::vector<std::string> parts;
    for (std::size_t r = 0; r < counts.size(); ++r)
      parts.push_back(all.substr(static_cast<std::size_t>(offsets[r]), static_cast<std::size_t>(counts[r])));
    return parts;
  }

  bool fails_elsewhere() override {
    return within_moments([] { return told_by(MPI_ANY_SOURCE); });
  }

  bool announce_failure() override {
    if (fails_elsewhere()) return false;
    for (int to = 0; to < size_; ++to) {
      if (to == rank_) continue;
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_Isend(nullptr, 0, MPI_BYTE, to, kFailure, MPI_COMM_WORLD, &request);
      MPI_Request_free(&request);
    }
    // Several may come here at once, as when a disk is full: then the lowest of them was first.
    return !within_moments([this] {
      told_by(MPI_ANY_SOURCE);  // MPI sends only while it is called
      for (int from = 0; from < rank_; ++from)
        if (told_by(from)) return true;
      return false;
    });
  }

  void abort(int code) override {
    MPI_Abort(MPI_COMM_WORLD, code);
    std::_Exit(code);
  }

 private:
  static bool told_by(int rank) {
    int found = 0;
    MPI_Iprobe(rank, kFailure, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE);
    return found != 0;
  }
  /// Polls a condition for up to 100 ms: a message takes a few MPI calls to arrive.
  template <class Condition>
  static bool within_moments(Condition condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
    do {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } while (std::chrono::steady_clock::now() < end);
    return false;
  }

  /// Waits with sleeps. MPI_Wait() would keep a core busy that another rank of the machine can use.
  void wait(MPI_Request& request) {
    const auto begin = std::chrono::steady_clock::now();
    for (int done = 0;;) {
      MPI_Test(&request, &done, MPI_STATUS_IGNORE);
      if (done != 0) return;
      if (check_) check_();
      const bool patient = std::chrono::steady_clock::now() - begin > std::chrono::milliseconds(1);
      if (patient)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      else
        std::this_thread::yield();
    }
  }

  int rank_ = 0, size_ = 1, local_rank_ = 0;
};

}  // namespace

std::unique_ptr<Ranks> start_ranks(int* argc, char*** argv) {
  const Launched here = launched();
  if (here.size == 1) return std::make_unique<Ranks>();
  int provided = 0, found = 1;
  MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided);
  MPI_Comm_size(MPI_COMM_WORLD, &found);
  if (found != here.size) {
    MPI_Finalize();
    throw InputError(fmt::format(
        "the launcher started {} ranks, and MPI knows of {}: it is another MPI than this build's ({})",
        here.size, found, mpi_version()));
  }
  return std::make_unique<MpiRanks>();
}

std::string mpi_version() {
  char name[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(name, &length);
  const std::string text(name, static_cast<std::size_t>(length));
  // "Open MPI v4.1.4, package: ..."; MPICH has a line for each of its properties.
  return text.substr(0, text.find_first_of(",\n"));
}

}  // namespace kvreplay
