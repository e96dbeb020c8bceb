// The loss scaler with ranks as processes.
#include <gtest/gtest.h>

#include "optim/scaler_training.h"
#include "support/process_roles.h"

namespace tessera::testing {
namespace {

void skip(const Arguments& arguments) { check_that_all_skip(init(WorldOptions().backend(arguments.at(0)))); }

TEST(GradScalerProcesses, AllSkipOnSharedMemory) { expect_success(job_of(4, "skip", {"shm"})); }
TEST(GradScalerProcesses, AllSkipOnGloo) { expect_success(job_of(4, "skip", {"gloo"})); }

}  // namespace
}  // namespace tessera::testing

int main(int argc, char** argv) {
  return tessera::testing::run_tests_or_role(argc, argv, {{"skip", tessera::testing::skip}});
}
