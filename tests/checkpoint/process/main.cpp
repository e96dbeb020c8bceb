#include "checkpoint/process/roles.h"

int main(int argc, char** argv) {
  using namespace tessera::testing;  // NOLINT(google-build-using-namespace): all that is here
  return run_tests_or_role(argc, argv,
                           {{"saves until killed", save_until_killed},
                            {"saves without a call", save_without_a_call},
                            {"has a disk", run_on_own_disk},
                            {"trains in trouble", train_in_trouble}});
}
