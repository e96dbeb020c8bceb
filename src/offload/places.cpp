#include "offload/places.h"

#include <tessera/core/error.h>
#include <tessera/shard/tensor_bytes.h>

#include <c10/core/Allocator.h>

#include <chrono>
#include <filesystem>
#include <vector>

namespace tessera::offload {
namespace {

std::vector<std::filesystem::path> paths_of(const std::vector<std::string>& folders) {
  return {folders.begin(), folders.end()};
}

std::uint64_t unsigned_of(std::int64_t num_bytes) { return static_cast<std::uint64_t>(num_bytes); }

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

Places::Places(const OffloadOptions& chosen) : options(chosen) {
  host_max = Budget::make("all host memory", "host_max_bytes", unsigned_of(options.host_max_bytes()));
  host = Budget::make("host memory for what is offloaded", "host_bytes", unsigned_of(options.host_bytes()), host_max);
  device_max = Budget::make("device memory", "device_max_bytes", unsigned_of(options.device_max_bytes()), host_max);
  device_parameters = Budget::make("memory for parameters that are whole", "device_parameter_bytes",
                                   unsigned_of(options.device_parameter_bytes()), device_max);
  constexpr std::size_t kPage = 4096;
  if (options.uses_files()) files.emplace(paths_of(options.folders()));
  memory = HostMemory::make(host, files ? files->alignment() : kPage);
}

void Places::require_whole() const {
  if (broken.empty()) return;
  throw StorageError(
      "offload: a step of the optimizer failed when a part of the model was stepped, so what it trains "
      "is neither the old nor the new: go on from a checkpoint. The failure: " +
      broken);
}

at::Tensor tensor_in(const std::shared_ptr<std::byte>& memory, std::int64_t num_elements, at::ScalarType dtype) {
  const auto forget = [](void* context) { delete static_cast<std::shared_ptr<std::byte>*>(context); };
  c10::DataPtr bytes(memory.get(), new std::shared_ptr<std::byte>(memory), forget, c10::Device(c10::kCPU));
  return tensor_on(std::move(bytes), num_elements, dtype);
}

Waiting::Waiting(double& seconds) : seconds_(seconds), began_(now()) {}

Waiting::~Waiting() { seconds_ += now() - began_; }

}  // namespace tessera::offload
