#include "launch/run_plan.h"

#include <tessera/core/error.h>
#include <tessera/launch/machine.h>
#include <tessera/launch/run_options.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "launch/job_store.h"

namespace tessera {

const FieldList<RunOptions>& RunOptions::fields() {
  static const FieldList<RunOptions> list =
      FieldList<RunOptions>("run")
          .add("nproc_per_node", &RunOptions::nproc_per_node_,
               "Ranks on this node: a number, cpu (one a core) or auto (one a GPU, or a core where there is no GPU).")
          .add("nnodes", &RunOptions::nnodes_, "Nodes of the job; a launcher is started on each of them.")
          .add("node_rank", &RunOptions::node_rank_, "This node's number, from 0.")
          .add("rdzv_endpoint", &RunOptions::rdzv_endpoint_,
               "HOST:PORT of node 0, where the nodes meet. With one node: where rank 0 may listen; empty: the loopback "
               "address and a free port.")
          .add("master_addr", &RunOptions::master_addr_, "The host of rdzv_endpoint, by itself.")
          .add("master_port", &RunOptions::master_port_, "The port of rdzv_endpoint, by itself; 0: a free one.")
          .add("max_restarts", &RunOptions::max_restarts_, "How often a failed job is started again.")
          .add("log_dir", &RunOptions::log_dir_,
               "Keep each rank's output in attempt_K/rank_R/stdout.log and stderr.log below this folder.")
          .add("tee", &RunOptions::tee_,
               "What also goes to the console: 0 nothing, 1 standard output, 2 standard error, 3 both; below 3 only "
               "with log_dir.")
          .add_enum(
              "bind", &RunOptions::bind_,
              {{"auto", Binding::kAuto}, {"none", Binding::kNone}, {"core", Binding::kCore}, {"numa", Binding::kNuma}},
              "The cores of each rank, out of the launcher's own; auto: numa with several NUMA nodes, else none.")
          .add("grace", &RunOptions::grace_, "How long ranks have to end after a signal before they are killed.")
          .add(
              "secret_file", &RunOptions::secret_file_,
              "The key that the nodes of one job prove to each other (tessera secret FILE); refused while nnodes is 1.")
          .add("rdzv_timeout", &RunOptions::rdzv_timeout_, "How long nodes wait until all of them are there.");
  return list;
}

}  // namespace tessera

namespace tessera::launch {
namespace {

constexpr int kMaxPort = 65535;

/// None for anything but a whole number.
std::optional<int> number_of(const std::string& text) {
  int value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, fault] = std::from_chars(text.data(), end, value);
  return fault == std::errc() && rest == end && !text.empty() ? std::optional(value) : std::nullopt;
}

int num_ranks_of(const std::string& text) {
  if (text == "cpu") return num_allowed_cores();
  if (text == "auto") {
    const int gpus = num_gpus(std::getenv("CUDA_VISIBLE_DEVICES"));
    return gpus > 0 ? gpus : num_allowed_cores();
  }
  const auto number = number_of(text);
  if (!number || *number < 1) {
    throw ConfigError("nproc_per_node: expected a number from 1, cpu or auto, found \"" + text + "\"");
  }
  return *number;
}

struct Endpoint {
  std::string host;
  int port = 0;
};

Endpoint endpoint_of(const RunOptions& options) {
  const std::string& text = options.rdzv_endpoint();
  if (text.empty()) return {options.master_addr(), options.master_port()};
  if (!options.master_addr().empty() || options.master_port() != 0) {
    throw ConfigError("rdzv_endpoint says what master_addr and master_port say: give it or them, not both");
  }
  const auto colon = text.rfind(':');
  const auto port = colon == std::string::npos ? std::optional(0) : number_of(text.substr(colon + 1));
  if (!port) throw ConfigError("rdzv_endpoint: expected HOST:PORT, found \"" + text + "\"");
  std::string host = text.substr(0, colon);
  // [::1]:29500
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return {host, *port};
}

void check_nodes(const RunOptions& options) {
  if (options.nnodes() < 1) {
    throw ConfigError("nnodes: expected a number from 1, found " + std::to_string(options.nnodes()));
  }
  if (options.node_rank() < 0 || options.node_rank() >= options.nnodes()) {
    throw ConfigError("node_rank: expected a number from 0 to " + std::to_string(options.nnodes() - 1) +
                      ", because nnodes is " + std::to_string(options.nnodes()) + ", found " +
                      std::to_string(options.node_rank()));
  }
  if (options.nnodes() == 1 && !options.secret_file().empty()) {
    throw ConfigError("secret_file: it protects jobs of several nodes, and nnodes is 1; leave it out");
  }
  if (options.nnodes() > 1 && options.secret_file().empty()) {
    throw ConfigError(
        "secret_file: a job of several nodes needs one, or anybody on the network could join. Make it once with "
        "\"tessera secret FILE\", copy it to every node, and give its path to each launcher");
  }
  if (options.rdzv_timeout().count() <= 0) throw ConfigError("rdzv_timeout: a duration above 0 was expected");
}

void check(const RunOptions& options) {
  RunOptions::fields().check(options);
  check_nodes(options);
  if (options.max_restarts() < 0) {
    throw ConfigError("max_restarts: expected a number from 0, found " + std::to_string(options.max_restarts()));
  }
  if (options.tee() < 0 || options.tee() > 3) {
    throw ConfigError("tee: expected 0, 1, 2 or 3, found " + std::to_string(options.tee()));
  }
  if (options.tee() != 3 && options.log_dir().empty()) {
    throw ConfigError("tee " + std::to_string(options.tee()) +
                      " keeps output off the console, and without log_dir it "
                      "would be lost; set log_dir");
  }
  if (options.grace().count() < 0) throw ConfigError("grace: a duration from 0 was expected");
}

std::vector<std::vector<int>> binding_of(Binding binding, int num_ranks, const PlanBinding& plan_binding) {
  if (binding == Binding::kAuto) binding = num_numa_nodes() > 1 ? Binding::kNuma : Binding::kNone;
  if (binding == Binding::kNone) return {};
  return plan_binding(binding, num_ranks, allowed_cpus());
}

/// Where the store and rank 0 listen.
void set_meeting_place(RunPlan& plan, const Endpoint& endpoint, const RunOptions& options) {
  if (options.nnodes() == 1) {
    plan.master_address = endpoint.host.empty() ? "127.0.0.1" : endpoint.host;
    plan.master_port = endpoint.port;
    plan.store_address = "127.0.0.1";
    plan.secret = store::Secret::mint();
    return;
  }
  if (endpoint.host.empty() || endpoint.port == 0) {
    throw ConfigError("rdzv_endpoint: with nnodes " + std::to_string(options.nnodes()) +
                      " an address of node 0 and a port were expected, the same on every node (HOST:PORT), found \"" +
                      options.rdzv_endpoint() + "\"");
  }
  plan.master_address = endpoint.host;
  plan.store_address = endpoint.host;
  plan.store_port = endpoint.port;
  plan.secret = store::Secret::from_file(options.secret_file());
}

}  // namespace

