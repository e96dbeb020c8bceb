#include <tessera/comm/world.h>
#include <tessera/core/error.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "comm/process/roles.h"
#include "support/require_tensors.h"
#include "support/socket_transport.h"

namespace tessera::testing {
namespace {

void check_collectives(const Communicator& comm) {
  const int size = comm.size();
  for (const std::int64_t count : {1, 1000, 1 << 20}) {
    at::Tensor sum = at::full({count}, comm.rank() + 1.0F);
    comm.all_reduce(sum);
    require_equal(sum, at::full({count}, size * (size + 1) / 2.0F), "wrong all_reduce");
  }
  const at::Tensor order = comm.all_gather(at::full({2}, comm.rank(), at::kInt));
  for (int rank = 0; rank < size; ++rank) require_equal(order[2 * rank].item<int>(), rank, "wrong all_gather");
  at::Tensor sent = at::full({3}, comm.rank(), at::kLong);
  comm.broadcast(sent, size - 1);
  require_equal(sent[0].item<int>(), size - 1, "wrong broadcast");
  const at::Tensor mine = comm.all_to_all(at::arange(size, at::kInt));
  require_equal(mine, at::full({size}, comm.rank(), at::kInt), "wrong all_to_all");
  comm.barrier();
}

void check_messages(const Communicator& comm) {
  const int next = (comm.rank() + 1) % comm.size();
  const int before = (comm.rank() + comm.size() - 1) % comm.size();
  std::vector<Work> receives;
  std::vector<Work> sends;
  for (int i = 0; i < 5; ++i) receives.push_back(comm.recv_async(at::empty({100'000}, at::kInt), before));
  for (int i = 0; i < 5; ++i) sends.push_back(comm.send_async(at::full({100'000}, i, at::kInt), next));
  for (int i = 4; i >= 0; --i) {
    const auto at_i = static_cast<std::size_t>(i);
    sends[at_i].wait();
    require_equal(receives[at_i].result(), at::full({100'000}, i, at::kInt), "the messages changed places");
  }
}

void check_timeout(const Communicator& comm) {
  try {
    if (comm.rank() == 0) comm.with_timeout(std::chrono::milliseconds(200)).recv({1}, at::kFloat, 1);
    require(comm.rank() != 0, "the deadline did not act");
  } catch (const CommError& error) {
    require(std::string(error.what()).find("rank 1") != std::string::npos, error.what());
  }
}

}  // namespace

void check_custom_transport(const Arguments& /*arguments*/) {
  const World world = init(WorldOptions().backend("custom").transport(
      [](const GroupSpec& spec) { return std::make_unique<SocketTransport>(spec); }));
  require(world.comm().backend().starts_with("socket"), "the backend is " + world.comm().backend());
  check_collectives(world.comm());
  check_messages(world.comm());
  check_collectives(world.comm().with_strategy(CommunicationStrategy::kTree));
  check_collectives(world.comm().split({2, 0, 1}, "turned"));
  check_timeout(world.comm());
}

namespace {

TEST(CustomTransport, CarriesEveryCollectiveAndMessage) { expect_success(job_of(3, "custom_transport")); }

}  // namespace
}  // namespace tessera::testing
