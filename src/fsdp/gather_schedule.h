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
  /// All units, until let_go(). Collective.
  void hold_all();
  void let_go();
  bool is_holding() const { return num_holds_ > 0; }
  /// Who holds all units needs this one no more. Others may.
  void done_with(int unit) {
    if (num_holds_ <= 1) units_[static_cast<std::size_t>(unit)]->release(keeps_bytes());
  }
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
  std::vector<int> wanted_;  // the unit in use and those foretold
  std::vector<int> pins_;    // of each unit: operators under way that use it
  int num_holds_ = 0;
  std::uint64_t num_gathers_ = 0;
};

}  // namespace tessera::fsdp