RunPlan resolve(const RunOptions& options, const PlanBinding& plan_binding) {
  check(options);
  const Endpoint endpoint = endpoint_of(options);
  if (endpoint.port < 0 || endpoint.port > kMaxPort) {
    throw ConfigError("the rendezvous port: expected 0 to " + std::to_string(kMaxPort) + ", found " +
                      std::to_string(endpoint.port));
  }
  RunPlan plan;
  plan.num_ranks = num_ranks_of(options.nproc_per_node());
  plan.world_size = plan.num_ranks;
  plan.num_nodes = options.nnodes();
  plan.node_rank = options.node_rank();
  set_meeting_place(plan, endpoint, options);
  plan.meeting_timeout = options.rdzv_timeout();
  plan.max_restarts = options.max_restarts();
  plan.log_dir = options.log_dir();
  plan.shows_output = (options.tee() & 1) != 0;
  plan.shows_errors = (options.tee() & 2) != 0;
  plan.cpus = binding_of(options.bind(), plan.num_ranks, plan_binding);
  plan.grace = options.grace();
  plan.num_threads = std::max(1, num_allowed_cores() / plan.num_ranks);
  return plan;
}

namespace {

/// How the rank reaches the job's store, and where it records what it does.
void set_services(Environment& environment, const RunPlan& plan, int generation, const std::string& black_box) {
  environment["TESSERA_STORE"] = endpoint_text(plan.store_address, plan.store_port);
  environment["TESSERA_SECRET"] = plan.secret.value().hex();
  environment["TESSERA_BLACK_BOX"] = black_box;
  // Set by the user, for jobs that our launcher does not start.
  environment.erase("TESSERA_SECRET_FILE");
  environment.erase("TESSERA_LOG_DIR");
  if (!plan.log_dir.empty()) {
    environment["TESSERA_LOG_DIR"] = std::filesystem::absolute(plan.attempt_folder(generation));
  }
}

/// Variables that an outer launcher has set would lead to its terminal, so they are removed.
void set_progress(Environment& environment, const RunPlan& plan, int rank) {
  environment.erase("TESSERA_PROGRESS");
  environment.erase("TESSERA_PROGRESS_WIDTH");
  if (rank != 0 || plan.progress_path.empty()) return;
  environment["TESSERA_PROGRESS"] = plan.progress_path;
  environment["TESSERA_PROGRESS_WIDTH"] = std::to_string(plan.progress_width);
}

}  // namespace

Environment environment_of(const RunPlan& plan, int local_rank, int generation, const std::string& black_box) {
  RankPlace place;
  place.rank = plan.rank_of(local_rank);
  place.local_rank = local_rank;
  place.node_rank = plan.node_rank;
  place.world_size = plan.world_size;
  place.local_world_size = plan.num_ranks;
  place.master_address = plan.master_address;
  place.master_port = plan.master_port;
  Environment environment = current_environment();
  set_place(environment, place);
  set_services(environment, plan, generation, black_box);
  set_progress(environment, plan, place.rank);
  environment["GROUP_RANK"] = std::to_string(plan.node_rank);
  environment["TESSERA_RUN"] = "1";
  environment["TORCHELASTIC_RESTART_COUNT"] = std::to_string(generation);
  // A torchrun around this launcher may have set these, but its store is not this job's.
  environment["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  environment.erase("TORCHELASTIC_RUN_ID");
  // By default each rank would start a thread for each core, and the ranks would compete for the cores.
  environment.try_emplace("OMP_NUM_THREADS", std::to_string(plan.num_threads));
  return environment;
}

}  // namespace tessera::launch
