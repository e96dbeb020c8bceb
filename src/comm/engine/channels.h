#pragma once

namespace tessera::comm {

/// Messages of users and those of our algorithms, which may all be under way at once, must not meet: each has a
/// channel.
constexpr int kUserChannel = 0;
constexpr int kRingChannel = 1;
constexpr int kTreeChannel = 2;
constexpr int kBackendChannel = 3;  ///< of an algorithm that is a backend's own
constexpr int kNumChannels = 4;

}  // namespace tessera::comm
