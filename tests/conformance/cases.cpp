#include "conformance/cases.h"

#include <tessera/core/error.h>

#include <numeric>
#include <optional>

namespace tessera::testing {
namespace {

constexpr std::array<ReduceOp, 5> kOps = {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax,
                                          ReduceOp::kProduct};

std::string case_name(const char* what, at::ScalarType dtype, std::int64_t count, const std::string& more = "") {
  return std::string(what) + " " + c10::toString(dtype) + " x" + std::to_string(count) + (more.empty() ? "" : " ") +
         more;
}

/// Once from memory of the communicator, once from any other: both must work.
std::vector<at::Tensor> placed(const Communicator& comm, const at::Tensor& values) {
  at::Tensor shared = comm.empty(values.sizes(), values.options());
  shared.copy_(values);
  return {values.clone(), shared};
}

std::int64_t offset_of(const std::vector<std::int64_t>& pieces, int rank) {
  return std::accumulate(pieces.begin(), pieces.begin() + rank, std::int64_t{0});
}

void check_all_reduce(const Communicator& comm, const Inputs& inputs, ReduceOp op, Tally& tally) {
  const at::Tensor& mine = inputs.of_rank[index_of(comm)];
  for (const at::Tensor& tensor : placed(comm, mine)) {
    comm.all_reduce(tensor, op);
    tally.check(case_name("all_reduce", mine.scalar_type(), mine.numel(), std::string(to_string(op))),
                compare_reduced(tensor, inputs));
  }
}

void check_reduce(const Communicator& comm, const Inputs& inputs, ReduceOp op, Tally& tally) {
  const at::Tensor& mine = inputs.of_rank[index_of(comm)];
  const int root = (comm.size() - 1) / 2;
  at::Tensor tensor = mine.clone();
  comm.reduce(tensor, root, op);
  tally.check(case_name("reduce", mine.scalar_type(), mine.numel(), std::string(to_string(op))),
              comm.rank() == root ? compare_reduced(tensor, inputs) : compare_equal(tensor, mine));
}

void check_reduce_scatter(const Communicator& comm, const Inputs& inputs, ReduceOp op, Tally& tally) {
  const at::Tensor& mine = inputs.of_rank[index_of(comm)];
  const auto pieces = ceiling_pieces(mine.numel(), comm.size());
  const std::string name = case_name("reduce_scatter", mine.scalar_type(), mine.numel(), std::string(to_string(op)));
  for (const at::Tensor& tensor : placed(comm, mine)) {
    const at::Tensor uneven = comm.reduce_scatter(tensor, op, 0, pieces);
    tally.check(name + " uneven", uneven.numel() == pieces[index_of(comm)]
                                      ? compare_reduced(uneven, inputs, offset_of(pieces, comm.rank()))
                                      : "a piece of the wrong size");
    const std::int64_t part = mine.numel() / comm.size();
    const at::Tensor even = comm.reduce_scatter(tensor.narrow(0, 0, part * comm.size()), op);
    tally.check(name + " even", compare_reduced(even, inputs, part * comm.rank()));
  }
  // The piece as a slice of the whole.
  at::Tensor whole = mine.clone();
  at::Tensor slice = whole.narrow(0, offset_of(pieces, comm.rank()), pieces[index_of(comm)]);
  comm.reduce_scatter_into(slice, whole, op, pieces);
  tally.check(name + " in place", compare_reduced(slice, inputs, offset_of(pieces, comm.rank())));
}

}  // namespace

void Tally::check(const std::string& name, const std::string& fault) {
  ++num_cases_;
  if (!fault.empty()) failures_.push_back(name + ": " + fault);
}

void Tally::refused(const std::string& name, bool was_refused) { check(name, was_refused ? "" : "was not refused"); }

void run_reductions(const Communicator& comm, at::ScalarType dtype, std::int64_t count, Tally& tally) {
  for (const ReduceOp op : kOps) {
    if (op == ReduceOp::kAvg && !at::isFloatingType(dtype)) {
      bool refused = false;
      try {
        comm.all_reduce(at::zeros({count}, tally.on_device(dtype)), op);
      } catch (const ConfigError&) {
        refused = true;
      }
      tally.refused(case_name("all_reduce", dtype, count, "avg of integers"), refused);
      continue;
    }
    const Inputs exact = make_inputs(dtype, count, comm.size(), true, op, tally.device());
    check_all_reduce(comm, exact, op, tally);
    check_reduce(comm, exact, op, tally);
    check_reduce_scatter(comm, exact, op, tally);
  }
  if (!at::isFloatingType(dtype)) return;
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
    const Inputs random = make_inputs(dtype, count, comm.size(), false, op, tally.device());
    check_all_reduce(comm, random, op, tally);
    check_reduce(comm, random, op, tally);
    check_reduce_scatter(comm, random, op, tally);
  }
}

