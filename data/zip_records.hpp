#pragma once

#include <cstdint>

/// Signatures and sizes of a zip archive's records: APPNOTE.TXT 6.3, sections 4.3.7 to 4.3.16.
namespace kvreplay::zip_records {

inline constexpr std::uint64_t local_signature = 0x04034b50, entry_signature = 0x02014b50,
                               end_signature = 0x06054b50;
inline constexpr std::uint64_t end64_signature = 0x06064b50, locator64_signature = 0x07064b50;
/// Without names, extra fields and comments.
inline constexpr std::uint64_t local_bytes = 30, entry_bytes = 46, end_bytes = 22, end64_bytes = 56,
                               locator64_bytes = 20;
inline constexpr std::uint64_t in_zip64_field = 0xffffffff;  ///< for a value that needs 64 bits

}  // namespace kvreplay::zip_records
