#pragma once

#include "analysis/given/given_arrays.hpp"
#include "data/dump.hpp"

#include <cstdint>
#include <filesystem>

namespace kvreplay::conform {

/// Reads the tokens of a dump's prompt that an implementation kept, in any of these forms:
///   .npy   booleans [layers, heads, l]; or positions [layers, heads, n], in any order, -1 where a head has
///          fewer than n
///   .npz   one such array a layer, [heads, l] or [heads, n], or one a head, [l] or [n], where layers or
///          heads keep different numbers; the numbers in a member's name are its layer and its head
///   .json  lists of positions [layers][heads][..]; or {"page": N, "pages": [..]}: a table of blocks of N
///          tokens, where such lists count pages
/// Heads are KV heads; with as many as query heads each has a cache of its own. Lists [layers][..] apply to
/// all heads of a layer, a single list to all layers. A leading batch of 1 is accepted. Throws InputError for
/// other shapes, positions outside the prompt, and duplicates.
GivenArray<std::uint8_t> read_engine_kept(const std::filesystem::path& file, const Dump& dump);

}  // namespace kvreplay::conform
