#include "comm/launch_environment.h"

#include <tessera/comm/topology.h>
#include <tessera/core/error.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "comm/socket_address.h"

namespace tessera {

Topology::Topology(Kind kind, int num_ranks, int num_nodes, int ranks_per_node)
    : kind_(kind), num_ranks_(num_ranks), num_nodes_(num_nodes), ranks_per_node_(ranks_per_node) {}

Topology Topology::blocks(int num_ranks, int ranks_per_node) {
  if (num_ranks < 1 || ranks_per_node < 1) {
    throw ConfigError("a topology needs at least one rank and one rank a node; found " + std::to_string(num_ranks) +
                      " and " + std::to_string(ranks_per_node));
  }
  return {Kind::kBlocks, num_ranks, (num_ranks + ranks_per_node - 1) / ranks_per_node, ranks_per_node};
}

Topology Topology::cyclic(int num_ranks, int num_nodes) {
  if (num_nodes < 1 || num_nodes > num_ranks) {
    throw ConfigError(std::to_string(num_ranks) + " ranks cannot be dealt to " + std::to_string(num_nodes) + " nodes");
  }
  return {Kind::kCyclic, num_ranks, num_nodes, 0};
}

Topology Topology::table(std::vector<int> node_of_rank) {
  if (node_of_rank.empty()) throw ConfigError("a topology needs at least one rank");
  const int num_nodes = *std::max_element(node_of_rank.begin(), node_of_rank.end()) + 1;
  Topology topology(Kind::kTable, static_cast<int>(node_of_rank.size()), num_nodes, 0);
  topology.table_ = std::move(node_of_rank);
  return topology;
}

int Topology::node_of(int rank) const {
  switch (kind_) {
    case Kind::kBlocks:
      return rank / ranks_per_node_;
    case Kind::kCyclic:
      return rank % num_nodes_;
    case Kind::kTable:
      break;
  }
  return table_[static_cast<std::size_t>(rank)];
}

int Topology::local_rank_of(int rank) const {
  switch (kind_) {
    case Kind::kBlocks:
      return rank % ranks_per_node_;
    case Kind::kCyclic:
      return rank / num_nodes_;
    case Kind::kTable:
      break;
  }
  return static_cast<int>(std::count(table_.begin(), table_.begin() + rank, node_of(rank)));
}

int Topology::num_ranks_on(int node) const {
  switch (kind_) {
    case Kind::kBlocks:
      return std::min(ranks_per_node_, num_ranks_ - node * ranks_per_node_);
    case Kind::kCyclic:
      return (num_ranks_ - node + num_nodes_ - 1) / num_nodes_;
    case Kind::kTable:
      break;
  }
  return static_cast<int>(std::count(table_.begin(), table_.end(), node));
}

std::vector<int> Topology::ranks_on(int node) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < num_ranks_; ++rank) {
    if (node_of(rank) == node) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace tessera

namespace tessera::comm {
namespace {

class Variables {
 public:
  Variables(const GetVariable& get, std::string launcher) : get_(get), launcher_(std::move(launcher)) {}

  std::optional<std::string> text(const char* name) const { return get_(name); }

  std::optional<int> number(const char* name) const {
    const auto value = get_(name);
    if (!value) return std::nullopt;
    int result = 0;
    const auto [end, fault] = std::from_chars(value->data(), value->data() + value->size(), result);
    if (fault != std::errc() || end != value->data() + value->size() || result < 0) {
      throw ConfigError("the variable " + std::string(name) + " of " + launcher_ + " should be a number, found \"" +
                        *value + "\"");
    }
    return result;
  }

  int required(const char* name) const {
    const auto value = number(name);
    if (!value) {
      throw ConfigError("the variable " + std::string(name) + " is not set, though others of " + launcher_ +
                        " are; set it, or start the program with `tessera run`, torchrun, mpirun or srun");
    }
    return *value;
  }

 private:
  const GetVariable& get_;
  std::string launcher_;
};

/// "HOST:PORT", where HOST may be an IPv6 address, with brackets or without.
void read_store(const Variables& variables, LaunchEnvironment& launch) {
  const auto place = variables.text("TESSERA_STORE");
  if (!place) return;
  const auto colon = place->rfind(':');
  std::string host = place->substr(0, colon);
  const auto port = colon == std::string::npos ? std::nullopt : port_number(place->substr(colon + 1));
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  if (!port || host.empty()) {
    throw ConfigError("the variable TESSERA_STORE should be HOST:PORT, found \"" + *place + "\"");
  }
  launch.store_address = host;
  launch.store_port = *port;
}

void read_master(const Variables& variables, LaunchEnvironment& launch) {
  read_store(variables, launch);
  launch.master_address = variables.text("MASTER_ADDR").value_or("");
  launch.master_port = variables.number("MASTER_PORT").value_or(0);
}

LaunchEnvironment from_torchrun(const GetVariable& get) {
  const bool ours = get("TESSERA_RUN").has_value();
  const bool elastic = get("TORCHELASTIC_RUN_ID").has_value();
  const Variables variables(get, ours ? "tessera run" : elastic ? "torchrun" : "the environment");
  LaunchEnvironment launch;
  launch.launcher = ours ? "tessera run" : elastic ? "torchrun" : "environment";
  launch.rank = variables.required("RANK");
  launch.size = variables.required("WORLD_SIZE");
  launch.local_size = variables.number("LOCAL_WORLD_SIZE").value_or(launch.size);
  launch.local_rank =
      variables.number("LOCAL_RANK").value_or(launch.local_size > 0 ? launch.rank % launch.local_size : 0);
  launch.node =
      variables.number("NODE_RANK")
          .value_or(
              variables.number("GROUP_RANK").value_or(launch.local_size > 0 ? launch.rank / launch.local_size : 0));
  read_master(variables, launch);
  if (launch.size > 1 && launch.store_address.empty() && (launch.master_address.empty() || launch.master_port == 0)) {
    throw ConfigError("WORLD_SIZE is " + std::to_string(launch.size) +
                      " but MASTER_ADDR or MASTER_PORT is not set; set both to where rank 0 shall listen");
  }
  launch.agent_has_store = variables.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  launch.generation = variables.text("TORCHELASTIC_RESTART_COUNT").value_or("0");
  return launch;
}

/// mpirun does not give the number of the node. It fills the nodes one after another or deals the ranks to them in
/// turn; the local rank shows which of the two.
int node_under_mpirun(const LaunchEnvironment& launch) {
  if (launch.local_size < 1) return 0;  // check() refuses it, with all numbers
  const int num_nodes = (launch.size + launch.local_size - 1) / launch.local_size;
  const bool by_node = launch.rank % launch.local_size == launch.local_rank;
  return by_node ? launch.rank / launch.local_size : launch.rank % num_nodes;
}

/// What the two kinds of mpirun call the same four numbers.
struct MpiNames {
  const char* launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};
constexpr MpiNames kOpenMpi = {"mpirun (Open MPI)", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                               "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr MpiNames kMpich = {"mpirun (MPICH)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};

LaunchEnvironment from_mpirun(const GetVariable& get, const MpiNames& names) {
  const Variables variables(get, names.launcher);
  LaunchEnvironment launch;
  launch.launcher = "mpirun";
  launch.rank = variables.required(names.rank);
  launch.size = variables.required(names.size);
  launch.local_rank = variables.required(names.local_rank);
  launch.local_size = variables.required(names.local_size);
  launch.node = node_under_mpirun(launch);
  read_master(variables, launch);
  if (launch.master_address.empty() != (launch.master_port == 0)) {
    throw ConfigError("one of MASTER_ADDR and MASTER_PORT is set but not the other; set both, or neither (" +
                      std::string(names.launcher) + ")");
  }
  return launch;
}

/// "node[3-7,9],other" begins with "node3".
std::string first_host(const std::string& list) {
  const auto bracket = list.find('[');
  const auto comma = list.find(',');
  if (bracket == std::string::npos || (comma != std::string::npos && comma < bracket)) return list.substr(0, comma);
  const auto end = list.find_first_of(",-]", bracket);
  return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1);
}

/// The number that `text` begins with, if it does.
std::optional<int> leading_number(std::string_view text) {
  int number = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), number);
  return fault == std::errc() ? std::optional<int>(number) : std::nullopt;
}

