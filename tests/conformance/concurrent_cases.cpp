#include <tessera/core/error.h>

#include <array>

#include "conformance/cases.h"

namespace tessera::testing {
namespace {

void check_subgroup(const Communicator& comm, const std::string& name, at::ScalarType dtype, std::int64_t count,
                    Tally& tally) {
  const Inputs inputs = make_inputs(dtype, count, comm.size(), true, ReduceOp::kSum, tally.device());
  at::Tensor tensor = inputs.of_rank[index_of(comm)].clone();
  Work reducing = comm.all_reduce_async(tensor);
  Work gathering = comm.all_gather_async(inputs.of_rank[index_of(comm)]);
  reducing.wait();
  tally.check(name + " all_reduce", compare_reduced(tensor, inputs));
  tally.check(name + " all_gather", compare_equal(gathering.result(), at::cat(inputs.of_rank)));
}

template <typename Function>
void expect_refused(const std::string& name, Tally& tally, Function function) {
  try {
    function();
  } catch (const ConfigError&) {
    tally.refused(name, true);
    return;
  }
  tally.refused(name, false);
}

}  // namespace

void run_concurrent(const Communicator& comm, at::ScalarType dtype, std::int64_t count, Tally& tally) {
  const std::string what = std::string(c10::toString(dtype)) + " x" + std::to_string(count);
  constexpr std::array<ReduceOp, 3> kConcurrentOps = {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin};
  std::vector<Inputs> inputs;
  std::vector<at::Tensor> tensors;
  std::vector<Work> works;
  for (std::size_t i = 0; i < 12; ++i) {
    const ReduceOp op = kConcurrentOps[i % kConcurrentOps.size()];
    inputs.push_back(make_inputs(dtype, count + static_cast<std::int64_t>(i), comm.size(), true, op, tally.device()));
    at::Tensor tensor = i % 2 == 0 ? comm.empty({count + static_cast<std::int64_t>(i)}, tally.on_device(dtype))
                                   : at::empty({count + static_cast<std::int64_t>(i)}, tally.on_device(dtype));
    tensor.copy_(inputs.back().of_rank[index_of(comm)]);
    tensors.push_back(tensor);
    works.push_back(comm.all_reduce_async(tensor, op));
    if (i == 5) comm.barrier();  // a blocking call in the middle keeps its place
  }
  for (std::size_t i = works.size(); i-- > 0;) {  // waited for in the other order
    works[i].wait();
    tally.check("concurrent all_reduce " + what, compare_reduced(tensors[i], inputs[i]));
  }
  if (comm.size() == 1) return;

  check_subgroup(comm.split_by([](int rank) { return rank % 2; }, "parity"), "subgroup " + what, dtype, count, tally);
  std::vector<int> reversed;
  for (int rank = comm.size(); rank-- > 0;) reversed.push_back(rank);
  check_subgroup(comm.split(reversed, "reversed"), "reversed group " + what, dtype, count, tally);
  // Two groups at once: everyone in `comm`, neighbours in pairs.
  const auto pair = comm.split_by([](int rank) { return rank / 2; }, "pair");
  at::Tensor a = at::ones({count}, tally.on_device(dtype));
  at::Tensor b = at::ones({count}, tally.on_device(dtype));
  Work first = comm.all_reduce_async(a);
  Work second = pair.all_reduce_async(b);
  second.wait();
  first.wait();
  tally.check("two groups " + what, compare_equal(a, at::full({count}, comm.size(), dtype)));
  tally.check("two groups, the pair " + what, compare_equal(b, at::full({count}, pair.size(), dtype)));
}

void run_shapes(const Communicator& comm, Tally& tally) {
  const int n = comm.size();
  const auto options = tally.on_device(at::kFloat);
  // Along every dim of a strided tensor.
  const at::Tensor base = at::arange(3 * 4 * 5 * n, options).view({3, 4, 5 * n});
  for (std::int64_t dim : {std::int64_t{2}, std::int64_t{-1}}) {
    const at::Tensor piece = base.narrow(2, 5 * comm.rank(), 5);
    tally.check("all_gather along a dim", compare_equal(comm.all_gather(piece, dim), base));
    tally.check("reduce_scatter along a dim",
                compare_equal(comm.reduce_scatter(base, ReduceOp::kSum, dim), piece.contiguous() * n));
    tally.check("all_to_all along a dim twice", compare_equal(comm.all_to_all(comm.all_to_all(base, dim), dim), base));
    tally.check("scatter along a dim", compare_equal(comm.scatter(base, 0, dim), piece.contiguous()));
  }
  at::Tensor strided = at::ones({6, 4}, options).t();
  comm.all_reduce(strided);
  tally.check("all_reduce of a strided tensor", compare_equal(strided, at::full({4, 6}, n, options)));
  at::Tensor scalar = at::ones({}, options);
  comm.all_reduce(scalar);
  tally.check("all_reduce of a scalar", compare_equal(scalar, at::full({}, n, options)));

  expect_refused("a root that is no rank", tally, [&] { comm.broadcast(at::ones({2}, options), n); });
  expect_refused("a dim that is none", tally, [&] { comm.all_gather(at::ones({2}, options), 3); });
  expect_refused("sizes that do not add up", tally, [&] {
    comm.reduce_scatter(at::ones({4 * n}, options), ReduceOp::kSum, 0,
                        std::vector<std::int64_t>(static_cast<std::size_t>(n), 3));
  });
  expect_refused("too few sizes", tally, [&] {
    comm.all_gather(at::ones({2}, options), 0, std::vector<std::int64_t>(static_cast<std::size_t>(n) + 1, 2));
  });
  if (n > 1) {
    expect_refused("pieces that are not equal", tally, [&] { comm.reduce_scatter(at::ones({n + 1}, options)); });
    expect_refused("a message to oneself", tally, [&] { comm.send(at::ones({1}, options), comm.rank()); });
  }
}

void run_all(const Communicator& comm, Tally& tally) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kByte}) {
    for (const std::int64_t count : {0L, 1L, 7L, 4096L, (1L << 20) + 3}) {
      run_reductions(comm, dtype, count, tally);
      run_movements(comm, dtype, count, tally);
    }
    run_concurrent(comm, dtype, 4096, tally);
  }
  run_concurrent(comm, at::kFloat, 1 << 16, tally);
  run_shapes(comm, tally);
}

}  // namespace tessera::testing
