#include "store/roles.h"

int main(int argc, char** argv) {
  namespace t = tessera::testing;
  return t::run_tests_or_role(argc, argv, {{"holds_lease", t::hold_lease}, {"serves", t::serve}, {"stalls", t::stall}});
}