/// "4(x2),3" says 4 on nodes 0 and 1 and 3 on node 2; 0 where it says nothing.
int tasks_on(const std::string& list, int node) {
  std::istringstream entries(list);
  std::string entry;
  int next = 0;
  while (std::getline(entries, entry, ',')) {
    const int tasks = leading_number(entry).value_or(0);
    const auto repeat = entry.find("(x");
    if (tasks == 0) return 0;
    next += repeat == std::string::npos ? 1 : leading_number(std::string_view(entry).substr(repeat + 2)).value_or(1);
    if (node < next) return tasks;
  }
  return 0;
}

LaunchEnvironment from_srun(const GetVariable& get) {
  const Variables variables(get, "srun");
  LaunchEnvironment launch;
  launch.launcher = "srun";
  launch.rank = variables.required("SLURM_PROCID");
  launch.size = variables.required("SLURM_NTASKS");
  launch.local_rank = variables.required("SLURM_LOCALID");
  launch.node = variables.required("SLURM_NODEID");
  const int num_nodes = variables.number("SLURM_STEP_NUM_NODES").value_or(variables.number("SLURM_NNODES").value_or(1));
  launch.local_size = num_nodes > 0 ? (launch.size + num_nodes - 1) / num_nodes : 0;
  if (const auto tasks = variables.text("SLURM_STEP_TASKS_PER_NODE")) launch.local_size = tasks_on(*tasks, launch.node);
  read_master(variables, launch);
  if (launch.master_address.empty()) {
    const auto nodes = variables.text("SLURM_STEP_NODELIST");
    // No other host needs to reach a job on one node.
    launch.master_address = nodes && num_nodes > 1 ? first_host(*nodes) : "127.0.0.1";
  }
  if (launch.master_port == 0) {
    // By default srun reserves no port. Ports that are derived from the job's number spread jobs over a range.
    const auto reserved = variables.text("SLURM_STEP_RESV_PORTS");
    launch.master_port =
        reserved
            ? leading_number(*reserved).value_or(0)
            : 20000 + (variables.required("SLURM_JOB_ID") * 16 + variables.number("SLURM_STEP_ID").value_or(0) % 16) %
                          20000;
  }
  return launch;
}

