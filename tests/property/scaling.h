#pragma once

namespace tessera::testing {

/// Of the loss scalers of programs.
constexpr double kInitialScale = 16;
constexpr int kGrowthInterval = 2;

}  // namespace tessera::testing
