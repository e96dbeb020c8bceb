#include <tessera/mesh/device_mesh.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "support/require.h"

namespace tessera {
namespace {

using testing::require;
using testing::require_equal;

/// Sums the world ranks over the axis's group and compares with arithmetic.
void require_traffic(const MeshAxis& axis, int world_rank) {
  const auto ranks = axis.world_ranks();
  const auto comm = axis.comm();
  auto sum = at::full({3}, world_rank, at::kLong);
  comm.all_reduce(sum);
  require_equal(sum[2].item<int>(), std::accumulate(ranks.begin(), ranks.end(), 0), "wrong sum over " + axis.id());
  require_equal(comm.size(), axis.size(), "wrong size of " + axis.id());
  require_equal(comm.rank(), axis.coordinate(), "wrong rank in " + axis.id());
  for (int i = 0; i < comm.size(); ++i) {
    require_equal(comm.world_rank_of(i), ranks[static_cast<std::size_t>(i)], "wrong member of " + axis.id());
  }
  const auto gathered = comm.all_gather(at::full({1}, world_rank, at::kInt));
  require(std::equal(ranks.begin(), ranks.end(), gathered.data_ptr<int>()), "wrong order in " + axis.id());
}

std::vector<std::vector<std::string>> axis_sets(const DeviceMesh& mesh) {
  std::vector<std::vector<std::string>> sets;
  const auto num_axes = mesh.axes().size();
  for (std::size_t bits = 1; bits < std::size_t{1} << num_axes; ++bits) {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < num_axes; ++i) {
      if ((bits >> i & 1) != 0) {
        names.push_back(mesh.axes()[i].name);
      }
    }
    sets.push_back(names);
  }
  return sets;
}

TEST(MeshGroups, CarryTrafficAlongEverySetOfAxesInEveryOrder) {
  for (const std::vector<std::string>& order :
       {std::vector<std::string>{"dp", "pp", "tp"}, std::vector<std::string>{"tp", "dp", "pp"}}) {
    run_threads(8, [&](const World& world) {
      const DeviceMesh mesh(world, {{"dp", 2}, {"tp", 2}, {"pp", 2}}, DeviceMeshOptions().order(order));
      for (const auto& names : axis_sets(mesh)) {
        require_traffic(mesh.sub(names).flatten(), world.rank());
      }
    });
  }
}

TEST(MeshGroups, MayBeMadeInAnotherOrderOnEachRank) {
  run_threads(8, [](const World& world) {
    const DeviceMesh mesh(world, {{"dp", 2}, {"one", 1}, {"tp", 2}, {"pp", 2}});
    auto sets = axis_sets(mesh);
    std::rotate(sets.begin(), sets.begin() + world.rank(), sets.end());
    for (const auto& names : sets) {
      mesh.sub(names).comm();
    }
    for (const auto& names : axis_sets(mesh)) {
      require_traffic(mesh.sub(names).flatten(), world.rank());
    }
  });
}

TEST(MeshGroups, CarryNamesThatTellTheLine) {
  run_threads(8, [](const World& world) {
    const DeviceMesh mesh(world, {{"dp", 4}, {"tp", 2}});
    const auto name = mesh["dp"].comm().name();
    const auto id = mesh["dp"].id();
    require(name.find("/" + id) != std::string::npos, name + " does not tell " + id);
  });
}

TEST(MeshGroups, AreSharedByCopiesAndSubMeshes) {
  const auto world = fake_world(3, 8);
  const DeviceMesh mesh(world, {{"dp", 2}, {"tp", 2}, {"pp", 2}});
  const DeviceMesh copy = mesh;
  mesh["dp"].comm().barrier();
  copy["dp"].comm().barrier();
  mesh.sub({"tp", "dp"})["dp"].comm().barrier();
  mesh.sub({"dp"}).comm().barrier();
  EXPECT_EQ(fake_traffic(world).num_groups, 1U);
  mesh.sub({"tp", "dp"}).comm().barrier();
  copy.sub({"dp", "tp"}).comm().barrier();
  EXPECT_EQ(fake_traffic(world).num_groups, 2U);
}

TEST(MeshGroups, AreNotMadeBeforeTheirFirstUse) {
  const auto world = fake_world(3, 8);
  const DeviceMesh mesh(world, {{"dp", 2}, {"tp", 2}, {"pp", 2}});
  mesh["dp"].coordinate();
  mesh.sub({"dp", "tp"}).world_ranks();
  EXPECT_EQ(fake_traffic(world).num_groups, 0U);
}

TEST(MeshGroups, OutliveTheMesh) {
  const auto axis = DeviceMesh(fake_world(3, 8), {{"dp", 4}, {"tp", 2}})["dp"];
  const auto comm = axis.comm();
  EXPECT_EQ(comm.size(), 4);
  comm.barrier();
}

}  // namespace
}  // namespace tessera
