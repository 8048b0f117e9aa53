#pragma once

#include <filesystem>
#include <string>

namespace kvreplay {

/// Describes a file that is no dump, for messages: "a PyTorch file; numpy.save(...) converts it".
std::string file_kind(const std::filesystem::path& file);

/// Describes a folder without any dump array, for messages: a folder above dumps, files of other formats with
/// their conversion, or results.
std::string folder_kind(const std::filesystem::path& folder);

/// "; layer_00/v.pt is a PyTorch file: ..." if tensors have a dump's names, but another format. "; ... is one
/// layer of the dump ..." for a folder inside a dump. Else empty.
std::string missing_advice(const std::filesystem::path& folder);

}  // namespace kvreplay
