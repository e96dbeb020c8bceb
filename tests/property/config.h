#pragma once

#include <tessera/data_parallel/ddp_options.h>
#include <tessera/fsdp/fsdp_options.h>

#include <cstdint>
#include <string>

#include "fsdp/random_models/dice.h"

namespace tessera::testing {

enum class Layout { kDdp, kFsdp };

/// How a program's model is spread over ranks.
struct Config {
  Layout layout = Layout::kDdp;
  int num_ranks = 1;
  DdpOptions ddp;
  FsdpOptions fsdp;

  bool is_ddp() const { return layout == Layout::kDdp; }
  bool is_fsdp() const { return layout == Layout::kFsdp; }
  /// What hooks and types round off, beside 1 in the numbers compared.
  double tolerance() const;
  std::string text() const;
};

Config draw_config(Dice& dice, int num_ranks);

}  // namespace tessera::testing
