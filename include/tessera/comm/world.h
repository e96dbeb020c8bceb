#pragma once

#include <tessera/comm/communicator.h>
#include <tessera/comm/topology.h>
#include <tessera/comm/transport.h>
#include <tessera/core/options.h>

#include <c10/core/Device.h>
#include <torch/arg.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>

namespace tessera {

struct WorldOptions {
  /// What carries tensors of the CPU: "auto" (shared memory when all ranks of a group share a node, else Gloo), "shm",
  /// "gloo", "mpi", or "custom" with `transport`. NCCL carries those on CUDA's devices beside each of these; "nccl" is
  /// "auto".
  TORCH_ARG(std::string, backend) = "auto";
  /// How long a call may take before it fails. Raise it for jobs whose ranks drift far apart.
  TORCH_ARG(std::chrono::milliseconds, timeout) = std::chrono::seconds(30);
  /// How long to wait for the other ranks at the start.
  TORCH_ARG(std::chrono::milliseconds, init_timeout) = std::chrono::seconds(300);
  /// The algorithm of the world's communicator (see CommunicationStrategy).
  TORCH_ARG(std::string, strategy) = "allreduce";
  /// The network interface or address Gloo binds to. Empty: the one that reaches the rendezvous.
  TORCH_ARG(std::string, interface) = "";
  /// The file with the job's secret, which protects where its ranks meet; `tessera secret FILE` makes one. Needed on
  /// several hosts, unless `tessera run` starts the job. Empty: what TESSERA_SECRET_FILE names. A secret that the
  /// launcher gives in TESSERA_SECRET goes before both.
  TORCH_ARG(std::string, secret_file) = "";
  /// The table of the adaptive strategy, as `tessera bench comm --write-table FILE` writes it. Empty: built in.
  TORCH_ARG(std::string, tuning_file) = "";
  /// A rank without a sign of life for so long is lost, and the job ends. Raise it on hosts that pause and when you
  /// stop ranks in a debugger; 0 watches nobody.
  TORCH_ARG(std::chrono::milliseconds, lost_after) = std::chrono::seconds(5);
  /// A wait that takes longer is looked into, and reported; the job goes on.
  TORCH_ARG(std::chrono::milliseconds, slow_after) = std::chrono::seconds(5);
  /// Compare operation, shape and dtype across ranks before each collective. Slow; to find a mistake.
  TORCH_ARG(bool, checked) = false;
  /// Only with backend "custom": makes the transport of each group.
  TORCH_ARG(TransportFactory, transport) = nullptr;

 public:
  static const FieldList<WorldOptions>& fields();
};

/// The processes of a job, seen from one of them. A handle: cheap to copy. The last copy closes the connections.
class World {
 public:
  struct State;
  explicit World(std::shared_ptr<State> state);

  int rank() const;
  int size() const;
  int local_rank() const;  ///< among the ranks of this node
  int local_size() const;
  int node() const;
  int num_nodes() const;
  const Topology& topology() const;
  /// "tessera run", "torchrun", "mpirun", "srun", "threads", "fake", or "single" for a process started alone.
  const std::string& launcher() const;
  /// All ranks. Connected at its first use.
  const Communicator& comm() const;
  /// The accelerator that this rank trains on: the one with the number of the rank's place on its node, or the only one
  /// that the process sees, as srun arranges it; the CPU where there is none. It becomes the thread's current device,
  /// so that tensors on plain `torch::kCUDA` lie there too. Throws ConfigError for more ranks than devices.
  at::Device device() const;

  const State& state() const { return *state_; }

 private:
  std::shared_ptr<State> state_;
};

/// The world that the launcher's variables describe: `tessera run` and torchrun (RANK, WORLD_SIZE, LOCAL_RANK,
/// MASTER_ADDR, ...), mpirun of Open MPI (OMPI_COMM_WORLD_*) and of MPICH (PMI_*, MPI_LOCAL*), srun (SLURM_*). A
/// process started with none of them is a world of one.
/// The processes meet in a store that the job's secret protects (docs/security.md). The launcher hosts it
/// (TESSERA_STORE), or else rank 0 does. On the loopback address of one host the secret is made and shared
/// automatically; on several hosts, see WorldOptions::secret_file.
/// Collective: over all processes of the job. Blocks: until every process has called it.
/// Throws ConfigError for contradictory variables, CommError when a process does not come in time.
World init(const WorldOptions& options = {});

/// Runs `body` on `num_ranks` threads of this process, each a rank of one world; `ranks_per_node` (0: all on one)
/// simulates node boundaries. Returns when all have returned; rethrows the exception of the rank that failed first.
void run_threads(int num_ranks, const std::function<void(World)>& body, const WorldOptions& options = {},
                 int ranks_per_node = 0);

/// What a rank of a fake world would have sent.
struct FakeTraffic {
  std::uint64_t num_calls = 0;
  std::uint64_t num_messages = 0;
  std::uint64_t num_bytes = 0;
  std::uint64_t num_groups = 0;  ///< groups connected by this rank
};

/// One rank of a world of any size in which nothing moves: calls return at once, tensors keep their values, new ones
/// have this rank's piece and zeros, and `fake_traffic` counts what this rank would have sent. For planning and for
/// tests of scale.
World fake_world(int rank, int size, int ranks_per_node = 8, const WorldOptions& options = {});
FakeTraffic fake_traffic(const World& world);

}  // namespace tessera
