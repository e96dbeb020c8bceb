#include <tessera/core/error.h>
#include <tessera/intercept/custom_node.h>
#include <tessera/shard/distributed_tensor.h>
#include <tessera/shard/placement_ops.h>
#include <tessera/shard/redistribution.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

namespace tessera {
namespace {

using Placements = std::vector<Placement>;
using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

std::vector<int> axis_sizes_of(const DeviceMesh& mesh) {
  std::vector<int> sizes;
  for (const AxisSpec& axis : mesh.axes()) sizes.push_back(axis.size);
  return sizes;
}

AxisPosition position_in(const DeviceMesh& mesh) { return {axis_sizes_of(mesh), mesh.coordinates()}; }

/// A tensor and where it goes: all that a redistribution needs beside the local values.
struct Journey {
  DeviceMesh mesh;
  std::vector<std::int64_t> shape;
  Placements from;
  Placements to;
};

/// The elements that two slices have in common: where they lie in a tensor of the first, in each dimension.
std::vector<at::Tensor> places_in(const Slice& held, const Slice& other, const at::Device& device) {
  std::vector<at::Tensor> places;
  for (std::size_t dim = 0; dim < held.shape().size(); ++dim) {
    std::vector<std::int64_t> found;
    std::int64_t begin = 0;
    for (const Range& range : held.indices()[dim]) {
      for (const Range& common : common_indices({range}, other.indices()[dim])) {
        for (std::int64_t i = common.start; i < common.end(); ++i) found.push_back(begin + i - range.start);
      }
      begin += range.size;
    }
    places.push_back(at::tensor(found, at::kLong).to(device));
  }
  return places;
}

/// Those places of a tensor as indices that broadcast to a box.
c10::List<std::optional<at::Tensor>> box_of(const std::vector<at::Tensor>& places) {
  c10::List<std::optional<at::Tensor>> indices;
  for (std::size_t dim = 0; dim < places.size(); ++dim) {
    std::vector<std::int64_t> shape(places.size(), 1);
    shape[dim] = places[dim].numel();
    indices.push_back(places[dim].view(shape));
  }
  return indices;
}

std::vector<std::int64_t> sizes_of(const std::vector<at::Tensor>& places) {
  std::vector<std::int64_t> sizes;
  for (const at::Tensor& place : places) sizes.push_back(place.numel());
  return sizes;
}

/// Each rank takes what it gets from the ranks that differ from it only along the axes that divide the tensor: together
/// they have each element once.
at::Tensor exchange(const at::Tensor& local, const RedistributionStep& step, const Journey& journey) {
  std::vector<std::string> dividing;
  for (std::size_t axis = 0; axis < step.before.size(); ++axis) {
    if (step.before[axis].is_shard()) dividing.push_back(journey.mesh.axes()[axis].name);
  }
  AxisPosition position = position_in(journey.mesh);
  const Slice has = slice_at(journey.shape, step.before, position);
  const Slice gets = slice_at(journey.shape, step.after, position);
  at::Tensor result = at::empty(gets.selected_shape(), local.options().requires_grad(false));
  if (dividing.empty()) return local.index(box_of(places_in(has, gets, local.device()))).contiguous();
  const MeshAxis line = journey.mesh.sub(dividing).flatten();
  std::vector<at::Tensor> pieces;
  std::vector<std::vector<at::Tensor>> places;
  Communicator::Sizes sent;
  Communicator::Sizes received;
  for (const int world_rank : line.world_ranks()) {
    position.coordinates = journey.mesh.coordinates(world_rank);
    const Slice other_gets = slice_at(journey.shape, step.after, position);
    pieces.push_back(local.index(box_of(places_in(has, other_gets, local.device()))).reshape(-1));
    sent.push_back(pieces.back().numel());
    places.push_back(places_in(gets, slice_at(journey.shape, step.before, position), local.device()));
    received.push_back(num_elements_of(sizes_of(places.back())));
  }
  const at::Tensor arrived = line.comm().all_to_all(at::cat(pieces), 0, sent, received);
  std::int64_t begin = 0;
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    result.index_put_(box_of(places[rank]), arrived.narrow(0, begin, received[rank]).view(sizes_of(places[rank])));
    begin += received[rank];
  }
  return result;
}

at::Tensor run_step(const at::Tensor& local, const RedistributionStep& step, const Journey& journey) {
  if (!step.axis) return exchange(local, step, journey);
  const MeshAxis axis = journey.mesh[journey.mesh.axes()[*step.axis].name];
  if (axis.size() == 1) return local;
  const Placement& from = step.before[*step.axis];
  const Placement& to = step.after[*step.axis];
  const Communicator comm = axis.comm();
  // What the ranks along the axis hold together.
  Placements together = step.before;
  together[*step.axis] = Placement::replicate();
  const auto sizes = slice_at(journey.shape, together, position_in(journey.mesh)).selected_shape();
  const auto size = from.is_shard() ? sizes[static_cast<std::size_t>(from.dim())] : 0;
  if (from.is_shard() && to.is_replicate()) return gather_parts(local, from, size, comm);
  if (from.is_shard()) return pad_part(local, from, size, comm.size(), comm.rank());
  if (from.is_replicate() && to.is_shard()) return take_part(local, to, comm.size(), comm.rank()).contiguous();
  if (from.is_replicate()) return comm.rank() == 0 ? local : at::zeros_like(local);
  if (to.is_shard()) return reduce_to_part(local, to, comm);
  at::Tensor sum = local.clone(at::MemoryFormat::Contiguous);
  comm.all_reduce(sum);
  return sum;
}

at::Tensor run(const at::Tensor& local, const Journey& journey) {
  at::Tensor result = local;
  const Redistribution redistribution(journey.shape, axis_sizes_of(journey.mesh));
  for (const auto& step : redistribution.remembered_plan(journey.from, journey.to)) {
    result = run_step(result, step, journey);
  }
  return result;
}

/// A gradient of a tensor with these placements. Each rank's contribution to a partial tensor gets all of it.
Placements of_gradient(Placements placements) {
  for (Placement& placement : placements) {
    if (placement.is_partial()) placement = Placement::replicate();
  }
  return placements;
}

at::Tensor redistribute_local(const at::Tensor& local, const Journey& journey);

struct JourneyHolder : torch::CustomClassHolder {
  explicit JourneyHolder(Journey held) : journey(std::move(held)) {}
  Journey journey;
};

struct RedistributeFunction : torch::autograd::Function<RedistributeFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& local, const Journey& journey) {
    context->saved_data["journey"] = c10::IValue::make_capsule(c10::make_intrusive<JourneyHolder>(journey));
    const at::Tensor result = run(local, journey);
    // A result that is the input itself would be taken for one that was changed in place.
    return result.is_same(local) ? local.view_as(local) : result;
  }
  static tensor_list backward(AutogradContext* context, tensor_list gradients) {
    if (!gradients[0].defined()) return {at::Tensor(), at::Tensor()};
    const auto holder = context->saved_data["journey"].toCapsule();
    const Journey& journey = static_cast<const JourneyHolder&>(*holder).journey;
    return {redistribute_local(gradients[0],
                               {journey.mesh, journey.shape, of_gradient(journey.to), of_gradient(journey.from)}),
            at::Tensor()};
  }
};

