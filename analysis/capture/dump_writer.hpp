#pragma once

#include "data/dump.hpp"
#include "data/json_fields.hpp"
#include "sim/schedule.hpp"

#include <array>
#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvreplay {

/// Rounds to a dump's dtype, in place. Throws InputError(where, ...) for a number beyond float16's range.
void round_to(Dtype dtype, std::span<float> values, const std::string& where);

/// Throws InputError unless a dump may be written to the folder: it is absent, empty, or with `force` holds
/// a dump and nothing else.
void require_free(const std::filesystem::path& folder, bool force);

/// A dump that fills row by row, all layers at once, and appears under its name with commit(), whole. Until
/// then it is OUT.capturing, whose manifest says incomplete; the destructor removes that. The files have
/// their full size from the first row on, so that a full disk shows early.
class DumpWriter {
 public:
  DumpWriter(std::filesystem::path folder, bool force, Dtype dtype, Index layers, Index positions);
  ~DumpWriter();
  DumpWriter(const DumpWriter&) = delete;
  DumpWriter& operator=(const DumpWriter&) = delete;

  /// The next rows of one of q, k, v and o: [n, heads, width]. Throws InputError where layers differ in
  /// heads or width, and where there is no room.
  void append(Tensor tensor, Index layer, Index heads, Index width, std::span<const float> rows);
  /// The output projection of a layer, [n_q, d_v, d_model], rounded to the dtype.
  void append_wo(Index layer, Index d_model, std::span<float> values);
  /// Heads and width; 0 before the first row.
  std::pair<Index, Index> size_of_rows(Tensor tensor) const;
  /// Throws InputError where a tensor of a layer lacks rows; writes manifest and tokens. The folder that it
  /// returns is to be checked before commit().
  const std::filesystem::path& finish(const Json& manifest, const Json& tokens);
  void commit();

 private:
  struct File {
    int fd = -1;
    Index rows = 0;
    std::size_t header = 0;
  };
  File& begun(Tensor tensor, Index layer, Index heads, Index width);

  std::filesystem::path folder_, temporary_;
  bool force_;
  Dtype dtype_;
  Index layers_, positions_;
  std::map<std::pair<Tensor, Index>, File> files_;
  std::map<Tensor, std::pair<Index, Index>> sizes_;
};

/// The largest relative deviation of o from float64 attention over the files of a dump: of the last prompt
/// row and the last row, in every layer and head, relative to the row's norm, and the layer that has it.
std::pair<double, Index> largest_deviation(const Dump& dump, Workers& workers);
/// Bound on that deviation where the files hold the numbers that attention read: o's rounding to float16 is
/// half of it, or float32 sums of large logits.
constexpr double most_deviation(Dtype dtype) { return dtype == Dtype::f16 ? 1e-3 : 1e-4; }

}  // namespace kvreplay