void check(const LaunchEnvironment& launch) {
  if (launch.size < 1 || launch.rank >= launch.size) {
    throw ConfigError("rank " + std::to_string(launch.rank) + " does not fit a world of " +
                      std::to_string(launch.size) + " (variables of " + launch.launcher + ")");
  }
  if (launch.local_size < 1 || launch.local_size > launch.size || launch.local_rank >= launch.local_size) {
    throw ConfigError("local rank " + std::to_string(launch.local_rank) + " of " + std::to_string(launch.local_size) +
                      " does not fit a world of " + std::to_string(launch.size) + " (variables of " + launch.launcher +
                      ")");
  }
}

}  // namespace

LaunchEnvironment read_launch_environment(const GetVariable& get) {
  LaunchEnvironment launch;
  if (get("RANK") || get("WORLD_SIZE")) {
    launch = from_torchrun(get);
  } else if (get("OMPI_COMM_WORLD_RANK")) {
    launch = from_mpirun(get, kOpenMpi);
  } else if (get("PMI_RANK")) {
    launch = from_mpirun(get, kMpich);
  } else if (get("SLURM_PROCID") && get("SLURM_STEP_ID")) {
    launch = from_srun(get);
  }
  check(launch);
  launch.num_nodes = (launch.size + launch.local_size - 1) / launch.local_size;
  return launch;
}

GetVariable process_environment() {
  return [](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

}  // namespace tessera::comm
