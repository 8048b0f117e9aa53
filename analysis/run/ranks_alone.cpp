#include "analysis/run/ranks.hpp"
#include "data/error.hpp"

#include <fmt/format.h>

// In place of ranks_mpi.cpp where there is no MPI.

namespace kvreplay {

std::unique_ptr<Ranks> start_ranks(int*, char***) {
  const Launched here = launched();
  if (here.size > 1)
    throw InputError(fmt::format(
        "started as one of {} ranks, but this build has no MPI: --shard i/n and kvreplay merge need none",
        here.size));
  return std::make_unique<Ranks>();
}

std::string mpi_version() { return ""; }

}  // namespace kvreplay
