#include "tessera/doctor/checks.h"

#include <iterator>
#include <utility>

namespace tessera::doctor {
namespace {

void append(Checks& all, Checks more) {
  all.insert(all.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

}  // namespace

Checks check_machine(const std::string& torch_program) {
  const std::filesystem::path root = "/";
  Checks all = check_compute(root);
  append(all, check_control_groups(root));
  append(all, check_limits(root));
  append(all, check_shared_memory(root));
  append(all, check_process_access(root));
  append(all, check_network());
  append(all, check_clock());
  append(all, check_software(torch_program));
  return all;
}

}  // namespace tessera::doctor