at::Tensor redistribute_local(const at::Tensor& local, const Journey& journey) {
  return RedistributeFunction::apply(local, journey);
}

}  // namespace

DistributedTensor::DistributedTensor(at::Tensor local, DeviceMesh mesh, Placements placements,
                                     std::vector<std::int64_t> shape)
    : local_(std::move(local)), mesh_(std::move(mesh)), placements_(std::move(placements)), shape_(std::move(shape)) {}

DistributedTensor DistributedTensor::of(const at::Tensor& whole, const DeviceMesh& mesh, Placements placements) {
  return DistributedTensor(whole, mesh, Placements(mesh.axes().size()), whole.sizes().vec())
      .redistribute(std::move(placements));
}

DistributedTensor DistributedTensor::from_local(at::Tensor local, const DeviceMesh& mesh, Placements placements,
                                                std::vector<std::int64_t> shape) {
  Redistribution(shape, axis_sizes_of(mesh)).check(placements);
  const auto expected = slice_at(shape, placements, position_in(mesh)).selected_shape();
  if (local.sizes() != expected) {
    std::ostringstream found;
    found << "rank " << mesh.world_rank() << " holds " << local.sizes() << " of a tensor of " << at::IntArrayRef(shape)
          << " that is " << placements_text(placements) << ", but its part has " << at::IntArrayRef(expected);
    throw ConfigError(found.str());
  }
  return {std::move(local), mesh, std::move(placements), std::move(shape)};
}

Slice DistributedTensor::slice() const { return slice_at(shape_, placements_, position_in(mesh_)); }

TensorPartition DistributedTensor::partition(const std::string& axis) const {
  const MeshAxis line = mesh_[axis];
  const auto& axes = mesh_.axes();
  const auto place = static_cast<std::size_t>(
      std::ranges::find_if(axes, [&](const AxisSpec& spec) { return spec.name == axis; }) - axes.begin());
  const Placement& placement = placements_[place];
  const auto cuts_same = [&](const Placement& other) {
    return placement.is_shard() && other.shards(static_cast<std::size_t>(placement.dim()));
  };
  if (!placement.is_shard() || placement.blocks() != 1 || std::ranges::count_if(placements_, cuts_same) != 1) {
    throw ConfigError("a tensor that is " + placements_text(placements_) + " has no single partition along '" + axis +
                      "'; slice() says what a rank holds of it");
  }
  const Range range =
      placement.in_block(shape_[static_cast<std::size_t>(placement.dim())], line.size(), line.coordinate());
  return {placement.dim(), range.start, range.end(), line.size(), line.coordinate()};
}

bool DistributedTensor::needs_communication(const Placements& to) const {
  const auto steps = Redistribution(shape_, axis_sizes_of(mesh_)).remembered_plan(placements_, to);
  return std::ranges::any_of(steps, [](const RedistributionStep& step) { return step.num_received > 0; });
}

DistributedTensor DistributedTensor::redistribute(Placements to) const {
  at::Tensor local = redistribute_local(local_, {mesh_, shape_, placements_, to});
  return {std::move(local), mesh_, std::move(to), shape_};
}

at::Tensor DistributedTensor::gather() const { return redistribute(Placements(placements_.size())).local(); }

}  // namespace tessera
