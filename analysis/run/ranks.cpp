#include "analysis/run/ranks.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <sched.h>
#include <unistd.h>

namespace kvreplay {
namespace {

int number_in(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  int value = otherwise;
  if (text != nullptr) std::from_chars(text, text + std::strlen(text), value);
  return value;
}

}  // namespace

Launched launched() {
  Launched found;
  // Open MPI's mpirun; MPICH's, and srun with PMI.
  for (const auto& [rank, size] :
       {std::pair{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}, std::pair{"PMI_RANK", "PMI_SIZE"}}) {
    found.size = std::max(1, number_in(size, 1));
    found.rank = number_in(rank, 0);
    if (found.size > 1) return found;
  }
  // srun with PMIx says the size of the step, and a rank only where it starts MPI programs.
  if (std::getenv("PMIX_RANK") != nullptr)
    found = {number_in("PMIX_RANK", 0), std::max(1, number_in("SLURM_STEP_NUM_TASKS", 1))};
  return found;
}

void together(Ranks& ranks, const std::function<void()>& work) {
  if (ranks.size() == 1) return work();
  std::string line;
  try {
    work();
  } catch (const std::exception& error) {
    line = *error.what() != '\0' ? error.what() : "failed";
  }
  for (const std::string& found : ranks.gather(line))
    if (!found.empty()) throw SharedFailure(found);
}

int fair_threads(Ranks& ranks) {
  cpu_set_t mine;
  CPU_ZERO(&mine);
  if (sched_getaffinity(0, sizeof(mine), &mine) != 0) return 1;
  char host[256] = {};
  if (::gethostname(host, sizeof(host) - 1) != 0) host[0] = '\0';
  std::string told(sizeof(mine) + sizeof(host), '\0');
  std::memcpy(told.data(), &mine, sizeof(mine));
  std::memcpy(told.data() + sizeof(mine), host, sizeof(host));

  std::vector<cpu_set_t> neighbours;  // this rank too
  for (const std::string& other : ranks.gather(told))
    if (other.compare(sizeof(mine), sizeof(host), told, sizeof(mine), sizeof(host)) == 0)
      std::memcpy(&neighbours.emplace_back(), other.data(), sizeof(mine));
  double threads = 0;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &mine)) continue;
    const auto sharers =
        std::ranges::count_if(neighbours, [core](const cpu_set_t& set) { return CPU_ISSET(core, &set); });
    threads += 1.0 / static_cast<double>(sharers);
  }
  return std::max(1, static_cast<int>(threads + 1e-6));
}

}  // namespace kvreplay
