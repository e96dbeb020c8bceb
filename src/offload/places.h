#pragma once

#include <tessera/offload/offload_options.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "offload/store/budget.h"
#include "offload/store/file_store.h"
#include "offload/store/host_memory.h"

namespace tessera::offload {

/// Where one rank keeps what is offloaded, and what it may take for it.
struct Places {
  explicit Places(const OffloadOptions& options);

  OffloadOptions options;
  std::shared_ptr<Budget> host_max;
  std::shared_ptr<Budget> host;               // within host_max
  std::shared_ptr<Budget> device_max;         // of a model on the CPU: within host_max
  std::shared_ptr<Budget> device_parameters;  // within device_max
  std::optional<FileStore> files;             // if something lies in files
  std::shared_ptr<HostMemory> memory;         // of `host`
  double parameter_wait_seconds = 0;          // of the thread that trains
  double step_wait_seconds = 0;
  std::string broken;  // why nothing here may be used any more

  /// Throws StorageError if an optimizer's step failed when it had written a part.
  void require_whole() const;
};

/// A tensor in such memory, which it keeps.
at::Tensor tensor_in(const std::shared_ptr<std::byte>& memory, std::int64_t num_elements, at::ScalarType dtype);

/// Counts the seconds that its scope takes.
class Waiting {
 public:
  explicit Waiting(double& seconds);
  ~Waiting();
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  double& seconds_;
  double began_;
};

}  // namespace tessera::offload
