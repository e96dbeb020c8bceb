#pragma once

#include <tessera/fsdp/fsdp_options.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "fsdp/next_units.h"
#include "fsdp/same_path.h"
#include "fsdp/unit.h"

namespace tessera::fsdp {

/// Decides which units are gathered and which are let go. Every rank sees the same uses, so every rank decides the same
/// and the gathers match.
class GatherSchedule {
 public:
  /// Requires: `units` and `path` outlive it.
  GatherSchedule(const std::vector<std::unique_ptr<Unit>>& units, const FsdpOptions& options, SamePath& path);

  /// The unit holds its values when this returns; those that are foretold to follow travel meanwhile. Collective.
  void use(int unit, Pass pass);
  /// The unit's gradients are complete. Collective.
  void unit_is_complete();
  /// An operator that uses the unit begins, or has ended: its unit stays as long.
  void pin(int unit) { ++pins_[static_cast<std::size_t>(unit)]; }
  void unpin(int unit) { --pins_[static_cast<std::size_t>(unit)]; }

  /// A pass is over: nothing that was gathered is needed as it is.
  void release_all();
  /// These units, until let_go(); with `writes` on rows of this rank's own, whose parts are carried through then.
  /// Collective.
  void hold(const std::vector<int>& units, bool writes = false);
  void let_go(const std::vector<int>& units, bool writes = false);
  /// Whether somebody holds a unit that would not see what is written to its shard.
  bool is_holding() const;
  /// Who holds this unit needs it no more. Others may.
  void done_with(int unit) {
    if (holds_[static_cast<std::size_t>(unit)] <= 1) units_[static_cast<std::size_t>(unit)]->release(keeps_bytes());
  }
  /// Carries through what operators wrote to a unit, when the last of them has ended and nobody holds it to write more.
  /// Who holds it finds it whole again. Collective.
  void carry_writes(int unit);
  std::uint64_t num_gathers() const { return num_gathers_; }

 private:
  bool keeps_bytes() const { return options_.strategy() == ShardingStrategy::kZero1; }
  bool reshards(Pass pass) const;
  std::size_t num_ahead(Pass pass) const;
  std::size_t most_ahead() const;
  void release_all_but(const std::vector<int>& wanted);
  void gather(const std::vector<int>& units);

  const std::vector<std::unique_ptr<Unit>>& units_;
  FsdpOptions options_;
  SamePath& path_;
  NextUnits order_;
  std::vector<int> wanted_;   // the unit in use and those foretold
  std::vector<int> pins_;     // of each unit: operators under way that use it
  std::vector<int> holds_;    // of each unit: who wants it whole
  std::vector<int> writers_;  // among these: who writes to it
  std::uint64_t num_gathers_ = 0;
};

}  // namespace tessera::fsdp
