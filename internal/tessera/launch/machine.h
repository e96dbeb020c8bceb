#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tessera::launch {

/// The processors that this process may use.
std::vector<int> allowed_cpus();

/// How many cores those are: hyperthreads of one core count once.
int num_allowed_cores();

/// The GPUs that programs will see: `visible` is CUDA_VISIBLE_DEVICES, null when it is not set.
int num_gpus(const char* visible, const std::filesystem::path& driver_folder = "/proc/driver/nvidia/gpus");

/// How many NUMA nodes hold processors.
int num_numa_nodes(const std::filesystem::path& folder = "/sys/devices/system/node");

}  // namespace tessera::launch
