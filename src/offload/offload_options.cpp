#include <tessera/offload/offload_options.h>

#include <string>
#include <utility>
#include <vector>

#include "offload/store/budget.h"

namespace tessera {

const FieldList<OffloadOptions>& OffloadOptions::fields() {
  const std::vector<std::pair<std::string, Tier>> tiers{
      {"device", Tier::kDevice}, {"host", Tier::kHost}, {"file", Tier::kFile}};
  static const auto list =
      FieldList<OffloadOptions>("offload")
          .add_enum("parameters", &OffloadOptions::parameters_, tiers,
                    "Where this rank's parts of the parameters lie between their uses.")
          .add_enum("gradients", &OffloadOptions::gradients_, tiers,
                    "Where averaged gradients lie between backward and the optimizer's step.")
          .add_enum("states", &OffloadOptions::states_, tiers, "Where the optimizer's state lies between steps.")
          .add("folders", &OffloadOptions::folders_, "Where files lie, one in each; they have no names.")
          .add("host_bytes", &OffloadOptions::host_bytes_,
               "Host memory of a rank for what is offloaded to it, and for what is on its way.")
          .add("host_max_bytes", &OffloadOptions::host_max_bytes_,
               "Host memory of a rank in all: with what is whole for the moment, if the model is on the CPU.")
          .add("device_parameter_bytes", &OffloadOptions::device_parameter_bytes_,
               "Memory of a rank's device for parameters that are whole for the moment.")
          .add("device_max_bytes", &OffloadOptions::device_max_bytes_,
               "Memory of a rank's device in all, but for activations.")
          .add("prefetch_parameters", &OffloadOptions::prefetch_parameters_,
               "How many flat parameters that come next are read ahead, as far as memory allows.")
          .add("overlap", &OffloadOptions::overlap_, "Off: what is read or written is waited for at once.");
  return list;
}

std::vector<std::string> OffloadOptions::faults() const {
  std::vector<std::string> faults;
  const auto check = [&](bool holds, const std::string& fault) {
    if (!holds) faults.push_back(fault);
  };
  const auto check_size = [&](std::int64_t num_bytes, const std::string& name) {
    check(num_bytes > 0, name + " is " + std::to_string(num_bytes) + ": set it to a number of bytes above 0");
  };
  const auto text = [](std::int64_t num_bytes) { return offload::bytes_text(static_cast<std::uint64_t>(num_bytes)); };
  check_size(host_bytes_, "host_bytes");
  check_size(host_max_bytes_, "host_max_bytes");
  check_size(device_parameter_bytes_, "device_parameter_bytes");
  check_size(device_max_bytes_, "device_max_bytes");
  const auto check_part = [&](std::int64_t part, std::int64_t whole, const std::string& part_name,
                              const std::string& whole_name) {
    if (part <= 0 || whole <= 0) return;
    check(part <= whole, part_name + " is " + text(part) + ", and " + whole_name + ", of which it is a part, " +
                             text(whole) + ": lower the one or raise the other");
  };
  check_part(host_bytes_, host_max_bytes_, "host_bytes", "host_max_bytes");
  check_part(device_parameter_bytes_, device_max_bytes_, "device_parameter_bytes", "device_max_bytes");
  check(prefetch_parameters_ >= 0,
        "prefetch_parameters is " + std::to_string(prefetch_parameters_) + ": set it to 0 or above");
  check(!uses_files() || !folders_.empty(),
        "something is to lie in files, and folders is empty: name a folder on a disk");
  for (const std::string& folder : folders_) check(!folder.empty(), "folders holds an empty name: take it out");
  return faults;
}

}  // namespace tessera