void run_movements(const Communicator& comm, at::ScalarType dtype, std::int64_t count, Tally& tally) {
  const int n = comm.size();
  const auto me = index_of(comm);
  const Inputs inputs = make_inputs(dtype, count, n, true, ReduceOp::kSum, tally.device());
  const auto pieces = ceiling_pieces(count, n);
  const std::int64_t part = count / n;
  const int root = n - 1;
  const auto name = [&](const char* what) { return case_name(what, dtype, count); };
  const at::Tensor& whole = inputs.of_rank[static_cast<std::size_t>(root)];
  const at::Tensor piece = whole.narrow(0, offset_of(pieces, comm.rank()), pieces[me]);
  const at::Tensor even = whole.narrow(0, part * comm.rank(), part);
  const at::Tensor even_whole = whole.narrow(0, 0, part * n);

  for (const at::Tensor& tensor : placed(comm, inputs.of_rank[me])) {
    comm.broadcast(tensor, root);
    tally.check(name("broadcast"), compare_equal(tensor, whole));
  }
  for (const at::Tensor& tensor : placed(comm, piece)) {
    tally.check(name("all_gather uneven"), compare_equal(comm.all_gather(tensor, 0, pieces), whole));
  }
  for (const at::Tensor& tensor : placed(comm, even)) {
    tally.check(name("all_gather even"), compare_equal(comm.all_gather(tensor), even_whole));
  }
  at::Tensor in_place = at::zeros_like(whole);
  in_place.narrow(0, offset_of(pieces, comm.rank()), pieces[me]).copy_(piece);
  comm.all_gather_into(in_place, in_place.narrow(0, offset_of(pieces, comm.rank()), pieces[me]), pieces);
  tally.check(name("all_gather in place"), compare_equal(in_place, whole));

  const at::Tensor gathered = comm.gather(piece, root, 0, pieces);
  tally.check(name("gather uneven"), comm.rank() == root  ? compare_equal(gathered, whole)
                                     : gathered.defined() ? "a tensor where none belongs"
                                                          : "");
  const at::Tensor gathered_even = comm.gather(even, 0);
  tally.check(name("gather even"), comm.rank() == 0 ? compare_equal(gathered_even, even_whole) : "");

  const at::Tensor sent = comm.rank() == root ? whole : at::zeros({1}, tally.on_device(dtype)).expand({count});
  tally.check(name("scatter uneven"), compare_equal(comm.scatter(sent, root, 0, pieces), piece));
  tally.check(name("scatter even"), compare_equal(comm.scatter(sent.narrow(0, 0, part * n), root), even));

  std::vector<at::Tensor> from_each;
  for (const auto& input : inputs.of_rank) from_each.push_back(input.narrow(0, part * comm.rank(), part));
  for (const at::Tensor& tensor : placed(comm, inputs.of_rank[me].narrow(0, 0, part * n))) {
    tally.check(name("all_to_all even"), compare_equal(comm.all_to_all(tensor), at::cat(from_each)));
  }
  // Every rank cuts its tensor into the same uneven pieces, so rank r receives piece r of everyone.
  const std::vector<std::int64_t> arriving(static_cast<std::size_t>(n), pieces[me]);
  from_each.clear();
  for (const auto& input : inputs.of_rank)
    from_each.push_back(input.narrow(0, offset_of(pieces, comm.rank()), pieces[me]));
  tally.check(name("all_to_all uneven"),
              compare_equal(comm.all_to_all(inputs.of_rank[me], 0, pieces, arriving), at::cat(from_each)));

  if (n > 1) {
    const int next = (comm.rank() + 1) % n;
    const int previous = (comm.rank() + n - 1) % n;
    for (const at::Tensor& tensor : placed(comm, inputs.of_rank[me])) {
      // On devices the messages between two ranks are in one order, as NCCL's are: both must not begin with the same.
      const bool receives_first = next == previous && comm.rank() == 1 && !tensor.is_cpu();
      std::optional<Work> sending;
      if (!receives_first) sending = comm.send_async(tensor, next);
      const at::Tensor got = comm.recv({count}, tally.on_device(dtype), previous);
      if (receives_first) sending = comm.send_async(tensor, next);
      sending->wait();
      tally.check(name("send and recv"), compare_equal(got, inputs.of_rank[static_cast<std::size_t>(previous)]));
    }
  }
  comm.barrier();
  tally.check(name("barrier"), "");
}

}  // namespace tessera::testing
