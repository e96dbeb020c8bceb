#pragma once

#include <tessera/comm/communicator.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tessera::fsdp {

/// What this rank has gathered and averaged, in order.
///
/// Note [One path for all ranks]
/// Gathers and averages are collective. A collective notices that ranks come with different sizes, but not that they
/// mean different units of one size: ranks that choose differently between two equal layers would compute with each
/// other's parameters. So each rank keeps a number that stands for its path, and the ranks compare them at the end of
/// each backward pass that averages, before an optimizer acts on it. That is one small message a step.
class SamePath {
 public:
  enum class Event { kGather, kAverage };
  using NameOf = std::function<std::string(int unit)>;

  void note(Event event, int unit);
  /// Collective: over `comm`. Throws ConfigError, on every rank and with one text, when the paths since the last
  /// forget() differ: which rank, and where.
  void require_agreement(const Communicator& comm, const NameOf& name_of) const;
  /// A new path begins.
  void forget();

 private:
  std::uint64_t number_ = 0;
  std::vector<int> events_;  // the first ones, to tell where paths part
};

}  // namespace tessera::fsdp
