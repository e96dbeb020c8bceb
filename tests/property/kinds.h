#pragma once

#include <vector>

#include "property/act.h"
#include "property/config.h"

namespace tessera::testing {

/// Something that users do.
struct Kind {
  const char* name;
  int weight;
  void (*run)(const Action&, User&, Seen&);
  bool (*fits)(const Config&) = nullptr;
};

/// Forward and backward in all ways.
const std::vector<Kind>& pass_kinds();
/// Steps of a pipeline.
const std::vector<Kind>& stage_kinds();
/// Parameters and buffers: written, read, frozen, kept, saved, loaded.
const std::vector<Kind>& weight_kinds();
/// Optimizers, scalers, checkpoints, groups.
const std::vector<Kind>& run_kinds();

}  // namespace tessera::testing
