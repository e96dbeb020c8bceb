#pragma once

#include <tessera/comm/world.h>

#include <filesystem>
#include <optional>
#include <string>

#include "train/state/trainee.h"

namespace tessera::testing {

/// A training program as a user writes it: sampler, loader, schedule, dropout, checkpoints.
struct ProgramOptions {
  std::string variant;
  std::string optimizer;
  /// Dropout, buffers that differ on the ranks, and in float a loss scale that grows until steps are skipped: then
  /// another number of ranks is another training.
  bool is_noisy = true;
  std::int64_t until = 0;
  /// Begins with the newest step that lies there.
  std::optional<std::filesystem::path> load_from = std::nullopt;
  /// Saves its last step there.
  std::optional<std::filesystem::path> save_to = std::nullopt;
};

/// The weights at the end, whole, on every rank. Collective.
Weights run_program(const World& world, const ProgramOptions& options);

/// Throws, naming the parameter, unless all bits are the same.
void require_same_bits(const Weights& found, const Weights& expected, const std::string& what);
/// How far weights may differ on another number of ranks: by the rounding of the type that is computed in.
double tolerance_of(const std::string& variant);
/// SGD in float, where Adam would make much of the rounding of gradients near 0; else AdamW.
std::string optimizer_of(const std::string& variant);
/// Throws unless each parameter differs by at most so much of its largest value.
void require_close(const Weights& found, const Weights& expected, double tolerance, const std::string& what);

}  // namespace tessera::testing
