#pragma once

#include "support/process_roles.h"

// What the ranks of these tests do, and how they end. Each is defined beside the test that spawns it.
namespace tessera::testing {

// Exit codes of ranks.
constexpr int kConfigError = 2;
constexpr int kCommError = 3;

void check_averages(const Arguments& arguments);
void check_booleans(const Arguments& arguments);
void check_custom_transport(const Arguments& arguments);
void check_dropped_receive(const Arguments& arguments);
void check_dropped_sends(const Arguments& arguments);
void check_gloo_timeout(const Arguments& arguments);
void check_hello(const Arguments& arguments);
void check_host_dies(const Arguments& arguments);
void check_init(const Arguments& arguments);
void check_init_only(const Arguments& arguments);
void check_left_memory(const Arguments& arguments);
void check_loss(const Arguments& arguments);
void check_memory(const Arguments& arguments);
void check_memory_scope(const Arguments& arguments);
void check_mpi_alone(const Arguments& arguments);
void check_nodes(const Arguments& arguments);
void check_one_node_only(const Arguments& arguments);
void check_progress(const Arguments& arguments);
void check_reducer_role(const Arguments& arguments);
void check_restart(const Arguments& arguments);
void check_secret(const Arguments& arguments);
void check_sends_to_nobody(const Arguments& arguments);
void check_unreceived(const Arguments& arguments);
void check_watched(const Arguments& arguments);

}  // namespace tessera::testing
