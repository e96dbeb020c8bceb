#include "comm/launch_environment.h"

#include <tessera/core/error.h>

#include <gtest/gtest.h>

#include <map>

#include "support/error_message.h"

namespace tessera::comm {
namespace {

using testing::expect_parts;
using testing::message_of;
using Variables = std::map<std::string, std::string>;

LaunchEnvironment read(const Variables& variables) {
  return read_launch_environment([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional<std::string>(found->second);
  });
}

/// `base` with some variables changed; an empty value removes one.
Variables with(Variables base, const Variables& changes) {
  for (const auto& [name, value] : changes) {
    if (value.empty()) {
      base.erase(name);
    } else {
      base[name] = value;
    }
  }
  return base;
}

const Variables kTorchrun = {{"RANK", "5"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "4"},
                             {"GROUP_RANK", "1"},
                             {"MASTER_ADDR", "10.0.0.7"},
                             {"MASTER_PORT", "29500"},
                             {"TORCHELASTIC_RUN_ID", "job"},
                             {"TORCHELASTIC_RESTART_COUNT", "3"},
                             {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "2"},
                            {"OMPI_COMM_WORLD_SIZE", "3"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
                            {"OMPI_MCA_orte_ess_node_rank", "2"}};
const Variables kMpich = {{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "4"}};
const Variables kSrun = {{"SLURM_PROCID", "5"},
                         {"SLURM_NTASKS", "6"},
                         {"SLURM_LOCALID", "2"},
                         {"SLURM_NODEID", "1"},
                         {"SLURM_STEP_ID", "0"},
                         {"SLURM_STEP_NUM_NODES", "2"},
                         {"SLURM_JOB_ID", "1234"},
                         {"SLURM_STEP_TASKS_PER_NODE", "3(x2)"},
                         {"SLURM_STEP_NODELIST", "node[3-4]"}};

void expect_place(const LaunchEnvironment& launch, int rank, int size, int local_rank, int local_size, int node,
                  int num_nodes) {
  EXPECT_EQ(launch.rank, rank);
  EXPECT_EQ(launch.size, size);
  EXPECT_EQ(launch.local_rank, local_rank);
  EXPECT_EQ(launch.local_size, local_size);
  EXPECT_EQ(launch.node, node);
  EXPECT_EQ(launch.num_nodes, num_nodes);
}

TEST(LaunchEnvironment, NothingSetMeansAWorldOfOne) {
  const auto launch = read({});
  EXPECT_EQ(launch.launcher, "single");
  expect_place(launch, 0, 1, 0, 1, 0, 1);
}

TEST(LaunchEnvironment, ReadsTorchrun) {
  const auto launch = read(kTorchrun);
  EXPECT_EQ(launch.launcher, "torchrun");
  expect_place(launch, 5, 8, 1, 4, 1, 2);
  EXPECT_EQ(launch.master_address, "10.0.0.7");
  EXPECT_EQ(launch.master_port, 29500);
  EXPECT_TRUE(launch.agent_has_store);
  EXPECT_EQ(launch.generation, "3");
}

TEST(LaunchEnvironment, KnowsWhetherTheAgentHoldsTheStore) {
  EXPECT_FALSE(read(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})).agent_has_store);
  EXPECT_FALSE(read(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", ""}})).agent_has_store);
}

TEST(LaunchEnvironment, ReadsTesseraRunAndPlainVariables) {
  EXPECT_EQ(read(with(kTorchrun, {{"TESSERA_RUN", "1"}})).launcher, "tessera run");
  const auto plain = read({{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "here"}, {"MASTER_PORT", "1"}});
  EXPECT_EQ(plain.launcher, "environment");
  expect_place(plain, 3, 4, 3, 4, 0, 1);
  EXPECT_EQ(plain.generation, "0");
}

TEST(LaunchEnvironment, ReadsWhereTheLauncherHostsTheStore) {
  EXPECT_EQ(read(kTorchrun).store_address, "");
  for (const auto& [text, host] :
       {std::pair{"node3:4100", "node3"}, {"[fe80::1]:4100", "fe80::1"}, {"::1:4100", "::1"}}) {
    const auto launch = read({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"TESSERA_STORE", text}});
    EXPECT_EQ(launch.store_address, host) << text;
    EXPECT_EQ(launch.store_port, 4100) << text;
  }
  EXPECT_EQ(read(with(kOpenMpi, {{"TESSERA_STORE", "10.0.0.7:1"}})).store_address, "10.0.0.7");
  EXPECT_EQ(read(with(kSrun, {{"TESSERA_STORE", "10.0.0.7:1"}})).store_address, "10.0.0.7");
}

TEST(LaunchEnvironment, RefusesAStoreWithoutAHostOrAPort) {
  for (const char* text :
       {"node3", "node3:", ":4100", "[]:4100", "node3:0", "node3:65536", "node3:4100x", "node3:-1"}) {
    const auto message = message_of<ConfigError>([&] { read(with(kTorchrun, {{"TESSERA_STORE", text}})); });
    expect_parts(message, {"TESSERA_STORE", "HOST:PORT", std::string("\"") + text + "\""});
  }
}

TEST(LaunchEnvironment, AJobOfSrunOnOneNodeMeetsOnTheLoopbackAddress) {
  const auto launch = read(with(kSrun, {{"SLURM_NODEID", "0"},
                                        {"SLURM_STEP_NUM_NODES", "1"},
                                        {"SLURM_STEP_TASKS_PER_NODE", "6"},
                                        {"SLURM_STEP_NODELIST", "node3"}}));
  EXPECT_EQ(launch.master_address, "127.0.0.1");
}

TEST(LaunchEnvironment, RefusesHalfAnAddressFromMpirun) {
  for (const auto& half : {Variables{{"MASTER_ADDR", "head"}}, Variables{{"MASTER_PORT", "4000"}}}) {
    expect_parts(message_of<ConfigError>([&] { read(with(kOpenMpi, half)); }), {"MASTER_ADDR", "MASTER_PORT", "both"});
  }
}

TEST(LaunchEnvironment, DerivesTheNodeFromTheLocalSize) {
  const auto launch = read(with(kTorchrun, {{"GROUP_RANK", ""}, {"LOCAL_RANK", ""}}));
  expect_place(launch, 5, 8, 1, 4, 1, 2);
  EXPECT_EQ(read(with(kTorchrun, {{"NODE_RANK", "7"}})).node, 7) << "the launcher's word counts";
}

TEST(LaunchEnvironment, AWorldOfOneNeedsNoAddress) { EXPECT_EQ(read({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).size, 1); }

TEST(LaunchEnvironment, ReadsOpenMpi) {
  const auto launch = read(kOpenMpi);
  EXPECT_EQ(launch.launcher, "mpirun");
  expect_place(launch, 2, 3, 2, 3, 0, 1);
  EXPECT_EQ(launch.master_address, "");
  EXPECT_EQ(launch.master_port, 0);
  EXPECT_FALSE(launch.agent_has_store);
  const auto given = read(with(kOpenMpi, {{"MASTER_ADDR", "head"}, {"MASTER_PORT", "4000"}}));
  EXPECT_EQ(given.master_address, "head");
  EXPECT_EQ(given.master_port, 4000);
}

TEST(LaunchEnvironment, OpenMpisNodeRankIsNotTheNumberOfTheNode) {
  // Open MPI calls "node rank" the place of a process among those of its node.
  const auto launch = read({{"OMPI_COMM_WORLD_RANK", "5"},
                            {"OMPI_COMM_WORLD_SIZE", "8"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                            {"OMPI_COMM_WORLD_NODE_RANK", "1"},
                            {"OMPI_MCA_orte_ess_node_rank", "1"}});
  expect_place(launch, 5, 8, 1, 4, 1, 2);
  const auto third = read({{"OMPI_COMM_WORLD_RANK", "2"},
                           {"OMPI_COMM_WORLD_SIZE", "8"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                           {"OMPI_COMM_WORLD_NODE_RANK", "2"},
                           {"OMPI_MCA_orte_ess_node_rank", "2"}});
  expect_place(third, 2, 8, 2, 4, 0, 2);
}

TEST(LaunchEnvironment, ReadsMpich) {
  const auto launch = read(kMpich);
  EXPECT_EQ(launch.launcher, "mpirun");
  expect_place(launch, 5, 8, 1, 4, 1, 2);
}

TEST(LaunchEnvironment, ReadsSrun) {
  const auto launch = read(kSrun);
  EXPECT_EQ(launch.launcher, "srun");
  expect_place(launch, 5, 6, 2, 3, 1, 2);
  EXPECT_EQ(launch.master_address, "node3");
  EXPECT_GE(launch.master_port, 20000);
  EXPECT_LT(launch.master_port, 40000);
}

TEST(LaunchEnvironment, FindsTheFirstHostInEveryFormOfSlurmsList) {
  const std::map<std::string, std::string> first_of = {
      {"solo", "solo"},     {"a,b", "a"},           {"node[3-7,9],other", "node3"}, {"node[012-019]", "node012"},
      {"node[5]", "node5"}, {"node[5,7]", "node5"}, {"head,node[1-2]", "head"}};
  for (const auto& [list, first] : first_of) {
    EXPECT_EQ(read(with(kSrun, {{"SLURM_STEP_NODELIST", list}})).master_address, first) << list;
  }
}

TEST(LaunchEnvironment, TakesTheTasksOfItsOwnNodeFromSlurm) {
  const Variables uneven = with(kSrun, {{"SLURM_STEP_TASKS_PER_NODE", "2,4"}, {"SLURM_LOCALID", "3"}});
  expect_place(read(uneven), 5, 6, 3, 4, 1, 2);
  const Variables repeated = {{"SLURM_PROCID", "10"}, {"SLURM_NTASKS", "11"},
                              {"SLURM_LOCALID", "2"}, {"SLURM_NODEID", "2"},
                              {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_NODES", "3"},
                              {"SLURM_JOB_ID", "1"},  {"SLURM_STEP_TASKS_PER_NODE", "4(x2),3"}};
  EXPECT_EQ(read(repeated).local_size, 3);
}

TEST(LaunchEnvironment, PrefersTheReservedPort) {
  EXPECT_EQ(read(with(kSrun, {{"SLURM_STEP_RESV_PORTS", "12001-12004"}})).master_port, 12001);
  EXPECT_EQ(read(with(kSrun, {{"MASTER_PORT", "777"}})).master_port, 777);
}

TEST(LaunchEnvironment, AnAllocationWithoutAStepIsNotALaunch) {
  EXPECT_EQ(read(with(kSrun, {{"SLURM_STEP_ID", ""}})).launcher, "single");
}

TEST(LaunchEnvironment, TheInnermostLauncherWins) {
  Variables all = kTorchrun;
  all.insert(kOpenMpi.begin(), kOpenMpi.end());
  all.insert(kMpich.begin(), kMpich.end());
  all.insert(kSrun.begin(), kSrun.end());
  EXPECT_EQ(read(all).launcher, "torchrun");
  EXPECT_EQ(read(with(all, {{"RANK", ""}, {"WORLD_SIZE", ""}})).rank, 2) << "Open MPI is next";
}

TEST(LaunchEnvironment, NamesTheMissingVariable) {
  for (const char* name : {"RANK", "WORLD_SIZE"}) {
    expect_parts(message_of<ConfigError>([&] { read(with(kTorchrun, {{name, ""}})); }), {name, "torchrun"});
  }
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT"}) {
    expect_parts(message_of<ConfigError>([&] { read(with(kTorchrun, {{name, ""}})); }), {name, "WORLD_SIZE is 8"});
  }
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"}) {
    expect_parts(message_of<ConfigError>([&] { read(with(kOpenMpi, {{name, ""}})); }), {name, "Open MPI"});
  }
  for (const char* name : {"PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}) {
    expect_parts(message_of<ConfigError>([&] { read(with(kMpich, {{name, ""}})); }), {name, "MPICH"});
  }
  for (const char* name : {"SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_JOB_ID"}) {
    expect_parts(message_of<ConfigError>([&] { read(with(kSrun, {{name, ""}})); }), {name, "srun"});
  }
}

TEST(LaunchEnvironment, QuotesAMalformedNumber) {
  for (const char* text : {"x", "1x", "-1", " 1", "1.5", "99999999999"}) {
    expect_parts(message_of<ConfigError>([&] { read(with(kTorchrun, {{"RANK", text}})); }), {"RANK", text});
    expect_parts(message_of<ConfigError>([&] { read(with(kTorchrun, {{"MASTER_PORT", text}})); }),
                 {"MASTER_PORT", text});
  }
}

TEST(LaunchEnvironment, RefusesContradictions) {
  expect_parts(message_of<ConfigError>([] { read(with(kTorchrun, {{"RANK", "8"}})); }), {"rank 8", "world of 8"});
  EXPECT_THROW(read(with(kTorchrun, {{"WORLD_SIZE", "0"}})), ConfigError);
  EXPECT_THROW(read(with(kTorchrun, {{"LOCAL_WORLD_SIZE", "9"}})), ConfigError);
  EXPECT_THROW(read(with(kTorchrun, {{"LOCAL_WORLD_SIZE", "0"}})), ConfigError);
  EXPECT_THROW(read(with(kTorchrun, {{"LOCAL_RANK", "4"}})), ConfigError);
}

TEST(LaunchEnvironment, RefusesNodesWithoutRanks) {
  EXPECT_THROW(read(with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "0"}, {"OMPI_MCA_orte_ess_node_rank", ""}})),
               ConfigError);
  EXPECT_THROW(read(with(kMpich, {{"MPI_LOCALNRANKS", "0"}})), ConfigError);
  EXPECT_THROW(read(with(kSrun, {{"SLURM_STEP_NUM_NODES", "0"}, {"SLURM_STEP_TASKS_PER_NODE", ""}})), ConfigError);
}

}  // namespace
}  // namespace tessera::comm
