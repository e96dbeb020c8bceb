#pragma once

#include <filesystem>
#include <string>

#include "tessera/doctor/check.h"

namespace tessera::doctor {

// One function for each file. `root` is the folder that holds /proc, /sys and /dev; tests make their own.

Checks check_compute(const std::filesystem::path& root);
Checks check_control_groups(const std::filesystem::path& root);
Checks check_limits(const std::filesystem::path& root);
Checks check_shared_memory(const std::filesystem::path& root);
Checks check_process_access(const std::filesystem::path& root);
Checks check_network();
Checks check_clock();
/// Blocks: for the second or two that LibTorch takes to load. `torch_program` is the path of tessera-torch.
Checks check_software(const std::string& torch_program);

/// All of them, in the order in which they are printed.
Checks check_machine(const std::string& torch_program);

}  // namespace tessera::doctor
