#include "comm/process/roles.h"

int main(int argc, char** argv) {
  namespace t = tessera::testing;
  return t::run_tests_or_role(argc, argv,
                              {{"averages", t::check_averages},
                               {"booleans", t::check_booleans},
                               {"custom_transport", t::check_custom_transport},
                               {"dropped_receive", t::check_dropped_receive},
                               {"dropped_sends", t::check_dropped_sends},
                               {"gloo_timeout", t::check_gloo_timeout},
                               {"hello", t::check_hello},
                               {"host_dies", t::check_host_dies},
                               {"init", t::check_init},
                               {"init_only", t::check_init_only},
                               {"left_memory", t::check_left_memory},
                               {"loss", t::check_loss},
                               {"memory", t::check_memory},
                               {"memory_scope", t::check_memory_scope},
                               {"mpi_alone", t::check_mpi_alone},
                               {"nodes", t::check_nodes},
                               {"one_node_only", t::check_one_node_only},
                               {"progress", t::check_progress},
                               {"reducer", t::check_reducer_role},
                               {"restart", t::check_restart},
                               {"secret", t::check_secret},
                               {"sends_to_nobody", t::check_sends_to_nobody},
                               {"unreceived", t::check_unreceived},
                               {"watched", t::check_watched}});
}
