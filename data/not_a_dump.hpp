#pragma once

#include <filesystem>
#include <string>

namespace kvreplay {

/// A file that is no dump, as messages say it: "a PyTorch file; numpy.save(...) converts it".
std::string file_kind(const std::filesystem::path& file);

/// A folder without any array of a dump's, as messages say it: a folder above dumps, files of other formats
/// and how they are converted, results.
std::string folder_kind(const std::filesystem::path& folder);

/// "; layer_00/v.pt is a PyTorch file: ..." where a folder has tensors under a dump's names, but in another
/// format; "; ... is one layer of the dump ..." where it lies in a dump. Else empty.
std::string missing_advice(const std::filesystem::path& folder);

}  // namespace kvreplay
