#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <cstring>
#include <numeric>
#include <utility>

#include "comm/connector.h"
#include "comm/gloo/gloo_backend.h"
#include "comm/group.h"
#include "comm/mpi/mpi_runtime.h"
#include "comm/world_context.h"
#include "tessera/comm_measure/contestant.h"
#include "tessera/comm_measure/stopwatch.h"

namespace tessera::comm {
namespace {

at::Tensor ordinary(std::int64_t count) { return at::zeros({count}, at::kFloat); }

Contestant communicator(std::string name, const Communicator& comm, bool own_memory) {
  Contestant contestant;
  contestant.name = std::move(name);
  contestant.all_reduce = [comm](at::Tensor whole) { comm.all_reduce(std::move(whole)); };
  contestant.all_gather = [comm](at::Tensor whole, const at::Tensor& piece) {
    comm.all_gather_into(std::move(whole), piece);
  };
  contestant.reduce_scatter = [comm](at::Tensor piece, const at::Tensor& whole) {
    comm.reduce_scatter_into(std::move(piece), whole);
  };
  contestant.allocate = own_memory ? [comm](std::int64_t count) {
    at::Tensor tensor = comm.empty({count}, at::TensorOptions().dtype(at::kFloat));
    return tensor.zero_();
  } : std::function<at::Tensor(std::int64_t)>(ordinary);
  return contestant;
}

Contestant bare(std::string name, const c10::intrusive_ptr<c10d::Backend>& backend) {
  Contestant contestant;
  contestant.name = std::move(name);
  contestant.allocate = ordinary;
  contestant.all_reduce = [backend](const at::Tensor& whole) {
    std::vector<at::Tensor> tensors{whole};
    backend->allreduce(tensors, c10d::AllreduceOptions())->wait();
  };
  contestant.all_gather = [backend](at::Tensor whole, at::Tensor piece) {
    backend->_allgather_base(whole, piece, c10d::AllgatherOptions())->wait();
  };
  contestant.reduce_scatter = [backend](at::Tensor piece, at::Tensor whole) {
    backend->_reduce_scatter_base(piece, whole, c10d::ReduceScatterOptions())->wait();
  };
  return contestant;
}

void copy_bytes(const at::Tensor& to, const at::Tensor& from, std::size_t num_bytes) {
  std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), num_bytes);
}

/// Note [The memory-copy limit]
/// What a rank must read and write when every byte is touched once: an all_reduce of S bytes reads S and writes S (its
/// share of every rank's tensor); an all_gather reads S and writes S; a reduce_scatter reads S and writes S/n. The
/// limit is a memcpy, by all ranks at once, that reads and writes that many bytes.
Contestant plain_copy(int num_ranks) {
  Contestant contestant;
  contestant.name = "memcpy";
  contestant.allocate = ordinary;
  auto other = std::make_shared<at::Tensor>();
  const auto target = [other](const at::Tensor& like) {
    if (!other->defined() || other->numel() < like.numel()) *other = at::zeros_like(like);
    return *other;
  };
  contestant.all_reduce = [target](const at::Tensor& whole) { copy_bytes(target(whole), whole, whole.nbytes()); };
  contestant.all_gather = [target](const at::Tensor& whole, const at::Tensor&) {
    copy_bytes(target(whole), whole, whole.nbytes());
  };
  contestant.reduce_scatter = [target, num_ranks](const at::Tensor&, const at::Tensor& whole) {
    const auto n = static_cast<std::size_t>(num_ranks);
    copy_bytes(target(whole), whole, whole.nbytes() * (n + 1) / (2 * n));
  };
  return contestant;
}

ProcessConnector::Settings settings_for(const World& world, const std::string& backend) {
  ProcessConnector::Settings settings;
  settings.backend = backend;
  settings.interface = "127.0.0.1";
  settings.topology = world.topology();
  settings.rank = world.rank();
  settings.store = c10::make_intrusive<c10d::PrefixStore>("measure/" + backend, world.state().context->store);
  return settings;
}

/// The backend that carries the calls of a communicator.
c10::intrusive_ptr<c10d::Backend> connected_backend(const Communicator& comm) {
  return comm.process_group()->getDefaultBackend();
}

Communicator connected_by(const World& world, const std::string& name, std::shared_ptr<Connector> connector) {
  const WorldContext& base = *world.state().context;
  auto context = std::make_shared<WorldContext>();
  context->rank = base.rank;
  context->size = base.size;
  context->launcher = base.launcher;
  context->topology = base.topology;
  context->timeout = base.timeout;
  context->store = c10::make_intrusive<c10d::PrefixStore>("measure/" + name, base.store);
  context->connector = std::move(connector);
  std::vector<int> ranks(static_cast<std::size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return Communicator(std::make_shared<Group>(std::move(context), name, std::move(ranks)));
}

/// Our Gloo over the same bare one; the time spent inside bare Gloo is measured separately.
Contestant own_part(const World& world, const c10::intrusive_ptr<c10d::Backend>& bare) {
  const auto watch = std::make_shared<Stopwatch>();
  Contestant contestant = communicator("gloo's own part", connected_by(world, "timed", timed_gloo(bare, watch)), false);
  contestant.elsewhere = [watch] { return watch->take(); };
  return contestant;
}

}  // namespace

Communicator on_backend(const World& world, const std::string& backend) {
  return connected_by(world, backend, std::make_shared<ProcessConnector>(settings_for(world, backend)));
}

std::vector<Contestant> contestants_of(const World& world) {
  std::vector<Contestant> all;
  const Communicator gloo = on_backend(world, "gloo");
  // The same process group that our communicator forwards to. Another one would have other threads and sockets, and
  // their random differences would be measured as our cost.
  all.push_back(bare("bare gloo", bare_gloo(connected_backend(gloo))));
  all.push_back(communicator("gloo", gloo, false));
  all.push_back(own_part(world, bare_gloo(connected_backend(gloo))));
  all.push_back(communicator("gloo+ring", gloo.with_strategy(CommunicationStrategy::kRing), false));
  all.push_back(communicator("gloo+tree", gloo.with_strategy(CommunicationStrategy::kTree), false));
  const Communicator shm = on_backend(world, "shm");
  all.push_back(communicator("shm", shm, true));
  all.push_back(communicator("shm any", shm, false));
  all.push_back(communicator("shm+ring", shm.with_strategy(CommunicationStrategy::kRing), true));
  all.push_back(communicator("shm+tree", shm.with_strategy(CommunicationStrategy::kTree), true));
  if (has_mpi() && world.launcher() == "mpirun") {
    const Communicator mpi = on_backend(world, "mpi");
    for (auto& contestant : bare_mpi(world)) all.push_back(std::move(contestant));
    all.push_back(communicator("mpi", mpi, false));
    all.push_back(communicator("mpi+ring", mpi.with_strategy(CommunicationStrategy::kRing), false));
    all.push_back(communicator("mpi+tree", mpi.with_strategy(CommunicationStrategy::kTree), false));
  }
  all.push_back(plain_copy(world.size()));
  return all;
}

}  // namespace tessera::comm
