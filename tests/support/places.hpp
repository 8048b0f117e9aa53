#pragma once

#include <filesystem>

namespace kvreplay::test {

// Known to one file alone: whatever else a test is made of compiles to the same bytes in every checkout.

/// The folder of this checkout.
std::filesystem::path source_dir();

/// The programs of this build; where nothing builds one, an empty path.
std::filesystem::path program();
std::filesystem::path viewer_program();
/// The program on the processor that plays a device, or the one that KVREPLAY_DEVICE_PROGRAM names.
std::filesystem::path device_program();

/// mpirun; empty where the program has no MPI.
std::filesystem::path mpirun();

}  // namespace kvreplay::test
