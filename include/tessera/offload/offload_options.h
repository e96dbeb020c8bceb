#pragma once

#include <tessera/core/options.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

/// Where bytes lie while nobody uses them.
enum class Tier {
  kDevice,  ///< where the model trains
  kHost,    ///< memory of the host; for a model on the CPU the same as kDevice
  kFile,    ///< files without names, in `folders`
};

/// Where the parts of a sharded model lie while nobody uses them, and how much memory that may take.
struct OffloadOptions {
  /// Where this rank's parts of the parameters lie between their uses.
  TESSERA_ARG(Tier, parameters) = Tier::kDevice;
  /// Where their averaged gradients lie between backward and the optimizer's step. In files only with
  /// tessera::optim::AdamW.
  TESSERA_ARG(Tier, gradients) = Tier::kDevice;
  /// Where the optimizer's state lies between steps. In files only with tessera::optim::AdamW.
  TESSERA_ARG(Tier, states) = Tier::kDevice;
  /// Where files lie, one in each: several disks work at the same time. They have no names, so nothing is left behind.
  /// A folder is made if it does not exist.
  TESSERA_ARG(std::vector<std::string>, folders) = {};
  /// Host memory of a rank for what is offloaded to it, and for what is on its way.
  TESSERA_ARG(std::int64_t, host_bytes) = std::int64_t{32} << 30;
  /// Host memory of a rank in all: with what is whole for the moment, where the model trains on the CPU.
  TESSERA_ARG(std::int64_t, host_max_bytes) = std::int64_t{64} << 30;
  /// Memory of a rank's device for parameters that are whole for the moment.
  TESSERA_ARG(std::int64_t, device_parameter_bytes) = std::int64_t{2} << 30;
  /// Memory of a rank's device in all, but for activations.
  TESSERA_ARG(std::int64_t, device_max_bytes) = std::int64_t{8} << 30;
  /// How many flat parameters (units) that come next are read ahead, as far as memory allows. 0: none.
  TESSERA_ARG(std::int64_t, prefetch_parameters) = 16;
  /// Off: what is read or written is waited for at once. For finding out what a disk costs.
  TESSERA_ARG(bool, overlap) = true;

 public:
  static const FieldList<OffloadOptions>& fields();

  bool uses_files() const { return parameters_ == Tier::kFile || gradients_ == Tier::kFile || states_ == Tier::kFile; }
  /// Everything that is wrong with them, each fault with its fix; empty if nothing is.
  std::vector<std::string> faults() const;
};

}  // namespace tessera
