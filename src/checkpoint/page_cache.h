#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace tessera::checkpoints {

/// How many pages of these bytes of a file the page cache holds. Nothing where the system has no such call, or does not
/// tell us.
std::optional<std::uint64_t> num_cached_pages(int file, std::uint64_t offset, std::uint64_t num_bytes);

/// How many pages these bytes lie in.
std::uint64_t num_pages(std::uint64_t offset, std::uint64_t num_bytes);

/// The same as whether all are cached, of pages that are mapped, for systems without that call. Ten times as slow; of
/// files of others the system may say yes.
bool is_cached(void* pages, std::size_t num_bytes);

}  // namespace tessera::checkpoints
