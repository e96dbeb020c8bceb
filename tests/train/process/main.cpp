#include "train/process/roles.h"

int main(int argc, char** argv) {
  return tessera::testing::run_tests_or_role(argc, argv, {{"feeds", tessera::testing::feed}});
}
